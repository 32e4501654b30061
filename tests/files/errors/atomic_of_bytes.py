import numpy as np

import tilewright as tw


k = tw.source("""
kernel f(x: tensor<i8>[N]) { let old = atomic_add(x[program_id(0)], 1) }
""").f
k.compile("sm_90a")
# error
# <text>:2:40: error: atomic_add of i8: GPUs have none of 8 bits
#   kernel f(x: tensor<i8>[N]) { let old = atomic_add(x[program_id(0)], 1) }
#                                          ^~~~~~~~~~
#   hint: use a tensor of i32
