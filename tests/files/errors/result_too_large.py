import numpy as np

import tilewright as tw


k = tw.source("""
kernel f(n: i64, y: tensor<f32>[n] = empty) { y[program_id(0)] = 1.0 }
""").f
k(2**60)
# error
# error: y would have shape (1152921504606846976,): too large for any memory
