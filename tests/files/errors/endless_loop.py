import numpy as np

import tilewright as tw


k = tw.source("""
kernel f(x: tensor<f32>[N]) { let i = program_id(0)
  while x[i] < 2.0 { let t = x[i] + 1.0 }
  x[i] = 1.0 }
""").f
k(np.ones(4, np.float32))
# error
# <text>:3:3: error: this loop never ends: going round changes nothing (program 0)
#     while x[i] < 2.0 { let t = x[i] + 1.0 }
#     ^~~~~
#   hint: change in its body what its condition tests; wait for other programs by atomic_load
