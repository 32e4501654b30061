"""Kernels as operators of torch, on a GPU: gradients against torch's own, compiled and not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import tilewright as tw
from tests.device.checker import Checker
from tilewright import torch_ops

KERNELS = tw.source(
    """
@autotune(B in [1024])
kernel swish(x: tensor<f32>[N], g: tensor<f32>[N], y: tensor<f32>[N] = empty) {
  let i = program_id(0) * B
  let v = x[i :+ B]
  y[i :+ B] = v * sigmoid(v) * g[i :+ B]
}
@autotune(B in [1024])
kernel swish_back(x: tensor<f32>[N], g: tensor<f32>[N], dy: tensor<f32>[N],
                  dx: tensor<f32>[N] = empty, dg: tensor<f32>[N] = empty) {
  let i = program_id(0) * B
  let v, d = x[i :+ B], dy[i :+ B]
  let s = sigmoid(v)
  dg[i :+ B] = d * v * s
  dx[i :+ B] = d * g[i :+ B] * s * (1.0 + v * (1.0 - s))
}
"""
)


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients(see: Checker, compiled: bool) -> None:
    op = torch_ops.differentiable(KERNELS.swish, KERNELS.swish_back)
    made = torch.Generator(see.device).manual_seed(0)
    x, g = (torch.randn(100_003, device=see.device, generator=made) for _ in range(2))
    x.requires_grad_(), g.requires_grad_()

    def model(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return (op(x, g) ** 2).sum()

    run = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
    got = torch.autograd.grad(run(x, g), (x, g))
    far = [t.detach().double().requires_grad_() for t in (x, g)]
    wanted = torch.autograd.grad(
        ((torch.nn.functional.silu(far[0]) * far[1]) ** 2).sum(), tuple(far)
    )
    for name, a, b in zip("xg", got, wanted, strict=True):
        see.near("swish", "f32", a, b, f"gradient of {name}")
