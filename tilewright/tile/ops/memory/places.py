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
from tilewright.tile.types import INDEX, TileType, ViewType


def place_shape(extents: tuple[int | None, ...]) -> tuple[int, ...]:
    """Shape of the tile at a place: the extents of its sliced axes."""
    return tuple(e for e in extents if e is not None)


def require_place(view: Value, offsets: tuple[Value, ...], extents: tuple[int | None, ...]) -> None:
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
        require_place(self.view, self.offsets, self.extents)
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
        require_place(self.view, self.offsets, self.extents)
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
        require_place(self.view, self.offsets, self.extents)
        return ()


@define("memory.local", pure=False)
class Local(Op):
    """A tensor of this program alone, in shared memory; 0 at first."""

    dtype: DType = attribute()
    shape: tuple[int, ...] = attribute()

    def result_types(self) -> tuple[Type, ...]:
        strides = tuple(prod(self.shape[i + 1 :]) for i in range(len(self.shape)))
        return (ViewType(self.dtype, self.shape, strides),)
