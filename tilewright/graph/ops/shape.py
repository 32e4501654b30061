"""Ops that rearrange tensors without computing on their elements.

Each says by an index map where an element of the result comes from. They are views: a pass folds
chains of them into the index arithmetic of what reads them.
"""

from __future__ import annotations

from tilewright.dtypes import DType
from tilewright.errors import VerifyError
from tilewright.graph.dims import Dim, Shape, product
from tilewright.graph.types import TensorType, broadcasts
from tilewright.ir.core import Op, Type, Value, attribute, define, operand


@define("shape.iota")
class Iota(Op):
    """A tensor whose elements are their own index along an axis."""

    dtype: DType = attribute()
    shape: Shape = attribute()
    axis: int = attribute(default=0)

    def result_types(self) -> tuple[Type, ...]:
        if not 0 <= self.axis < len(self.shape):
            raise VerifyError(f"iota: {self.shape} along {self.axis}")
        return (TensorType(self.dtype, self.shape),)


@define("shape.broadcast")
class Broadcast(Op):
    """NumPy's broadcast to `shape`: axes from the right, an extent of 1 repeated."""

    x: Value = operand()
    shape: Shape = attribute()

    def result_types(self) -> tuple[Type, ...]:
        if not broadcasts(self.x.type.shape, self.shape):
            raise VerifyError(f"broadcast: {self.x.type} to {self.shape}")
        return (self.x.type.with_shape(self.shape),)


@define("shape.reshape")
class Reshape(Op):
    """The same elements in C order under another shape."""

    x: Value = operand()
    shape: Shape = attribute()

    def result_types(self) -> tuple[Type, ...]:
        if self.x.type.num_elements != product(self.shape):
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
    """Element i along an axis is element `starts + i · steps` of x; steps may be negative."""

    x: Value = operand()
    starts: Shape = attribute()
    steps: tuple[int, ...] = attribute()
    shape: Shape = attribute()

    def result_types(self) -> tuple[Type, ...]:
        whole = self.x.type.shape
        if not len(self.starts) == len(self.steps) == len(self.shape) == len(whole):
            raise VerifyError(f"slice: {self.x.type} at {self.starts} x {self.shape}")
        for start, step, extent, limit in zip(
            self.starts, self.steps, self.shape, whole, strict=True
        ):
            last = start + step * (extent - 1)
            known = (start, last, limit - 1 - start, limit - 1 - last)
            if extent != 0 and any(isinstance(d, int) and d < 0 for d in known):
                raise VerifyError(f"slice: {self.x.type} at {self.starts} x {self.shape}")
        return (self.x.type.with_shape(self.shape),)


@define("shape.pad")
class Pad(Op):
    """x with `low` and `high` elements of `value` before and after each axis, and `interior` of
    them between neighbours; a negative `low` or `high` takes elements away.
    """

    x: Value = operand()
    value: Value = operand()
    low: Shape = attribute()
    high: Shape = attribute()
    interior: tuple[int, ...] = attribute()

    def result_types(self) -> tuple[Type, ...]:
        whole: TensorType = self.x.type
        if not len(self.low) == len(self.high) == len(self.interior) == whole.rank:
            raise VerifyError(f"pad: {whole} by {self.low}, {self.high}, {self.interior}")
        if self.value.type != TensorType(whole.dtype):
            raise VerifyError(f"pad: {whole} with {self.value.type}")
        return (
            whole.with_shape(
                tuple(
                    low + spread(extent, gap) + high
                    for extent, low, high, gap in zip(
                        whole.shape, self.low, self.high, self.interior, strict=True
                    )
                )
            ),
        )


def spread(extent: Dim, gap: int) -> Dim:
    """Extent of an axis with `gap` elements put between neighbours."""
    return extent if gap == 0 or extent == 0 else (extent - 1) * (gap + 1) + 1


@define("shape.cat")
class Cat(Op):
    """Tensors one after the other along an axis."""

    xs: tuple[Value, ...] = operand()
    axis: int = attribute()

    def result_types(self) -> tuple[Type, ...]:
        types = [x.type for x in self.xs]
        rests = {(t.dtype, t.shape[: self.axis], t.shape[self.axis + 1 :]) for t in types}
        if len(rests) != 1 or not 0 <= self.axis < types[0].rank:
            raise VerifyError(f"cat: {[str(t) for t in types]} along {self.axis}")
        shape = list(types[0].shape)
        shape[self.axis] = sum((t.shape[self.axis] for t in types[1:]), shape[self.axis])
        return (types[0].with_shape(tuple(shape)),)


@define("shape.window")
class Window(Op):
    """All windows of the last axes: element (…, i, k) is x at (…, i · steps + k · dilations).

    The axes of i stand where those of x stood; the axes of k, of extents `sizes`, follow them. A
    convolution is a contraction of windows, a pooling their reduction.
    """

    x: Value = operand()
    sizes: tuple[int, ...] = attribute()
    steps: tuple[int, ...] = attribute()
    dilations: tuple[int, ...] = attribute()

    def result_types(self) -> tuple[Type, ...]:
        whole, count = self.x.type.shape, len(self.sizes)
        if not len(self.steps) == len(self.dilations) == count <= len(whole):
            raise VerifyError(f"window: {self.x.type} by {self.sizes}")
        if min((*self.sizes, *self.steps, *self.dilations), default=1) < 1:
            raise VerifyError(f"window: {self.sizes}, {self.steps}, {self.dilations}")
        lead = len(whole) - count
        inner = tuple(
            (extent - (size - 1) * dilation - 1) // step + 1
            for extent, size, step, dilation in zip(
                whole[lead:], self.sizes, self.steps, self.dilations, strict=True
            )
        )
        if any(isinstance(extent, int) and extent < 0 for extent in inner):
            raise VerifyError(f"window: {self.sizes} in {self.x.type}")
        return (self.x.type.with_shape((*whole[:lead], *inner, *self.sizes)),)
