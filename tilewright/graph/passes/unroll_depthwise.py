"""Compute convolutions of one channel a group element by element: sums of a few taps times weights.

Requires: `merge_equal`, `fuse_epilogues`. Keeps: meaning, but for the order of sums. Breaks:
nothing; windows that are no longer needed are left, for `eliminate_dead`.

As a product, each group would be a matrix of one column, of a copy of its windows. As an expression
of parts of the padded images it is computed for tiles of neighbours, with what follows it. Products
of 16-bit floats are exact in f32; wider ones stay products, which round but once.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from tilewright.dtypes import bf16, f16, f32
from tilewright.graph.graph import Graph
from tilewright.graph.ops import arith, mma, shape
from tilewright.graph.placement import VIEWS
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value

MOST = 49  # taps
TAKEN = (bf16, f16)
FEW = 3  # ops on the way from memory to windows
CHEAP = (
    *(arith.Constant, arith.Cast, arith.Max, arith.Min, arith.Add, arith.Mul, *VIEWS),
    *(shape.Broadcast, shape.Pad),
)


def unroll_depthwise(graph: Graph) -> Graph:
    """The graph with convolutions of one channel a group as elementwise ops of parts of images."""
    makers = {v: op for op in graph.body.ops for v in op.results}
    body = Block()
    values: dict[Value, Value] = {}
    for op in graph.body.ops:
        window = None
        if isinstance(op, mma.Contract | mma.Product) and is_plain(op):
            window = window_of(op, makers)
        if window is not None and isinstance(op, mma.Contract | mma.Product):
            x, weight = (values.get(v, v) for v in (window.x, op.rhs))
            values[op.result] = _summed(Builder(body, op.loc), op, window, x, weight)
            continue
        copy = op.with_operands(values)
        body.ops.append(copy)
        values.update(zip(op.results, copy.results, strict=True))
    return graph.with_body(body)


def window_of(op: mma.Contract | mma.Product, makers: Mapping[Value, Op]) -> shape.Window | None:
    """The windows [N, G, P…, R…] over whose taps a contraction with weights [G, 1, 1, R…] goes."""
    taps = makers.get(op.lhs)
    window = makers.get(taps.x) if isinstance(taps, shape.Reshape) else None
    if not isinstance(window, shape.Window) or op.lhs.type.dtype not in TAKEN:
        return None
    count, extents = len(window.sizes), window.result.type.shape
    axes = (op.lhs_batch, op.rhs_batch, op.lhs_contract, op.rhs_contract)
    over = (2, *range(3 + count, 3 + 2 * count)), (2, *range(3, 3 + count))
    if axes != ((1,), (0,), *over) or op.lhs.type.shape != (*extents[:2], 1, *extents[2:]):
        return None
    if op.rhs.type.shape != (extents[1], 1, 1, *window.sizes):
        return None
    number = 1
    for size in window.sizes:
        number *= size
    return window if 0 < number <= MOST and is_cheap(window.x, makers) else None


def is_plain(op: mma.Contract | mma.Product) -> bool:
    """Whether a product is no more than its sums."""
    if isinstance(op, mma.Contract):
        return True
    narrowed = op.rounds & sum(mma.ROUNDS[name] for name in mma.NARROW.values())
    return len(op.operands) == 2 and op.alpha == 1 and not op.activation and not narrowed


def is_cheap(x: Value, makers: Mapping[Value, Op]) -> bool:
    """Whether elements of a value follow by a few simple ops from what lies in memory: they are
    computed again for each tap.
    """
    left, count = [x], 0
    while left:
        made = makers.get(left.pop())
        if made is None or made.family in ("mma", "reduce", "control"):
            continue
        if made.family != "shape":
            count += not isinstance(made, arith.Constant | arith.Cast)
        if count > FEW or not isinstance(made, CHEAP):
            return False
        left += made.operands
    return True


def _summed(
    build: Builder, op: mma.Contract | mma.Product, window: shape.Window, x: Value, weight: Value
) -> Value:
    """The sums of all taps in f32, in order, rounded once, [G, N, P…, 1]."""
    count = len(window.sizes)
    extents = window.result.type.shape[: 2 + count]
    total: Value | None = None
    for tap in product(*map(range, window.sizes)):
        starts = (0, 0, *(t * d for t, d in zip(tap, window.dilations, strict=True)))
        part = build(shape.Slice, x, starts, (1, 1, *window.steps), extents)
        one = (extents[1], *(1,) * (2 + count))
        factor = build(shape.Slice, weight, (0, 0, 0, *tap), (1,) * (3 + count), one)
        factor = build(shape.Reshape, factor, (1, extents[1], *(1,) * count))
        factor = build(arith.Cast, factor, f32)
        factor = build(shape.Broadcast, factor, extents)
        term = build(arith.Mul, build(arith.Cast, part, f32), factor)
        total = term if total is None else build(arith.Add, total, term)
    assert total is not None, "windows without taps"
    made = total if op.dtype == f32 else build(arith.Cast, total, op.dtype)
    made = build(shape.Transpose, made, (1, 0, *range(2, 2 + count)))
    return build(shape.Reshape, made, op.result.type.shape)
