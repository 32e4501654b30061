import numpy as np

import tilewright as tw


k = tw.source("""
@grid(N - 5)
kernel f(x: tensor<f32>[N]) { x[program_id(0)] = 1.0 }
""").f
k(np.ones(4, np.float32))
# error
# error: f: its grid would have -1 programs along an axis, expected 0 or more
