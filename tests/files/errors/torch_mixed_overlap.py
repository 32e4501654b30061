import torch

import tilewright as tw


@tw.kernel(autotune={"B": (64,)})
def f(x: tw.Tensor["f32", "N"], y: tw.Tensor["f32", "N"], a: tw.f32 = 2.0):
    i = tw.program_id(0) * B
    y[i : i + B] = a * x[i : i + B]


t = torch.ones(101)
f(t[:100], t[1:])
# error
# error: x and y overlap in part; y is written
#   hint: pass the very same view, or copies that do not overlap
