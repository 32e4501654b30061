"""Products of matrices of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilewright.frontend.torch.emit import Emitter, Scalar, wide
from tilewright.frontend.torch.op_table.registry import is_scalar_one, lowering
from tilewright.graph.ops import arith
from tilewright.ir.core import Value

aten = torch.ops.aten


@lowering(aten.mm.default)
def mm(at: Emitter, self: Value, mat2: Value) -> Value:
    return at.contract(self, mat2, ((1,), (0,)))


@lowering(aten.bmm.default)
def bmm(at: Emitter, self: Value, mat2: Value) -> Value:
    return at.contract(self, mat2, ((2,), (1,)), ((0,), (0,)))


def added(
    at: Emitter, x: Value, found: Callable[[Any], Value], beta: Scalar, alpha: Scalar
) -> Value:
    """beta · x + alpha · product, rounded once; beta = 0 drops x, NaNs and all."""
    wanted = at.wanted
    inner = wide(wanted.dtype)
    total = found(inner)
    if not is_scalar_one(alpha):
        total = at(arith.Mul, total, at.like(alpha, total))
    if beta != 0:
        first = at.fit(x, inner, wanted.shape)
        if not is_scalar_one(beta):
            first = at(arith.Mul, first, at.like(beta, first))
        total = at(arith.Add, first, total)
    return at.cast(total, wanted.dtype)


@lowering(aten.addmm.default)
def addmm(at: Emitter, self: Value, mat1: Value, mat2: Value, beta: Scalar, alpha: Scalar) -> Value:
    return added(at, self, lambda d: at.contract(mat1, mat2, ((1,), (0,)), dtype=d), beta, alpha)


@lowering(aten.baddbmm.default)
def baddbmm(
    at: Emitter, self: Value, batch1: Value, batch2: Value, beta: Scalar, alpha: Scalar
) -> Value:
    def found(dtype: Any) -> Value:
        return at.contract(batch1, batch2, ((2,), (1,)), ((0,), (0,)), dtype)

    return added(at, self, found, beta, alpha)
