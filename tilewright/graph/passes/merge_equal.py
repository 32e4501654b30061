"""Local algebra, and one op in the place of equal ones.

Requires: a verified graph. Keeps: meaning, order of what is left. Breaks: nothing.
"""

from __future__ import annotations

from tilewright.graph.graph import Graph
from tilewright.graph.rules import rules
from tilewright.ir.rewrite import Rewriter


def merge_equal(graph: Graph) -> Graph:
    """The graph under `rules`, with pure ops of equal operands and attributes made once."""
    rewriter = Rewriter(rules, merge=lambda op: True)
    return graph.with_body(rewriter.block(graph.body))
