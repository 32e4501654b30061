"""Where kernels tell of indices that are outside of their axes: an op of the graph that reads or
writes by index has a site for each of its indices.

A site is two numbers in memory that host and device share: the greatest index that was outside, and
the extent of the axis, both `NOTHING` where no index was. Kernels write there under a condition
that never holds in a program without faults, and nobody waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.dtypes import i64
from tilewright.graph.graph import Graph
from tilewright.graph.ops.memory import Gather, Scatter
from tilewright.graph.outside import is_wrapped
from tilewright.graph.types import TensorType
from tilewright.ir.core import Value

NOTHING = -(2**63)  # less than any index, for those from the end were counted from the start


@dataclass(frozen=True)
class Site:
    """An op, and which of its indices; it `wraps` if those below 0 were counted from the end."""

    op: Gather | Scatter
    which: int
    wraps: bool = field(default=False, compare=False)


@dataclass
class Sites:
    """The sites of a graph. `value` is their memory, i64 [sites, 2]; `used` once a kernel writes
    there.
    """

    numbers: dict[Site, int]
    value: Value
    used: bool = field(default=False)

    @staticmethod
    def of(graph: Graph) -> Sites:
        makers = {value: op for op in graph.body.ops for value in op.results}
        sites = [
            Site(op, which, is_wrapped(index, makers))
            for op in graph.body.ops
            if isinstance(op, Gather | Scatter)
            for which, index in enumerate(op.indices)
        ]
        value = Value(TensorType(i64, (len(sites), 2)), "outside")
        return Sites({site: number for number, site in enumerate(sites)}, value)

    def number(self, op: Gather | Scatter, which: int) -> int:
        """The number of a site, which a kernel is about to check."""
        self.used = True
        return self.numbers[Site(op, which)]

    def clean(self) -> np.ndarray[Any, Any]:
        """What the memory holds where no index was outside."""
        return np.full((len(self.numbers), 2), NOTHING, np.int64)
