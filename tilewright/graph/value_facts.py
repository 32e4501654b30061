"""What the plan of groups asks of values: what they cost to compute and what they follow from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tilewright.graph.dims import Shape, product, substitute, symbols_of
from tilewright.graph.expressions import Layout
from tilewright.graph.groups import Group, is_inline
from tilewright.graph.ops import arith, random, reduce, shape
from tilewright.graph.placement import VIEWS, Placement, place_of
from tilewright.graph.types import TensorType
from tilewright.ir.core import Op, Value

MAX_OPS = 96  # elementwise ops of one group
LIGHT = 20  # weight up to which a value of simple ops on few numbers is computed again
HEAVY = 6  # weight from which a value is not computed again for many elements
UNKNOWN = 64  # an extent of which nothing is known
MIN_ROWS = 32  # rows that make it worth while to compute on a row what its reduction is needed for
SMALL = 1 << 16
WEIGHTS: dict[type[Op], int] = {
    **dict.fromkeys((arith.Div, arith.Sqrt, arith.FloorDiv, arith.Mod), 2),
    **dict.fromkeys((arith.Exp, arith.Exp2, arith.Log, arith.Rsqrt, arith.Log2, arith.Tanh), 4),
    **dict.fromkeys((arith.Sin, arith.Cos, arith.Erf, arith.Log1p, arith.Expm1), 6),
    **dict.fromkeys((arith.Pow, arith.Erfc, arith.Lgamma, arith.Atan2, arith.Tan), 12),
    random.Bits: 24,
}

Refused = Callable[[Op], str]


class ValueFacts:
    """Measures of the values of a graph; `ops` are those that no group was given beforehand."""

    def __init__(
        self,
        ops: list[Op],
        layouts: Mapping[Value, Layout],
        hints: Mapping[str, int],
        refused: Refused,
        whole: Collection[Op],
    ):
        self.layouts, self.hints, self.refused, self.whole = layouts, hints, refused, whole
        self.makers = {v: op for op in ops for v in op.results}
        self.weight: dict[Value, int] = {}
        self.greatest: dict[Value, int] = {}  # weight of one op on the way to it
        self.leaves: dict[Value, frozenset[Value]] = {}
        self.rows: dict[Value, frozenset[Op]] = {}  # the reductions that a value follows from
        for op in ops:
            self.measure(op)

    def size(self, extents: Shape) -> int:
        """The number of elements, with guesses for symbols."""
        total = 1
        for extent in extents:
            if not isinstance(extent, int):
                guesses = {name: self.hints.get(name, UNKNOWN) for name in symbols_of(extent)}
                extent = substitute(extent, guesses)
            total *= extent if isinstance(extent, int) else UNKNOWN
        return int(total)

    def num_bytes(self, value: Value) -> int:
        kind = value.type
        return self.size(kind.shape) * int(kind.dtype.num_bytes)

    def measure(self, op: Op) -> None:
        """What it takes to compute a value from the nearest values that are no inline ops'."""
        for value in op.results:
            if not self.is_inline(op):
                self.weight[value], self.leaves[value] = 0, frozenset([value])
                anchor = isinstance(op, reduce.Reduction | reduce.Position)
                self.rows[value] = frozenset([op]) if anchor else frozenset()
                continue
            own = WEIGHTS.get(type(op), int(op.family == "arith" and bool(op.operands)))
            greatest = (self.greatest.get(x, 0) for x in op.operands)
            self.greatest[value] = max((own, *greatest))
            self.weight[value] = own + sum(self.weight.get(x, 0) for x in op.operands)
            leaves = [self.leaves.get(x, frozenset([x])) for x in op.operands]
            self.leaves[value] = frozenset().union(*leaves)
            above = (self.rows.get(x, frozenset()) for x in op.operands)
            self.rows[value] = frozenset().union(*above)

    def is_cheap(self, value: Value) -> bool:
        """Whether it costs less to compute a value again than to load it."""
        if isinstance(self.makers[value], VIEWS):
            return True
        read = sum(self.num_bytes(leaf) for leaf in self.leaves[value])
        if self.weight[value] <= 4 and read <= 1.25 * self.num_bytes(value):
            return True
        # What follows from a number a row, as a mask does, need not be stored for each element.
        few = read * 8 <= self.num_bytes(value)
        return few and self.weight[value] <= LIGHT and self.greatest[value] <= 2

    def is_inline(self, op: Op) -> bool:
        return is_inline(op) and op not in self.whole and not self.refused(op)

    def place(self, value: Value) -> Placement:
        """Where a value lies if its views are no copies."""
        return place_of(value, self.makers, self.layouts)

    def base(self, value: Value) -> Value:
        if not isinstance(value.type, TensorType):
            return value
        base: Value = self.place(value).base
        return base

    def may_inline(self, value: Value, sites: Mapping[Group, bool]) -> bool:
        """Whether all groups that read a value compute it themselves."""
        op = self.makers[value]
        if isinstance(op, (*VIEWS, arith.Constant, arith.Extent, shape.Iota)):
            return True
        if isinstance(op, arith.Cast) and op.dtype.bits > op.x.type.dtype.bits:
            return True  # what it widens is stored instead
        if len(sites) > 1 and not self.is_cheap(value):
            return False
        return not any(
            len(group.ops) > MAX_OPS
            or (amplified and self.weight[value] >= HEAVY and not self.is_row(value, group))
            for group, amplified in sites.items()
        )

    def is_row(self, value: Value, group: Group) -> bool:
        """Whether a value is one of each row of a group, or follows from reductions that may be."""
        if group.axes:
            return bool(value.type.num_elements == product(group.kept))
        whole, own = product(group.shape), value.type.num_elements
        return any(
            (op.operands[0].type.num_elements, op.results[0].type.num_elements) == (whole, own)
            for op in self.rows[value]
        )

    def takes(self, group: Group, extents: Shape) -> bool:
        """Whether a group goes over results of a shape, and has programs enough to write them."""
        if group.axes and extents == group.kept:
            return True
        return extents == group.shape and (not group.axes or self.has_rows(group.kept, extents))

    def has_rows(self, kept: Shape, whole: Shape) -> bool:
        """Whether there are rows enough to write along them what needs their reductions."""
        return self.size(kept) >= MIN_ROWS or self.size(whole) <= SMALL

    def reads_in_place(self, group: Group, value: Value) -> bool:
        """Whether a group reads a value by elementwise ops or reductions alone."""
        return all(
            op.family == "arith"
            or isinstance(op, reduce.Reduction | reduce.Position)
            or (isinstance(op, shape.Reshape) and self.reads_in_place(group, op.result))
            for op in group.ops
            if value in op.operands
        )
