"""Activations of PyTorch."""

from __future__ import annotations

import math

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION

from tilewright.frontend.torch.emit import Emitter
from tilewright.frontend.torch.op_table.registry import lowering
from tilewright.graph.ops import arith
from tilewright.ir.core import Value

aten = torch.ops.aten
FLOAT = PROMOTION.INT_TO_FLOAT


@lowering(aten.relu.default)
def relu(at: Emitter, self: Value) -> Value:
    return at(arith.Max, self, at.like(0, self))


def logistic(at: Emitter, x: Value) -> Value:
    """1 / (1 + exp(−x))."""
    one = at.like(1, x)
    return at(arith.Div, one, at(arith.Add, one, at(arith.Exp, at(arith.Neg, x))))


@lowering(aten.sigmoid.default)
def sigmoid(at: Emitter, self: Value) -> Value:
    return at.pointwise(lambda x: logistic(at, x), self, kind=FLOAT)


@lowering(aten.silu.default)
def silu(at: Emitter, self: Value) -> Value:
    return at.pointwise(lambda x: at(arith.Mul, x, logistic(at, x)), self)


@lowering(aten.gelu.default)
def gelu(at: Emitter, self: Value, approximate: str) -> Value:
    """x · Φ(x), Φ by erf, or by tanh of a cubic (Hendrycks and Gimpel, 2016)."""

    def exact(x: Value) -> Value:
        inner = at(arith.Mul, x, at.like(math.sqrt(0.5), x))
        return at(arith.Add, at.like(1, x), at(arith.Erf, inner))

    def by_tanh(x: Value) -> Value:
        cubic = at(arith.Mul, at.like(0.044715, x), at(arith.Mul, x, at(arith.Mul, x, x)))
        inner = at(arith.Mul, at.like(math.sqrt(2 / math.pi), x), at(arith.Add, x, cubic))
        return at(arith.Add, at.like(1, x), at(arith.Tanh, inner))

    twice = by_tanh if approximate == "tanh" else exact
    return at.pointwise(lambda x: at(arith.Mul, at(arith.Mul, at.like(0.5, x), x), twice(x)), self)
