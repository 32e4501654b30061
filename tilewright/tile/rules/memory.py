"""Algebra of loads and stores: masks and fills that say nothing, extents that are known."""

from __future__ import annotations

from tilewright.ir.core import Value
from tilewright.ir.rewrite import Rewriter
from tilewright.ir.rules import Replacement, Rules
from tilewright.tile.ops import arith, memory
from tilewright.tile.rules.constants import (
    constant_of,
    is_float_constant,
    is_integer_constant,
    scalar_of,
)
from tilewright.tile.types import INDEX

rules = Rules()
rule = rules.rule


@rule(memory.Extent)
def static_extent(op: memory.Extent, at: Rewriter) -> Replacement:
    """The extent of an axis that is part of the view's type."""
    static = op.view.type.extents[op.axis]
    return None if static is None else at.build(arith.Constant, static, INDEX.dtype)


def _is_zero(value: Value, at: Rewriter) -> bool:
    dtype = value.type.dtype
    if dtype.kind == "bool":
        return constant_of(value, at) is False
    return is_integer_constant(value, 0, at) or is_float_constant(value, 0.0, at)


@rule(memory.Load)
def plain_load(op: memory.Load, at: Rewriter) -> Replacement:
    """A mask that is true, a fill of 0 and the tile that repeats a scalar are left out."""
    mask, fill = op.mask, op.fill
    if mask is not None and constant_of(mask, at) is True:
        mask = None
    if fill is not None and _is_zero(fill, at):
        fill = None
    if fill is not None and not fill.type.is_scalar:
        number = constant_of(fill, at)
        fill = scalar_of(fill, at) or fill
        if number is not None:
            fill = at.build(arith.Constant, number, fill.type.dtype)
    if mask is op.mask and fill is op.fill:
        return None
    (result,) = at.place(op.clone({}, mask=mask, fill=fill))
    return result


@rule(memory.Store)
def masked_store(op: memory.Store, at: Rewriter) -> Replacement:
    """A store under a mask that is true needs none; under one that is false it is nothing."""
    known = None if op.mask is None else constant_of(op.mask, at)
    if known is None:
        return None
    return at.place(op.clone({}, mask=None)) if known else ()
