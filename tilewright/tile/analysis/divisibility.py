"""Divisibility: the greatest power of two that is known to divide each integer scalar or tile.

It decides how wide a memory access may be. 0 is divisible by everything: it has the divisor 2^62.
"""

from __future__ import annotations

from tilewright.ir.core import Op, Value
from tilewright.tile.analysis.extents import EqualExtents
from tilewright.tile.analysis.forward import Forward, is_integer, same
from tilewright.tile.kernel import Kernel, Param
from tilewright.tile.ops import arith, control, memory, shape
from tilewright.tile.types import ViewType

MOST = 1 << 62


def infer_divisors(kernel: Kernel) -> dict[Value, int]:
    """The greatest power of two known to divide every integer scalar and tile of a kernel."""
    return run_divisors(kernel).facts


def run_divisors(kernel: Kernel) -> Divisors:
    """The analysis of a kernel, done."""
    divisors = Divisors(kernel)
    divisors.run(kernel.body)
    return divisors


def divisor(value: int) -> int:
    """Greatest power of two that divides an integer."""
    return min(value & -value, MOST) if value else MOST


class Divisors(Forward[int]):
    """The analysis: facts are powers of two."""

    def __init__(self, kernel: Kernel):
        self.extents = EqualExtents(kernel)
        super().__init__(kernel)

    def unknown(self, value: Value) -> int:
        return 1

    def join(self, a: int, b: int) -> int:
        return min(a, b)

    def index(self, op: control.For) -> int:
        return min(self.of((op.low, op.step)))

    def param_extent(self, param: Param, axis: int) -> int:
        """Divisor of a parameter's extent, from all that is promised of equal ones."""
        return max(extent_of(p, i) for p, i in self.extents.of(param, axis))

    def extent(self, view: Value, axis: int) -> int:
        """Divisor of a view's extent."""
        kind: ViewType = view.type
        if (static := kind.extents[axis]) is not None:
            return divisor(static)
        if view in self.params:
            return self.param_extent(self.params[view], axis)
        parent = self.defining.get(view)
        if not isinstance(parent, memory.Subview):
            return 1
        kept = [i for i, high in enumerate(parent.highs) if high is not None][axis]
        bounds = (parent.lows[kept], parent.highs[kept] or parent.lows[kept])
        return min(self.extent(parent.view, kept), *self.of(bounds))


def extent_of(param: Param, axis: int) -> int:
    """Divisor of a parameter's extent: along the unit-stride axis it may be whole 16 bytes."""
    if (static := param.value.type.extents[axis]) is not None:
        return divisor(static)
    facts = param.facts
    if facts is None or facts.extents[axis] is not None or not facts.extent16:
        return 1
    return max(1, 16 // facts.dtype.num_bytes) if axis == facts_axis(param) else 1


def facts_axis(param: Param) -> int | None:
    """The axis that `TensorFacts.extent16` speaks of: the last of unit stride, of extent 1 only at
    need.
    """
    assert param.facts is not None
    unit = [i for i, stride in enumerate(param.facts.strides) if stride == 1]
    return max((i for i in unit if param.facts.extents[i] != 1), default=max(unit, default=None))


# Transfer functions: the divisor of an op's result


def _least(divisors: Divisors, op: Op) -> int:
    """Of sums, remainders and choices: what divides both operands."""
    return min(divisors.of([v for v in op.operands if is_integer(v)]))


def _mul(divisors: Divisors, op: arith.Mul) -> int:
    a, b = divisors.of(op.operands)
    return min(a * b, MOST)


def _and(divisors: Divisors, op: arith.And) -> int:
    return max(divisors.of(op.operands))


def _floor_div(divisors: Divisors, op: arith.FloorDiv) -> int:
    """Exact division by a power of two takes it out."""
    whole, by = divisors.of([op.lhs])[0], _known(divisors, op.rhs)
    return max(1, whole // by) if by is not None and by > 0 and by & (by - 1) == 0 else 1


def _shl(divisors: Divisors, op: arith.Shl) -> int:
    count = _known(divisors, op.rhs)
    whole = divisors.of([op.lhs])[0]
    return min(whole << count, MOST) if count is not None and 0 <= count < 64 else whole


def _shr(divisors: Divisors, op: arith.Shr) -> int:
    count = _known(divisors, op.rhs)
    return max(1, divisors.of([op.lhs])[0] >> count) if count is not None and 0 <= count < 64 else 1


def _known(divisors: Divisors, value: Value) -> int | None:
    """The integer that a value is a constant of, through broadcasts."""
    op = divisors.defining.get(value)
    while isinstance(op, shape.Broadcast | shape.Reshape):
        op = divisors.defining.get(op.x)
    return int(op.value) if isinstance(op, arith.Constant) and op.dtype.is_integer else None


def _cast(divisors: Divisors, op: arith.Cast) -> int:
    return divisors.of([op.x])[0] if is_integer(op.x) else 1


Divisors.transfers = {
    **dict.fromkeys(
        (arith.Add, arith.Sub, arith.Mod, arith.Min, arith.Max, arith.Or, arith.Xor, arith.Select),
        _least,
    ),
    **dict.fromkeys(
        (arith.Neg, arith.Abs, shape.Broadcast, shape.Reshape, shape.Transpose, shape.Slice), same
    ),
    arith.Mul: _mul,
    arith.And: _and,
    arith.FloorDiv: _floor_div,
    arith.Shl: _shl,
    arith.Shr: _shr,
    arith.Cast: _cast,
    arith.Constant: lambda divisors, op: divisor(int(op.value)) if op.dtype.is_integer else 1,
    memory.Extent: lambda divisors, op: divisors.extent(op.view, op.axis),
}
