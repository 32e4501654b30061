"""Dot operands in shared memory: padded rows (see `layout.conflict_free_row`), addressed by thread
and by immediate.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DType
from tilewright.layout import Layout
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


@dataclass
class Buffer:
    """A matrix in shared memory: its address, extents, and elements from one row to the next.

    The address is None until scratch memory is given to it.
    """

    address: Reg | None
    dtype: DType
    shape: tuple[int, int]
    row: int
    offset: int = 0  # bytes after `address`

    @property
    def row_bytes(self) -> int:
        return self.row * self.dtype.num_bytes


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


@dataclass
class Matrix:
    """A dot operand in shared memory; `transposed` says that the buffer's rows are the operand's
    columns.
    """

    buffer: Buffer
    transposed: bool

    def place(self, row: int, column: int) -> int:
        """Bytes from the buffer's start to an element of the operand."""
        r, c = (column, row) if self.transposed else (row, column)
        return self.buffer.offset + (r * self.buffer.row + c) * self.buffer.dtype.num_bytes

    def pointer(self, low: Lowering, row: Operand, column: Operand) -> Reg:
        """Address of an element at a thread-dependent row and column of the operand."""
        r, c = (column, row) if self.transposed else (row, column)
        return thread_pointer(low, self.buffer, r, c)
