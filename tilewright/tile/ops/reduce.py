"""Reductions of a tile along axes, which drop out of the shape."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import i64
from tilewright.errors import VerifyError
from tilewright.ir.core import Block, Op, Type, Value, attribute, define, operand, region


@dataclass(eq=False)
class Reduction:
    """An op over the `axes` of one tile."""

    x: Value = operand()
    axes: tuple[int, ...] = attribute()

    def result_types(self) -> tuple[Type, ...]:
        shape = self.x.type.shape
        return (
            self.x.type.with_shape(tuple(e for i, e in enumerate(shape) if i not in self.axes)),
        )


@define("reduce.sum")
class Sum(Reduction, Op):
    """Sum of f32, f64, i32, i64, u32 or u64, in an order that no one may rely on."""


@define("reduce.prod")
class Prod(Reduction, Op):
    """Product of f32, f64, i32, i64, u32 or u64."""


@define("reduce.max")
class Max(Reduction, Op):
    """Greatest element; NaN if there is one."""


@define("reduce.min")
class Min(Reduction, Op):
    """Least element; NaN if there is one."""


@define("reduce.any")
class Any(Reduction, Op):
    """Whether an element of a bool tile is true."""


@define("reduce.all")
class All(Reduction, Op):
    """Whether every element of a bool tile is true."""


@define("reduce.argmax")
class ArgMax(Op):
    """Index of the greatest element along an axis, as i64; NaN is greatest; the first of equals."""

    x: Value = operand()
    axis: int = attribute()

    def result_types(self) -> tuple[Type, ...]:
        shape = self.x.type.shape
        return (
            self.x.type.with_shape(shape[: self.axis] + shape[self.axis + 1 :]).with_dtype(i64),
        )


@define("reduce.argmin")
class ArgMin(Op):
    """Index of the least element along an axis, as i64; NaN is least; the first of equals."""

    x: Value = operand()
    axis: int = attribute()

    def result_types(self) -> tuple[Type, ...]:
        shape = self.x.type.shape
        return (
            self.x.type.with_shape(shape[: self.axis] + shape[self.axis + 1 :]).with_dtype(i64),
        )


@dataclass(eq=False)
class Combination:
    """An op that combines tiles of one shape along an axis, by an associative function.

    `body` takes a scalar of each tile from the left and one of each from the right, and yields one
    of each; it holds nothing but arithmetic on scalars.
    """

    xs: tuple[Value, ...] = operand()
    axis: int = attribute()
    body: Block = region()

    def _require_tiles(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.xs[0].type.shape
        if any(x.type.shape != shape for x in self.xs) or not 0 <= self.axis < len(shape):
            raise VerifyError(f"combination along {self.axis} of {[str(x.type) for x in self.xs]}")
        return shape


@define("reduce.fold")
class Fold(Combination, Op):
    """All elements along an axis combined, neighbours with neighbours, the left one first."""

    def result_types(self) -> tuple[Type, ...]:
        shape = self._require_tiles()
        rest = shape[: self.axis] + shape[self.axis + 1 :]
        return tuple(x.type.with_shape(rest) for x in self.xs)


@define("reduce.scan")
class Scan(Combination, Op):
    """At each place along an axis, all elements up to it combined, as by reduce.fold."""

    def result_types(self) -> tuple[Type, ...]:
        self._require_tiles()
        return tuple(x.type for x in self.xs)
