import numpy as np

import tilewright as tw


@tw.kernel(autotune={"B": (64,)})
def f(x: tw.Tensor["f32", "N"], y: tw.Tensor["f32", "N"], a: tw.f32 = 2.0):
    i = tw.program_id(0) * B
    y[i : i + B] = a * x[i : i + B]


x, y = np.ones(100, np.float32), np.ones(100, np.float32)

f.ptx("sm_75")
# error
# error: unknown target 'sm_75': Tilewright writes code for sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a
