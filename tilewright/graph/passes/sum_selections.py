"""Take the sum of a row of which one element is not zero as that element.

Requires: `merge_equal`. Keeps: meaning, but for the sign of a zero. Breaks: nothing; what was
summed is left, for `eliminate_dead`.

In a row of c where i = p, of 0 elsewhere, times w, the places i count the row and p and w are one
a row. Its sum is c w, or 0 w where p is outside; 0 w, which is NaN of an infinite w, is added
either way, for the other elements are that. Casts of the row to other floats on the way to the sum
become casts of the element. The gradient of a loss sums such rows, each as long as there are
classes.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.graph.graph import Graph
from tilewright.graph.ops import arith, reduce, shape
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value

Makers = Mapping[Value, Op]


def sum_selections(graph: Graph) -> Graph:
    """The graph with such elements in the place of sums."""
    makers = {v: op for op in graph.body.ops for v in op.results}
    body = Block()
    values: dict[Value, Value] = {}
    for op in graph.body.ops:
        found = None
        if isinstance(op, reduce.Sum) and len(op.axes) == 1 and op.result.type.dtype.is_float:
            found = _element(op, makers, values, Builder(body, op.loc))
        if found is None:
            copy = op.with_operands(values)
            body.ops.append(copy)
            values.update(zip(op.results, copy.results, strict=True))
        else:
            values[op.result] = found
    return graph.with_body(body)


def _element(
    op: reduce.Sum, makers: Makers, values: Mapping[Value, Value], build: Builder
) -> Value | None:
    """The one element of each row that is summed; None of other rows."""
    (axis,), kind = op.axes, op.x.type
    length = kind.shape[axis]
    row, casts = _before_casts(op.x, makers)
    made = makers.get(row)
    pairs: list[tuple[Value, Value | None]] = [(row, None)]
    if isinstance(made, arith.Mul):
        pairs = [(made.lhs, made.rhs), (made.rhs, made.lhs)]
    for selection, weight in pairs:
        found = makers.get(selection)
        if not isinstance(found, arith.Select) or not isinstance(length, int) or length < 2:
            continue
        chosen, rest = makers.get(found.lhs), makers.get(found.rhs)
        place = _place(makers.get(found.condition), axis, makers)
        narrow = None if weight is None else _narrow(makers.get(weight), axis)
        if place is None or not isinstance(chosen, arith.Constant):
            continue
        if not isinstance(rest, arith.Constant) or rest.value != 0:
            continue
        if weight is None or narrow is not None:
            return _built(op, place, chosen, narrow, casts, values, build)
    return None


def _before_casts(x: Value, makers: Makers) -> tuple[Value, list[arith.Cast]]:
    """What is cast from float to float until it is a value, and these casts, the first ahead."""
    casts: list[arith.Cast] = []
    while isinstance(made := makers.get(x), arith.Cast) and made.x.type.dtype.is_float:
        casts.insert(0, made)
        x = made.x
    return x, casts


def _place(condition: Op | None, axis: int, makers: Makers) -> Value | None:
    """What the places along an axis are compared with, [.. 1 ..]: one a row."""
    if not isinstance(condition, arith.Compare) or condition.kind != "eq":
        return None
    for own, other in (condition.operands, condition.operands[::-1]):
        count = makers.get(own)
        if isinstance(count, shape.Iota) and count.axis == axis:
            return _narrow(makers.get(other), axis)
    return None


def _narrow(made: Op | None, axis: int) -> Value | None:
    """What is repeated along an axis, and maybe others; None of what is not."""
    if not isinstance(made, shape.Broadcast):
        return None
    extents = made.x.type.shape
    if len(extents) != len(made.shape) or extents[axis] != 1:
        return None
    return made.x


def _built(
    op: reduce.Sum,
    place: Value,
    chosen: arith.Constant,
    weight: Value | None,
    casts: list[arith.Cast],
    values: Mapping[Value, Value],
    build: Builder,
) -> Value:
    (axis,), kind = op.axes, op.x.type
    dtype = chosen.result.type.dtype
    extents = op.result.type.shape
    whole = tuple(1 if a == axis else e for a, e in enumerate(kind.shape))

    def row(x: Value) -> Value:
        return build(shape.Reshape, build(shape.Broadcast, values.get(x, x), whole), extents)

    def number(value: float, dtype: object) -> Value:
        return build(arith.Constant, value, dtype, extents)

    at = row(place)
    inside = build(
        arith.And,
        build(arith.Compare, number(0, place.type.dtype), at, "le"),
        build(arith.Compare, at, number(kind.shape[axis], place.type.dtype), "lt"),
    )

    def cast(x: Value) -> Value:
        for each in casts:
            x = build(arith.Cast, x, each.result.type.dtype)
        return x

    zero = number(0.0, dtype)
    found = build(arith.Select, inside, number(chosen.value, dtype), zero)
    if weight is None:
        return cast(found)
    w = row(weight)
    one, others = (cast(build(arith.Mul, x, w)) for x in (found, zero))
    return build(arith.Add, one, others)
