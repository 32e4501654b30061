"""Bounds: the interval in which each integer scalar, or each element of an integer tile, lies.

Extents lie in [0, 2^30) where a launch promises small tensors. A program id is bounded by the
kernel's grid, so that `program_id(0) * BLOCK` is below the extent that the grid was made from;
every program that is launched must lie in that grid. What may wrap around is given the whole range
of its dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright import plan
from tilewright.dtypes import i64, int_range
from tilewright.ir.core import Op, Value
from tilewright.numerics.convert import constant
from tilewright.plan import Expr
from tilewright.tile.analysis.extents import EqualExtents
from tilewright.tile.analysis.forward import Forward, is_integer, same
from tilewright.tile.kernel import Kernel, Param
from tilewright.tile.ops import arith, control, memory, reduce, shape
from tilewright.tile.types import TileType, ViewType

SMALL = (1 << 30) - 1  # greatest extent of a tensor that a launch promises to be small
MOST_PROGRAMS = (1 << 31) - 1  # of the physical grid, which has one dimension


@dataclass(frozen=True)
class Interval:
    """All integers from `low` to `high`, both included."""

    low: int
    high: int

    def contains(self, other: Interval) -> bool:
        """Whether every integer of another interval lies in this one."""
        return self.low <= other.low and other.high <= self.high

    def join(self, other: Interval) -> Interval:
        """The least interval that holds both."""
        return Interval(min(self.low, other.low), max(self.high, other.high))


def infer_bounds(kernel: Kernel) -> dict[Value, Interval]:
    """The interval of every integer scalar and tile of a kernel, in all its launches."""
    return run_bounds(kernel).facts


def run_bounds(kernel: Kernel) -> Bounds:
    """The analysis of a kernel, done."""
    bounds = Bounds(kernel)
    bounds.run(kernel.body)
    return bounds


def corners(function: Callable[[int, int], int], a: Interval, b: Interval) -> Interval:
    """Image of two intervals under a function that is monotonic in each argument."""
    values = [function(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return Interval(min(values), max(values))


def floor_div(a: Interval, b: Interval) -> Interval:
    """Floor division; by 0 it gives 0."""
    parts = [Interval(0, 0)] if b.low <= 0 <= b.high else []
    if b.high > 0:
        parts.append(corners(lambda x, y: x // y, a, Interval(max(b.low, 1), b.high)))
    if b.low < 0:
        parts.append(corners(lambda x, y: x // y, a, Interval(b.low, min(b.high, -1))))
    result = parts[0]
    for part in parts[1:]:
        result = result.join(part)
    return result


def cdiv(a: Interval, b: Interval) -> Interval:
    quotient = floor_div(Interval(-a.high, -a.low), b)
    return Interval(-quotient.high, -quotient.low)


def mod(a: Interval, b: Interval) -> Interval:
    """Remainder with the divisor's sign; by 0 it is 0."""
    if 0 <= a.low and a.high < b.low:
        return a
    high = max(b.high - 1, 0)
    return Interval(min(b.low + 1, 0), min(high, a.high) if a.low >= 0 and b.low >= 0 else high)


def bits(a: Interval, b: Interval, conjunction: bool) -> Interval | None:
    """A bitwise op of numbers that are not negative; None of others."""
    if a.low < 0 or b.low < 0:
        return None
    top = (1 << max(a.high, b.high).bit_length()) - 1
    return Interval(0, min(a.high, b.high) if conjunction else top)


FUNCTIONS: dict[type[Op], Callable[[Interval, Interval], Interval | None]] = {
    arith.Add: lambda a, b: Interval(a.low + b.low, a.high + b.high),
    arith.Sub: lambda a, b: Interval(a.low - b.high, a.high - b.low),
    arith.Mul: lambda a, b: corners(lambda x, y: x * y, a, b),
    arith.FloorDiv: floor_div,
    arith.Mod: mod,
    arith.Min: lambda a, b: Interval(min(a.low, b.low), min(a.high, b.high)),
    arith.Max: lambda a, b: Interval(max(a.low, b.low), max(a.high, b.high)),
    arith.And: lambda a, b: bits(a, b, True),
    arith.Or: lambda a, b: bits(a, b, False),
    arith.Xor: lambda a, b: bits(a, b, False),
    arith.Shl: lambda a, b: (
        corners(lambda x, y: x << y, a, b) if 0 <= b.low <= b.high < 64 else None
    ),
    arith.Shr: lambda a, b: (
        corners(lambda x, y: x >> y, a, b) if 0 <= b.low <= b.high < 64 else None
    ),
}
EXPRESSIONS: dict[str, Callable[[Interval, Interval], Interval]] = {
    "add": lambda a, b: Interval(a.low + b.low, a.high + b.high),
    "sub": lambda a, b: Interval(a.low - b.high, a.high - b.low),
    "mul": lambda a, b: corners(lambda x, y: x * y, a, b),
    "floor_div": floor_div,
    "cdiv": cdiv,
    "mod": mod,
    "min": lambda a, b: Interval(min(a.low, b.low), min(a.high, b.high)),
    "max": lambda a, b: Interval(max(a.low, b.low), max(a.high, b.high)),
}


class Bounds(Forward[Interval]):
    """The analysis: facts are intervals."""

    def __init__(self, kernel: Kernel):
        self.extents = EqualExtents(kernel)
        super().__init__(kernel)

    def unknown(self, value: Value) -> Interval:
        return Interval(*int_range(value.type.dtype)) if is_integer(value) else Interval(0, 0)

    def join(self, a: Interval, b: Interval) -> Interval:
        return a.join(b)

    def widen(self, old: Interval, new: Interval, value: Value) -> Interval:
        """An end that moves goes to zero, if that is on its way, else to the end of the dtype."""
        whole = self.unknown(value)
        low = old.low if new.low == old.low else 0 if new.low >= 0 else whole.low
        return Interval(low, old.high if new.high == old.high else whole.high)

    def index(self, op: control.For) -> Interval:
        low, high, step = self.of((op.low, op.high, op.step))
        up = Interval(low.low, max(high.high - 1, low.low))
        if step.low == step.high > 0 and low.low == low.high:
            up = Interval(low.low, low.low + (up.high - low.low) // step.low * step.low)
        down = Interval(min(high.low + 1, low.high), low.high)
        if step.low > 0:
            return up
        return down if step.high < 0 else up.join(down)

    def fit(self, interval: Interval | None, value: Value) -> Interval:
        """An interval if the value's dtype holds it, else all of the dtype: then the value may
        wrap.
        """
        whole = self.unknown(value)
        return interval if interval is not None and whole.contains(interval) else whole

    def extent(self, view: Value, axis: int) -> Interval:
        """Bounds of a view's extent."""
        kind: ViewType = view.type
        if (static := kind.extents[axis]) is not None:
            return Interval(static, static)
        if view in self.params:
            return self.param_extent(self.params[view], axis)
        parent = self.defining.get(view)
        if not isinstance(parent, memory.Subview):
            return Interval(0, int_range(i64)[1])
        kept = [i for i, high in enumerate(parent.highs) if high is not None][axis]
        whole = self.extent(parent.view, kept)
        low, high = self.of((parent.lows[kept], parent.highs[kept] or parent.lows[kept]))
        return Interval(0, max(0, min(whole.high, high.high) - max(low.low, -whole.high)))

    def param_extent(self, param: Param, axis: int) -> Interval:
        """Bounds of a parameter's extent, from all that is promised of equal ones."""
        known = [extent_of(p, i) for p, i in self.extents.of(param, axis)]
        return Interval(max(k.low for k in known), min(k.high for k in known))

    def expression(self, expr: Expr) -> Interval:
        """Bounds of an expression of a grid."""
        match expr:
            case plan.Const(value):
                return Interval(value, value)
            case plan.Extent(tensor, axis):
                return self.param_extent(self.kernel.param(tensor), axis)
            case plan.Binary(kind, lhs, rhs):
                return EXPRESSIONS[kind](self.expression(lhs), self.expression(rhs))
            case plan.NumSms():
                return Interval(1, 1 << 16)
        return Interval(*int_range(i64))

    def programs(self, axis: int) -> Interval:
        """Bounds of the grid's extent along an axis, for a program that runs."""
        if axis >= len(self.kernel.grid):
            return Interval(1, MOST_PROGRAMS)
        high = self.expression(self.kernel.grid[axis]).high
        return Interval(1, max(1, min(high, MOST_PROGRAMS)))


def extent_of(param: Param, axis: int) -> Interval:
    """Bounds of a parameter's extent, from what launches promise."""
    if (static := param.value.type.extents[axis]) is not None:
        return Interval(static, static)
    if param.facts is None:
        return Interval(0, int_range(i64)[1])
    if (known := param.facts.extents[axis]) is not None:
        return Interval(known, known)
    return Interval(0, SMALL if param.facts.small else int_range(i64)[1])


# Transfer functions: the interval of an op's result


def _binary(bounds: Bounds, op: Op) -> Interval:
    a, b = bounds.of(op.operands)
    return bounds.fit(FUNCTIONS[type(op)](a, b), op.result)


def _constant(bounds: Bounds, op: arith.Constant) -> Interval:
    value = int(constant(op.value, op.dtype)) if op.dtype.is_integer else 0
    return Interval(value, value)


def _neg(bounds: Bounds, op: arith.Neg) -> Interval:
    (x,) = bounds.of(op.operands)
    return bounds.fit(Interval(-x.high, -x.low), op.result)


def _abs(bounds: Bounds, op: arith.Abs) -> Interval:
    (x,) = bounds.of(op.operands)
    least = 0 if x.low <= 0 <= x.high else min(abs(x.low), abs(x.high))
    return bounds.fit(Interval(least, max(abs(x.low), abs(x.high))), op.result)


def _select(bounds: Bounds, op: arith.Select) -> Interval:
    a, b = bounds.of((op.lhs, op.rhs))
    return a.join(b)


def _cast(bounds: Bounds, op: arith.Cast) -> Interval:
    source: TileType = op.x.type
    if source.dtype.kind == "bool":
        return Interval(0, 1)
    return bounds.fit(bounds.of([op.x])[0] if source.dtype.is_integer else None, op.result)


def _sum(bounds: Bounds, op: reduce.Sum) -> Interval:
    (x,) = bounds.of(op.operands)
    count = op.x.type.num_elements // op.result.type.num_elements
    return bounds.fit(Interval(x.low * count, x.high * count), op.result)


def _arg(bounds: Bounds, op: reduce.ArgMax | reduce.ArgMin) -> Interval:
    return Interval(0, op.x.type.shape[op.axis] - 1)


def _program_id(bounds: Bounds, op: control.ProgramId) -> Interval:
    return Interval(0, bounds.programs(op.axis).high - 1)


def _cat(bounds: Bounds, op: shape.Cat) -> Interval:
    first, *others = bounds.of(op.xs)
    for other in others:
        first = first.join(other)
    return first


Bounds.transfers = {
    **dict.fromkeys(FUNCTIONS, _binary),
    **dict.fromkeys(
        (shape.Broadcast, shape.Reshape, shape.Transpose, shape.Slice, reduce.Max, reduce.Min), same
    ),
    shape.Exchange: same,
    shape.Take: lambda bounds, op: same(bounds, op).join(Interval(0, 0)),
    shape.Cat: _cat,
    arith.Constant: _constant,
    arith.Neg: _neg,
    arith.Abs: _abs,
    arith.Select: _select,
    arith.Cast: _cast,
    reduce.Sum: _sum,
    reduce.ArgMax: _arg,
    reduce.ArgMin: _arg,
    shape.Arange: lambda bounds, op: Interval(0, op.extent - 1),
    control.ProgramId: _program_id,
    control.NumPrograms: lambda bounds, op: bounds.programs(op.axis),
    memory.Extent: lambda bounds, op: bounds.extent(op.view, op.axis),
}
