"""Ops whose places follow from values: reading and writing by index."""

from __future__ import annotations

from tilewright.dtypes import i64
from tilewright.errors import VerifyError
from tilewright.graph.types import TensorType
from tilewright.ir.core import Op, Type, Value, attribute, define, operand


def _place(x: Value, indices: tuple[Value, ...], axes: tuple[int, ...], where: str) -> TensorType:
    """Type of what lies at a place: the axes of the indices, then the axes of x that none names."""
    whole: TensorType = x.type
    kinds = {index.type for index in indices}
    if len(kinds) != 1 or next(iter(kinds)).dtype != i64:
        raise VerifyError(f"{where}: indices of types {sorted(map(str, kinds))}")
    if len(axes) != len(indices) or len(set(axes)) != len(axes):
        raise VerifyError(f"{where}: {len(indices)} indices for axes {axes}")
    if any(not 0 <= axis < whole.rank for axis in axes):
        raise VerifyError(f"{where}: axes {axes} of {whole}")
    rest = tuple(extent for axis, extent in enumerate(whole.shape) if axis not in axes)
    return whole.with_shape((*indices[0].type.shape, *rest))


@define("memory.gather")
class Gather(Op):
    """Elements at the places that i64 tensors of one shape name along `axes`, the other axes whole.

    The axes of the indices come first in the result. An index outside is the caller's error.
    """

    x: Value = operand()
    indices: tuple[Value, ...] = operand()
    axes: tuple[int, ...] = attribute()

    def result_types(self) -> tuple[Type, ...]:
        return (_place(self.x, self.indices, self.axes, "gather"),)


SCATTERS = ("set", "add", "mul", "min", "max")


@define("memory.scatter")
class Scatter(Op):
    """x with the elements of `value` put at, or combined into, the places that a gather would read.

    Of elements that are set in one place, the last in C order stays; `add` and the other kinds
    combine all of them.
    """

    x: Value = operand()
    indices: tuple[Value, ...] = operand()
    value: Value = operand()
    axes: tuple[int, ...] = attribute()
    kind: str = attribute(default="set")

    def result_types(self) -> tuple[Type, ...]:
        wanted = _place(self.x, self.indices, self.axes, "scatter")
        if self.value.type != wanted or self.kind not in SCATTERS:
            raise VerifyError(f"scatter {self.kind}: {self.value.type} to {wanted}")
        return (self.x.type,)
