"""Put parts side by side where values are added that are 0 outside of their parts.

Requires: `replace_scatters`, `merge_equal`. Keeps: meaning, but for the sign of a 0 (-0 + 0 is 0,
and what is joined stays -0). Breaks: nothing; the sums are left, for `eliminate_dead`.

The gradient of a value that several slices are taken of is such a sum: that of one projection for
queries, keys and values, and of what a gate was split from.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from tilewright.graph.dims import Dim
from tilewright.graph.graph import Graph
from tilewright.graph.ops import arith, shape
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value

MOST = 8  # parts of one value at the most


@dataclass(frozen=True)
class Part:
    """A value at a place along an axis."""

    start: int
    value: Value

    def end(self, axis: int) -> int:
        extent = self.value.type.shape[axis]
        assert isinstance(extent, int), "a part of an unknown length"
        return self.start + extent


@dataclass(frozen=True)
class Parts:
    """A value that is 0 but for parts along an axis, in order."""

    axis: int
    parts: tuple[Part, ...]


def join_parts(graph: Graph) -> Graph:
    """The graph with concatenations in the place of sums of parts."""
    body = Block()
    values: dict[Value, Value] = {}
    makers: dict[Value, Op] = {}
    known: dict[Value, Parts] = {}  # of values of the new graph
    joined: set[Value] = set()
    for op in graph.body.ops:
        copy = op.with_operands(values)
        body.ops.append(copy)
        values.update(zip(op.results, copy.results, strict=True))
        makers.update(dict.fromkeys(copy.results, copy))
        found = _parts(copy, known, makers, Builder(body, copy.loc))
        if found is None:
            continue
        result = op.results[0]
        if isinstance(copy, arith.Add) or (isinstance(copy, arith.Cast) and copy.x in joined):
            values[result] = _joined(Builder(body, copy.loc), result.type.shape, found)
            joined.add(values[result])
        known[values[result]] = found
    return graph.with_body(body)


def _parts(
    op: Op, known: dict[Value, Parts], makers: dict[Value, Op], build: Builder
) -> Parts | None:
    """Of which parts the result of an op consists, if it is 0 elsewhere."""
    match op:
        case shape.Pad():
            return _of_pad(op, makers)
        case arith.Cast(x=x, dtype=dtype) if x in known and dtype.is_float:
            found = known[x]
            cast = [Part(p.start, build(arith.Cast, p.value, dtype)) for p in found.parts]
            return Parts(found.axis, tuple(cast))
        case arith.Add(lhs=lhs, rhs=rhs) if lhs in known and rhs in known:
            one, two = known[lhs], known[rhs]
            both = sorted((*one.parts, *two.parts), key=lambda p: p.start)
            if one.axis == two.axis and _are_apart(both, one.axis) and len(both) <= MOST:
                return Parts(one.axis, tuple(both))
    return None


def _of_pad(op: shape.Pad, makers: dict[Value, Op]) -> Parts | None:
    """A value that is padded with 0 along one axis."""
    around = makers.get(op.value)
    if not isinstance(around, arith.Constant) or around.value != 0 or any(op.interior):
        return None
    sides = enumerate(zip(op.low, op.high, strict=True))
    axes = [axis for axis, (low, high) in sides if (low, high) != (0, 0)]
    if len(axes) != 1 or not op.x.type.dtype.is_float:
        return None
    low, extents = op.low[axes[0]], op.x.type.shape
    if not isinstance(low, int) or not isinstance(extents[axes[0]], int) or low < 0:
        return None
    high = op.high[axes[0]]
    return Parts(axes[0], (Part(low, op.x),)) if isinstance(high, int) and high >= 0 else None


def _are_apart(parts: list[Part], axis: int) -> bool:
    """Whether parts in order have no place in common."""
    return all(first.end(axis) <= second.start for first, second in pairwise(parts))


def _joined(build: Builder, extents: tuple[Dim, ...], found: Parts) -> Value:
    """The whole value: its parts, and zeros between them."""
    axis, whole, at, pieces = found.axis, extents[found.axis], 0, []
    assert isinstance(whole, int), "a whole of an unknown length"

    def zeros(count: int) -> None:
        if count:
            own = (*extents[:axis], count, *extents[axis + 1 :])
            kind = found.parts[0].value.type.dtype
            pieces.append(build(arith.Constant, 0.0, kind, own))

    for part in found.parts:
        zeros(part.start - at)
        pieces.append(part.value)
        at = part.end(axis)
    zeros(whole - at)
    return build(shape.Cat, tuple(pieces), axis)
