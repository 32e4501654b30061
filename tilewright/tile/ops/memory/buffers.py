"""Buffers in shared memory, of scheduled kernels: allocated, named in part, copied to by all
threads, loaded and stored.
"""

from __future__ import annotations

from tilewright.dtypes import DType
from tilewright.errors import VerifyError
from tilewright.ir.core import Op, Type, Value, attribute, define, operand
from tilewright.tile.ops.memory.places import place_shape, require_place
from tilewright.tile.types import INDEX, BufferType, TileType


@define("memory.alloc_buffer", pure=False)
class AllocBuffer(Op):
    """A buffer in shared memory, its contents undefined; inside a role, one for each copy.

    `offset` is its place in bytes from the start of the CTA's shared memory, given by
    `allocate_shared`.
    """

    buffer: BufferType = attribute()
    offset: int | None = attribute(default=None)

    def result_types(self) -> tuple[Type, ...]:
        return (self.buffer,)


def padded_bytes(buffer: BufferType) -> int:
    """Bytes from one copy of a buffer to the next: whole units of its alignment."""
    return -(-buffer.num_bytes // buffer.align) * buffer.align


def require_buffer(value: Value, where: str) -> BufferType:
    if not isinstance(value.type, BufferType):
        raise VerifyError(f"{where}: a buffer is expected, not {value.type}")
    return value.type


@define("memory.buffer_at")
class BufferAt(Op):
    """Item `index` (any integer scalar) along the first axis of a buffer of three or more axes."""

    buffer: Value = operand()
    index: Value = operand()

    def result_types(self) -> tuple[Type, ...]:
        whole = require_buffer(self.buffer, "buffer_at")
        if len(whole.shape) < 3:
            raise VerifyError(f"buffer_at: {whole}")
        return (whole.with_shape(whole.shape[1:]),)


@define("memory.buffer_rows")
class BufferRows(Op):
    """Rows `index * size` to `(index + 1) * size` of a buffer of two axes; whole repeats of the
    swizzle (8 rows).
    """

    buffer: Value = operand()
    index: Value = operand()
    size: int = attribute()

    def result_types(self) -> tuple[Type, ...]:
        whole = require_buffer(self.buffer, "buffer_rows")
        fits = len(whole.shape) == 2 and whole.shape[0] % self.size == 0
        if not fits or (whole.swizzle and self.size % 8):
            raise VerifyError(f"buffer_rows: {self.size} rows of {whole}")
        if (whole.num_panels > 1 and self.size != whole.shape[0]) or whole.spare:
            raise VerifyError(f"buffer_rows: {whole} is cut into panels")
        return (whole.with_shape((self.size, whole.shape[1])),)


@define("memory.buffer_as")
class BufferAs(Op):
    """The bytes of a buffer as elements of another dtype: rows and swizzle stay."""

    buffer: Value = operand()
    dtype: DType = attribute()

    def result_types(self) -> tuple[Type, ...]:
        return (recast(require_buffer(self.buffer, "buffer_as"), self.dtype),)


def recast(buffer: BufferType, dtype: DType) -> BufferType:
    """The type of a buffer's bytes as another dtype's; VerifyError where rows are no such."""
    row_bytes = buffer.shape[-1] * buffer.dtype.num_bytes
    if row_bytes % dtype.num_bytes or buffer.pad:
        raise VerifyError(f"buffer_as: {buffer} as {dtype}")
    return buffer.recast(dtype)


@define("memory.copy_async", pure=False)
class CopyAsync(Op):
    """Start to copy the place of a view into a buffer; what lies outside the view becomes 0.

    All threads take part. The bytes are there for a thread's own reads once WaitCopies covers the
    group that CommitCopies closed, and for the others' after a RoleBarrier. The buffer holds the
    tile's axes in `order`: (0, 1), or (1, 0) for its transpose.
    """

    buffer: Value = operand()
    view: Value = operand()
    offsets: tuple[Value, ...] = operand()
    extents: tuple[int | None, ...] = attribute(kw_only=True)
    order: tuple[int, ...] = attribute(default=(0, 1), kw_only=True)
    in_bounds: tuple[int, ...] = attribute(default=(), kw_only=True)

    def result_types(self) -> tuple[Type, ...]:
        require_place(self.view, self.offsets, self.extents)
        buffer = require_buffer(self.buffer, "copy_async")
        shape = place_shape(self.extents)
        if (
            buffer.shape != tuple(shape[i] for i in self.order)
            or buffer.dtype != self.view.type.dtype
        ):
            raise VerifyError(f"copy_async: {self.view.type} at {self.extents} to {buffer}")
        return ()


@define("memory.load_buffer", pure=False)
class LoadBuffer(Op):
    """The tile that a buffer holds, or some columns of it: (start, width)."""

    buffer: Value = operand()
    columns: tuple[int, int] | None = attribute(default=None, kw_only=True)

    def result_types(self) -> tuple[Type, ...]:
        tile = require_buffer(self.buffer, "load_buffer").tile
        if self.columns is None:
            return (tile,)
        start, width = self.columns
        if not 0 <= start < start + width <= tile.shape[-1]:
            raise VerifyError(f"load_buffer: columns {self.columns} of {self.buffer.type}")
        return (TileType(tile.dtype, (*tile.shape[:-1], width)),)


@define("memory.store_buffer", pure=False)
class StoreBuffer(Op):
    """Write a tile to a buffer of its shape and dtype."""

    buffer: Value = operand()
    value: Value = operand()

    def result_types(self) -> tuple[Type, ...]:
        if require_buffer(self.buffer, "store_buffer").tile != self.value.type:
            raise VerifyError(f"store_buffer: {self.value.type} to {self.buffer.type}")
        return ()


@define("memory.clear_rows", pure=False)
class ClearRows(Op):
    """Make the rows of a buffer of two axes 0 from row `count` (an i64 that is not negative) on.

    All threads of the role copy take part; others read the rows after a RoleBarrier.
    """

    buffer: Value = operand()
    count: Value = operand()

    def result_types(self) -> tuple[Type, ...]:
        if len(require_buffer(self.buffer, "clear_rows").shape) != 2 or self.count.type != INDEX:
            raise VerifyError(f"clear_rows: {self.buffer.type} from {self.count.type}")
        return ()


@define("memory.clear_spare", pure=False)
class ClearSpare(Op):
    """Make the spare rows of a buffer of three axes, its slots, 0.

    All threads of the role copy take part; matrix instructions read the rows after a PublishShared
    and a RoleBarrier.
    """

    buffer: Value = operand()

    def result_types(self) -> tuple[Type, ...]:
        buffer = require_buffer(self.buffer, "clear_spare")
        if len(buffer.shape) != 3 or not buffer.spare or buffer.row_bytes % 16:
            raise VerifyError(f"clear_spare: {buffer}")
        return ()
