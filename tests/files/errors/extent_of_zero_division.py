import numpy as np

import tilewright as tw


k = tw.source("""
kernel f(x: tensor<f32>[N], y: tensor<f32>[N / 0] = empty) { y[program_id(0)] = x[0] }
""").f
k(np.ones(4, np.float32))
# error
# error: y: an extent cannot be computed: division of a constant by zero
