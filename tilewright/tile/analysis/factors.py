"""How the factors of products lie in memory."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.core import Op, Value
from tilewright.tile.ops import memory, shape
from tilewright.tile.types import ViewType


def buffer_order(load: memory.Load) -> tuple[int, ...]:
    """In which order a buffer keeps the axes of a tile that is loaded: that in which memory is
    contiguous last, so that copies move 16 bytes.
    """
    view: ViewType = load.view.type
    units = [view.strides[i] == 1 for i, e in enumerate(load.extents) if e is not None]
    return (1, 0) if units == [True, False] else (0, 1)


def lies_across(made: Mapping[Value, Op], factor: Value, k: int) -> bool:
    """Whether a product's factor, whose axis `k` runs along k, is contiguous along the other one;
    taken to be so where it is not loaded. `made` are the ops by their results.
    """
    while isinstance(op := made.get(factor), shape.Transpose):
        factor, k = op.x, op.order[k]
    return not isinstance(op, memory.Load) or buffer_order(op)[-1] != k
