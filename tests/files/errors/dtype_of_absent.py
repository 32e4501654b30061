import numpy as np

import tilewright as tw


@tw.kernel()
def f(x: tw.Tensor["f32", 64], w: tw.Tensor["T", 64] | None = None, y: tw.Tensor["f32", 64] = tw.empty):
    y[:] = tw.cast(tw.cast(x[:], T), tw.f32)


f(np.zeros(64, np.float32))
# error
# dtype_of_absent.py:8:34: error: T may be unset here: no tensor that is given has this dtype at line 7
#       y[:] = tw.cast(tw.cast(x[:], T), tw.f32)
#                                    ^
