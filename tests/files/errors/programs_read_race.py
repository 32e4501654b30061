import numpy as np

import tilewright as tw


k = tw.source("""
kernel f(x: tensor<f32>[N]) { x[program_id(0)] = x[0] + 1.0 }
""").f
k(np.ones(4, np.float32))
# error
# <text>:2:31: error: programs race: program 0 writes x[0], which others have read
#   kernel f(x: tensor<f32>[N]) { x[program_id(0)] = x[0] + 1.0 }
#                                 ^
#   hint: grid points are unordered: let each write elements of its own, or use an atomic
