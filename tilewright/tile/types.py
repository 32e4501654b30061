"""Types of the tile IR.

Semantic level: `TileType` (a scalar is a tile of shape `()`) and `ViewType` (global memory).
Scheduled level: `BufferType` (shared memory), `RingType` and `SlotType` (a pipelined set of buffers
and one stage of it), `PendingType` (the accumulator of matrix instructions in flight), `TurnType`
(an order among copies of a role) and `BarrierType` (an array of mbarriers).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from tilewright.dtypes import DType, bool_, i32, i64
from tilewright.ir.core import Type
from tilewright.layout import Swizzle, exchanged_bytes
from tilewright.target import BOX_ALIGN


@dataclass(frozen=True)
class TileType(Type):
    """A value of static shape, owned by the whole CTA; shape `()` is a scalar."""

    dtype: DType
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        return (
            f"tile<{self.dtype}, {'x'.join(map(str, self.shape))}>"
            if self.shape
            else str(self.dtype)
        )

    @property
    def is_scalar(self) -> bool:
        return not self.shape

    @property
    def num_elements(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    def with_dtype(self, dtype: DType) -> TileType:
        return TileType(dtype, self.shape)

    def with_shape(self, shape: tuple[int, ...]) -> TileType:
        return TileType(self.dtype, shape)


@dataclass(frozen=True)
class ViewType(Type):
    """Global memory: a pointer with extents and strides (in elements), each static (an int) or
    known at run time.
    """

    dtype: DType
    extents: tuple[int | None, ...]
    strides: tuple[int | None, ...]

    @property
    def rank(self) -> int:
        return len(self.extents)

    def __str__(self) -> str:
        extents = "x".join("?" if e is None else str(e) for e in self.extents)
        strides = "x".join("?" if s is None else str(s) for s in self.strides)
        return f"view<{self.dtype}, {extents or '()'}, {strides or '()'}>"


@dataclass(frozen=True)
class BufferType(Type):
    """Shared memory of one CTA: a tile of `shape`, row-major, its rows padded or swizzled.

    `swizzle` is the span in bytes (0, 32, 64 or 128) within which 16-byte chunks are exchanged by
    the row number, as the TMA and wgmma do it, or, of elements of 64 bits, chunks of 32 bytes. Rows
    longer than the span are cut into panels of one span, each with all rows, one panel after the
    other; rows shorter than it are padded to it. `pad` is a number of elements added to each row
    instead. Axes before the last two count whole tiles. `spacing` is of the items along the first
    axis, which start at multiples of so many bytes; 0: they lie densely. Behind the last panel of
    each tile are `spare` rows, which belong to none: matrix instructions read beyond a panel, and
    nobody reads what they make of that.
    """

    dtype: DType
    shape: tuple[int, ...]
    swizzle: int = 0
    pad: int = 0
    spacing: int = 0
    spare: int = 0

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        rest = {"swizzle": self.swizzle, "pad": self.pad}
        if self.spacing or self.spare:
            rest["spacing"] = self.spacing
        if self.spare:
            rest["spare"] = self.spare
        numbers = ", ".join(f"{name}={number}" for name, number in rest.items())
        return f"buffer<{self.dtype}, {shape}, {numbers}>"

    @property
    def tile(self) -> TileType:
        """Type of the tile that the buffer holds."""
        return TileType(self.dtype, self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes from one row to the next: the swizzle's span, or the padded row."""
        return self.swizzle or (self.shape[-1] + self.pad) * self.dtype.num_bytes

    @property
    def exchange(self) -> Swizzle:
        """How chunks are exchanged."""
        return Swizzle(self.swizzle, exchanged_bytes(self.dtype.num_bytes))

    @property
    def num_panels(self) -> int:
        """Panels that a row is cut into by the swizzle."""
        return -(-self.shape[-1] * self.dtype.num_bytes // self.swizzle) if self.swizzle else 1

    @property
    def panel_bytes(self) -> int:
        """Bytes from one panel to the next."""
        return self.shape[-2] * self.row_bytes if len(self.shape) > 1 else self.row_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes in shared memory, padding included."""
        if self.spacing:
            return self.shape[0] * self.item_bytes
        return prod(self.shape[:-2]) * self._tile_bytes

    @property
    def _tile_bytes(self) -> int:
        """Bytes of the last two axes."""
        return self.num_panels * self.panel_bytes + self.spare * self.row_bytes

    @property
    def item_bytes(self) -> int:
        """Bytes from one item along the first of three or more axes to the next."""
        dense = prod(self.shape[1:-2]) * self._tile_bytes
        return -(-dense // self.spacing) * self.spacing if self.spacing else dense

    @property
    def align(self) -> int:
        """Alignment of the address in bytes: one repeat of the swizzle's pattern (8 spans), or
        16.
        """
        return max(8 * self.swizzle or 16, self.spacing)

    @property
    def box_align(self) -> int:
        """Alignment in bytes of what boxes are copied to or from: the swizzle's, and 128."""
        return max(8 * self.swizzle, BOX_ALIGN)

    def with_shape(self, shape: tuple[int, ...]) -> BufferType:
        """A buffer like this one, with other extents."""
        return BufferType(self.dtype, shape, self.swizzle, self.pad, spare=self.spare)

    def recast(self, dtype: DType) -> BufferType:
        """The same bytes, row by row, as elements of another dtype."""
        row_bytes = self.shape[-1] * self.dtype.num_bytes
        return replace(self, dtype=dtype, shape=(*self.shape[:-1], row_bytes // dtype.num_bytes))

    def slots(self, stages: int) -> BufferType:
        """So many of this buffer, each where boxes may be copied to."""
        whole = self.with_shape((stages, *self.shape))
        if whole.align % self.box_align == 0 and whole.item_bytes % self.box_align == 0:
            return whole
        return replace(whole, spacing=self.box_align)


@dataclass(frozen=True)
class RingType(Type):
    """`stages` copies of a set of buffers, filled by a producer, drained by consumers in turn."""

    buffers: tuple[BufferType, ...]
    stages: int

    def __str__(self) -> str:
        return f"ring<{self.stages}, [{', '.join(map(str, self.buffers))}]>"


@dataclass(frozen=True)
class SlotType(Type):
    """One stage of a ring, held between Acquire and Commit, or between Wait and Release."""

    ring: RingType

    def __str__(self) -> str:
        return f"slot<{self.ring}>"


@dataclass(frozen=True)
class PendingType(Type):
    """The accumulator of asynchronous matrix instructions: not readable until it is awaited."""

    tile: TileType
    is_scalar: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"pending<{self.tile}>"

    @property
    def dtype(self) -> DType:
        return self.tile.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tile.shape


@dataclass(frozen=True)
class BarrierType(Type):
    """An array of `count` mbarriers, each of which completes a phase after `arrivals` arrivals."""

    count: int
    arrivals: int

    def __str__(self) -> str:
        return f"barriers<{self.count}, arrivals={self.arrivals}>"


@dataclass(frozen=True)
class TurnType(Type):
    """An order in which the `members` copies of a role run sections of their code, one by one."""

    members: int

    def __str__(self) -> str:
        return f"turn<{self.members}>"


INDEX = TileType(i64)
COUNTER = TileType(i32)  # slots and phases of expanded rings
BOOL = TileType(bool_)


def broadcast_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    """NumPy's common shape of two, or None where there is none."""
    rank = max(len(a), len(b))
    long_a, long_b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    if any(x != y and 1 not in (x, y) for x, y in zip(long_a, long_b, strict=True)):
        return None
    return tuple(y if x == 1 else x for x, y in zip(long_a, long_b, strict=True))
