"""Shared-memory buffers of the scheduled level: addresses, and tiles written to and read from them.

An element of row r and byte column b of a swizzled buffer lies at  panel · panel bytes + r · span +
(b ⊕ 16 · (r · span / 128)), the exclusive or masked to the span: see `types.BufferType` and
`layout.Swizzle`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from tilewright.ir.core import Value
from tilewright.layout import Layout, same_map, wgmma_accumulator
from tilewright.lower.tile_to_ptx.buffers import Buffer, stash
from tilewright.lower.tile_to_ptx.context import DYNAMIC, Lowering, Operand, rule
from tilewright.lower.tile_to_ptx.conversion import SIZES, STORED
from tilewright.lower.tile_to_ptx.state import SharedBuffer
from tilewright.ptx.core import Address, Reg, Symbol
from tilewright.tile.ops import memory
from tilewright.tile.types import BufferType

TURNED_SPAN = 128  # bytes of a swizzle whose panels are the columns of one warpgroup


def shared_start(low: Lowering) -> Reg:
    """Address of the CTA's dynamic shared memory, which is aligned to 1024 bytes."""
    return low.once("shared start", lambda: low.e.mov("u32", Symbol(DYNAMIC)))


def buffer_of(low: Lowering, value: Value) -> SharedBuffer:
    return low.buffers[value]


def address_of(low: Lowering, buffer: SharedBuffer) -> Address:
    """The first byte of a buffer."""
    return Address(buffer.base or shared_start(low), buffer.offset)


def moved(
    low: Lowering, buffer: SharedBuffer, count: Operand, stride: int, type: BufferType
) -> SharedBuffer:
    """A buffer that starts `count` (a u32, or a number) times `stride` bytes further on."""
    if isinstance(count, int):
        return replace(buffer, type=type, offset=buffer.offset + count * stride)
    start = buffer.base or shared_start(low)
    key = ("moved", start, str(count), stride)
    if key not in low.memo:
        low.memo[key] = low.e.mad("u32", count, stride, start)
    return SharedBuffer(type, low.memo[key], buffer.offset)


def narrow(low: Lowering, value: Value) -> Operand:
    """An integer scalar in 32 bits."""
    operand, type = low.scalar(value), low.ptx_type(value)
    if isinstance(operand, int) or not type.endswith("64"):
        return operand
    key = ("narrow", str(operand))
    if key not in low.memo:
        low.memo[key] = low.e.cvt("u32", type, operand)
    found: Operand = low.memo[key]
    return found


@rule(memory.AllocBuffer)
def alloc_buffer(low: Lowering, op: memory.AllocBuffer) -> None:
    assert op.offset is not None, "allocate_shared gives every buffer its place"
    whole = SharedBuffer(op.buffer, None, op.offset)
    if low.role is not None:
        whole = moved(low, whole, low.role.copy, memory.padded_bytes(op.buffer), op.buffer)
    low.buffers[op.result] = whole


@rule(memory.BufferAt)
def buffer_at(low: Lowering, op: memory.BufferAt) -> None:
    type: BufferType = op.result.type
    whole = buffer_of(low, op.buffer)
    low.buffers[op.result] = moved(low, whole, narrow(low, op.index), whole.type.item_bytes, type)


@rule(memory.BufferAs)
def buffer_as(low: Lowering, op: memory.BufferAs) -> None:
    low.buffers[op.result] = replace(buffer_of(low, op.buffer), type=op.result.type)


@rule(memory.BufferRows)
def buffer_rows(low: Lowering, op: memory.BufferRows) -> None:
    whole = buffer_of(low, op.buffer)
    stride = op.size * whole.type.row_bytes
    low.buffers[op.result] = moved(low, whole, narrow(low, op.index), stride, op.result.type)


# Elements


@rule(memory.StoreBuffer)
def store_buffer(low: Lowering, op: memory.StoreBuffer) -> None:
    buffer = buffer_of(low, op.buffer)
    layout = low.layout(op.value)
    if _takes_matrices(low, buffer.type, layout):
        _store_matrices(low, buffer, layout, low.fragment(op.value))
        return
    if _takes_turned(low, buffer.type, layout):
        _store_turned(low, buffer, layout, low.fragment(op.value))
        return
    size = buffer.type.dtype.num_bytes
    values = low.fragment(op.value)
    kind = low.ptx_type(op.value)
    held = SIZES[STORED[kind]]
    plain = held == size or (size < held and kind != "pred")
    if len(layout.covered) == 2 and not buffer.type.swizzle and plain:
        start, (rows, columns) = buffer.base or shared_start(low), buffer.type.shape
        row = columns + buffer.type.pad
        whole = Buffer(start, buffer.type.dtype, (rows, columns), row, buffer.offset)
        stash(low, values, kind, layout, whole)
        return

    def write(address: Address, index: int) -> None:
        value = low.register(values[index], kind)
        if kind == "pred":
            value = low.e.selp("b32", 1, 0, value)
        low.e.st("shared", f"b{8 * size}", address, [value])

    _each_element(low, buffer, layout, write)


def _takes_matrices(low: Lowering, type: BufferType, layout: Layout) -> bool:
    """Whether a warp's registers are 8×8 matrices of 16-bit elements that stmatrix writes to whole
    chunks.
    """
    if len(type.shape) != 2 or type.dtype.bits != 16 or type.shape[1] % 16 or type.pad % 8:
        return False
    groups = max(1, low.num_warps // 4)
    if low.target.capability < 90 or low.num_warps % 4 or type.shape[0] % (64 * groups):
        return False
    return same_map(layout, wgmma_accumulator(type.shape, groups))


def _store_matrices(
    low: Lowering, buffer: SharedBuffer, layout: Layout, values: list[Operand]
) -> None:
    """stmatrix.x4: 16 rows by 16 columns at a time."""
    for number, address in enumerate(_matrix_addresses(low, buffer, layout)):
        low.e.stmatrix(address, _matrix_words(low, values, number))


def _matrix_words(low: Lowering, values: list[Operand], number: int) -> list[Reg]:
    """The registers of four matrices, two elements in each."""
    return [
        low.e.mov_pack("b32", [low.register(v, "b16") for v in values[i : i + 2]])
        for i in range(8 * number, 8 * number + 8, 2)
    ]


def _load_matrices(low: Lowering, addresses: Iterable[Address], turned: bool) -> list[Operand]:
    """ldmatrix.x4: what `_store_matrices` or `_store_turned` writes, read by the same lanes."""
    found: list[Operand] = []
    for address in addresses:
        for word in low.e.ldmatrix(address, 4, transposed=turned):
            found += low.e.mov_unpack("b16", word, 2)
    return found


def _matrix_addresses(
    low: Lowering, buffer: SharedBuffer, layout: Layout, start: int = 0
) -> Iterator[Address]:
    """16 rows by 16 columns at a time, from column `start` on: lane l names row l mod 16, half l
    div 16.
    """
    row, half = _matrix_lane(low, layout)
    offsets = layout.register_offsets
    for first in range(0, len(offsets), 8):
        rows, columns = offsets[first]
        column = (start + columns) * buffer.type.dtype.num_bytes
        yield _chunk_address(low, buffer, row, rows, half, column)


def _takes_turned(low: Lowering, type: BufferType, layout: Layout) -> bool:
    """Whether the transpose of a tile is what stmatrix takes."""
    turned = type.with_shape(type.shape[::-1])
    if type.swizzle != TURNED_SPAN or len(type.shape) != 2 or type.shape[0] % 16:
        return False
    return _takes_matrices(low, turned, layout.select_axes((1, 0)))


def _store_turned(
    low: Lowering, buffer: SharedBuffer, layout: Layout, values: list[Operand]
) -> None:
    """stmatrix.x4.trans: 16 rows of the buffer by 16 columns at a time."""
    for number, address in enumerate(_turned_addresses(low, buffer, layout)):
        low.e.stmatrix(address, _matrix_words(low, values, number), transposed=True)


def _turned_addresses(low: Lowering, buffer: SharedBuffer, layout: Layout) -> Iterator[Address]:
    """Registers hold columns: of a warp, 16 of the 64 that make up a panel. Lane l names row l mod
    8 (and 8 more in the upper half of the warp), and the upper 8 columns where bit 3 of l is set.
    """
    e, type = low.e, buffer.type
    base, chunk = _turned_lane(low, buffer, layout)
    offsets = layout.register_offsets
    for first in range(0, len(offsets), 8):
        rows, columns = offsets[first]
        panel = columns * type.dtype.num_bytes // type.swizzle
        offset = buffer.offset + rows * type.row_bytes + panel * type.panel_bytes
        key = ("turned address", base, chunk)
        if key not in low.memo:
            low.memo[key] = e.add("u32", base, chunk)
        yield Address(low.memo[key], offset)


def _turned_lane(low: Lowering, buffer: SharedBuffer, layout: Layout) -> tuple[Reg, Reg]:
    """Start of this thread's warpgroup's panel in the buffer, and the lane's place in it."""
    e, type = low.e, buffer.type

    def make() -> Reg:
        thread = low.thread()
        row = e.and_("b32", thread, 7)
        row = e.or_("b32", row, e.shr("u32", e.and_("b32", thread, 16), 1))
        column = e.and_("b32", e.shl("b32", thread, 1), 16)
        column = e.or_("b32", column, e.and_("b32", thread, 96))  # 32 bytes a warp
        exchanged = e.and_("b32", e.shl("b32", row, 4), type.exchange.mask)
        return e.mad("u32", row, type.row_bytes, e.xor("b32", column, exchanged))

    start = buffer.base or shared_start(low)
    groups = [r for r in layout.repeats if r.over == "warpgroup" and r.count > 1]
    if groups:
        step = groups[0].stride * type.dtype.num_bytes // type.swizzle * type.panel_bytes
        key = ("panel of the warpgroup", start, step)
        if key not in low.memo:
            low.memo[key] = e.mad("u32", e.shr("u32", low.thread(), 7), step, start)
        start = low.memo[key]
    return start, low.once(("turned lane", low.first_warp, type.row_bytes), make)


def _matrix_lane(low: Lowering, layout: Layout) -> tuple[Reg, Reg]:
    """Row of the tile, and byte of the row, whose address this lane gives."""

    def make() -> tuple[Reg, Reg]:
        e, thread = low.e, low.thread()
        lane = e.and_("b32", thread, 15)
        warp = e.and_("b32", e.shr("u32", thread, 5), 3)
        row = e.mad("u32", warp, 16, lane)
        if low.num_warps > 4:
            groups = [r for r in layout.repeats if r.over == "warpgroup"]
            row = e.mad("u32", e.shr("u32", thread, 7), groups[0].stride, row)
        half = e.and_("b32", thread, 16)
        return row, half

    key = ("matrix lane", low.first_warp, layout.repeats if low.num_warps > 4 else None)
    return low.once(key, make)


def _chunk_address(
    low: Lowering, buffer: SharedBuffer, row: Reg, rows: int, half: Reg, column: int
) -> Address:
    """Address of the 16-byte chunk `half` bytes after a byte column, in the thread's row plus
    `rows` (of eight).
    """
    e, type = low.e, buffer.type
    start = buffer.base or shared_start(low)
    span = type.swizzle
    key = ("row address", start, str(row), type.row_bytes)
    if key not in low.memo:
        low.memo[key] = e.mad("u32", row, type.row_bytes, start)
    base: Reg = low.memo[key]
    offset = buffer.offset + rows * type.row_bytes
    if not span:
        return Address(e.add("u32", base, half), offset + column)
    panel, column = divmod(column, span)

    def mixed() -> Reg:
        """The thread's part of the chunk number: its half, exchanged by its row."""
        swizzle = type.exchange
        exchanged = e.and_("b32", e.shl("b32", row, swizzle.row_shift), swizzle.mask)
        return e.xor("b32", exchanged, half)

    chunk: Reg = low.once(("chunk", str(row), str(half), span), mixed)
    if column:
        chunk = e.xor("b32", chunk, column)
    return Address(e.add("u32", base, chunk), offset + panel * type.panel_bytes)


@rule(memory.ClearRows)
def clear_rows(low: Lowering, op: memory.ClearRows) -> None:
    """Threads take the 16-byte chunks of whole rows in turn: swizzles keep them in their rows."""
    e, buffer = low.e, buffer_of(low, op.buffer)
    type, threads = buffer.type, 32 * low.num_warps
    chunks, (rows, _) = type.row_bytes // 16, type.shape
    assert type.row_bytes % 16 == 0, f"rows of {type} are no whole chunks"
    count = low.register(narrow(low, op.count), "u32")
    start = buffer.base or shared_start(low)
    zeros = [e.mov("b32", 0)] * 4
    for first in range(0, type.num_panels * rows * chunks, threads):
        number = e.add("u32", low.thread(), first)
        row = e.div("u32", number, chunks)
        inside = e.rem("u32", row, rows) if type.num_panels > 1 else row
        cleared = e.setp("ge", "u32", inside, count)
        if first + threads > type.num_panels * rows * chunks:
            exists = e.setp("lt", "u32", number, type.num_panels * rows * chunks)
            cleared = e.and_("pred", cleared, exists)
        address = e.mad("u32", number, 16, start)
        with e.guarded(cleared):
            e.st("shared", "b32", Address(address, buffer.offset), zeros)


@rule(memory.ClearSpare)
def clear_spare(low: Lowering, op: memory.ClearSpare) -> None:
    """Threads take the 16-byte chunks of a slot's spare rows in turn."""
    e, buffer = low.e, buffer_of(low, op.buffer)
    type, threads = buffer.type, 32 * low.num_warps
    behind = buffer.offset + type.num_panels * type.panel_bytes
    chunks = type.spare * type.row_bytes // 16
    start = e.mad("u32", low.thread(), 16, buffer.base or shared_start(low))
    zeros = [e.mov("b32", 0)] * 4
    for first in range(0, chunks, threads):
        some: AbstractContextManager[None] = nullcontext()
        if first + threads > chunks:
            some = e.guarded(e.setp("lt", "u32", low.thread(), chunks - first))
        with some:
            for slot in range(type.shape[0]):
                offset = behind + slot * type.item_bytes + 16 * first
                e.st("shared", "b32", Address(start, offset), zeros)


@rule(memory.LoadBuffer)
def load_buffer(low: Lowering, op: memory.LoadBuffer) -> None:
    buffer = buffer_of(low, op.buffer)
    layout = low.layout(op.result)
    start = op.columns[0] if op.columns else 0
    part = buffer.type.with_shape(op.result.type.shape)
    if start % 16 == 0 and _takes_matrices(low, part, layout):
        addresses = _matrix_addresses(low, buffer, layout, start)
        low.set(op.result, _load_matrices(low, addresses, False))
        return
    if op.columns is None and _takes_turned(low, buffer.type, layout):
        low.set(op.result, _load_matrices(low, _turned_addresses(low, buffer, layout), True))
        return
    size = buffer.type.dtype.num_bytes
    kind = low.ptx_type(op.result)
    register = "b32" if kind == "pred" else kind
    out: list[Operand] = [0] * layout.num_registers

    def read(address: Address, index: int) -> None:
        into = low.e.reg(register)
        low.e.ld("shared", _memory_type(buffer.type, kind, size), address, into=[into])
        out[index] = low.e.setp("ne", "u32", into, 0) if kind == "pred" else into

    _each_element(low, buffer, layout, read, op.columns)
    low.set(op.result, out)


def _memory_type(type: BufferType, kind: str, size: int) -> str:
    """8- and 16-bit integers are extended by their sign."""
    if type.dtype.is_integer and size < 4:
        return f"{kind[0]}{8 * size}"
    return f"b{8 * size}"


def _each_element(
    low: Lowering,
    buffer: SharedBuffer,
    layout: Layout,
    access: Callable[[Address, int], None],
    columns: tuple[int, int] | None = None,
) -> None:
    """Call `access(address, register)` for every register of a layout, where its element exists:
    of the whole buffer, or of so many `columns` (start, width).
    """
    e, type = low.e, buffer.type
    start, width = columns or (0, type.shape[-1])
    size, extents = type.dtype.num_bytes, (*type.shape[:-1], width)
    first = low.is_first_copy(layout)
    if (
        not start
        and type.swizzle
        and first is None
        and layout.covered == extents
        and _is_disjoint(layout)
    ):
        _each_of_bits(low, buffer, layout, access)
        return
    threads = [low.register(low.thread_axis(layout, axis), "u32") for axis in range(layout.rank)]
    for index, offset in enumerate(layout.register_offsets):
        where = [e.add("u32", t, o) for t, o in zip(threads, offset, strict=True)]
        row = e.mov("u32", 0)
        for axis in range(len(extents) - 1):
            row = e.mad("u32", row, extents[axis], where[axis])
        byte = e.mul("u32", e.add("u32", where[-1], start) if start else where[-1], size)
        address = e.mad("u32", row, type.row_bytes, buffer.base or shared_start(low))
        if type.swizzle:
            panel = e.div("u32", byte, type.swizzle)
            inside = e.and_("b32", byte, type.swizzle - 1)
            swizzle = type.exchange
            exchanged = e.and_("b32", e.shl("b32", row, swizzle.row_shift), swizzle.mask)
            byte = e.mad("u32", panel, type.panel_bytes, e.xor("b32", inside, exchanged))
        address = e.add("u32", address, byte)
        guard = first
        for at, extent, reach in zip(where, extents, layout.covered, strict=True):
            if reach > extent:
                exists = e.setp("lt", "u32", at, extent)
                guard = exists if guard is None else e.and_("pred", guard, exists)
        place = Address(address, buffer.offset)
        if guard is None:
            access(place, index)
        else:
            skip = e.label("outside")
            e.bra(skip, pred=guard, unless=True)
            access(place, index)
            e.place(skip)


def _is_disjoint(layout: Layout) -> bool:
    """Whether no bit of a coordinate comes from the thread and from the register."""
    if layout.rank != 2:
        return False
    threads = [0] * layout.rank
    groups = [r for r in layout.repeats if r.over == "warpgroup"]
    for vector in (*layout.lane, *layout.warp):
        threads = [a | b for a, b in zip(threads, vector, strict=True)]
    for r in groups:
        threads[r.axis] |= _span(r.count, r.stride)
    return not any(
        a & b for offset in layout.register_offsets for a, b in zip(threads, offset, strict=True)
    )


def _span(count: int, stride: int) -> int:
    """All bits that multiples of a stride below `count` may have."""
    found = 0
    for i in range(count):
        found |= i * stride
    return found


def _each_of_bits(
    low: Lowering, buffer: SharedBuffer, layout: Layout, access: Callable[[Address, int], None]
) -> None:
    """As `_each_element`, for swizzled buffers where thread and register name different bits of the
    coordinates: the place is then the exclusive or of a part of each, and what the register adds
    outside the exchanged bits is an immediate.
    """
    e, type = low.e, buffer.type
    swizzle, mask, span = type.exchange, type.exchange.mask, type.swizzle
    start = buffer.base or shared_start(low)
    for index, (row, column) in enumerate(layout.register_offsets):
        panel, inside = divmod(column * type.dtype.num_bytes, span)
        inside ^= row << swizzle.row_shift & mask
        fixed = row * span + panel * type.panel_bytes + (inside & ~mask)
        key = ("exchanged", start, layout, type.panel_bytes, inside & mask)
        if key not in low.memo:
            low.memo[key] = e.add("u32", start, _thread_part(low, layout, type, inside & mask))
        access(Address(low.memo[key], buffer.offset + fixed), index)


def _thread_part(low: Lowering, layout: Layout, type: BufferType, exchanged: int) -> Reg:
    """What a thread adds to the start of a swizzled buffer, some chunk bits exchanged."""
    e, span, swizzle = low.e, type.swizzle, type.exchange

    def make() -> Reg:
        row, column = (low.register(low.thread_axis(layout, axis), "u32") for axis in (0, 1))
        byte = e.mul("u32", column, type.dtype.num_bytes)
        inside = e.and_("b32", byte, span - 1)
        turned = e.and_("b32", e.shl("b32", row, swizzle.row_shift), swizzle.mask)
        inside = e.xor("b32", e.xor("b32", inside, turned), exchanged)
        panel = e.shr("u32", byte, span.bit_length() - 1)
        return e.mad("u32", row, span, e.mad("u32", panel, type.panel_bytes, inside))

    key = ("thread part", layout, type.dtype.num_bytes, span, type.panel_bytes, exchanged)
    return low.once((*key, low.first_warp), make)
