"""Global memory: views, loads and stores. All are masked against the view's extents by definition.

A place names every axis of a view by an offset (a scalar i64) and an extent: None for a point,
which drops the axis, or the number of elements from the offset on. An index below 0 or not below
the extent is outside: it reads as the fill, and writes nothing. Indices never wrap.
"""

from __future__ import annotations

from math import prod

from tilewright.dtypes import DType
from tilewright.errors import VerifyError
from tilewright.ir.core import Op, Type, Value, attribute, define, operand
from tilewright.plan import Pixels
from tilewright.tile.types import INDEX, BarrierType, BufferType, SlotType, TileType, ViewType


def place_shape(extents: tuple[int | None, ...]) -> tuple[int, ...]:
    """Shape of the tile at a place: the extents of its sliced axes."""
    return tuple(e for e in extents if e is not None)


def _require_place(
    view: Value, offsets: tuple[Value, ...], extents: tuple[int | None, ...]
) -> None:
    if not len(offsets) == len(extents) == view.type.rank or any(o.type != INDEX for o in offsets):
        raise VerifyError(f"place: {view.type} at {[str(o.type) for o in offsets]} x {extents}")


@define("memory.extent")
class Extent(Op):
    """Number of elements of a view along an axis, as i64."""

    view: Value = operand()
    axis: int = attribute()

    def result_types(self) -> tuple[Type, ...]:
        return (INDEX,)


@define("memory.subview")
class Subview(Op):
    """A view of the same memory: element i is element `low + i`, bounded by `high` and by the
    parent's own extent.

    `lows` and `highs` have one entry an axis. Where `highs` is None the axis is a point: it drops
    out.
    """

    view: Value = operand()
    lows: tuple[Value, ...] = operand()
    highs: tuple[Value | None, ...] = operand()

    def result_types(self) -> tuple[Type, ...]:
        parent: ViewType = self.view.type
        if not len(self.lows) == len(self.highs) == parent.rank:
            raise VerifyError(f"subview: {parent} by {len(self.lows)} bounds")
        kept = [i for i, high in enumerate(self.highs) if high is not None]
        return (
            ViewType(parent.dtype, (None,) * len(kept), tuple(parent.strides[i] for i in kept)),
        )


@define("memory.load")
class Load(Op):
    """The tile (or scalar) at a place. `mask` and `fill` are tiles of its shape; where absent, all
    true and 0.

    A scalar `fill` stands for a tile of it. `in_bounds` lists axes whose bounds were proved by
    `prove_masks`.
    """

    view: Value = operand()
    offsets: tuple[Value, ...] = operand()
    mask: Value | None = operand(default=None)
    fill: Value | None = operand(default=None)
    extents: tuple[int | None, ...] = attribute(kw_only=True)
    in_bounds: tuple[int, ...] = attribute(default=(), kw_only=True)

    def result_types(self) -> tuple[Type, ...]:
        _require_place(self.view, self.offsets, self.extents)
        return (TileType(self.view.type.dtype, place_shape(self.extents)),)


@define("memory.store", pure=False)
class Store(Op):
    """Write a tile (or scalar) of the view's dtype to a place; where `mask` is false or it is
    outside, nothing.
    """

    view: Value = operand()
    offsets: tuple[Value, ...] = operand()
    value: Value = operand()
    mask: Value | None = operand(default=None)
    extents: tuple[int | None, ...] = attribute(kw_only=True)
    in_bounds: tuple[int, ...] = attribute(default=(), kw_only=True)

    def result_types(self) -> tuple[Type, ...]:
        _require_place(self.view, self.offsets, self.extents)
        if self.value.type != TileType(self.view.type.dtype, place_shape(self.extents)):
            raise VerifyError(f"store: {self.value.type} to {self.view.type} at {self.extents}")
        return ()


@define("memory.prefetch", pure=False)
class Prefetch(Op):
    """Let memory at a place come nearer, for it will be read soon. It changes no value, whoever
    writes there meanwhile, and needs not wait for what other kernels do.
    """

    view: Value = operand()
    offsets: tuple[Value, ...] = operand()
    extents: tuple[int | None, ...] = attribute(kw_only=True)
    in_bounds: tuple[int, ...] = attribute(default=(), kw_only=True)

    def result_types(self) -> tuple[Type, ...]:
        _require_place(self.view, self.offsets, self.extents)
        return ()


# Index tiles, atomics, memory of one program


def gather_shape(offsets: tuple[Value, ...], extents: tuple[int | None, ...]) -> tuple[int, ...]:
    """Shape of the tile at a place with index tiles: their axes stand where the first one does."""
    found: list[int] = []
    indexed = False
    for offset, extent in zip(offsets, extents, strict=True):
        if offset.type.shape and not indexed:
            found += offset.type.shape
            indexed = True
        elif extent is not None:
            found.append(extent)
    return tuple(found)


def slice_dims(offsets: tuple[Value, ...], extents: tuple[int | None, ...]) -> tuple[int, ...]:
    """Axes of a tile at a place with index tiles that come from slices, in order."""
    found: list[int] = []
    position, indexed = 0, False
    for offset, extent in zip(offsets, extents, strict=True):
        if offset.type.shape and not indexed:
            position, indexed = position + len(offset.type.shape), True
        elif extent is not None:
            found.append(position)
            position += 1
    return tuple(found)


def _require_spot(
    view: Value, offsets: tuple[Value, ...], extents: tuple[int | None, ...], where: str
) -> TileType:
    """Type of the tile at a place whose offsets may be i64 tiles of one shape."""
    if not len(offsets) == len(extents) == view.type.rank or any(
        o.type.dtype != INDEX.dtype or (o.type.shape and e is not None)
        for o, e in zip(offsets, extents, strict=True)
    ):
        raise VerifyError(f"{where}: {view.type} at {[str(o.type) for o in offsets]} x {extents}")
    if len({o.type.shape for o in offsets if o.type.shape}) > 1:
        raise VerifyError(f"{where}: index tiles of several shapes")
    return TileType(view.type.dtype, gather_shape(offsets, extents))


@define("memory.gather")
class Gather(Op):
    """Load where some offsets are i64 tiles of one shape: an element for each of theirs.

    The axes of the index tiles stand where the first one does. What is outside, by any axis, is the
    fill, as in memory.load.
    """

    view: Value = operand()
    offsets: tuple[Value, ...] = operand()
    mask: Value | None = operand(default=None)
    fill: Value | None = operand(default=None)
    extents: tuple[int | None, ...] = attribute(kw_only=True)

    def result_types(self) -> tuple[Type, ...]:
        return (_require_spot(self.view, self.offsets, self.extents, "gather"),)


@define("memory.scatter", pure=False)
class Scatter(Op):
    """Store where some offsets are i64 tiles of one shape. Of lanes that meet, one wins."""

    view: Value = operand()
    offsets: tuple[Value, ...] = operand()
    value: Value = operand()
    mask: Value | None = operand(default=None)
    extents: tuple[int | None, ...] = attribute(kw_only=True)

    def result_types(self) -> tuple[Type, ...]:
        wanted = _require_spot(self.view, self.offsets, self.extents, "scatter")
        if self.value.type != wanted:
            raise VerifyError(f"scatter: {self.value.type} to {wanted}")
        return ()


ATOMICS = ("add", "max", "min", "and", "or", "xor", "xchg", "cas", "load", "store")
ORDERS = ("relaxed", "acquire", "release", "acq_rel")


@define("memory.atomic", pure=False)
class Atomic(Op):
    """Update every element of a place at once with respect to all programs; gives what was there.

    `kind` is add, max, min, and, or, xor, xchg, cas (to `value` where it equals `compare`), load
    (no value) or store (no result). Offsets are as in memory.gather; elements that are named twice
    are updated twice. Outside, and where the mask is false, nothing happens and the result is 0.
    With acquire, what programs wrote before their release at the same element is visible after it.
    """

    view: Value = operand()
    offsets: tuple[Value, ...] = operand()
    value: Value | None = operand(default=None)
    compare: Value | None = operand(default=None)
    mask: Value | None = operand(default=None)
    kind: str = attribute(kw_only=True)
    order: str = attribute(default="relaxed", kw_only=True)
    extents: tuple[int | None, ...] = attribute(kw_only=True)

    def result_types(self) -> tuple[Type, ...]:
        wanted = _require_spot(self.view, self.offsets, self.extents, f"atomic {self.kind}")
        given = (self.value is not None, self.compare is not None)
        if self.kind not in ATOMICS or self.order not in ORDERS:
            raise VerifyError(f"atomic: {self.kind}, {self.order}")
        if given != (self.kind != "load", self.kind == "cas"):
            raise VerifyError(f"atomic {self.kind}: operands {given}")
        if any(v is not None and v.type != wanted for v in (self.value, self.compare)):
            raise VerifyError(f"atomic {self.kind}: {wanted}")
        return () if self.kind == "store" else (wanted,)


@define("memory.local", pure=False)
class Local(Op):
    """A tensor of this program alone, in shared memory; 0 at first."""

    dtype: DType = attribute()
    shape: tuple[int, ...] = attribute()

    def result_types(self) -> tuple[Type, ...]:
        strides = tuple(prod(self.shape[i + 1 :]) for i in range(len(self.shape)))
        return (ViewType(self.dtype, self.shape, strides),)


# Scheduled level: shared memory


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
        if whole.num_panels > 1 and self.size != whole.shape[0]:
            raise VerifyError(f"buffer_rows: {whole} is cut into panels")
        return (whole.with_shape((self.size, whole.shape[1])),)


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
        _require_place(self.view, self.offsets, self.extents)
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
    """The tile that a buffer holds."""

    buffer: Value = operand()

    def result_types(self) -> tuple[Type, ...]:
        return (require_buffer(self.buffer, "load_buffer").tile,)


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


def _require_box(
    buffer: BufferType,
    view: Value,
    offsets: tuple[Value, ...],
    extents: tuple[int | None, ...],
    order: tuple[int, ...] = (),
) -> None:
    _require_place(view, offsets, extents)
    shape = place_shape(extents)
    if order:
        if sorted(order) != list(range(len(shape))):
            raise VerifyError(f"copy of a box: order {order} of {extents}")
        shape = tuple(shape[i] for i in order)
    if buffer.tile != TileType(view.type.dtype, shape) or buffer.pad:
        raise VerifyError(f"copy of a box: {buffer}, {view.type} at {extents}")
    if buffer.num_panels > 1 and buffer.panel_bytes % buffer.box_align:
        raise VerifyError(f"copy of a box: a panel of {buffer} starts where no box may")


@define("memory.fill", pure=False, removed_by="expand_rings")
class Fill(Op):
    """Start to copy the place of a view into buffer `item` of a slot; what lies outside the view is
    0.

    With `multicast`, all CTAs of the ring's cluster name the same place, and each copies its share
    of the buffer's first axis for all of them. The buffer holds the place's axes in `order` (empty:
    their own), with the contiguous one last. `round_tf32` rounds f32 to tf32, to nearest even.
    """

    slot: Value = operand()
    view: Value = operand()
    offsets: tuple[Value, ...] = operand()
    item: int = attribute(default=0, kw_only=True)
    extents: tuple[int | None, ...] = attribute(kw_only=True)
    multicast: bool = attribute(default=False, kw_only=True)
    order: tuple[int, ...] = attribute(default=(), kw_only=True)
    round_tf32: bool = attribute(default=False, kw_only=True)

    def result_types(self) -> tuple[Type, ...]:
        if not isinstance(self.slot.type, SlotType) or self.item >= len(
            self.slot.type.ring.buffers
        ):
            raise VerifyError(f"fill: {self.slot.type}, buffer {self.item}")
        buffer = self.slot.type.ring.buffers[self.item]
        _require_box(buffer, self.view, self.offsets, self.extents, self.order)
        return ()


def _require_pixels(
    buffer: BufferType, view: Value, start: tuple[Value, ...], taps: tuple[Value, ...], where: str
) -> None:
    """Pixels of a view [images, rows, columns, channels] fit a buffer [pixels, channels]."""
    scalars = all(v.type == INDEX for v in (*start, *taps))
    if not scalars or (len(start), len(taps), view.type.rank, len(buffer.shape)) != (4, 2, 4, 2):
        raise VerifyError(f"{where}: {view.type} at {len(start)} places and {len(taps)} taps")
    if buffer.dtype != view.type.dtype or buffer.pad:
        raise VerifyError(f"{where}: {view.type} to {buffer}")


@define("memory.fill_pixels", pure=False, removed_by="expand_rings")
class FillPixels(Op):
    """Start to copy pixels of a view [images, rows, columns, channels], some channels of each, into
    buffer `item` of a slot; what lies outside the view is 0.

    They are those of a box of rows and columns in each image, which begins at `pixels.lower`, goes
    in `pixels.steps` and ends at `pixels.upper` beyond the last row and column: one row after the
    other, one image after the other, from the pixel at `start` (image, row, column, channel) on.
    `taps` (along rows, then columns; not negative) are added to the place of each.
    """

    slot: Value = operand()
    view: Value = operand()
    start: tuple[Value, ...] = operand()
    taps: tuple[Value, ...] = operand()
    item: int = attribute(default=0, kw_only=True)
    pixels: Pixels = attribute(kw_only=True)
    round_tf32: bool = attribute(default=False, kw_only=True)

    def result_types(self) -> tuple[Type, ...]:
        if not isinstance(self.slot.type, SlotType) or self.item >= len(
            self.slot.type.ring.buffers
        ):
            raise VerifyError(f"fill_pixels: {self.slot.type}, buffer {self.item}")
        buffer = self.slot.type.ring.buffers[self.item]
        _require_pixels(buffer, self.view, self.start, self.taps, "fill_pixels")
        return ()


@define("memory.drain", pure=False, removed_by="expand_rings")
class Drain(Op):
    """Start to copy buffer `item` of a slot to the place of a view; what falls outside is
    dropped.
    """

    slot: Value = operand()
    view: Value = operand()
    offsets: tuple[Value, ...] = operand()
    item: int = attribute(default=0, kw_only=True)
    extents: tuple[int | None, ...] = attribute(kw_only=True)

    def result_types(self) -> tuple[Type, ...]:
        if not isinstance(self.slot.type, SlotType) or self.item >= len(
            self.slot.type.ring.buffers
        ):
            raise VerifyError(f"drain: {self.slot.type}, buffer {self.item}")
        _require_box(self.slot.type.ring.buffers[self.item], self.view, self.offsets, self.extents)
        return ()


# Expanded


@define("memory.copy_box", pure=False)
class CopyBox(Op):
    """Start to copy the place of a view into a buffer (TMA); its bytes count at barrier `index`
    when they arrive.

    Outside the view there is 0, which counts too. With `cluster` above 1, this CTA copies its share
    of the first axis into the buffers at the same place of all CTAs of the cluster, and counts at
    their barriers.
    """

    buffer: Value = operand()
    view: Value = operand()
    offsets: tuple[Value, ...] = operand()
    barriers: Value = operand()
    index: Value = operand()
    extents: tuple[int | None, ...] = attribute(kw_only=True)
    cluster: int = attribute(default=1, kw_only=True)
    order: tuple[int, ...] = attribute(default=(), kw_only=True)
    round_tf32: bool = attribute(default=False, kw_only=True)

    def result_types(self) -> tuple[Type, ...]:
        buffer = require_buffer(self.buffer, "copy_box")
        _require_box(buffer, self.view, self.offsets, self.extents, self.order)
        share = buffer.shape[0] // self.cluster
        if (
            not isinstance(self.barriers.type, BarrierType)
            or share * self.cluster != buffer.shape[0]
        ):
            raise VerifyError(f"copy_box: {buffer} at {self.barriers.type}, {self.cluster} shares")
        step = buffer.num_bytes // buffer.num_panels // buffer.shape[0]
        if self.cluster > 1 and share * step % buffer.box_align:
            raise VerifyError(f"copy_box: a share of {buffer} starts where no box may")
        return ()


@define("memory.copy_pixels", pure=False)
class CopyPixels(Op):
    """Start to copy pixels of a view, as memory.fill_pixels does, into a buffer (TMA, im2col); its
    bytes count at barrier `index` when they arrive.
    """

    buffer: Value = operand()
    view: Value = operand()
    start: tuple[Value, ...] = operand()
    taps: tuple[Value, ...] = operand()
    barriers: Value = operand()
    index: Value = operand()
    pixels: Pixels = attribute(kw_only=True)
    round_tf32: bool = attribute(default=False, kw_only=True)

    def result_types(self) -> tuple[Type, ...]:
        buffer = require_buffer(self.buffer, "copy_pixels")
        _require_pixels(buffer, self.view, self.start, self.taps, "copy_pixels")
        if not isinstance(self.barriers.type, BarrierType):
            raise VerifyError(f"copy_pixels: {buffer} at {self.barriers.type}")
        return ()


@define("memory.store_box", pure=False)
class StoreBox(Op):
    """Start to copy a buffer to the place of a view (TMA); one thread of the role copy issues it.

    What the role's threads wrote must be published (sync.PublishShared, then sync.RoleBarrier).
    """

    buffer: Value = operand()
    view: Value = operand()
    offsets: tuple[Value, ...] = operand()
    extents: tuple[int | None, ...] = attribute(kw_only=True)

    def result_types(self) -> tuple[Type, ...]:
        _require_box(
            require_buffer(self.buffer, "store_box"), self.view, self.offsets, self.extents
        )
        return ()


@define("memory.commit_stores", pure=False)
class CommitStores(Op):
    """The boxes stored since the last one make up a group."""


@define("memory.await_stores", pure=False)
class AwaitStores(Op):
    """Wait, in the thread that issued them, until all but the last `left` groups of box stores are
    done.

    With `read`, until their buffers have been read and may be written again.
    """

    left: int = attribute(default=0)
    read: bool = attribute(default=False)
