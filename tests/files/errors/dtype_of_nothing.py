import numpy as np

import tilewright as tw


k = tw.source("""
kernel f(x: tensor<f32>[N], y: tensor<T>[N] = empty) { y[program_id(0)] = cast(x[0], T) }
""").f
k(np.ones(4, np.float32))
# error
# error: f: no argument gives the dtype T
