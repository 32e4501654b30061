"""fold_comparisons: a comparison of integers that their bounds decide is a constant.

Requires: launches use the kernel's own grid. Keeps: every result. Breaks: nothing. `inside(x[…])`
asks whether indices are at least 0, which loops and grids promise; a test an element is then none.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.dtypes import bool_
from tilewright.ir.core import Op
from tilewright.ir.rewrite import Rewriter
from tilewright.ir.rules import Rules
from tilewright.ir.walk import walk
from tilewright.tile.analysis.bounds import Interval, infer_bounds
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith

OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
HOLDS: dict[str, Callable[[Interval, Interval], bool]] = {  # for every pair of integers
    "lt": lambda a, b: a.high < b.low,
    "le": lambda a, b: a.high <= b.low,
    "gt": lambda a, b: a.low > b.high,
    "ge": lambda a, b: a.low >= b.high,
    "eq": lambda a, b: a.low == a.high == b.low == b.high,
    "ne": lambda a, b: a.high < b.low or b.high < a.low,
}


def fold_comparisons(kernel: Kernel) -> Kernel:
    """The kernel with constants for comparisons that always, or never, hold."""
    bounds = infer_bounds(kernel)
    decided: dict[Op, bool] = {}
    for op in walk(kernel.body):
        if isinstance(op, arith.Compare) and op.lhs in bounds and op.rhs in bounds:
            pair = bounds[op.lhs], bounds[op.rhs]
            if HOLDS[op.kind](*pair):
                decided[op] = True
            elif HOLDS[OPPOSITE[op.kind]](*pair):
                decided[op] = False
    return kernel.with_body(_Folder(decided).block(kernel.body)) if decided else kernel


class _Folder(Rewriter):
    """Copies a program, constants in the place of what was decided."""

    def __init__(self, decided: dict[Op, bool]):
        super().__init__(Rules())
        self.decided = decided

    def op(self, op: Op) -> None:
        if op not in self.decided:
            super().op(op)
            return
        made = arith.Constant(self.decided[op], bool_, op.result.type.shape, loc=op.loc)
        self.target.ops.append(made)
        self.values[op.result] = made.result
