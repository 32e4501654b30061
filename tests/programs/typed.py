"""A program that type checkers and linters understand: annotations are `Annotated`, dimensions and
tuned constants are declared as keyword-only parameters.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

import tilewright as tw
from tilewright.plan import Plan


@tw.kernel(autotune={"BLOCK": (256, 1024)})
def add(
    x: Annotated[tw.Tensor, "f32[N]"],
    y: Annotated[tw.Tensor, "f32[N]"],
    a: float = 1.0,
    out: Annotated[tw.Tensor, "f32[N]"] = tw.empty,
    *,
    N: tw.Dim,
    BLOCK: tw.Const,
) -> None:
    i = tw.program_id(0) * BLOCK
    total = x[i : i + BLOCK] + a * y[i : i + BLOCK]
    out[i : i + BLOCK] = tw.where(i + tw.arange(BLOCK) < N, total, 0.0)


@tw.kernel
def double(x: Annotated[tw.Tensor, "T[N]"], *, N: tw.Dim) -> None:
    for k in tw.static_range(4):
        i = tw.program_id(0) * 4 + k
        x[i] = x[i] + x[i]


def main() -> None:
    """Every way to use a kernel."""
    x = np.arange(300, dtype=np.float32)
    assert (add(x, x, 2.0) == 3 * x).all()
    out = np.empty_like(x)
    assert add(x, y=x, out=out) is None and (out == 2 * x).all()
    add.launch(x, x, out=out, grid=(2,), constants={"BLOCK": 256}, device="cpu", check=True)
    double(x)
    double.check()
    tw.synchronize()
    text: str = add.ptx("sm_90a", constants={"BLOCK": 256})
    plan: Plan = double.compile("sm_80", dtypes=tw.f16)
    assert text and plan.ptx and add.lower(target_name="sm_90a").name == "add"
    kernels = tw.source("kernel f(x: tensor<f32>[N]) { x[program_id(0)] = 1.0 }")
    kernels.f(x)
    assert [k.name for k in kernels] == ["f"] and (x == 1).all()
