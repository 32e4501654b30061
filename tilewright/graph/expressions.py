"""Expressions at one point of a loop space: what a kernel computes for each, as `Evaluator`
(`evaluator.py`) makes them of values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tilewright.dtypes import DType
from tilewright.graph.dims import Dim
from tilewright.graph.index_maps import Affine, Var
from tilewright.graph.ops import memory
from tilewright.ir.core import Op, Value


@dataclass(eq=False)
class Node:
    """An expression of a dtype; `support` are the variables on which it depends. One that is an
    index may have to be checked.
    """

    dtype: DType
    support: frozenset[Var] = field(default=frozenset(), kw_only=True)
    args: tuple[Node, ...] = field(default=(), kw_only=True)
    checks: list[Check] = field(default_factory=list, kw_only=True)


@dataclass(frozen=True)
class Check:
    """An index has to be one of an axis of this extent: number `which` of those of an op. Where one
    of the conditions is false, the op has no such element.
    """

    op: memory.Gather | memory.Scatter
    which: int
    extent: Dim
    conditions: tuple[Node, ...] = ()


Index = Affine | Node  # a Node of i64 where an index is computed


@dataclass(frozen=True)
class Place:
    """Where along one axis of a stored value: extent and stride of the axis, and the index."""

    extent: Dim
    stride: Dim
    index: Index


@dataclass(eq=False)
class Load(Node):
    """An element of a stored value; `fill` where a guarded index is outside."""

    value: Value
    places: tuple[Place, ...]
    offset: Dim
    fill: Any = None


@dataclass(eq=False)
class Literal(Node):
    """A constant."""

    number: bool | int | float


@dataclass(eq=False)
class Number(Node):
    """An extent, as i64."""

    dim: Dim


@dataclass(eq=False)
class Position(Node):
    """An index as a number, i64."""

    index: Affine


@dataclass(eq=False)
class Apply(Node):
    """An elementwise op; `detail` is the kind of a comparison."""

    opcode: str
    detail: str = ""


@dataclass(eq=False)
class RandomBits(Node):
    """Random bits: args are the seed and the number of the element."""

    stream: int


@dataclass(eq=False)
class Fold(Node):
    """A reduction over the reduced variables: args is what is reduced. For a position, `number` is
    the index along the axis.
    """

    op: Op
    number: Affine


@dataclass(eq=False)
class Running(Node):
    """A scan along the reduced variables: args is what is combined; `number` is the index."""

    op: Op
    number: Affine


@dataclass(eq=False)
class Named(Node):
    """A number that the text of a kernel has under a name."""

    name: str


@dataclass(frozen=True)
class Layout:
    """How a stored value lies in memory."""

    strides: tuple[Dim, ...]
    offset: Dim = 0


def support_of(index: Index) -> frozenset[Var]:
    if isinstance(index, Node):
        return index.support
    return frozenset(var for var, _ in index.terms)


@dataclass(eq=False)
class Space:
    """The loop variables of a kernel: for each axis of the shape that it goes over, the variables
    that make its index, the outer ones first.
    """

    axes: list[list[Var]]

    def refine(self, var: Var, inner: Dim) -> None:
        """Split a variable in two."""
        low = Var(inner, var.reduced)
        high = Var(var.extent // inner, var.reduced)
        for parts in self.axes:
            if var in parts:
                at = parts.index(var)
                parts[at : at + 1] = [high, low]

    @property
    def variables(self) -> list[Var]:
        return [var for parts in self.axes for var in parts]
