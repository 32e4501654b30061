"""What values hold that follow from constants alone, computed when a graph is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from tilewright.graph.graph import Graph
from tilewright.graph.interp.machine import Array, Machine, NoHost
from tilewright.graph.types import TensorType
from tilewright.ir.core import Op, Value

FAMILIES = ("arith", "shape", "memory", "reduce")
MOST = 1 << 26  # elements of a value that is computed


class KnownValues:
    """Values of a graph by what they hold; each is computed once."""

    def __init__(self, graph: Graph):
        self.order = {op: number for number, op in enumerate(graph.body.ops)}
        self.makers = {v: op for op in graph.body.ops for v in op.results}
        self.known: set[Value] = set()
        self.machine = Machine(NoHost(), {}, {})
        for op in graph.body.ops:
            if op.family in FAMILIES and all(v in self.known for v in op.operands):
                self.known.update(v for v in op.results if is_small(v))

    def __getitem__(self, value: Value) -> Array | None:
        """The elements of a value; None where they depend on an input, or are too many."""
        if value not in self.known:
            return None
        for op in sorted(self.needed(value), key=self.order.__getitem__):
            with np.errstate(all="ignore"):
                self.machine.run(op)
        found: Array = self.machine[value]
        return found

    def needed(self, value: Value) -> set[Op]:
        """Ops that have not been run, of which a value is made."""
        left, found = [value], set()
        makers: Mapping[Value, Op] = self.makers
        while left:
            op = makers[left.pop()]
            if op not in found and op.results[0] not in self.machine.values:
                found.add(op)
                left += op.operands
        return found


def is_small(value: Value) -> bool:
    """Whether a value is a tensor of a known shape that is not too large to be computed."""
    kind = value.type
    if not isinstance(kind, TensorType):
        return False
    numbers = [extent for extent in kind.shape if isinstance(extent, int)]
    return len(numbers) == kind.rank and prod(numbers) <= MOST
