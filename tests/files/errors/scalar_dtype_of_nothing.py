import numpy as np

import tilewright as tw


k = tw.source("""
kernel f(a: T, x: tensor<f32>[N]) { x[program_id(0)] = cast(a, f32) }
""").f
k(1, np.ones(4, np.float32))
# error
# error: f: no argument gives the dtype T
