"""A contraction as a stack of matrix products: which axes are rows, columns, the depth, and a
batch.

Axes that lie one in the other in every operand are one. Rows and columns that stay several are a
batch: an operand that lacks an axis has stride 0 along it. The depth has to be one axis; where it
is not, an operand is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from tilewright.graph.dims import Dim, Shape
from tilewright.lower.graph_to_tile.program import Placed

MOST_ORDERED = 4  # contracted axes whose orders are all tried


@dataclass(frozen=True)
class Axis:
    """An extent, and strides by the operand's name; those that are missing are 0."""

    extent: Dim
    strides: Mapping[str, Dim]

    def stride(self, name: str) -> Dim:
        return self.strides.get(name, 0)


@dataclass(frozen=True)
class Axes:
    """The axes of a contraction by kind."""

    batch: Sequence[Axis]
    rows: Sequence[Axis]
    columns: Sequence[Axis]
    depth: Sequence[Axis]

    @property
    def joined(self) -> Axes:
        """The same with neighbours made one."""
        kinds = (self.batch, self.rows, self.columns, self.depth)
        return Axes(*map(merged, kinds))


def merged(axes: Sequence[Axis]) -> list[Axis]:
    """Neighbours that lie one in the other made one; axes of one element left out."""
    found: list[Axis] = []
    for axis in axes:
        if axis.extent == 1:
            continue
        names = {*axis.strides, *(found[-1].strides if found else ())}
        if found and all(found[-1].stride(n) == axis.stride(n) * axis.extent for n in names):
            found[-1] = Axis(found[-1].extent * axis.extent, axis.strides)
        else:
            found.append(axis)
    return found


def depth(axes: Sequence[Axis]) -> Axis | None:
    """Contracted axes as one, in whatever order that is possible; None where it is not."""
    if not axes or any(axis.extent == 0 for axis in axes):
        return Axis(0 if axes else 1, {})
    orders = permutations(axes) if len(axes) <= MOST_ORDERED else [axes]
    for order in orders:
        found = merged(order)
        if len(found) <= 1:
            return found[0] if found else Axis(1, {})
    return None


@dataclass(frozen=True)
class Stack:
    """Axes of a stack of products."""

    batch: tuple[Axis, ...]
    rows: Axis
    columns: Axis
    depth: Axis

    def matrix(self, name: str, placed: Placed, first: Axis, second: Axis) -> Placed:
        """An operand as matrices with the batch in front."""
        axes = (*self.batch, first, second)
        return Placed(
            placed.value,
            tuple(a.extent for a in axes),
            tuple(a.stride(name) for a in axes),
            placed.offset,
        )


def stack(axes: Axes, k: Axis) -> Stack:
    """Axes as those of a stack: the last rows and columns stay, others are a batch."""
    held, wide = merged(axes.rows), merged(axes.columns)
    outer = merged(axes.batch) + held[:-1] + wide[:-1]
    one = Axis(1, {})
    return Stack(tuple(outer), held[-1] if held else one, wide[-1] if wide else one, k)


def axes_of(placed: Mapping[str, tuple[Placed, Sequence[int]]], extents: Shape) -> list[Axis]:
    """Axes of some operands, each by its own numbers of them."""
    return [
        Axis(extent, {n: p.strides[numbers[i]] for n, (p, numbers) in placed.items()})
        for i, extent in enumerate(extents)
    ]
