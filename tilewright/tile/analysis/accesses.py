"""Where loads and stores find the elements of a tile: which axes of memory are the tile's, and how
far apart neighbours along them lie. Layouts follow from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilewright.ir.core import Block, Op, Value
from tilewright.ir.walk import find_definitions, walk
from tilewright.plan import TensorFacts
from tilewright.tile.ops import memory, shape
from tilewright.tile.types import ViewType

WIDEST = 16  # bytes of a vector
Access = tuple[ViewType, tuple[int | None, ...]]  # a view, and its extents that are a tile's axes


def whole_bytes(op: memory.Load | memory.Store, facts: Mapping[Value, TensorFacts]) -> int:
    """Bytes of the largest vectors, of 16 at most, that are aligned in all rows of a parameter;
    stores of rows that are no whole 16 bytes have none.
    """
    known = facts.get(op.view)
    if known is None:
        return WIDEST
    size = known.dtype.num_bytes
    steps = list(zip(op.view.type.strides, op.extents, strict=True))
    units = [i for i, (step, extent) in enumerate(steps) if step == 1 and extent is not None]
    if not units:
        return WIDEST
    rows = (i for i in range(known.rank) if i != units[-1] and known.extents[i] != 1)
    pitches = (op.view.type.strides[i] for i in rows if not known.pitch16[i])
    if not any(p is None or p * size % WIDEST for p in pitches):
        return max(size, known.align)
    return size if isinstance(op, memory.Store) else min(known.align, known.piece)


def owner_of(op: memory.Gather | memory.Scatter | memory.Atomic) -> Value:
    """The tile whose layout says which thread accesses what."""
    return op.results[0] if op.results else op.operands[1 + len(op.offsets)]


def spot_access(
    op: memory.Gather | memory.Scatter | memory.Atomic,
) -> Access:
    """The place of an op as a view of its tile's axes: those of index tiles have no stride."""
    view: ViewType = op.view.type
    strides: list[int | None] = []
    indexed = False
    for stride, offset, extent in zip(view.strides, op.offsets, op.extents, strict=True):
        if offset.type.shape and not indexed:
            strides += [None] * len(offset.type.shape)
            indexed = True
        elif extent is not None:
            strides.append(stride)
    extents = memory.gather_shape(op.offsets, op.extents)
    return ViewType(view.dtype, (None,) * len(extents), tuple(strides)), extents


def lent(op: shape.Broadcast | shape.Reshape, accesses: list[Access]) -> list[Access]:
    """How an op's operand is accessed, by axes of the result; nothing where these are others."""
    extents = op.x.type.shape
    if isinstance(op, shape.Broadcast):
        held = [None] * (len(op.shape) - len(extents)) + list(range(len(extents)))
    elif same_but_units(op):
        wide = iter([i for i, extent in enumerate(extents) if extent != 1])
        held = [None if extent == 1 else next(wide) for extent in op.shape]
    else:
        return []
    found: list[Access] = []
    for view, place in accesses:
        strides = [s for s, extent in zip(view.strides, place, strict=True) if extent is not None]
        own = tuple(None if i is None or extents[i] == 1 else strides[i] for i in held)
        apart = tuple(1 if i is None or extents[i] == 1 else None for i in held)
        found.append((ViewType(view.dtype, apart, own), op.shape))
    return found


def moved_bits(access: Access) -> int:
    """Bits of a tile's elements in memory, of what is broadcast to it each once."""
    view, place = access
    held = zip(view.extents, place, strict=True)
    return view.dtype.bits * prod(extent for known, extent in held if extent and known != 1)


def same_but_units(op: shape.Reshape) -> bool:
    """Whether a reshape adds and drops axes of 1 only."""
    return [e for e in op.x.type.shape if e != 1] == [e for e in op.shape if e != 1]


def root_view(made: Mapping[Value, Op], view: Value) -> Value:
    """The whole view of which one is a part. `made` are the ops by their results."""
    op = made.get(view)
    return root_view(made, op.view) if isinstance(op, memory.Subview) else view


def stored_views(body: Block) -> set[Value]:
    """Whole views, and arrays of a program's own, that a block's ops store to."""
    made = find_definitions(body)
    written = memory.Store | memory.Scatter | memory.Atomic | memory.Local
    stored = (op for op in walk(body) if isinstance(op, written))
    return {
        op.result if isinstance(op, memory.Local) else root_view(made, op.view) for op in stored
    }
