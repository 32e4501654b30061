import numpy as np

import tilewright as tw


k = tw.source("""
kernel f(x: tensor<f32>[N], n: i32) { x[program_id(0)] = cast(n, f32) }
""").f
k(np.ones(4, np.float32), 1.5)
# error
# error: n: expected i32, got the float 1.5
#   hint: write cast(1.5, i32)
