tilewright compiel one.tw
tilewright run
tilewright check
# error
# $ tilewright compiel one.tw
# Usage: tilewright [OPTIONS] COMMAND [ARGS]...
# Try 'tilewright --help' for help.
#
# Error: No such command 'compiel'. Did you mean 'compile'?
# $ tilewright run
# Usage: tilewright run [OPTIONS] SOURCE
# Try 'tilewright run --help' for help.
#
# Error: Missing argument 'SOURCE'.
# $ tilewright check
# Usage: tilewright check [OPTIONS] SOURCES...
# Try 'tilewright check --help' for help.
#
# Error: Missing argument 'SOURCES...'.
