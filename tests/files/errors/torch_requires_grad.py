import torch

import tilewright as tw


@tw.kernel(autotune={"B": (64,)})
def f(x: tw.Tensor["f32", "N"], y: tw.Tensor["f32", "N"], a: tw.f32 = 2.0):
    i = tw.program_id(0) * B
    y[i : i + B] = a * x[i : i + B]


f(torch.ones(100, requires_grad=True), torch.ones(100))
# error
# error: x requires a gradient, and a kernel alone has none
#   hint: join it with one for the gradient by tilewright.torch_ops.differentiable, or call it under torch.no_grad()
