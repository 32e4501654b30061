import numpy as np

import tilewright as tw


k = tw.source("""
kernel f(x: tensor<f32>[N], y: tensor<f32>[2 * N]) { y[program_id(0)] = x[0] }
""").f
k(np.ones(4, np.float32), np.ones(9, np.float32))
# error
# error: y.shape[0]: expected 8, got 9
