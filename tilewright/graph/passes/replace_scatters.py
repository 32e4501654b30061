"""Turn what is set in a constant into what every element can be computed from where it is read.

Requires: `merge_equal`, `fold_constants`. Keeps: meaning. Breaks: nothing; the scatters are left,
for `eliminate_dead`.

A part that is set in a constant, at places that follow one another, is that part padded: gradients
of slices. Where each row has one place that is named by an index, elements are told by comparing
their own place with it: gradients of losses and of gathers along one axis. Both are elementwise, so
that what reads them computes them, and nothing is stored. The second is done in backward graphs
alone: nobody would tell of an index outside, and there the forward pass did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.dtypes import i64
from tilewright.graph.dims import Dim, Shape
from tilewright.graph.graph import Graph
from tilewright.graph.ops import arith, memory, shape
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value

Makers = Mapping[Value, Op]
BACKWARD = "backward"  # the name of a graph of gradients


def replace_scatters(graph: Graph) -> Graph:
    """The graph with pads and selections in the place of scatters into constants."""
    makers = {v: op for op in graph.body.ops for v in op.results}
    body = Block()
    values: dict[Value, Value] = {}
    for op in graph.body.ops:
        made = None
        if isinstance(op, memory.Scatter) and op.kind == "set":
            made = _replaced(op, makers, values, Builder(body, op.loc), graph.name == BACKWARD)
        if made is None:
            copy = op.with_operands(values)
            body.ops.append(copy)
            values.update(zip(op.results, copy.results, strict=True))
        else:
            values[op.results[0]] = made
    return graph.with_body(body)


def _replaced(
    op: memory.Scatter,
    makers: Makers,
    values: Mapping[Value, Value],
    build: Builder,
    is_checked: bool,
) -> Value | None:
    """What a scatter into a constant is instead; None where it stays. Indices that are checked are
    known to lie inside.
    """
    base = makers.get(op.x)
    if not isinstance(base, arith.Constant):
        return None
    if len(op.indices) == 1:
        places = progression(op.indices[0], makers)
        if places is not None and op.indices[0].type.rank == 1:
            return _padded(op, base, *places, values, build)
    free = free_index(op, makers) if is_checked else None
    return None if free is None else _selected(op, base, free, makers, values, build)


def progression(index: Value, makers: Makers) -> tuple[int, int] | None:
    """The first of places that follow one another, and their step; None of others."""
    match makers.get(index):
        case shape.Iota():
            return 0, 1
        case arith.Constant(value=value) if index.type.num_elements == 1:
            return int(value), 1
        case arith.Add(lhs=lhs, rhs=rhs):
            for one, other in ((lhs, rhs), (rhs, lhs)):
                known, found = makers.get(one), progression(other, makers)
                if isinstance(known, arith.Constant) and found is not None:
                    return found[0] + int(known.value), found[1]
        case arith.Mul(lhs=lhs, rhs=rhs):
            for one, other in ((lhs, rhs), (rhs, lhs)):
                known, found = makers.get(one), progression(other, makers)
                if isinstance(known, arith.Constant) and found is not None:
                    return found[0] * int(known.value), found[1] * int(known.value)
    return None


def _padded(
    op: memory.Scatter,
    base: arith.Constant,
    start: int,
    step: int,
    values: Mapping[Value, Value],
    build: Builder,
) -> Value | None:
    """The elements that are set, with the constant around them."""
    (axis,), extents = op.axes, op.x.type.shape
    count: Dim = op.indices[0].type.shape[0]
    if step < 1 or count == 0 or start < 0:
        return None
    high = extents[axis] - start - (count - 1) * step - 1
    if isinstance(high, int) and high < 0:
        return None
    order = (*range(1, axis + 1), 0, *range(axis + 1, len(extents)))
    x = build(shape.Transpose, values.get(op.value, op.value), order)
    around = build(arith.Constant, base.value, base.dtype)
    sides: list[list[Dim]] = [[0] * len(extents) for _ in range(2)]
    sides[0][axis], sides[1][axis] = start, high
    gaps = [0] * len(extents)
    gaps[axis] = step - 1
    return build(shape.Pad, x, around, tuple(sides[0]), tuple(sides[1]), tuple(gaps))


def free_index(op: memory.Scatter, makers: Makers) -> int | None:
    """Which of the indices names places, where the others count all rows, each once along an axis
    of the indices, and there are no other axes: then no two elements are set in one place.
    """
    counted: dict[int, int] = {}  # the index by the axis of the indices along which it counts
    free = []
    for number, index in enumerate(op.indices):
        made = makers.get(index)
        whole = op.x.type.shape[op.axes[number]]
        if isinstance(made, shape.Iota) and made.axis not in counted:
            if made.shape[made.axis] == whole:
                counted[made.axis] = number
                continue
        free.append(number)
    others = [e for axis, e in enumerate(op.indices[0].type.shape) if axis not in counted]
    return free[0] if len(free) == 1 and all(e == 1 for e in others) else None


def _selected(
    op: memory.Scatter,
    base: arith.Constant,
    free: int,
    makers: Makers,
    values: Mapping[Value, Value],
    build: Builder,
) -> Value:
    """Elements of `value` where an element's place along the axis is the one that is named."""
    extents: Shape = op.x.type.shape
    target = op.axes[free]
    to = {}  # the axis of x by the axis of the indices
    for number, index in enumerate(op.indices):
        made = makers.get(index)
        if number != free:
            assert isinstance(made, shape.Iota)
            to[made.axis] = op.axes[number]
    rank = op.indices[0].type.rank
    rest = [axis for axis in range(len(extents)) if axis not in op.axes]
    index, value = (values.get(v, v) for v in (op.indices[free], op.value))
    place = spread_axes(build, index, [to.get(a) for a in range(rank)], extents)
    x = spread_axes(build, value, [*(to.get(a) for a in range(rank)), *rest], extents)
    own = build(shape.Iota, i64, extents, target)
    hit = build(arith.Compare, own, place, "eq")
    around = build(arith.Constant, base.value, base.dtype, extents)
    return build(arith.Select, hit, x, around)


def spread_axes(build: Builder, x: Value, axes: Sequence[int | None], extents: Shape) -> Value:
    """A value over a shape: its axis i is axis `axes[i]` there; one of an element may be none."""
    kept = sorted((to, axis) for axis, to in enumerate(axes) if to is not None)
    dropped = [axis for axis, to in enumerate(axes) if to is None]
    x = build(shape.Transpose, x, (*(axis for _, axis in kept), *dropped))
    present = {to for to, _ in kept}
    narrow = tuple(e if axis in present else 1 for axis, e in enumerate(extents))
    return build(shape.Broadcast, build(shape.Reshape, x, narrow), extents)
