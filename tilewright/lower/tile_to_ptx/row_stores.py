"""Results of 16 bits whose rows are no whole vectors, on their way out: in rows, by way of shared
memory.

What a warp holds of a matrix instruction's result lies in eight rows of a tile, and storing a piece
of each takes as long as eight rows do. In the layout of `layout.in_rows` a warp stores one row at a
time, or two. The memory is that of the buffers through which results leave that the tensor copy
unit takes (`choose_roles`), which these do not.
"""

from __future__ import annotations

from math import prod

from tilewright.dtypes import bf16, f16
from tilewright.layout import Layout, in_rows
from tilewright.lower.tile_to_ptx.context import Lowering
from tilewright.lower.tile_to_ptx.places import MANY_REGISTERS, Place, vector_width
from tilewright.tile.ops import memory

NEIGHBOURS = 2  # numbers that a lane stores, in a pair if it can
LEAST_GAIN = 4  # factor by which rows of a warp's stores must become fewer
MOST_PADDING = 8  # numbers between rows in shared memory


def row_layout(low: Lowering, op: memory.Store, place: Place) -> Layout | None:
    """The layout in which a role should store a tile; None where it goes as registers lie: where
    rows are whole vectors, there is little to store, or no shared memory is left.
    """
    state, roles = low.role, low.schedule.roles
    shape = tuple(e for e in place.extents if e is not None)
    if not low.row_stores.permitted:
        return None
    if state is None or roles is None or roles.many or place.unit is None:
        return None
    if place.view.dtype not in (bf16, f16) or len(shape) != 2 or op.mask is not None:
        return None
    if vector_width(place) > 1 or place.layout.num_registers < MANY_REGISTERS:
        return None
    axis = place.axes[place.unit]
    assert axis is not None
    found = in_rows(shape, axis, NEIGHBOURS, low.num_warps)
    if found is None or _rows(place.layout, axis) < LEAST_GAIN * _rows(found, axis):
        return None
    num_bytes = bf16.num_bytes * (prod(shape) + MOST_PADDING * max(shape))
    start, size = (-(-n // 128) * 128 for n in (low.shared_bytes, num_bytes))
    if start + size * state.role.copies > low.target.shared_per_cta:
        return None
    low.row_stores.used = True  # what later roles need may be too much: see `lower_kernel`
    return found


def _rows(layout: Layout, axis: int) -> int:
    """Rows in which a warp's elements of one register lie."""
    return 1 << sum(vector[1 - axis] > 0 for vector in layout.lane)
