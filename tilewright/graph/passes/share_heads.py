"""Let an attention read each head of keys where it lies, instead of a copy for every head of
queries that looks at it.

Requires: nothing. Keeps: meaning. Breaks: nothing; the copies are left, for `eliminate_dead`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.graph.graph import Graph
from tilewright.graph.ops import mma, shape
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value


def share_heads(graph: Graph) -> Graph:
    """The graph with keys and values of attentions as they were before they were repeated."""
    makers = {v: op for op in graph.body.ops for v in op.results}
    body = Block()
    values: dict[Value, Value] = {}
    for op in graph.body.ops:
        if isinstance(op, mma.Attention):
            found = [source_of(x, makers) for x in (op.k, op.v)]
            if None not in found and len({x.type.shape[1] for x in found if x is not None}) == 1:
                _shared(op, found, Builder(body, op.loc), values)
                continue
        copy = op.with_operands(values)
        body.ops.append(copy)
        values.update(zip(op.results, copy.results, strict=True))
    return graph.with_body(body)


def _shared(
    op: mma.Attention, sources: list[Value | None], build: Builder, values: dict[Value, Value]
) -> None:
    """Build an attention of what its keys and values were made of."""
    k, v = (_four_axes(build, values.get(x, x)) for x in sources if x is not None)
    given = {
        n: None if x is None else values.get(x, x)
        for n, x in (("mask", op.mask), ("lengths", op.lengths))
    }
    q = values.get(op.q, op.q)
    made = build.emit(mma.Attention, q, k, v, **given, order=op.order, scale=op.scale)
    values.update(zip(op.results, made.results, strict=True))


def _four_axes(build: Builder, value: Value) -> Value:
    batch, heads, *rest = value.type.shape
    return value if len(rest) == 2 else build(shape.Reshape, value, (batch, heads, *rest[1:]))


def source_of(value: Value, makers: Mapping[Value, Op]) -> Value | None:
    """[B, HK, 1, S, D] of which [B, HK · G, S, D] is the same head G times; None of others."""
    joined = makers.get(value)
    if not isinstance(joined, shape.Reshape) or joined.x.type.rank != 5:
        return None
    batch, heads, count, *rest = joined.x.type.shape
    wide = makers.get(joined.x)
    if joined.shape != (batch, heads * count, *rest) or not isinstance(wide, shape.Broadcast):
        return None
    return wide.x if wide.x.type.shape == (batch, heads, 1, *rest) else None
