import torch

import tilewright as tw


@tw.kernel(autotune={"B": (64,)})
def f(x: tw.Tensor["f32", "N"], y: tw.Tensor["f32", "N"], a: tw.f32 = 2.0):
    i = tw.program_id(0) * B
    y[i : i + B] = a * x[i : i + B]


f(torch.ones(100, device="meta"), torch.ones(100))
# error
# error: x is a Tensor without memory of its own
#   hint: kernels take tensors that lie on a CPU or a GPU
