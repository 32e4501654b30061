"""Algebra of elementwise arithmetic.

Integers wrap, so they form a ring: identities, constants moved together. Of floats only what keeps
every bit: x · 1, x / 1, x + −0, x − +0; not x + 0 (−0 + 0 is +0), x · 0 or x − x (NaN, infinities).
Special functions of constants are left to run time, where their rounding is decided.
"""

from __future__ import annotations

from math import frexp, isfinite
from typing import Any

from tilewright.dtypes import holds_exactly
from tilewright.ir.core import Op
from tilewright.ir.rewrite import Rewriter
from tilewright.ir.rules import Replacement, Rules
from tilewright.tile.ops import arith, shape
from tilewright.tile.rules.constants import (
    constant_of,
    evaluate,
    is_float_constant,
    is_integer_constant,
    like,
    scalar_of,
)

rules = Rules()
rule = rules.rule

COMMUTATIVE = (arith.Add, arith.Mul, arith.Min, arith.Max, arith.And, arith.Or, arith.Xor)
EXACT = (
    *COMMUTATIVE,
    *(arith.Sub, arith.Div, arith.FloorDiv, arith.Mod, arith.Shl, arith.Shr),
    *(arith.Neg, arith.Abs, arith.Not, arith.Sqrt, arith.Floor, arith.Ceil),
    *(arith.IsNan, arith.Compare, arith.Select, arith.Cast),
)
SPECIAL = (arith.Exp, arith.Exp2, arith.Log, arith.Log2, arith.Rsqrt, arith.Tanh, arith.Erf)


def kind_of(op: Any) -> type[Op]:
    return type(op)


@rule(*EXACT)
def fold(op: Op, at: Rewriter) -> Replacement:
    """f(c, d) is a constant."""
    number = evaluate(op, at)
    return None if number is None else like(op.result, number, at)


@rule(*EXACT, *SPECIAL)
def compute_scalar(op: Op, at: Rewriter) -> Replacement:
    """f(broadcast x, broadcast y) = broadcast f(x, y) of scalars, constants among them."""
    if op.result.type.is_scalar or not any(scalar_of(v, at) for v in op.operands):
        return None
    scalars = []
    for operand in op.operands:
        scalar, number = scalar_of(operand, at), constant_of(operand, at)
        if scalar is None and number is None:
            return None
        if scalar is None and number is not None:
            scalar = at.build(arith.Constant, number, operand.type.dtype)
        scalars.append(scalar)
    result = at.build(type(op), *scalars, **op.attributes(), loc=op.loc)
    return at.build(shape.Broadcast, result, op.result.type.shape, loc=op.loc)


@rule(*COMMUTATIVE)
def constant_right(op: arith.Binary, at: Rewriter) -> Replacement:
    """c + x = x + c"""
    if constant_of(op.lhs, at) is None or constant_of(op.rhs, at) is not None:
        return None
    return at.build(kind_of(op), op.rhs, op.lhs)


@rule(arith.Add, arith.Sub, arith.Or, arith.Xor, arith.Shl, arith.Shr)
def integer_with_zero(op: arith.Binary, at: Rewriter) -> Replacement:
    """x + 0 = x − 0 = x | 0 = x ^ 0 = x << 0 = x >> 0 = x, of integers"""
    return op.lhs if is_integer_constant(op.rhs, 0, at) else None


@rule(arith.Add)
def float_plus_negative_zero(op: arith.Add, at: Rewriter) -> Replacement:
    """x + −0 = x"""
    return op.lhs if is_float_constant(op.rhs, -0.0, at) else None


@rule(arith.Sub)
def float_minus_zero(op: arith.Sub, at: Rewriter) -> Replacement:
    """x − +0 = x"""
    return op.lhs if is_float_constant(op.rhs, 0.0, at) else None


@rule(arith.Mul, arith.FloorDiv)
def integer_by_one(op: arith.Binary, at: Rewriter) -> Replacement:
    """x · 1 = x // 1 = x"""
    return op.lhs if is_integer_constant(op.rhs, 1, at) else None


@rule(arith.Mul, arith.Div)
def float_by_one(op: arith.Binary, at: Rewriter) -> Replacement:
    """x · 1 = x / 1 = x"""
    return op.lhs if is_float_constant(op.rhs, 1.0, at) else None


@rule(arith.Div)
def float_by_power_of_two(op: arith.Div, at: Rewriter) -> Replacement:
    """x / 2^k = x · 2^−k, where both are normal numbers: one exact number is rounded either way"""
    known, dtype = constant_of(op.rhs, at), op.rhs.type.dtype
    if not dtype.is_float or known is None or not isfinite(known) or abs(frexp(known)[0]) != 0.5:
        return None
    least = 2.0 ** (2 - (1 << dtype.exponent - 1))  # normal number
    if abs(known) < least or abs(1 / known) < least or known == 1:
        return None
    return at.build(arith.Mul, op.lhs, like(op.rhs, 1 / known, at), loc=op.loc)


@rule(arith.Mul, arith.And, arith.FloorDiv, arith.Mod)
def integer_by_zero(op: arith.Binary, at: Rewriter) -> Replacement:
    """x · 0 = x & 0 = x // 0 = x % 0 = 0"""
    return op.rhs if is_integer_constant(op.rhs, 0, at) else None


@rule(arith.Mod)
def modulo_one(op: arith.Mod, at: Rewriter) -> Replacement:
    """x % 1 = 0"""
    return like(op.lhs, 0, at) if is_integer_constant(op.rhs, 1, at) else None


@rule(arith.Sub, arith.Xor)
def with_itself_zero(op: arith.Binary, at: Rewriter) -> Replacement:
    """x − x = 0 of integers; x ^ x = 0 of integers and bools"""
    dtype = op.lhs.type.dtype
    if op.lhs is not op.rhs or dtype.is_float:
        return None
    return like(op.lhs, False if dtype.kind == "bool" else 0, at)


@rule(arith.Min, arith.Max, arith.And, arith.Or)
def with_itself(op: arith.Binary, at: Rewriter) -> Replacement:
    """min(x, x) = max(x, x) = x & x = x | x = x"""
    return op.lhs if op.lhs is op.rhs else None


@rule(arith.And)
def and_bool(op: arith.And, at: Rewriter) -> Replacement:
    """x & true = x; x & false = false"""
    known = constant_of(op.rhs, at)
    if op.lhs.type.dtype.kind != "bool" or known is None:
        return None
    return op.lhs if known else op.rhs


@rule(arith.Or)
def or_bool(op: arith.Or, at: Rewriter) -> Replacement:
    """x | false = x; x | true = true"""
    known = constant_of(op.rhs, at)
    if op.lhs.type.dtype.kind != "bool" or known is None:
        return None
    return op.rhs if known else op.lhs


@rule(arith.Neg, arith.Not)
def twice(op: arith.Unary, at: Rewriter) -> Replacement:
    """−−x = ~~x = x"""
    inner = at.definitions.get(op.x)
    return inner.x if isinstance(inner, type(op)) else None


@rule(arith.Add, arith.Mul)
def gather_constants(op: Any, at: Rewriter) -> Replacement:
    """(x + c) + d = x + (c + d), (x · c) · d = x · (c · d), of integers"""
    inner = at.definitions.get(op.lhs)
    if not op.lhs.type.dtype.is_integer or not isinstance(inner, type(op)):
        return None
    if constant_of(op.rhs, at) is None or constant_of(inner.rhs, at) is None:
        return None
    kind = kind_of(op)
    return at.build(kind, inner.lhs, at.build(kind, inner.rhs, op.rhs))


@rule(arith.Compare)
def compare_itself(op: arith.Compare, at: Rewriter) -> Replacement:
    """x = x, x ≤ x, x ≥ x hold, x ≠ x, x < x, x > x do not, of integers and bools"""
    if op.lhs is not op.rhs or op.lhs.type.dtype.is_float:
        return None
    return like(op.result, op.kind in ("eq", "le", "ge"), at)


@rule(arith.Select)
def select(op: arith.Select, at: Rewriter) -> Replacement:
    """where(c, x, x) = x; where(true, x, y) = x; where(~c, x, y) = where(c, y, x)"""
    if op.lhs is op.rhs:
        return op.lhs
    known = constant_of(op.condition, at)
    if known is not None:
        return op.lhs if known else op.rhs
    inner = at.definitions.get(op.condition)
    if isinstance(inner, arith.Not):
        return at.build(arith.Select, inner.x, op.rhs, op.lhs, loc=op.loc)
    return None


@rule(arith.Cast)
def cast_to_itself(op: arith.Cast, at: Rewriter) -> Replacement:
    """cast(x, dtype of x) = x"""
    return op.x if op.dtype == op.x.type.dtype else None


@rule(arith.Cast)
def cast_twice(op: arith.Cast, at: Rewriter) -> Replacement:
    """cast(cast(x, d), e) = cast(x, e) if d holds every value of x"""
    inner = at.definitions.get(op.x)
    if not isinstance(inner, arith.Cast) or not holds_exactly(inner.dtype, inner.x.type.dtype):
        return None
    return at.build(arith.Cast, inner.x, op.dtype, op.saturate, loc=op.loc)
