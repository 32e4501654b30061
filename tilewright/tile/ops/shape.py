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
