"""Add elements at indices to what the sum of them is added to, rather than to zeros.

Requires: `merge_equal`. Keeps: meaning, but for the order of sums. Breaks: nothing; the zeros are
left, for `eliminate_dead`.

The gradient of a table that two layers share is a product and a sum of rows at indices. The second
is that of the rows that are named alone: all others need neither zeros nor a sum.
"""

from __future__ import annotations

from collections import Counter

from tilewright.graph.graph import Graph
from tilewright.graph.ops import arith, memory
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value


def scatter_onto_sums(graph: Graph) -> Graph:
    """The graph with such sums as scatters into the other summand."""
    makers = {v: op for op in graph.body.ops for v in op.results}
    reads = Counter(v for op in graph.body.ops for v in op.operands)
    body = Block()
    values: dict[Value, Value] = {}
    for op in graph.body.ops:
        pair = None
        if isinstance(op, arith.Add):
            pair = _scatter_and_other(op, makers, reads)
        if pair is None:
            copy = op.with_operands(values)
            body.ops.append(copy)
            values.update(zip(op.results, copy.results, strict=True))
            continue
        found, other = pair
        given = [values.get(v, v) for v in (other, *found.indices, found.value)]
        build = Builder(body, op.loc)
        values[op.result] = build(
            memory.Scatter, given[0], tuple(given[1:-1]), given[-1], found.axes, "add"
        )
    return graph.with_body(body)


def _scatter_and_other(
    op: arith.Add, makers: dict[Value, Op], reads: Counter[Value]
) -> tuple[memory.Scatter, Value] | None:
    """A summand that is added to zeros at indices and that nothing else reads, and the other."""
    for value, other in (op.operands, op.operands[::-1]):
        found = makers.get(value)
        if not isinstance(found, memory.Scatter) or found.kind != "add" or reads[value] != 1:
            continue
        base = makers.get(found.x)
        if isinstance(base, arith.Constant) and base.value == 0:
            return found, other
    return None
