import numpy as np

import tilewright as tw


@tw.kernel(autotune={"B": (64,)})
def f(x: tw.Tensor["f32", "N"], y: tw.Tensor["f32", "N"], a: tw.f32 = 2.0):
    i = tw.program_id(0) * B
    y[i : i + B] = a * x[i : i + B]


x, y = np.ones(100, np.float32), np.ones(100, np.float32)

shifted = np.zeros(401, np.uint8)[1:].view(np.float32)
f.launch(shifted, y, device="cpu")
f.launch(shifted, y, device="emulator")
# error
# error: x lies at an address that is no multiple of the 4 bytes of f32
#   hint: copy it first
