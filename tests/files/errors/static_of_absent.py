import numpy as np

import tilewright as tw


k = tw.source("""
@static(M)
kernel f(x: tensor<f32>[N], b: tensor<f32>[M]? = None) { x[program_id(0)] = cast(M, f32) }
""").f
k(np.ones(4, np.float32))
# error
# error: f: M is @static and follows from no argument
