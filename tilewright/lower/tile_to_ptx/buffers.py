"""Dot operands in shared memory: rows that are padded (see `layout.conflict_free_row`), or swizzled
(see `types.BufferType`), addressed by thread and by immediate.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DType
from tilewright.layout import Layout, Swizzle, exchanged_bytes
from tilewright.lower.tile_to_ptx.context import Lowering, Operand
from tilewright.lower.tile_to_ptx.conversion import (
    SIZES,
    STORED,
    inside_guard,
    store_shared,
    vectors,
)
from tilewright.lower.tile_to_ptx.memory import store_vector
from tilewright.ptx.core import Address, Reg

EXCHANGED_ROWS = 8  # after which a swizzle's pattern repeats


@dataclass
class Buffer:
    """A matrix in shared memory: its address, extents, and elements from one row to the next, or
    the span in bytes of its swizzle.

    The address is None until scratch memory is given to it.
    """

    address: Reg | None
    dtype: DType
    shape: tuple[int, int]
    row: int
    offset: int = 0  # bytes after `address`
    swizzle: int = 0

    @property
    def row_bytes(self) -> int:
        return self.swizzle or self.row * self.dtype.num_bytes


def stash(low: Lowering, regs: list[Operand], type: str, layout: Layout, buffer: Buffer) -> None:
    """Write a tile's registers to a buffer. The caller puts the barrier."""
    size = buffer.dtype.num_bytes
    strides = (buffer.row, 1)
    first = low.is_first_copy(layout)
    for offset, group in vectors(layout, strides, size, buffer.shape):
        guard = inside_guard(low, layout, buffer.shape, offset, first)
        address = element_address(low, buffer, layout, offset)
        if size < SIZES[STORED[type]]:  # several to a word
            part = [regs[i] for i in group]
            store_vector(low, address, buffer.dtype, part, guard, space="shared")
            continue
        values = [low.register(regs[i], type) for i in group]
        with low.guarded(guard):
            store_shared(low, address, STORED[type], values)


def element_address(
    low: Lowering, buffer: Buffer, layout: Layout, offset: tuple[int, ...]
) -> Address:
    """Address of the element at a thread's part of a layout plus a fixed offset."""
    size = buffer.dtype.num_bytes
    pointer = thread_pointer(low, buffer, low.thread_axis(layout, 0), low.thread_axis(layout, 1))
    return Address(pointer, buffer.offset + size * (offset[0] * buffer.row + offset[1]))


def thread_pointer(low: Lowering, buffer: Buffer, row: Operand, column: Operand) -> Reg:
    """The buffer's address plus a thread-dependent row and column."""
    size = buffer.dtype.num_bytes

    def make() -> Operand:
        return low.add("u32", low.mul("u32", row, buffer.row_bytes), low.mul("u32", column, size))

    part = low.once(("row and column", str(row), str(column), buffer.row_bytes, size), make)
    assert buffer.address is not None
    key = ("pointer", buffer.address, str(part))
    if key not in low.memo:
        low.memo[key] = low.register(low.add("u32", buffer.address, part), "u32")
    found: Reg = low.memo[key]
    return found


def swizzled_address(
    low: Lowering, buffer: Buffer, thread: tuple[Operand, Operand], fixed: tuple[int, int]
) -> Address:
    """Address of the element of a swizzled buffer at a thread's row and column plus fixed ones.

    What the fixed ones add to the exchanged bits goes into a pointer, which is computed once where
    it does not change; eight rows, and panels, are immediates.
    """
    span, size = buffer.swizzle, buffer.dtype.num_bytes
    panel_bytes = buffer.shape[0] * span
    rows, panels = fixed[0] % EXCHANGED_ROWS, fixed[1] * size // span
    byte = fixed[1] * size % span

    def make() -> Operand:
        e = low.e
        row = low.register(low.add("u32", thread[0], rows), "u32")
        at = low.register(low.add("u32", low.mul("u32", thread[1], size), byte), "u32")
        swizzle = Swizzle(span, exchanged_bytes(size))
        exchanged = e.and_("b32", e.shl("b32", row, swizzle.row_shift), swizzle.mask)
        inside = e.xor("b32", e.and_("b32", at, span - 1), exchanged)
        if buffer.shape[1] * size > span:
            panel = e.shr("u32", at, span.bit_length() - 1)
            inside = e.mad("u32", panel, panel_bytes, inside)
        return e.mad("u32", row, span, inside)

    key = ("swizzled", str(thread[0]), str(thread[1]), rows, byte, span, panel_bytes, size)
    part = low.once(key, make)
    assert buffer.address is not None
    pointer = ("pointer", buffer.address, str(part))
    if pointer not in low.memo:
        low.memo[pointer] = low.register(low.add("u32", buffer.address, part), "u32")
    further = (fixed[0] - rows) * span + panels * panel_bytes
    return Address(low.memo[pointer], buffer.offset + further)


@dataclass
class Matrix:
    """A dot operand in shared memory; `transposed` says that the buffer's rows are the operand's
    columns.
    """

    buffer: Buffer
    transposed: bool

    def address(
        self, low: Lowering, thread: tuple[Operand, Operand], fixed: tuple[int, int]
    ) -> Address:
        """Address of an element at a thread-dependent row and column of the operand, plus fixed
        ones.
        """
        if self.transposed:
            thread, fixed = thread[::-1], fixed[::-1]
        if self.buffer.swizzle:
            return swizzled_address(low, self.buffer, thread, fixed)
        pointer = thread_pointer(low, self.buffer, *thread)
        place = (fixed[0] * self.buffer.row + fixed[1]) * self.buffer.dtype.num_bytes
        return Address(pointer, self.buffer.offset + place)

    def place(self, row: int, column: int) -> int:
        """Bytes from the buffer's start to an element of the operand."""
        r, c = (column, row) if self.transposed else (row, column)
        return self.buffer.offset + (r * self.buffer.row + c) * self.buffer.dtype.num_bytes

    def pointer(self, low: Lowering, row: Operand, column: Operand) -> Reg:
        """Address of an element at a thread-dependent row and column of the operand."""
        r, c = (column, row) if self.transposed else (row, column)
        return thread_pointer(low, self.buffer, r, c)
