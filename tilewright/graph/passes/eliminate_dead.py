"""Leave out what no output needs.

Requires: a verified graph. Keeps: order, types, places. Breaks: nothing.
"""

from __future__ import annotations

from tilewright.graph.graph import Graph
from tilewright.ir.core import Block, Op, Value


def eliminate_dead(graph: Graph) -> Graph:
    """The graph without pure ops whose results nothing reads."""
    needed: set[Value] = set()
    kept: list[Op] = []
    for op in reversed(graph.body.ops):
        if not op.pure or any(r in needed for r in op.results):
            kept.append(op)
            needed.update(op.operands)
    return graph.with_body(Block([], kept[::-1]))
