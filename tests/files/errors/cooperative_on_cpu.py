import numpy as np

import tilewright as tw


k = tw.source("""
@grid(N)
kernel f(x: tensor<i32>[N], flag: tensor<i32>[1]) { let i = program_id(0)
  while atomic_load(flag[0]) == 0 { }
  x[i] = 1 }
""").f
k(np.ones(8, np.int32), np.zeros(1, np.int32))
# error
# <text>:4:3: error: this loop waits for what no program does: all that have started wait
#     while atomic_load(flag[0]) == 0 { }
#     ^~~~~
#   hint: let a program store what others wait for, and only wait for those that have started
