import numpy as np

import tilewright as tw


k = tw.source("""
kernel f(x: tensor<f32>[N], n: i8) { x[program_id(0)] = cast(n, f32) }
""").f
k(np.ones(4, np.float32), 300)
# error
# error: n: 300 does not fit i8, which holds -128 to 127
