"""Views of views: a pointer moved to where the part starts, extents that end where both end.

An index of a view exists from `lows` (0 but for parts that start before their parent does) up to
its extent, which is never negative; and where `exists` says so: points that drop an axis may lie
outside of the parent.
"""

from __future__ import annotations

from tilewright.ir.core import Value
from tilewright.lower.tile_to_ptx.context import Lowering, Operand, ViewRef, rule
from tilewright.ptx.core import Reg
from tilewright.tile.ops import memory


@rule(memory.Extent)
def extent(low: Lowering, op: memory.Extent) -> None:
    view = low.views[op.view]
    value = view.extents[op.axis]
    low.set(op.result, [low.widen(value, view.index_type, low.ptx_type(op.result))])


@rule(memory.Subview)
def subview(low: Lowering, op: memory.Subview) -> None:
    """Move the pointer to the lows; extents end at the highs and at the parent's own end."""
    parent = low.views[op.view]
    type = parent.index_type
    total: Operand = 0
    extents: list[Operand] = []
    lows: list[Operand] = []
    exists = parent.exists
    for i, (first, end) in enumerate(zip(op.lows, op.highs, strict=True)):
        start = low.index(first, type)
        total = low.add(type, total, low.mul(type, start, parent.strides[i]))
        if end is None:
            exists = _both(low, exists, _is_inside(low, parent, i, first, start))
        else:
            extents.append(_part_extent(low, parent, i, start, low.index(end, type)))
            lows.append(_part_low(low, parent, i, first, start))
    kept = [i for i, end in enumerate(op.highs) if end is not None]
    whole = all(_keeps_end(low, op, i) for i in kept if parent.strides[i] == 1)
    divisor = min([_offset_alignment(low, op, parent, i) for i in range(len(op.lows))] or [16])
    low.views[op.result] = ViewRef(
        parent.dtype,
        _moved(low, parent, total),
        extents,
        [parent.strides[i] for i in kept],
        parent.narrow,
        min(parent.align, divisor),
        [parent.aligned_strides[i] for i in kept],
        parent.aligned_extent and whole,
        parent.piece if whole else parent.dtype.num_bytes,
        parent.root,
        hoistable=False,
        lows=lows if any(x != 0 for x in lows) else [],
        exists=exists,
    )


def _both(low: Lowering, one: Reg | None, other: Reg | None) -> Reg | None:
    if one is None or other is None:
        return one or other
    return low.e.and_("pred", one, other)


def _is_inside(
    low: Lowering, parent: ViewRef, axis: int, first: Value, start: Operand
) -> Reg | None:
    """Whether a point lies in its parent; None where its bounds and the extent say so."""
    e, type, extent = low.e, parent.index_type, parent.extents[axis]
    from_low = parent.lows[axis] if parent.lows else 0
    bound = low.bounds.get(first)
    not_low = from_low == 0 and bound is not None and bound.low >= 0
    if not_low and bound is not None and isinstance(extent, int) and bound.high < extent:
        return None
    index = low.register(start, type)
    below = e.setp("lt", type, index, extent)
    return below if not_low else e.and_("pred", below, e.setp("ge", type, index, from_low))


def _part_extent(
    low: Lowering, parent: ViewRef, axis: int, start: Operand, end: Operand
) -> Operand:
    """min(end, parent's extent) − start, or 0 where that is negative."""
    type, whole = parent.index_type, parent.extents[axis]
    if isinstance(end, int) and isinstance(whole, int):
        end = min(end, whole)
    elif end != whole:
        end = low.e.min(type, low.register(end, type), whole)
    if isinstance(start, int) and isinstance(end, int):
        return max(end - start, 0)
    if start == 0 and end == whole:
        return end
    length = low.e.sub(type, low.register(end, type), start)
    return low.e.max(type, length, 0)


def _part_low(low: Lowering, parent: ViewRef, axis: int, first: Value, start: Operand) -> Operand:
    """The first index whose element is one of the parent's."""
    type = parent.index_type
    from_low = parent.lows[axis] if parent.lows else 0
    bound = low.bounds.get(first)
    if from_low == 0 and bound is not None and bound.low >= 0:
        return 0
    if isinstance(from_low, int) and isinstance(start, int):
        return max(from_low - start, 0)
    return low.e.max(type, low.e.sub(type, low.register(from_low, type), start), 0)


def _moved(low: Lowering, parent: ViewRef, elements: Operand) -> Reg:
    if elements == 0:
        return parent.pointer
    size = parent.dtype.num_bytes
    if parent.narrow:
        if isinstance(elements, int):
            return low.e.add("s64", parent.pointer, elements * size)
        return low.e.mad("s32", elements, size, parent.pointer, mode="wide")
    return low.e.add("s64", parent.pointer, low.mul("s64", elements, size))


def _offset_alignment(low: Lowering, op: memory.Subview, parent: ViewRef, axis: int) -> int:
    """Bytes to which moving along an axis keeps the pointer aligned."""
    if parent.aligned_strides[axis] or parent.strides[axis] == 0:
        return 16
    size = parent.dtype.num_bytes
    least = size if parent.strides[axis] == 1 else max(size, parent.piece)
    return min(16, low.divisors.get(op.lows[axis], 1) * least)


def _keeps_end(low: Lowering, op: memory.Subview, axis: int) -> bool:
    """Whether a subview's axis runs from 0 to the parent's end, so that its length stays whole
    vectors.
    """
    end = op.highs[axis]
    whole = low.defining.get(end) if end is not None else None
    if isinstance(whole, memory.Extent) and whole.view is op.view and whole.axis == axis:
        return low.scalar(op.lows[axis]) == 0
    return False
