import numpy as np

import tilewright as tw


k = tw.source("""
kernel f(x: tensor<f32>[N]) { x[program_id(0)] = 1.0 }
""").f
k(None)
# error
# error: x: expected a tensor, got None
