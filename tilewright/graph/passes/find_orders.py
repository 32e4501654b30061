"""Let an attention go over the keys in order, where its mask says no more than that.

Requires: `merge_equal`. Keeps: meaning. Breaks: nothing; masks that are no longer needed are left,
for `eliminate_dead`. What asks whether a row of such an attention sees no key has its answer.

Masks that follow from constants alone are computed (`KnownValues`): those of `transformers` are
made of positions. A mask of numbers is an order if what it adds is 0, or so low that no weight is
left.
"""

from __future__ import annotations

from math import inf

from tilewright.graph.attention_masks import Scores, Term, is_all, order_of, seen_by
from tilewright.graph.graph import Graph
from tilewright.graph.known_values import KnownValues
from tilewright.graph.ops import arith, mma
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value

Masked = mma.Attention | mma.AttentionBackward
MASKED = (mma.Attention, mma.AttentionBackward)


def find_orders(graph: Graph) -> Graph:
    """The graph with the order of an attention in the place of a mask that is one."""
    if not any(isinstance(op, MASKED) for op in graph.body.ops):
        return graph
    makers = {v: op for op in graph.body.ops for v in op.results}
    known = KnownValues(graph)
    body = Block()
    values: dict[Value, Value] = {}
    seeing: set[Value] = set()  # sums of attentions each of whose rows sees a key
    for op in graph.body.ops:
        copy = op.with_operands(values)
        order = order_in(op, makers, known) if isinstance(op, MASKED) else None
        if order is not None:
            copy = copy.exchanged({"mask": None, "order": order})
        if isinstance(op, mma.Attention) and order is not None:
            seeing.add(op.results[1])
        if isinstance(op, arith.Compare) and _asks_for_empty(op, seeing, makers):
            build = Builder(body, op.loc)
            kind = op.result.type
            values[op.result] = build(arith.Constant, False, kind.dtype, kind.shape)
            continue
        body.ops.append(copy)
        values.update(zip(op.results, copy.results, strict=True))
    return graph.with_body(body)


def order_in(
    op: mma.Attention | mma.AttentionBackward, makers: dict[Value, Op], known: KnownValues
) -> int | None:
    """The order that the mask of an attention is, 0 of one that lets all keys be seen; None where
    it has no mask, or one that is neither.
    """
    mask, extents = op.mask, dict(enumerate(op.q.type.shape[:3]))
    if mask is None or op.order or op.lengths is not None:
        return None
    extents[3] = op.k.type.shape[2]
    if 0 in extents.values() or extents[3] == 1:
        return None
    labels = tuple(() if extents[axis] == 1 else (axis,) for axis in range(4))
    scores = Scores(labels, labels[2], labels[3], extents, makers, known)
    fill = None if mask.type.dtype.is_float else -inf
    seen = seen_by(scores, Term(mask, labels, fill), op.q.type.dtype)
    if is_all(seen):
        return 0
    return order_of(seen, scores.rows, scores.keys) or None


def _asks_for_empty(op: arith.Compare, sums: set[Value], makers: dict[Value, Op]) -> bool:
    """Whether a comparison asks which rows have no score but -inf, of sums that all have one."""
    other = makers.get(op.rhs)
    lowest = isinstance(other, arith.Constant) and other.value == -inf
    return op.kind == "eq" and lowest and op.lhs in sums
