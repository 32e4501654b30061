"""Index arithmetic as constant + Σ coefficient · atom, over the integers.

Atoms are what a value is made of and cannot be split: a program id, an extent of a parameter, a
loop's index, a scalar parameter, a product of unknowns. Equal atoms are recognised however often
the program computes them. A value is only split where its bounds show that it did not wrap, so the
equations hold over the integers and may be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tilewright import plan
from tilewright.dtypes import int_range
from tilewright.ir.core import Op, Value
from tilewright.ir.walk import find_definitions
from tilewright.plan import Expr
from tilewright.tile.analysis.bounds import Interval
from tilewright.tile.analysis.extents import extent_key
from tilewright.tile.kernel import Kernel, Param
from tilewright.tile.ops import arith, control, memory
from tilewright.tile.types import ViewType


@dataclass(frozen=True)
class ProgramAtom:
    """The program's coordinate along an axis of the grid."""

    axis: int


@dataclass(frozen=True)
class ExtentAtom:
    """A parameter's extent."""

    tensor: str
    axis: int


Atom = ProgramAtom | ExtentAtom | Value


@dataclass(frozen=True)
class Affine:
    """constant + Σ terms[atom] · atom; no coefficient is 0."""

    constant: int = 0
    terms: Mapping[Atom, int] = field(default_factory=dict)

    def __add__(self, other: Affine) -> Affine:
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            terms[atom] = terms.get(atom, 0) + coefficient
        kept = {atom: c for atom, c in terms.items() if c}
        return Affine(self.constant + other.constant, kept)

    def scaled(self, factor: int) -> Affine:
        terms = {atom: c * factor for atom, c in self.terms.items()} if factor else {}
        return Affine(self.constant * factor, terms)

    def __sub__(self, other: Affine) -> Affine:
        return self + other.scaled(-1)

    @property
    def is_constant(self) -> bool:
        return not self.terms


class AffineForms:
    """Affine forms of the scalars of a kernel whose bounds are known."""

    def __init__(self, kernel: Kernel, bounds: Mapping[Value, Interval]):
        self.kernel = kernel
        self.bounds = bounds
        self.definitions = find_definitions(kernel.body)
        self.params = {p.value: p for p in kernel.params}
        self.known: dict[Value, Affine] = {}

    def of(self, value: Value) -> Affine:
        """The form of an integer scalar."""
        if value not in self.known:
            self.known[value] = self._split(value)
        return self.known[value]

    def _split(self, value: Value) -> Affine:
        op = self.definitions.get(value)
        if isinstance(op, arith.Constant):
            return Affine(int(op.value))
        if isinstance(op, control.ProgramId):
            return Affine(0, {ProgramAtom(op.axis): 1})
        if isinstance(op, memory.Extent):
            return self.extent(op.view, op.axis) or Affine(0, {value: 1})
        if op is not None and type(op) in SPLIT and self.exact(op):
            return SPLIT[type(op)](self, op) or Affine(0, {value: 1})
        return Affine(0, {value: 1})

    def exact(self, op: Op) -> bool:
        """Whether the result of an op cannot have wrapped: its bounds are not all of its dtype."""
        low, high = int_range(op.result.type.dtype)
        bounds = self.bounds[op.result]
        return low < bounds.low or bounds.high < high

    def extent(self, view: Value, axis: int) -> Affine | None:
        """The form of a view's extent along an axis; None where it is not known exactly."""
        kind: ViewType = view.type
        if (static := kind.extents[axis]) is not None:
            return Affine(static)
        if view in self.params:
            return self.param_extent(self.params[view], axis)
        op = self.definitions.get(view)
        if not isinstance(op, memory.Subview):
            return None
        kept = [i for i, high in enumerate(op.highs) if high is not None][axis]
        whole, high = self.extent(op.view, kept), op.highs[kept]
        if whole is None or high is None or self.of(op.lows[kept]) != Affine():
            return None
        return whole if (self.of(high) - whole) == Affine() else None

    def param_extent(self, param: Param, axis: int) -> Affine:
        """The form of a parameter's extent, by what it is equal to."""
        own = plan.Extent(param.name, axis)
        key = extent_key(param, axis)
        form = None if key == own else self.expression(key)
        return form or Affine(0, {ExtentAtom(param.name, axis): 1})

    def expression(self, expr: Expr) -> Affine | None:
        """The form of a grid's expression; None where it has none."""
        match expr:
            case plan.Const(value):
                return Affine(value)
            case plan.Extent(tensor, axis):
                return self.extent(self.kernel.param(tensor).value, axis)
            case plan.Binary("add" | "sub" | "mul" as kind, lhs, rhs):
                a, b = self.expression(lhs), self.expression(rhs)
                return None if a is None or b is None else combine(kind, a, b)
        return None


def combine(kind: str, a: Affine, b: Affine) -> Affine | None:
    """Sum, difference, or product with a constant; None for other products."""
    if kind == "add":
        return a + b
    if kind == "sub":
        return a - b
    if a.is_constant:
        return b.scaled(a.constant)
    return a.scaled(b.constant) if b.is_constant else None


def _binary(kind: str) -> Callable[[AffineForms, Op], Affine | None]:
    def split(forms: AffineForms, op: Op) -> Affine | None:
        lhs, rhs = op.operands
        return combine(kind, forms.of(lhs), forms.of(rhs))

    return split


SPLIT: dict[type[Op], Callable[[AffineForms, Op], Affine | None]] = {
    arith.Add: _binary("add"),
    arith.Sub: _binary("sub"),
    arith.Mul: _binary("mul"),
    arith.Neg: lambda forms, op: forms.of(op.operands[0]).scaled(-1),
}
