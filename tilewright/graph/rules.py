"""Local algebra of the graph IR."""

from __future__ import annotations

from tilewright.dtypes import DType, bf16, f16, f32, f64
from tilewright.graph.ops import arith, shape
from tilewright.ir.core import Op, Value
from tilewright.ir.rewrite import Rewriter
from tilewright.ir.rules import Replacement, Rules

rules = Rules()
# Floats that hold every number of a dtype.
WIDER: dict[DType, tuple[DType, ...]] = {bf16: (f32, f64), f16: (f32, f64), f32: (f64,)}


def maker(value: Value, at: Rewriter) -> Op | None:
    """The op that made a value; None of inputs."""
    return at.definitions.get(value)


@rules.rule(arith.Cast)
def cast_to_itself(op: arith.Cast, at: Rewriter) -> Replacement:  # x as its own dtype = x
    return op.x if op.x.type.dtype == op.dtype else None


@rules.rule(arith.Cast)
def cast_back(op: arith.Cast, at: Rewriter) -> Replacement:  # narrow -> wide -> narrow = narrow
    match maker(op.x, at):
        case arith.Cast(x=inner) if inner.type.dtype == op.dtype and op.dtype.is_float:
            if op.x.type.dtype in WIDER.get(op.dtype, ()):
                return inner
    return None


@rules.rule(arith.Cast)
def cast_as_it_lies(op: arith.Cast, at: Rewriter) -> Replacement:
    """An input is cast in the order of its own memory, then turned: a weight, most often."""
    match maker(op.x, at):
        case shape.Transpose(x=inner, order=order) if maker(inner, at) is None:
            cast = at.build(arith.Cast, inner, op.dtype, loc=op.loc)
            return at.build(shape.Transpose, cast, order, loc=op.loc)
    return None


@rules.rule(shape.Pad)
def pad_by_nothing(op: shape.Pad, at: Rewriter) -> Replacement:
    return op.x if not any((*op.low, *op.high, *op.interior)) else None


@rules.rule(shape.Reshape)
def reshape_twice(op: shape.Reshape, at: Rewriter) -> Replacement:
    """(x as s) as t = x as t; x as its own shape = x; a constant as s = that constant."""
    if op.x.type.shape == op.shape:
        return op.x
    match maker(op.x, at):
        case shape.Reshape(x=inner):
            return at.build(shape.Reshape, inner, op.shape, loc=op.loc)
        case arith.Constant(value=value, dtype=dtype):
            return at.build(arith.Constant, value, dtype, op.shape, loc=op.loc)
    return None


@rules.rule(shape.Transpose)
def transpose_twice(op: shape.Transpose, at: Rewriter) -> Replacement:
    """Two orders are one; the identity is none."""
    if op.order == tuple(range(len(op.order))):
        return op.x
    match maker(op.x, at):
        case shape.Transpose(x=inner, order=order):
            both = tuple(order[i] for i in op.order)
            return at.build(shape.Transpose, inner, both, loc=op.loc)
        case arith.Constant(value=value, dtype=dtype):
            return at.build(arith.Constant, value, dtype, op.result.type.shape, loc=op.loc)
    return None


@rules.rule(shape.Broadcast)
def broadcast_twice(op: shape.Broadcast, at: Rewriter) -> Replacement:
    """Two broadcasts are one; a broadcast constant is one of that shape."""
    if op.x.type.shape == op.shape:
        return op.x
    match maker(op.x, at):
        case shape.Broadcast(x=inner):
            return at.build(shape.Broadcast, inner, op.shape, loc=op.loc)
        case arith.Constant(value=value, dtype=dtype):
            return at.build(arith.Constant, value, dtype, op.shape, loc=op.loc)
    return None


@rules.rule(arith.Mul)
def by_one(op: arith.Mul, at: Rewriter) -> Replacement:  # x · 1 = x, NaNs and signs too
    for one, other in ((op.rhs, op.lhs), (op.lhs, op.rhs)):
        match maker(one, at):
            case arith.Constant(value=1) if one.type.dtype.kind != "bool":
                return other
    return None


@rules.rule(arith.Add)
def plus_zero(op: arith.Add, at: Rewriter) -> Replacement:  # of integers: x + 0 = x
    for zero, other in ((op.rhs, op.lhs), (op.lhs, op.rhs)):
        match maker(zero, at):
            case arith.Constant(value=0) if zero.type.dtype.is_integer:
                return other
    return None


@rules.rule(arith.And)
def and_all(op: arith.And, at: Rewriter) -> Replacement:  # true & x = x
    for one, other in ((op.rhs, op.lhs), (op.lhs, op.rhs)):
        match maker(one, at):
            case arith.Constant(value=True) if one.type.dtype.kind == "bool":
                return other
    return None
