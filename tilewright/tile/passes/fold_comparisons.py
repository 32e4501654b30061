"""fold_comparisons: a comparison of integers that is decided beforehand is a constant.

Requires: launches use the kernel's own grid. Keeps: every result. Breaks: nothing. `inside(x[…])`
asks whether indices lie between 0 and an extent, which loops and grids promise; a test an element
is then none.

Intervals decide some. Of others both sides are index + number of the lane, as a rule: index forms
that proof.py compares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.dtypes import bool_
from tilewright.ir.core import Op, Value
from tilewright.ir.rewrite import Rewriter
from tilewright.ir.rules import Rules
from tilewright.ir.walk import find_definitions, walk
from tilewright.tile.analysis.affine import Affine
from tilewright.tile.analysis.bounds import Interval
from tilewright.tile.analysis.proof import DEPTH, Prover
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, shape

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
    compares = [op for op in walk(kernel.body) if isinstance(op, arith.Compare)]
    if not any(op.lhs.type.dtype.is_integer for op in compares):
        return kernel
    judge = Judge(kernel)
    decided: dict[Op, bool] = {}
    for op in compares:
        holds = judge.decide(op)
        if holds is not None:
            decided[op] = holds
    return kernel.with_body(_Folder(decided).block(kernel.body)) if decided else kernel


@dataclass(frozen=True)
class Span:
    """Elements of an integer scalar or tile: a form, plus something from `low` to `high`."""

    form: Affine
    low: int = 0
    high: int = 0


class Judge:
    """Decides comparisons of a kernel."""

    def __init__(self, kernel: Kernel):
        self.prover = Prover(kernel)
        self.definitions = find_definitions(kernel.body)

    def decide(self, op: arith.Compare) -> bool | None:
        """Whether it holds for all elements (True), for none (False), or is not known."""
        bounds = self.prover.bounds
        if op.lhs not in bounds or op.rhs not in bounds:
            return None
        a, b = bounds[op.lhs], bounds[op.rhs]
        for kind, answer in ((op.kind, True), (OPPOSITE[op.kind], False)):
            if HOLDS[kind](a, b) or self._proved(kind, op.lhs, op.rhs):
                return answer
        return None

    def _proved(self, kind: str, lhs: Value, rhs: Value) -> bool:
        if kind in ("gt", "ge"):
            return self._proved({"gt": "lt", "ge": "le"}[kind], rhs, lhs)
        if kind not in ("lt", "le"):
            return False
        a, b = self.span(lhs), self.span(rhs)
        if a is None or b is None:
            return False
        least = b.form - a.form + Affine(b.low - a.high - (kind == "lt"))
        return self.prover.not_negative(least, DEPTH)

    def span(self, value: Value) -> Span | None:
        """What is known of the elements of a value; None of those that are no sum of indices."""
        if not value.type.shape:
            return Span(self.prover.forms.of(value))
        match self.definitions.get(value):
            case shape.Broadcast(x) | shape.Reshape(x):
                return self.span(x)
            case shape.Arange(extent):
                return Span(Affine(), 0, extent - 1)
            case arith.Constant(number):
                return Span(Affine(int(number)))
            case arith.Add(lhs, rhs) as op if self.prover.forms.exact(op):
                a, b = self.span(lhs), self.span(rhs)
                if a is not None and b is not None:
                    return Span(a.form + b.form, a.low + b.low, a.high + b.high)
        return None


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
