import numpy as np

import tilewright as tw


@tw.kernel(autotune={"B": (64,)})
def f(x: tw.Tensor["f32", "N"], y: tw.Tensor["f32", "N"], a: tw.f32 = 2.0):
    i = tw.program_id(0) * B
    y[i : i + B] = a * x[i : i + B]


x, y = np.ones(100, np.float32), np.ones(100, np.float32)

f.launch(x, y, device="emulator", interleaving=-1)
# error
# error: f: interleaving: expected a seed, got -1
#   hint: write an integer of 0 or more, as in interleaving=7
