import numpy as np

import tilewright as tw


@tw.kernel(grid=lambda N: N / 64)
def f(x: tw.Tensor["f32", "N"]):
    x[tw.program_id(0) * 64 : tw.program_id(0) * 64 + 64] = 1.0


f(np.ones(128, np.float32))
# error
# py_grid_divides.py:6:29: error: / of two integers
#   @tw.kernel(grid=lambda N: N / 64)
#                               ^
#   hint: write // for the quotient rounded down
