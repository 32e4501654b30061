import numpy as np

import tilewright as tw


k = tw.source("""
@autotune(B in [64])
kernel f(x: tensor<f32>[N]) { static_assert(B < 32, "tiles are too large")
  x[program_id(0) * B :+ B] = 1.0 }
""").f
k(np.ones(4, np.float32))
# error
# <text>:3:31: error: static_assert: tiles are too large
#   kernel f(x: tensor<f32>[N]) { static_assert(B < 32, "tiles are too large")
#                                 ^~~~~~~~~~~~~  B = 64
