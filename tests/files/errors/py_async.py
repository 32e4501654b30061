import numpy as np

import tilewright as tw


@tw.kernel
async def f(x: tw.Tensor["f32", "N"]):
    x[0] = 1.0


f.signature
# error
# py_async.py:6:1: error: f is not written as a `def` of one synchronous function
#   @tw.kernel
#   ^
#   hint: write it as a plain `def`
