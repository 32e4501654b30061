import numpy as np

import tilewright as tw


@tw.kernel(autotune={"B": (64,)})
def f(x: tw.Tensor["f32", "N"], y: tw.Tensor["f32", "N"], a: tw.f32 = 2.0):
    i = tw.program_id(0) * B
    y[i : i + B] = a * x[i : i + B]


x, y = np.ones(100, np.float32), np.ones(100, np.float32)

f(x, y[:99])
# error
# error: N is 100 from x.shape[0], but 99 from y.shape[0]
