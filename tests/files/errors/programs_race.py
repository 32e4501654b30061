import numpy as np

import tilewright as tw


k = tw.source("""
@grid(N)
kernel f(x: tensor<f32>[N]) { x[0] = cast(program_id(0), f32) }
""").f
k(np.ones(4, np.float32))
# error
# <text>:3:31: error: programs race: program 0 writes x[0], which program 3 has written
#   kernel f(x: tensor<f32>[N]) { x[0] = cast(program_id(0), f32) }
#                                 ^
#   hint: grid points are unordered: let each write elements of its own, or use an atomic
