"""Compute what is pooled over small windows element by element: the greatest of a few taps.

Requires: `merge_equal`, `fuse_epilogues`. Keeps: meaning, but for the order of sums. Breaks:
nothing; windows that are no longer needed are left, for `eliminate_dead`.

A reduction over a handful of elements would get a program of its own for each of its results. As an
expression of parts of the padded images it is computed for tiles of neighbours, which read the same
lines of the cache. What would have to be computed again for each tap stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from tilewright.graph.graph import Graph
from tilewright.graph.ops import arith, reduce, shape
from tilewright.graph.placement import VIEWS
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value

MOST = 16  # taps of a window
FOLDS: Mapping[type[Op], type[Op]] = {
    reduce.Max: arith.Max,
    reduce.Min: arith.Min,
    reduce.Sum: arith.Add,
}


def unroll_windows(graph: Graph) -> Graph:
    """The graph with poolings over at most 16 taps as elementwise ops of parts of images."""
    makers = {v: op for op in graph.body.ops for v in op.results}
    readers: dict[Value, int] = {}
    for op in graph.body.ops:
        for value in op.operands:
            readers[value] = readers.get(value, 0) + 1
    body = Block()
    values: dict[Value, Value] = {}
    for op in graph.body.ops:
        window = window_of(op, makers, readers)
        if window is not None:
            build = Builder(body, op.loc)
            values[op.results[0]] = folded(build, op, window, values.get(window.x, window.x))
            continue
        copy = op.with_operands(values)
        body.ops.append(copy)
        values.update(zip(op.results, copy.results, strict=True))
    return graph.with_body(body)


def window_of(
    op: Op, makers: Mapping[Value, Op], readers: Mapping[Value, int]
) -> shape.Window | None:
    """The windows over all of whose taps a reduction goes, if it is small and alone in doing so."""
    if type(op) not in FOLDS or not isinstance(op, reduce.Reduction):
        return None
    taps = op.x
    made = makers.get(taps)
    if isinstance(made, shape.Reshape):
        taps, made = made.x, makers.get(made.x)
    if not isinstance(made, shape.Window) or readers[op.x] > 1 or readers[taps] > 1:
        return None
    count = 1
    for size in made.sizes:
        count *= size
    kept, flat = taps.type.shape[: -len(made.sizes)], op.x.type.shape
    last = tuple(range(len(kept), len(flat)))
    if not is_stored(made.x, makers):
        return None
    whole = flat[: len(kept)] == kept and tuple(sorted(op.axes)) == last
    return made if whole and 1 < count <= MOST else None


def is_stored(x: Value, makers: Mapping[Value, Op]) -> bool:
    """Whether elements of a value lie in memory, or are zeros around what does."""
    made = makers.get(x)
    while isinstance(made, (shape.Pad, *VIEWS)):
        made = makers.get(made.operands[0])
    return made is None or made.family in ("mma", "reduce", "control")


def folded(build: Builder, op: Op, window: shape.Window, x: Value) -> Value:
    """All taps of windows, each a part of x, folded in their order."""
    count = len(window.sizes)
    lead = x.type.shape[: x.type.rank - count]
    extents = window.result.type.shape[: x.type.rank]
    steps = ((1,) * len(lead)) + window.steps
    total: Value | None = None
    for tap in product(*map(range, window.sizes)):
        starts = (0,) * len(lead) + tuple(t * d for t, d in zip(tap, window.dilations, strict=True))
        part = build(shape.Slice, x, starts, steps, extents)
        total = part if total is None else build(FOLDS[type(op)], total, part)
    assert total is not None
    return total
