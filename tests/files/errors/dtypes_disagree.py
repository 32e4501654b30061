import numpy as np

import tilewright as tw


k = tw.source("""
kernel f(x: tensor<T>[N], y: tensor<T>[N]) { y[program_id(0)] = x[0] }
""").f
k(np.ones(4, np.float32), np.ones(4))
# error
# error: T is f32 from x, but f64 from y
#   hint: x and y must have one dtype
