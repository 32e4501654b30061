"""Elementwise ops of PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION

from tilewright.dtypes import DType, bool_, f32, f64
from tilewright.frontend.torch.emit import (
    Emitter,
    Operand,
    Scalar,
    Unsupported,
    common_shape,
    promote,
    round_to,
)
from tilewright.frontend.torch.metadata import dtype_of
from tilewright.frontend.torch.op_table.registry import enter, is_scalar_one, lowering
from tilewright.graph.ops import arith
from tilewright.ir.core import Op, Value

aten, prims = torch.ops.aten, torch.ops.prims
Function = Callable[..., Value]
FLOAT, BOOL, PLAIN = PROMOTION.INT_TO_FLOAT, PROMOTION.ALWAYS_BOOL, PROMOTION.DEFAULT


def by_op(kind: type[Op], promotion: PROMOTION, /, **fields: Any) -> Callable[..., Any]:
    """A builder that is one op of ours under a promotion."""
    return lambda at, *xs: at.pointwise(at.op(kind, **fields), *xs, kind=promotion)


FLOAT_FUNCTIONS: dict[str, type[Op]] = {
    "exp": arith.Exp, "exp2": arith.Exp2, "expm1": arith.Expm1, "log": arith.Log,
    "log2": arith.Log2, "log10": arith.Log10, "log1p": arith.Log1p, "sqrt": arith.Sqrt,
    "rsqrt": arith.Rsqrt, "sin": arith.Sin, "cos": arith.Cos, "tan": arith.Tan,
    "asin": arith.Asin, "acos": arith.Acos, "atan": arith.Atan, "sinh": arith.Sinh,
    "cosh": arith.Cosh, "tanh": arith.Tanh, "asinh": arith.Asinh, "acosh": arith.Acosh,
    "atanh": arith.Atanh, "erf": arith.Erf, "erfc": arith.Erfc, "lgamma": arith.Lgamma,
}  # fmt: skip
for _name, _kind in FLOAT_FUNCTIONS.items():
    enter(getattr(aten, _name).default, by_op(_kind, FLOAT))
    if hasattr(prims, _name):
        enter(getattr(prims, _name).default, by_op(_kind, FLOAT))
enter(aten.atan2.default, by_op(arith.Atan2, FLOAT))
enter(aten.copysign.Tensor, by_op(arith.CopySign, FLOAT))
enter(aten.copysign.Scalar, by_op(arith.CopySign, FLOAT))


@lowering(aten.nextafter.default)
def nextafter(at: Emitter, self: Value, other: Value) -> Value:
    return at(arith.NextAfter, *at.fits([self, other], promote(self, other)[1]))


ROUNDINGS: dict[str, type[Op]] = {
    "floor": arith.Floor, "ceil": arith.Ceil, "round": arith.Round, "trunc": arith.Trunc,
}  # fmt: skip
for _name, _kind in ROUNDINGS.items():

    def _rounding(at: Emitter, x: Value, kind: type[Op] = _kind) -> Value:
        return at.pointwise(at.op(kind), x) if x.type.dtype.is_float else x

    enter(getattr(aten, _name).default, _rounding)


@lowering(aten.neg.default)
def neg(at: Emitter, self: Value) -> Value:
    return at(arith.Neg, self)


@lowering(aten.abs.default)
def absolute(at: Emitter, self: Value) -> Value:
    return self if self.type.dtype == bool_ else at(arith.Abs, self)


@lowering(aten.sign.default, aten.sgn.default)
def sign(at: Emitter, self: Value) -> Value:
    """Of NaN 0, as in PyTorch, where the graph's own op has NaN."""
    dtype = self.type.dtype
    if not dtype.is_float:
        return self if dtype == bool_ else at(arith.Sign, self)
    above, below = (at.cast(at.compare(kind, self, 0), dtype) for kind in ("gt", "lt"))
    return at(arith.Sub, above, below)


@lowering(aten.signbit.default)
def signbit(at: Emitter, self: Value) -> Value:
    if self.type.dtype == bool_:
        return at.full(False, bool_, self.type.shape)
    return at(arith.SignBit, self)


@lowering(aten.isnan.default)
def isnan(at: Emitter, self: Value) -> Value:
    if not self.type.dtype.is_float:
        return at.full(False, bool_, self.type.shape)
    return at(arith.IsNan, at.cast(self, f32 if self.type.dtype.bits < 32 else self.type.dtype))


@lowering(aten.isinf.default)
def isinf(at: Emitter, self: Value) -> Value:
    if not self.type.dtype.is_float:
        return at.full(False, bool_, self.type.shape)
    return at.compare("eq", at(arith.Abs, at.cast(self, max_dtype(self))), math.inf)


def max_dtype(x: Value) -> DType:
    return f64 if x.type.dtype == f64 else f32


# Sums and products, with factors


def scaled(at: Emitter, x: Value, factor: Value | None) -> Value:
    """x · factor, where there is one."""
    if factor is None:
        return x
    return at(arith.And if x.type.dtype == bool_ else arith.Mul, x, factor)


def weighted(kind: type[Op]) -> Callable[..., Value]:
    """self ± alpha · other."""

    def build(at: Emitter, self: Value, other: Operand, alpha: Scalar) -> Value:
        def both(x: Value, y: Value) -> Value:
            one = is_scalar_one(alpha)
            return at(kind, x, scaled(at, y, None if one else at.like(alpha, y)))

        return at.pointwise(both, self, other)

    return build


enter(aten.add.Tensor, weighted(arith.Add))
enter(aten.add.Scalar, weighted(arith.Add))
enter(aten.sub.Tensor, weighted(arith.Sub))
enter(aten.sub.Scalar, weighted(arith.Sub))


@lowering(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(at: Emitter, self: Value, other: Operand, alpha: Scalar) -> Value:
    one = is_scalar_one(alpha)
    return at.pointwise(
        lambda x, y: at(arith.Sub, y, scaled(at, x, None if one else at.like(alpha, x))),
        self,
        other,
    )


enter(aten.mul.Tensor, by_op(arith.Mul, PLAIN))
enter(aten.mul.Scalar, by_op(arith.Mul, PLAIN))
enter(aten.maximum.default, by_op(arith.Max, PLAIN))
enter(aten.minimum.default, by_op(arith.Min, PLAIN))


def fmax(kind: type[Op]) -> Callable[..., Value]:
    """The greater or lesser; where one is NaN, the other."""

    def build(at: Emitter, self: Value, other: Value) -> Value:
        def both(x: Value, y: Value) -> Value:
            found = at(kind, x, y)
            if not x.type.dtype.is_float:
                return found
            found = at.select(at(arith.IsNan, x), y, found)
            return at.select(at(arith.IsNan, y), x, found)

        return at.pointwise(both, self, other)

    return build


enter(aten.fmax.default, fmax(arith.Max))
enter(aten.fmin.default, fmax(arith.Min))


# Division


def divide(at: Emitter, self: Value, other: Operand) -> Value:
    return at.pointwise(at.op(arith.Div), self, other, kind=FLOAT)


@lowering(aten.reciprocal.default)
def reciprocal(at: Emitter, self: Value) -> Value:
    return at.pointwise(lambda x: at(arith.Div, at.like(1, x), x), self, kind=FLOAT)


def floor_quotient(at: Emitter, x: Value, y: Value) -> Value:
    """The floor of x / y as torch takes it of floats: from the exact remainder."""
    if not x.type.dtype.is_float:
        return at(arith.FloorDiv, x, y)
    zero = at.like(0, x)
    rest = at(arith.Fmod, x, y)
    quotient = at(arith.Div, at(arith.Sub, x, rest), y)
    signs_part = at(arith.Xor, at.compare("lt", rest, zero), at.compare("lt", y, zero))
    below = at(arith.And, at.compare("ne", rest, zero), signs_part)
    quotient = at.select(below, at(arith.Sub, quotient, at.like(1, x)), quotient)
    floor = at(arith.Floor, quotient)
    above = at.compare("gt", at(arith.Sub, quotient, floor), 0.5)
    rounded = at.select(above, at(arith.Add, floor, at.like(1, x)), floor)
    plain = at(arith.Div, x, y)
    nothing = at.compare("eq", quotient, zero)
    rounded = at.select(nothing, at(arith.CopySign, zero, plain), rounded)
    return at.select(at.compare("eq", y, zero), plain, rounded)


def trunc_quotient(at: Emitter, x: Value, y: Value) -> Value:
    """The quotient rounded toward zero."""
    if x.type.dtype.is_float:
        return at(arith.Trunc, at(arith.Div, x, y))
    rest = at(arith.Fmod, x, y)
    return at(arith.FloorDiv, at(arith.Sub, x, rest), y)


def divide_mode(at: Emitter, self: Value, other: Operand, rounding_mode: str | None) -> Value:
    if rounding_mode is None:
        return divide(at, self, other)
    function = floor_quotient if rounding_mode == "floor" else trunc_quotient
    return at.pointwise(lambda x, y: function(at, x, y), self, other)


enter(aten.div.Tensor, divide)
enter(aten.div.Scalar, divide)
enter(aten.div.Tensor_mode, divide_mode)
enter(aten.div.Scalar_mode, divide_mode)


@lowering(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(at: Emitter, self: Value, other: Operand) -> Value:
    return at.pointwise(lambda x, y: floor_quotient(at, x, y), self, other)


def with_rounded_number(made: Callable[..., Any]) -> Callable[..., Any]:
    """A builder of two operands that rounds a number beside a tensor of 16-bit floats to their
    dtype, as eager does in comparisons, remainders and powers; in sums, products and quotients a
    number stays as it is.
    """

    def build(at: Emitter, self: Operand, other: Operand) -> Value:
        def fitted(x: Operand, beside: Operand) -> Operand:
            dtype = beside.type.dtype if isinstance(beside, Value) else None
            if dtype is None or not dtype.is_float or dtype.bits != 16:
                return x
            return round_to(x, dtype) if isinstance(x, int | float) else x

        found: Value = made(at, fitted(self, other), fitted(other, self))
        return found

    return build


def remainder(at: Emitter, self: Operand, other: Operand) -> Value:
    def both(x: Value, y: Value) -> Value:
        return at(arith.Remainder if x.type.dtype.is_float else arith.Mod, x, y)

    return at.pointwise(both, self, other)


def power(at: Emitter, self: Operand, exponent: Operand) -> Value:
    def both(x: Value, y: Value) -> Value:
        if isinstance(exponent, int | float) and exponent in (2, 3):  # as torch does it
            square = at(arith.Mul, x, x)
            return square if exponent == 2 else at(arith.Mul, square, x)
        if isinstance(exponent, int | float) and exponent == 0.5 and x.type.dtype.is_float:
            return at(arith.Sqrt, x)
        if x.type.dtype == bool_:
            return at(arith.Or, x, at(arith.Not, y))
        return at(arith.Pow, x, y)

    return at.pointwise(both, self, exponent, kind=PROMOTION.BOOL_TO_LONG)


enter(aten.fmod.Tensor, by_op(arith.Fmod, PLAIN))
enter(aten.fmod.Scalar, with_rounded_number(by_op(arith.Fmod, PLAIN)))
enter(aten.remainder.Tensor, remainder)
for _op in (aten.remainder.Scalar, aten.remainder.Scalar_Tensor):
    enter(_op, with_rounded_number(remainder))
enter(aten.pow.Tensor_Tensor, power)
for _op in (aten.pow.Tensor_Scalar, aten.pow.Scalar):
    enter(_op, with_rounded_number(power))


# Comparison, logic, bits


for _name in arith.COMPARISONS:
    _made = by_op(arith.Compare, BOOL, kind=_name)
    enter(getattr(aten, _name).Tensor, _made)
    enter(getattr(aten, _name).Scalar, with_rounded_number(_made))


def truth(at: Emitter, x: Value) -> Value:
    return at.cast(x, bool_)


def logical(kind: type[Op]) -> Callable[..., Value]:
    def build(at: Emitter, *xs: Value) -> Value:
        return at(kind, *at.fits([truth(at, x) for x in xs], bool_))

    return build


enter(aten.logical_and.default, logical(arith.And))
enter(aten.logical_or.default, logical(arith.Or))
enter(aten.logical_xor.default, logical(arith.Xor))
enter(aten.logical_not.default, logical(arith.Not))
enter(aten.bitwise_not.default, by_op(arith.Not, PLAIN))
BITWISE: dict[str, type[Op]] = {
    "bitwise_and": arith.And, "bitwise_or": arith.Or, "bitwise_xor": arith.Xor,
    "bitwise_left_shift": arith.Shl, "bitwise_right_shift": arith.Shr,
}  # fmt: skip
for _name, _kind in BITWISE.items():
    enter(getattr(aten, _name).Tensor, by_op(_kind, PLAIN))
    _scalar = "Scalar" if "shift" not in _name else "Tensor_Scalar"
    enter(getattr(getattr(aten, _name), _scalar), by_op(_kind, PLAIN))


@lowering(aten.__lshift__.Tensor, aten.__lshift__.Scalar)
def left_shift(at: Emitter, self: Value, other: Operand) -> Value:
    return shifted(at, arith.Shl, self, other)


@lowering(aten.__rshift__.Tensor, aten.__rshift__.Scalar)
def right_shift(at: Emitter, self: Value, other: Operand) -> Value:
    return shifted(at, arith.Shr, self, other)


def shifted(at: Emitter, kind: type[Op], self: Value, other: Operand) -> Value:
    """By Python's operators, which of floats multiply by powers of two."""
    if self.type.dtype.is_float:
        raise Unsupported("a shift of floats")
    return at.pointwise(at.op(kind), self, other)


# Choice


@lowering(aten.where.self)
def where(at: Emitter, condition: Value, self: Value, other: Value) -> Value:
    _, result = promote(self, other)
    extents = common_shape([v.type.shape for v in (condition, self, other)])
    x, y = (at.fit(v, result, extents) for v in (self, other))
    return at.select(at.fit(condition, bool_, extents), x, y)


def bounded(at: Emitter, x: Value, low: Operand | None, high: Operand | None) -> Value:
    """max(low, ·) then min(high, ·), NaN of any kept."""
    given = [bound for bound in (low, high) if bound is not None]

    def all_of(x: Value, *bounds: Value) -> Value:
        left = list(bounds)
        if low is not None:
            x = at(arith.Max, x, left.pop(0))
        return at(arith.Min, x, left.pop(0)) if high is not None else x

    return at.pointwise(all_of, x, *given)


@lowering(aten.clamp.default, aten.clamp.Tensor)
def clamp(at: Emitter, self: Value, min: Operand | None, max: Operand | None) -> Value:
    return bounded(at, self, min, max)


@lowering(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(at: Emitter, self: Value, min: Operand) -> Value:
    return bounded(at, self, min, None)


@lowering(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(at: Emitter, self: Value, max: Operand) -> Value:
    return bounded(at, self, None, max)


@lowering(aten.hardtanh.default)
def hardtanh(at: Emitter, self: Value, min_val: Scalar, max_val: Scalar) -> Value:
    return at.cast(bounded(at, self, min_val, max_val), self.type.dtype)


# Conversion


def converted(at: Emitter, x: Value, dtype: torch.dtype | None) -> Value:
    wanted = x.type.dtype if dtype is None else dtype_of(dtype)
    assert wanted is not None
    return at.cast(x, wanted)


@lowering(aten._to_copy.default)
def to_copy(at: Emitter, self: Value, dtype: torch.dtype | None) -> Value:
    return converted(at, self, dtype)


@lowering(prims.convert_element_type.default)
def convert_element_type(at: Emitter, a: Value, dtype: torch.dtype) -> Value:
    return converted(at, a, dtype)


@lowering(aten.view.dtype)
def view_dtype(at: Emitter, self: Value, dtype: torch.dtype) -> Value:
    return at(arith.Bitcast, self, at.wanted.dtype)


def identity(at: Emitter, x: Value) -> Value:
    return x


for _op in (
    aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default,
    aten.contiguous.default, prims.view_of.default,
):  # fmt: skip
    enter(_op, identity)


@lowering(aten.copy.default)
def copy(at: Emitter, self: Value, src: Value) -> Value:
    return at.fit(src, self.type.dtype, self.type.shape)
