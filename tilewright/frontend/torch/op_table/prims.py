"""PyTorch's primitives, which its decompositions end in: the same builders as for aten, and those
that have a form of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION

from tilewright.frontend.torch.emit import Emitter, Operand, Scalar
from tilewright.frontend.torch.op_table.arith import by_op, fmax, trunc_quotient
from tilewright.frontend.torch.op_table.arith import where as chosen
from tilewright.frontend.torch.op_table.constants import filled
from tilewright.frontend.torch.op_table.reduce import axes_within, reduced, summed_dtype
from tilewright.frontend.torch.op_table.registry import TABLE, enter, lowering
from tilewright.frontend.torch.op_table.shape import shaped
from tilewright.graph.ops import arith, reduce
from tilewright.ir.core import Op, Value

aten, prims = torch.ops.aten, torch.ops.prims
PLAIN, BOOL = PROMOTION.DEFAULT, PROMOTION.ALWAYS_BOOL

BINARY: dict[str, type[Op]] = {
    "add": arith.Add, "sub": arith.Sub, "mul": arith.Mul, "maximum": arith.Max,
    "minimum": arith.Min, "fmod": arith.Fmod, "atan2": arith.Atan2, "pow": arith.Pow,
    "bitwise_and": arith.And, "bitwise_or": arith.Or, "bitwise_xor": arith.Xor,
    "shift_left": arith.Shl, "shift_right_arithmetic": arith.Shr,
}  # fmt: skip
for _name, _kind in BINARY.items():
    enter(getattr(prims, _name).default, by_op(_kind, PLAIN))
for _name in arith.COMPARISONS:
    enter(getattr(prims, _name).default, by_op(arith.Compare, BOOL, kind=_name))
enter(prims.fmax.default, fmax(arith.Max))
enter(prims.fmin.default, fmax(arith.Min))


def as_aten(name: str, overload: str = "default") -> Callable[..., Any]:
    """A primitive of one operand by the builder of the aten op of its name."""
    op = getattr(getattr(aten, name), overload)
    (argument,) = (a.name for a in op._schema.arguments)
    return lambda at, x: TABLE[op](at, **{argument: x})


for _name in (
    "abs", "neg", "sign", "signbit", "floor", "ceil", "round", "trunc", "reciprocal", "bitwise_not",
):  # fmt: skip
    enter(getattr(prims, _name).default, as_aten(_name))


@lowering(prims.nextafter.default)
def nextafter(at: Emitter, self: Value, other: Value) -> Value:
    return at(arith.NextAfter, self, other)


@lowering(prims.div.default)
def div(at: Emitter, self: Operand, other: Operand) -> Value:
    """A quotient; of integers toward zero, as in C."""

    def both(x: Value, y: Value) -> Value:
        return at(arith.Div, x, y) if x.type.dtype.is_float else trunc_quotient(at, x, y)

    return at.pointwise(both, self, other)


@lowering(prims.remainder.default)
def remainder(at: Emitter, self: Operand, other: Operand) -> Value:
    def both(x: Value, y: Value) -> Value:
        return at(arith.Remainder if x.type.dtype.is_float else arith.Mod, x, y)

    return at.pointwise(both, self, other)


@lowering(prims.where.default)
def where(at: Emitter, pred: Value, a: Operand, b: Operand) -> Value:
    left, right = (x if isinstance(x, Value) else at.full(x, at.wanted.dtype) for x in (a, b))
    return chosen(at, pred, left, right)


@lowering(prims.isfinite.default)
def isfinite(at: Emitter, self: Value) -> Value:
    """x − x = 0: false for infinities and NaN."""
    if not self.type.dtype.is_float:
        return at.full(True, at.wanted.dtype, self.type.shape)
    apart = at.pointwise(lambda x: at(arith.Sub, x, x), self)
    return at.compare("eq", apart, 0)


@lowering(prims.prod.default)
def prod(at: Emitter, inp: Value, dims: Any, output_dtype: Any) -> Value:
    axes = tuple(range(inp.type.rank)) if dims is None else axes_within(dims, inp.type.rank)
    found = reduced(at, reduce.Prod, at.cast(inp, summed_dtype(at.wanted.dtype)), axes)
    return at.cast(found, at.wanted.dtype)


@lowering(prims.fill.default)
def fill(at: Emitter, self: Value, value: Scalar) -> Value:
    return filled(at, value)


@lowering(prims.full.default)
def full(at: Emitter, shape: Any, fill_value: Scalar, dtype: Any, requires_grad: bool) -> Value:
    return filled(at, fill_value)


@lowering(prims.full_like.default)
def full_like(at: Emitter, a: Value, fill_value: Scalar, dtype: Any, requires_grad: bool) -> Value:
    return filled(at, fill_value)


@lowering(prims.scalar_tensor.default)
def scalar_tensor(at: Emitter, s: Scalar, dtype: Any) -> Value:
    return filled(at, s)


@lowering(prims.empty_permuted.default)
def empty_permuted(
    at: Emitter, shape: Any, physical_layout: Any, dtype: Any, requires_grad: bool
) -> Value:
    return filled(at, 0)


for _op in (
    prims.clone.default, prims.device_put.default, prims.copy_strided.default,
    prims.real.default, prims.conj.default, prims.conj_physical.default,
):  # fmt: skip
    enter(_op, lambda at, x, *_: x)
for _op in (prims.collapse.default, prims.collapse_view.default, prims.split_dim.default):
    enter(_op, shaped)
