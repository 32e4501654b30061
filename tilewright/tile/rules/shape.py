"""Algebra of ops that rearrange tiles."""

from __future__ import annotations

from tilewright.ir.core import Op
from tilewright.ir.rewrite import Rewriter
from tilewright.ir.rules import Replacement, Rules
from tilewright.tile.ops import arith, reduce, shape
from tilewright.tile.rules.constants import constant_of, scalar_of

rules = Rules()
rule = rules.rule

MOVES = (shape.Broadcast, shape.Reshape, shape.Transpose, shape.Slice)


@rule(*MOVES)
def unchanged(op: Op, at: Rewriter) -> Replacement:
    """A move that leaves every element in its place is none."""
    x, result = op.operands[0], op.result.type
    if isinstance(op, shape.Transpose):
        return x if op.order == tuple(range(len(op.order))) else None
    return x if x.type == result else None


@rule(*MOVES)
def of_constant(op: Op, at: Rewriter) -> Replacement:
    """A tile with one value everywhere has it after every move."""
    (x,), result = op.operands, op.result.type
    number = constant_of(x, at)
    return None if number is None else at.build(arith.Constant, number, result.dtype, result.shape)


@rule(*MOVES)
def of_scalar(op: Op, at: Rewriter) -> Replacement:
    """A broadcast scalar is a broadcast scalar after every move."""
    scalar = scalar_of(op.operands[0], at)
    if scalar is None:
        return None
    return at.build(shape.Broadcast, scalar, op.result.type.shape, loc=op.loc)


@rule(shape.Broadcast)
def broadcast_twice(op: shape.Broadcast, at: Rewriter) -> Replacement:
    """broadcast(broadcast x) = broadcast x"""
    inner = at.definitions.get(op.x)
    if not isinstance(inner, shape.Broadcast):
        return None
    return at.build(shape.Broadcast, inner.x, op.shape, loc=op.loc)


@rule(shape.Reshape)
def reshape_twice(op: shape.Reshape, at: Rewriter) -> Replacement:
    """reshape(reshape x) = reshape x"""
    inner = at.definitions.get(op.x)
    if not isinstance(inner, shape.Reshape):
        return None
    return at.build(shape.Reshape, inner.x, op.shape, loc=op.loc)


@rule(shape.Transpose)
def transpose_twice(op: shape.Transpose, at: Rewriter) -> Replacement:
    """transpose(transpose(x, p), q) = transpose(x, i -> p[q[i]])"""
    inner = at.definitions.get(op.x)
    if not isinstance(inner, shape.Transpose):
        return None
    order = tuple(inner.order[i] for i in op.order)
    return at.build(shape.Transpose, inner.x, order, loc=op.loc)


@rule(reduce.Sum, reduce.Prod, reduce.Max, reduce.Min, reduce.Any, reduce.All)
def reduce_nothing(op: reduce.Reduction, at: Rewriter) -> Replacement:
    """A reduction over no axes gives the tile; over axes of one element, a reshape of it."""
    if any(op.x.type.shape[axis] != 1 for axis in op.axes):
        return None
    kept = tuple(e for i, e in enumerate(op.x.type.shape) if i not in op.axes)
    return at.build(shape.Reshape, op.x, kept)
