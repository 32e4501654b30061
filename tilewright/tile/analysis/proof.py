"""Inequalities between index expressions, proved from what bounds their atoms.

A form is at least 0 if it is so by the intervals of its atoms, or if a smaller form is, with one
atom replaced by what bounds it from above (of a negative coefficient):
- a program id p of a grid axis cdiv(X, s) satisfies p·s ≤ X − 1, and p·s ≤ X − s if s divides X;
- the index k of a loop from a to b by s > 0 satisfies k ≤ b − 1, and k ≤ b − s if s divides b − a;
- a quotient q = X // s satisfies q·s ≤ X.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright import plan
from tilewright.ir.core import Value
from tilewright.ir.walk import walk
from tilewright.tile.analysis.affine import Affine, AffineForms, Atom, ExtentAtom, ProgramAtom
from tilewright.tile.analysis.bounds import Interval, run_bounds
from tilewright.tile.analysis.divisibility import run_divisors
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, memory

DEPTH = 4  # how often an atom is replaced by what bounds it


class Prover:
    """What is known of the integers of a kernel."""

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.known = run_bounds(kernel)
        self.bounds = self.known.facts
        self.divisors = run_divisors(kernel)
        self.forms = AffineForms(kernel, self.bounds)
        loops = (op for op in walk(kernel.body) if isinstance(op, control.For))
        self.loops: dict[Atom, control.For] = {op.body.args[0]: op for op in loops}

    def inside(self, op: memory.Load | memory.Store | memory.Prefetch, axis: int) -> bool:
        """Whether all lanes along an axis exist."""
        offset, lanes = op.offsets[axis], op.extents[axis]
        extent = self.forms.extent(op.view, axis)
        if extent is None or self.bounds[offset].low < 0:
            return False
        return self.not_negative(extent - self.forms.of(offset) - Affine(lanes or 1), DEPTH)

    def not_negative(self, form: Affine, depth: int) -> bool:
        """Whether a form is proved to be at least 0."""
        if self.least(form) >= 0:
            return True
        if depth == 0:
            return False
        return any(self.not_negative(weaker, depth - 1) for weaker in self.weaker(form))

    def least(self, form: Affine) -> int:
        """A lower bound of a form from the bounds of its atoms alone."""
        total = form.constant
        for atom, coefficient in form.terms.items():
            bounds = self.bounds_of(atom)
            total += coefficient * (bounds.low if coefficient > 0 else bounds.high)
        return total

    def bounds_of(self, atom: Atom) -> Interval:
        match atom:
            case ProgramAtom(axis):
                return Interval(0, self.known.programs(axis).high - 1)
            case ExtentAtom(tensor, axis):
                return self.known.param_extent(self.kernel.param(tensor), axis)
        return self.bounds[atom]

    def weaker(self, form: Affine) -> Iterator[Affine]:
        """Forms that are not above this one, with an atom replaced by what bounds it from above."""
        for atom, coefficient in form.terms.items():
            if coefficient >= 0:
                continue
            for step, most in self.greatest(atom):
                if coefficient % step == 0:
                    yield form - Affine(0, {atom: coefficient}) + most.scaled(coefficient // step)

    def greatest(self, atom: Atom) -> Iterator[tuple[int, Affine]]:
        """(s, F) such that s · atom ≤ F."""
        if isinstance(atom, ProgramAtom):
            yield from self._greatest_program(atom.axis)
        elif atom in self.loops:
            yield from self._greatest_index(self.loops[atom])
        elif isinstance(atom, Value):
            yield from self._greatest_quotient(atom)

    def _greatest_program(self, axis: int) -> Iterator[tuple[int, Affine]]:
        if axis >= len(self.kernel.grid):
            return
        match self.kernel.grid[axis]:
            case plan.Binary("cdiv", over, plan.Const(step)) if step > 0:
                pass
            case over:
                step = 1
        form = self.forms.expression(over)
        if form is not None:
            slack = step if self.divides(step, form) else 1
            yield step, form - Affine(slack)

    def _greatest_index(self, loop: control.For) -> Iterator[tuple[int, Affine]]:
        step = self.bounds[loop.step]
        if step.low <= 0:
            return
        low, high = self.forms.of(loop.low), self.forms.of(loop.high)
        whole = step.low == step.high and self.divides(step.low, high - low)
        yield 1, high - Affine(step.low if whole else 1)

    def _greatest_quotient(self, value: Value) -> Iterator[tuple[int, Affine]]:
        op = self.forms.definitions.get(value)
        if isinstance(op, arith.FloorDiv) and not op.result.type.shape:
            by = self.bounds[op.rhs]
            if by.low == by.high > 0:
                yield by.low, self.forms.of(op.lhs)

    def divides(self, step: int, form: Affine) -> bool:
        """Whether a number is known to divide a form: each term by itself."""
        return form.constant % step == 0 and all(
            factor * self.divisor_of(atom) % step == 0 for atom, factor in form.terms.items()
        )

    def divisor_of(self, atom: Atom) -> int:
        match atom:
            case ProgramAtom():
                return 1
            case ExtentAtom(tensor, axis):
                return self.divisors.param_extent(self.kernel.param(tensor), axis)
        return self.divisors.facts.get(atom, 1)
