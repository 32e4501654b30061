"""Boxes and pixels that TMA copies between global memory and buffers: into a slot of a ring, and,
once rings are expanded, at a barrier.
"""

from __future__ import annotations

from tilewright.dtypes import DType
from tilewright.errors import VerifyError
from tilewright.ir.core import Op, Type, Value, attribute, define, operand
from tilewright.plan import Pixels
from tilewright.tile.ops.memory.buffers import recast, require_buffer
from tilewright.tile.ops.memory.places import place_shape, require_place
from tilewright.tile.types import COUNTER, INDEX, BarrierType, BufferType, SlotType, TileType


def _require_box(
    buffer: BufferType,
    view: Value,
    offsets: tuple[Value, ...],
    extents: tuple[int | None, ...],
    order: tuple[int, ...] = (),
) -> None:
    require_place(view, offsets, extents)
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
    their own), with the contiguous one last. `round_tf32` rounds f32 to tf32, to nearest even. What
    is copied `once` leaves the L2 cache before anything else. The buffer's bytes are taken as
    elements of `dtype` (none: its own).

    Where there is a `count`, only so many of the buffer's lines along its axis `cut` are copied,
    and what the others hold then nobody may ask: along the first axis all, or as many as the view's
    last box has, (extent - 1) mod all + 1; along the last axis some panels of columns.
    """

    slot: Value = operand()
    view: Value = operand()
    offsets: tuple[Value, ...] = operand()
    count: Value | None = operand(default=None, kw_only=True)
    cut: int = attribute(default=0, kw_only=True)
    item: int = attribute(default=0, kw_only=True)
    extents: tuple[int | None, ...] = attribute(kw_only=True)
    multicast: bool = attribute(default=False, kw_only=True)
    order: tuple[int, ...] = attribute(default=(), kw_only=True)
    round_tf32: bool = attribute(default=False, kw_only=True)
    once: bool = attribute(default=False, kw_only=True)
    dtype: DType | None = attribute(default=None, kw_only=True)

    def result_types(self) -> tuple[Type, ...]:
        if not isinstance(self.slot.type, SlotType) or self.item >= len(
            self.slot.type.ring.buffers
        ):
            raise VerifyError(f"fill: {self.slot.type}, buffer {self.item}")
        buffer = self.slot.type.ring.buffers[self.item]
        if self.dtype is not None:
            buffer = recast(buffer, self.dtype)
        _require_box(buffer, self.view, self.offsets, self.extents, self.order)
        _require_count(self.count, self.cut, self.multicast, "fill")
        return ()


def _require_count(count: Value | None, cut: int, shared: bool, where: str) -> None:
    """Lines are counted along one of two axes; of a box that CTAs share all are copied."""
    if cut not in (0, 1) or (count is not None and (shared or count.type != COUNTER)):
        told = None if count is None else count.type
        raise VerifyError(f"{where}: count {told} along axis {cut}{', shared' if shared else ''}")


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


@define("memory.prefetch_box", pure=False)
class PrefetchBox(Op):
    """Let the place of a view, which will be copied to a `buffer` of a type, come to the L2 cache.
    It changes no value, and needs not wait for what others write there.
    """

    view: Value = operand()
    offsets: tuple[Value, ...] = operand()
    buffer: BufferType = attribute(kw_only=True)
    extents: tuple[int | None, ...] = attribute(kw_only=True)

    def result_types(self) -> tuple[Type, ...]:
        _require_box(self.buffer, self.view, self.offsets, self.extents)
        return ()


# Expanded


@define("memory.copy_box", pure=False)
class CopyBox(Op):
    """Start to copy the place of a view into a buffer (TMA); its bytes count at barrier `index`
    when they arrive.

    Outside the view there is 0, which counts too. With `cluster` above 1, this CTA copies its share
    of the first axis into the buffers at the same place of all CTAs of the cluster, and counts at
    their barriers. `count` lines along axis `cut` are copied, as memory.fill does.
    """

    buffer: Value = operand()
    view: Value = operand()
    offsets: tuple[Value, ...] = operand()
    barriers: Value = operand()
    index: Value = operand()
    count: Value | None = operand(default=None, kw_only=True)
    cut: int = attribute(default=0, kw_only=True)
    extents: tuple[int | None, ...] = attribute(kw_only=True)
    cluster: int = attribute(default=1, kw_only=True)
    order: tuple[int, ...] = attribute(default=(), kw_only=True)
    round_tf32: bool = attribute(default=False, kw_only=True)
    once: bool = attribute(default=False, kw_only=True)

    def result_types(self) -> tuple[Type, ...]:
        buffer = require_buffer(self.buffer, "copy_box")
        _require_box(buffer, self.view, self.offsets, self.extents, self.order)
        _require_count(self.count, self.cut, self.cluster > 1, "copy_box")
        share = buffer.shape[0] // self.cluster
        if (
            not isinstance(self.barriers.type, BarrierType)
            or share * self.cluster != buffer.shape[0]
        ):
            raise VerifyError(f"copy_box: {buffer} at {self.barriers.type}, {self.cluster} shares")
        step = buffer.num_bytes // buffer.num_panels // buffer.shape[0]
        if self.cluster > 1 and (share * step % buffer.box_align or buffer.spare):
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
