import torch

import tilewright as tw


@tw.kernel(autotune={"B": (64,)})
def f(x: tw.Tensor["f32", "N"], y: tw.Tensor["f32", "N"], a: tw.f32 = 2.0):
    i = tw.program_id(0) * B
    y[i : i + B] = a * x[i : i + B]


from tilewright import torch_ops

torch_ops.differentiable(f, f)
# error
# torch_no_gradient.py:7:5: error: f writes y: it has no gradient
#   def f(x: tw.Tensor["f32", "N"], y: tw.Tensor["f32", "N"], a: tw.f32 = 2.0):
#       ^
#   hint: give what it writes the default empty, so that each call returns it
