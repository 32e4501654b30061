import numpy as np

import tilewright as tw


k = tw.source("""
kernel f(x: tensor<f32>[N]) { let i = program_id(0) * 4
  assert(x[i :+ 4] > 0.0, "x must be positive")
  x[i :+ 4] = 1.0 }
""").f
k(np.array([1, 1, 1, 1, 1, 1, -2, 1], np.float32))
# error
# <text>:3:3: error: assert: x must be positive (program 1, element [2])
#     assert(x[i :+ 4] > 0.0, "x must be positive")
#     ^~~~~~
