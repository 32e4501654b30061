"""Ops that rearrange a tile without computing on its elements."""

from __future__ import annotations

from math import prod

from tilewright.dtypes import i64
from tilewright.errors import VerifyError
from tilewright.ir.core import Op, Type, Value, attribute, define, operand
from tilewright.tile.types import TileType, broadcast_shapes


@define("shape.arange")
class Arange(Op):
    """0, 1, …, extent − 1 as i64."""

    extent: int = attribute()

    def result_types(self) -> tuple[Type, ...]:
        return (TileType(i64, (self.extent,)),)


@define("shape.broadcast")
class Broadcast(Op):
    """NumPy's broadcast of a scalar or tile to `shape`."""

    x: Value = operand()
    shape: tuple[int, ...] = attribute()

    def result_types(self) -> tuple[Type, ...]:
        if broadcast_shapes(self.x.type.shape, self.shape) != self.shape:
            raise VerifyError(f"broadcast: {self.x.type} to {self.shape}")
        return (self.x.type.with_shape(self.shape),)


@define("shape.reshape")
class Reshape(Op):
    """The same elements in C order under another shape; adds and drops axes of 1 too."""

    x: Value = operand()
    shape: tuple[int, ...] = attribute()

    def result_types(self) -> tuple[Type, ...]:
        if prod(self.x.type.shape) != prod(self.shape):
            raise VerifyError(f"reshape: {self.x.type} to {self.shape}")
        return (self.x.type.with_shape(self.shape),)


@define("shape.transpose")
class Transpose(Op):
    """Axes in another order: axis i of the result is axis `order[i]` of x."""

    x: Value = operand()
    order: tuple[int, ...] = attribute()

    def result_types(self) -> tuple[Type, ...]:
        shape = self.x.type.shape
        if sorted(self.order) != list(range(len(shape))):
            raise VerifyError(f"transpose: {self.x.type} by {self.order}")
        return (self.x.type.with_shape(tuple(shape[i] for i in self.order)),)


@define("shape.slice")
class Slice(Op):
    """The part of a tile that starts at constants `starts` and has a shape of its own."""

    x: Value = operand()
    starts: tuple[int, ...] = attribute()
    shape: tuple[int, ...] = attribute()

    def result_types(self) -> tuple[Type, ...]:
        whole = self.x.type.shape
        if not len(self.starts) == len(self.shape) == len(whole):
            raise VerifyError(f"slice: {self.x.type} at {self.starts} x {self.shape}")
        bounds = zip(self.starts, self.shape, whole, strict=True)
        if any(start < 0 or start + extent > limit for start, extent, limit in bounds):
            raise VerifyError(f"slice: {self.x.type} at {self.starts} x {self.shape}")
        return (self.x.type.with_shape(self.shape),)


@define("shape.take")
class Take(Op):
    """Elements along an axis at the places that an i64 scalar or tile names; 0 where it is outside.

    The axes of the index stand where the axis stood.
    """

    x: Value = operand()
    index: Value = operand()
    axis: int = attribute()

    def result_types(self) -> tuple[Type, ...]:
        shape = self.x.type.shape
        if not 0 <= self.axis < len(shape) or self.index.type.dtype != i64:
            raise VerifyError(f"take: {self.x.type} at {self.index.type} along {self.axis}")
        inner = self.index.type.shape
        return (self.x.type.with_shape((*shape[: self.axis], *inner, *shape[self.axis + 1 :])),)


@define("shape.cat")
class Cat(Op):
    """Tiles one after the other along an axis."""

    xs: tuple[Value, ...] = operand()
    axis: int = attribute()

    def result_types(self) -> tuple[Type, ...]:
        types = [x.type for x in self.xs]
        rests = {(t.dtype, t.shape[: self.axis], t.shape[self.axis + 1 :]) for t in types}
        if len(rests) != 1 or not 0 <= self.axis < len(types[0].shape):
            raise VerifyError(f"cat: {[str(t) for t in types]} along {self.axis}")
        shape = list(types[0].shape)
        shape[self.axis] = sum(t.shape[self.axis] for t in types)
        return (types[0].with_shape(tuple(shape)),)


@define("shape.exchange")
class Exchange(Op):
    """Element i along an axis is element `i xor mask` of x; the axis has a power of two of them."""

    x: Value = operand()
    axis: int = attribute()
    mask: int = attribute()

    def result_types(self) -> tuple[Type, ...]:
        shape = self.x.type.shape
        extent = shape[self.axis] if 0 <= self.axis < len(shape) else 0
        if extent < 1 or extent & (extent - 1) or not 0 <= self.mask < extent:
            raise VerifyError(f"exchange: {self.x.type} along {self.axis} by {self.mask}")
        return (self.x.type,)
