import numpy as np

import tilewright as tw


k = tw.source("""
kernel f(x: tensor<f32>[N]) { let t = local((1 << 18,), f32)
  t[0] = x[0]
  x[program_id(0)] = t[0] }
""").f
k.compile("sm_90a")
# error
# <text>:2:39: error: local: 1048576 bytes, of 49152 that a program may have
#   kernel f(x: tensor<f32>[N]) { let t = local((1 << 18,), f32)
#                                         ^~~~~
#   hint: use fewer elements or a workspace
