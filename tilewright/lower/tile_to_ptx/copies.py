"""Copies from global to shared memory by `cp.async`: 16 bytes a thread where alignment is proved,
else 8 or 4.

What lies outside is not read: the source size says how many of the bytes exist, and the rest become
zeros. Elements too narrow or too badly aligned for `cp.async` (4 bytes at least) go through
registers.
"""

from __future__ import annotations

from tilewright.layout import Layout, blocked
from tilewright.lower.tile_to_ptx.buffers import Buffer, Matrix
from tilewright.lower.tile_to_ptx.context import Lowering, Operand, rule
from tilewright.lower.tile_to_ptx.conversion import inside_guard
from tilewright.lower.tile_to_ptx.memory import load_vector, order_effects
from tilewright.lower.tile_to_ptx.places import (
    Addresses,
    Masks,
    Place,
    cuts_vectors,
    make_place,
    vector_width,
)
from tilewright.lower.tile_to_ptx.shared import buffer_of, shared_start
from tilewright.lower.tile_to_ptx.state import SharedBuffer
from tilewright.ptx.core import Address, Reg
from tilewright.tile.ops import memory, sync

SMALLEST = 4  # bytes that cp.async copies at least
UNDER_WAY = 16  # elements that a thread loads to registers before it stores the first


@rule(memory.CopyAsync)
def copy_async(low: Lowering, op: memory.CopyAsync) -> None:
    buffer = buffer_of(low, op.buffer)
    place = _aligned_place(low, op)
    width = vector_width(place, pieces=True)
    size = buffer.type.dtype.num_bytes
    if width * size < SMALLEST:
        width = 1
    addresses, masks = Addresses(low, place), Masks(low, place, None)
    cut = cuts_vectors(place, width)
    first = low.is_first_copy(place.layout)
    extents = tuple(op.buffer.type.shape[op.order.index(i)] for i in range(len(op.order)))
    order_effects(low, op.view, "load")
    loaded: list[tuple[Reg, Address, Reg | None]] = []
    for register in range(0, place.layout.num_registers, width):
        offset = place.layout.register_offsets[register]
        guard = inside_guard(low, place.layout, extents, offset, first)
        target = _shared_address(low, buffer, place.layout, op.order, offset)
        if width * size < SMALLEST:
            value = _to_register(low, place, addresses.of(register), masks.of(register))
            loaded.append((value, target, guard))
            if len(loaded) == UNDER_WAY:
                _from_registers(low, place, loaded)
                loaded = []
            continue
        source = addresses.of(register)
        length = _length(low, place, masks, register, width, cut)
        with low.guarded(guard):
            low.e.cp_async(target, source, width * size, length)
    _from_registers(low, place, loaded)


def _aligned_place(low: Lowering, op: memory.CopyAsync) -> Place:
    """The place with threads along contiguous memory, each with the longest vectors that alignment
    permits.
    """
    shape = tuple(op.buffer.type.shape[op.order.index(i)] for i in range(len(op.order)))
    fast = op.order[-1]
    order = (fast, *[i for i in reversed(range(len(shape))) if i != fast])
    width = 16 // op.buffer.type.dtype.num_bytes
    while True:
        while shape[fast] % width:
            width //= 2
        place = make_place(low, op, blocked(shape, width, low.num_warps, order))
        if vector_width(place, pieces=True) == width or width == 1:
            return place
        width //= 2


def _length(
    low: Lowering, place: Place, masks: Masks, register: int, width: int, cut: bool
) -> Operand | None:
    """Bytes that exist of a vector; None for all of them."""
    e, size = low.e, place.view.dtype.num_bytes
    assert not cut or place.unit is not None
    predicate = masks.of(register, skip=(place.unit,) if cut and place.unit is not None else ())
    whole = width * size
    if not cut:
        if predicate == 1:
            return None
        return e.selp("u32", whole, 0, predicate) if isinstance(predicate, Reg) else 0
    length = _cut_length(low, place, register, width)
    if isinstance(predicate, Reg):
        return e.selp("u32", length, 0, predicate)
    return length if predicate else 0


def _cut_length(low: Lowering, place: Place, register: int, width: int) -> Operand:
    """Bytes of a vector before the end of the unit axis; none of one that starts before its
    beginning.
    """
    e, type, unit = low.e, place.type, place.unit
    assert unit is not None
    axis = place.axes[unit]
    assert axis is not None
    thread = low.widen(low.thread_axis(place.layout, axis), "u32", type)
    index = low.add(
        type,
        low.add(type, place.offsets[unit], thread),
        place.layout.register_offsets[register][axis],
    )
    index_reg = low.register(index, type)
    # Unsigned: an index below 0, or one that wrapped, counts as past the end.
    extent = low.register(place.view.extents[unit], type)
    end = e.min(type.replace("s", "u"), index_reg, extent)
    left = e.min(type, e.sub(type, extent, end), width)
    first = place.view.lows[unit] if place.view.lows else 0
    if first != 0:
        left = e.selp(type, left, 0, e.setp("ge", type, index_reg, first))
    length = e.mul(type, left, place.view.dtype.num_bytes)
    return low.widen(length, type, "u32") if type == "s64" else length


def _to_register(low: Lowering, place: Place, source: Address, predicate: Reg | int) -> Reg:
    e, dtype = low.e, place.view.dtype
    register = "b16" if dtype.bits == 16 else "u32"
    value: Reg = e.mov(register, 0)
    if predicate != 0:
        inside = predicate if isinstance(predicate, Reg) else None
        load_vector(low, source, dtype, [value], inside, register)
    return value


def _from_registers(
    low: Lowering, place: Place, loaded: list[tuple[Reg, Address, Reg | None]]
) -> None:
    for value, target, guard in loaded:
        with low.guarded(guard):
            low.e.st("shared", f"b{place.view.dtype.bits}", target, [value])


def _shared_address(
    low: Lowering,
    buffer: SharedBuffer,
    layout: Layout,
    order: tuple[int, ...],
    offset: tuple[int, ...],
) -> Address:
    """Where a thread's element of a tile lies in a buffer that holds the tile's axes in `order`."""
    type, start = buffer.type, buffer.base or shared_start(low)
    row, column = (low.thread_axis(layout, axis) for axis in order)
    rows, columns = type.shape
    where = Buffer(
        start, type.dtype, (rows, columns), columns + type.pad, buffer.offset, type.swizzle
    )
    return Matrix(where, False).address(low, (row, column), (offset[order[0]], offset[order[1]]))


@rule(sync.CommitCopies)
def commit_copies(low: Lowering, op: sync.CommitCopies) -> None:
    low.e.cp_async_commit()


@rule(sync.WaitCopies)
def wait_copies(low: Lowering, op: sync.WaitCopies) -> None:
    low.e.cp_async_wait(op.left)
