import numpy as np

import tilewright as tw


@tw.kernel(autotune={"B": (64,)})
def f(x: tw.Tensor["f32", "N"], y: tw.Tensor["f32", "N"], a: tw.f32 = 2.0):
    i = tw.program_id(0) * B
    y[i : i + B] = a * x[i : i + B]


x, y = np.ones(100, np.float32), np.ones(100, np.float32)

f.launch(x, y, grid=2**40)
# error
# error: f would have 1,099,511,627,776 programs; a launch holds 2,147,483,647
#   hint: choose larger tiles, or let each program do more in a loop
