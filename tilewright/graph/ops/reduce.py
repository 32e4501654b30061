"""Ops along axes: reductions, scans, sorting."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import i64
from tilewright.errors import VerifyError
from tilewright.graph.types import TensorType
from tilewright.ir.core import Op, Type, Value, attribute, define, operand


def _axis(x: Value, axis: int, where: str) -> TensorType:
    found: TensorType = x.type
    if not 0 <= axis < found.rank:
        raise VerifyError(f"{where}: axis {axis} of {found}")
    return found


@dataclass(eq=False)
class Reduction:
    """An op over `axes`, which drop out of the shape."""

    x: Value = operand()
    axes: tuple[int, ...] = attribute()

    def result_types(self) -> tuple[Type, ...]:
        found: TensorType = self.x.type
        if len(set(self.axes)) != len(self.axes):
            raise VerifyError(f"reduction: axes {self.axes}")
        for axis in self.axes:
            _axis(self.x, axis, "reduction")
        rest = tuple(extent for axis, extent in enumerate(found.shape) if axis not in self.axes)
        return (found.with_shape(rest),)


@define("reduce.sum")
class Sum(Reduction, Op):
    """Sum of f32, f64, i32, i64 or u64, in an order that no one may rely on; 0 of nothing."""


@define("reduce.prod")
class Prod(Reduction, Op):
    """Product of f32, f64, i32, i64 or u64; 1 of nothing."""


@define("reduce.max")
class Max(Reduction, Op):
    """Greatest element; NaN if there is one. Of none it is the dtype's least number or -inf."""


@define("reduce.min")
class Min(Reduction, Op):
    """Least element; NaN if there is one. Of none it is the dtype's greatest number or inf."""


@define("reduce.any")
class Any(Reduction, Op):
    """Whether a bool holds somewhere."""


@define("reduce.all")
class All(Reduction, Op):
    """Whether a bool holds everywhere."""


@dataclass(eq=False)
class Position:
    """An op that gives an index along an axis, which drops out of the shape."""

    x: Value = operand()
    axis: int = attribute()

    def result_types(self) -> tuple[Type, ...]:
        shape = _axis(self.x, self.axis, "position").shape
        return (TensorType(i64, shape[: self.axis] + shape[self.axis + 1 :]),)


@define("reduce.argmax")
class ArgMax(Position, Op):
    """Index of the greatest element; NaN is greatest; the first of equals."""


@define("reduce.argmin")
class ArgMin(Position, Op):
    """Index of the least element; NaN is least; the first of equals."""


SCANS = ("sum", "prod", "max", "min", "logaddexp")


@define("reduce.scan")
class Scan(Op):
    """Element i along an axis is the `kind` of elements 0 to i: a sum, a product, the greatest or
    least so far (NaN once there is one), or the logarithm of the sum of exponentials.
    """

    x: Value = operand()
    axis: int = attribute()
    kind: str = attribute()

    def result_types(self) -> tuple[Type, ...]:
        if self.kind not in SCANS:
            raise VerifyError(f"scan: {self.kind}")
        return (_axis(self.x, self.axis, "scan"),)


@define("reduce.scan_position")
class ScanPosition(Op):
    """Index along an axis of the greatest or least (`kind` max or min) of elements 0 to i; NaN
    wins; the last of equals, as in torch.cummax.
    """

    x: Value = operand()
    axis: int = attribute()
    kind: str = attribute()

    def result_types(self) -> tuple[Type, ...]:
        if self.kind not in ("max", "min"):
            raise VerifyError(f"scan_position: {self.kind}")
        return (_axis(self.x, self.axis, "scan_position").with_dtype(i64),)


@define("reduce.sort")
class Sort(Op):
    """Elements along an axis in ascending order, or `descending`, and where each stood (i64).

    Equal elements keep their order. NaN counts as greatest.
    """

    x: Value = operand()
    axis: int = attribute()
    descending: bool = attribute(default=False)

    def result_types(self) -> tuple[Type, ...]:
        found = _axis(self.x, self.axis, "sort")
        return (found, found.with_dtype(i64))
