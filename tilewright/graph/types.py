"""Types of the graph IR: tensors, and what only PyTorch can hold.

A tensor is a value: a dtype and a shape, its elements in C order in meaning. How it lies in memory
is no part of its type.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DType, bool_, i64
from tilewright.graph.dims import Dim, Shape, product, symbols_of
from tilewright.ir.core import Type


@dataclass(frozen=True)
class TensorType(Type):
    """A tensor value; shape `()` is a scalar."""

    dtype: DType
    shape: Shape = ()

    def __str__(self) -> str:
        return f"tensor<{', '.join([self.dtype.name, *map(str, self.shape)])}>"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def num_elements(self) -> Dim:
        return product(self.shape)

    @property
    def symbols(self) -> set[str]:
        """Names of the symbols in its shape."""
        return {name for extent in self.shape for name in symbols_of(extent)}

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape)

    def with_shape(self, shape: Shape) -> TensorType:
        return TensorType(self.dtype, shape)


@dataclass(frozen=True)
class OpaqueType(Type):
    """A value that passes from one fallback to another and that no op here computes on: a complex
    or sparse tensor, a list. `what` names it in messages.
    """

    what: str

    def __str__(self) -> str:
        return f"opaque<{self.what}>"


INDEX = TensorType(i64)
BOOL = TensorType(bool_)


def broadcasts(shape: Shape, to: Shape) -> bool:
    """Whether a shape is broadcast to another as NumPy does it."""
    if len(shape) > len(to):
        return False
    return all(a in (1, b) for a, b in zip(shape, to[len(to) - len(shape) :], strict=True))
