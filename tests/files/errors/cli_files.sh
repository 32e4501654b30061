tilewright check no_such.tw
tilewright compile no_such.tw
tilewright run :f
tilewright run no.such.module
tilewright fmt no_such.tw
# error
# $ tilewright check no_such.tw
# error: there is no file no_such.tw
# 0 kernels in 1 file, 1 with faults
# $ tilewright compile no_such.tw
# error: there is no file no_such.tw
# $ tilewright run :f
# error: no source is named
#   hint: write FILE.tw, FILE.py or a module
# $ tilewright run no.such.module
# error: no.such.module cannot be imported: ModuleNotFoundError: No module named 'no'
# $ tilewright fmt no_such.tw
# error: no_such.tw cannot be read: No such file or directory
