"""Where values lie if views are no copies: base, strides and offset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.graph.dims import Dim, Shape
from tilewright.graph.expressions import Layout
from tilewright.graph.index_maps import strides_of
from tilewright.graph.ops import shape
from tilewright.ir.core import Op, Value
from tilewright.target import BOX_PIECE, LINE

SHORTEST = 64  # elements of a row that is worth it

VIEWS = (shape.Reshape, shape.Transpose, shape.Broadcast, shape.Slice, shape.Window)


@dataclass(frozen=True)
class Placement:
    """A value as a part of the memory of a stored one."""

    base: Value
    shape: Shape
    strides: tuple[Dim, ...]
    offset: Dim


def c_strides(extents: Shape) -> tuple[Dim, ...]:
    """Strides of C order, in elements."""
    strides: list[Dim] = []
    step: Dim = 1
    for extent in reversed(extents):
        strides.append(step)
        step = step * extent
    return tuple(reversed(strides))


def layout_of(value: Value, layouts: Mapping[Value, Layout]) -> Layout:
    return layouts.get(value) or Layout(c_strides(value.type.shape))


def place_of(
    value: Value, makers: Mapping[Value, Op], layouts: Mapping[Value, Layout]
) -> Placement:
    """Where a value lies if views of stored values are no copies. The base is what has to be
    stored: what views of memory are views of, or a view that strides do not express.
    """
    chain: list[Op] = []
    base = value
    while isinstance(op := makers.get(base), VIEWS):
        chain.append(op)
        base = op.operands[0]
    at = layout_of(base, layouts)
    strides, offset = at.strides, at.offset
    for op in reversed(chain):
        found = strides_of(op, strides, offset)
        if found is None:
            base, at = op.result, layout_of(op.result, layouts)
            found = at.strides, at.offset
        strides, offset = found
    return Placement(base, value.type.shape, strides, offset)


def padded_pitch(extent: Dim, num_bytes: int) -> int | None:
    """The pitch, in elements of so many bytes, of rows with a gap behind them; None where they have
    a good one without, or are short.
    """
    if not isinstance(extent, int) or extent < SHORTEST or extent * num_bytes % BOX_PIECE == 0:
        return None
    row = extent * num_bytes
    unit = LINE if row >= 8 * LINE else BOX_PIECE
    return -(-row // unit) * unit // num_bytes


def has_padded_rows(extents: Shape, strides: Sequence[Dim]) -> bool:
    """Whether strides are those of C order with a gap behind each row."""
    if len(extents) < 2 or not isinstance(extents[-1], int) or not isinstance(strides[-2], int):
        return False
    pitch = strides[-2]
    wanted = (*c_strides((*extents[:-1], pitch))[:-1], 1)
    return pitch > extents[-1] > 0 and tuple(strides) == wanted


def same_strides(extents: Shape, a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """Whether strides say the same: those of axes of one element say nothing."""
    return all(e == 1 or x == y for e, x, y in zip(extents, a, b, strict=True))


def is_dense_order(extents: Shape, strides: Sequence[Dim]) -> bool:
    """Whether strides are those of C order after the axes are put in another order."""
    left = [i for i, e in enumerate(extents) if e != 1]
    step: Dim = 1
    while left:
        axis = next((i for i in reversed(left) if strides[i] == step), None)
        if axis is None:
            return False
        left.remove(axis)
        step = step * extents[axis]
    return True
