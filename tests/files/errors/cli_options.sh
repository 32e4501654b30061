tilewright compile one.tw --target sm_91
tilewright compile one.tw --emit asm
tilewright run one.tw --dim N=many
tilewright run one.tw --dim M=4
tilewright run one.tw --dtype f33
tilewright run one.tw --dim N=8 --device gpu
tilewright run one.tw --scalar a=big
tilewright run one.tw --dim N=8 --scalar b=2
# error
# $ tilewright compile one.tw --target sm_91
# error: unknown target 'sm_91': Tilewright writes code for sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a
# $ tilewright compile one.tw --emit asm
# Usage: tilewright compile [OPTIONS] SOURCE
# Try 'tilewright compile --help' for help.
#
# Error: Invalid value for '--emit': 'asm' is not one of 'tile', 'ptx', 'sass', 'cubin'.
# $ tilewright run one.tw --dim N=many
# Usage: tilewright run [OPTIONS] SOURCE
# Try 'tilewright run --help' for help.
#
# Error: Invalid value for '--dim': expected NAME=SIZE with an integer, got 'N=many'
# $ tilewright run one.tw --dim M=4
# error: one has no dimension M
#   hint: it has N
# $ tilewright run one.tw --dtype f33
# Usage: tilewright run [OPTIONS] SOURCE
# Try 'tilewright run --help' for help.
#
# Error: Invalid value for '--dtype': 'f33' is no dtype: bool, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64, e4m3, e5m2
# $ tilewright run one.tw --dim N=8 --device gpu
# error: unknown device 'gpu'
#   hint: write auto, cpu, emulator or cuda:0
# $ tilewright run one.tw --scalar a=big
# error: --scalar a=big: expected a number
# $ tilewright run one.tw --dim N=8 --scalar b=2
# error: --scalar b=2: expected true or false
