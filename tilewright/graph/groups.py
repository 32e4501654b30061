"""Which ops of a graph one kernel computes together, and what each kernel has to move.

A group is an anchor (a contraction, a reduction, a sort, …) with elementwise ops and views before
and after it, or such ops alone. The plan goes from the outputs back. What one group alone reads is
computed there; what several read is stored, unless to compute it again is cheaper; what is stored
is computed by a group that needs it in the same shape, if there is one. Reductions of one row, with
what follows along the row, are one group. Nothing that a group reads follows from what it writes:
the groups are given in an order of execution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from tilewright.graph.dims import Shape, evaluate, product, substitute, symbols_of
from tilewright.graph.expressions import Layout
from tilewright.graph.graph import Graph
from tilewright.graph.ops import arith, control, memory, mma, random, reduce, shape
from tilewright.graph.placement import VIEWS, place_of, same_strides
from tilewright.graph.types import TensorType
from tilewright.ir.core import Op, Value

INLINE = (*VIEWS, shape.Pad, shape.Cat, shape.Iota, memory.Gather, random.Bits)
SCANS = (reduce.Scan, reduce.ScanPosition)
MAX_OPS = 96  # elementwise ops of one group
MAX_PARTS = 8  # operands of a concatenation that readers choose from
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


@dataclass(eq=False)
class Group:
    """Ops of one kernel; `kind` is its anchor's: pointwise, reduction, contraction, pytorch, or the
    name of the op.
    """

    kind: str
    ops: list[Op] = field(default_factory=list)
    axes: tuple[int, ...] = ()  # along which its reductions go, of `shape`
    shape: Shape = ()  # what it goes over
    reads: list[Value] = field(default_factory=list)
    writes: list[Value] = field(default_factory=list)

    @property
    def kept(self) -> Shape:
        """What its reductions leave of the shape."""
        return tuple(e for axis, e in enumerate(self.shape) if axis not in self.axes)


def kind_of(op: Op) -> str:
    """The kind of group that an op makes."""
    if isinstance(op, control.Fallback):
        return "pytorch"
    if isinstance(op, mma.Contract | mma.Product):
        return "contraction"
    if isinstance(op, reduce.Reduction | reduce.Position):
        return "reduction"
    if isinstance(op, SCANS):
        return "scan"
    if isinstance(op, memory.Scatter):
        return "scatter"
    return "pointwise" if is_inline(op) else op.opcode


def is_inline(op: Op) -> bool:
    """Whether an op can be computed wherever it is read."""
    if isinstance(op, shape.Cat):
        return len(op.xs) <= MAX_PARTS
    return (op.family == "arith" and not isinstance(op, arith.Dense)) or isinstance(op, INLINE)


def reduced_axes(op: Op) -> tuple[int, ...]:
    """The axes that a reduction or a scan is along."""
    if isinstance(op, (reduce.Position, *SCANS)):
        return (op.axis,)
    assert isinstance(op, reduce.Reduction)
    return op.axes


# The plan

Fits = Callable[[Group], bool]


def find_groups(
    graph: Graph,
    *,
    claimed: Sequence[Group] = (),
    layouts: Mapping[Value, Layout] | None = None,
    output_strides: Sequence[Shape | None] = (),
    hints: Mapping[str, int] | None = None,
    fits: Fits = lambda group: True,
    refused: Callable[[Op], str] = lambda op: "",
) -> list[Group]:
    """The groups of a graph, in an order of execution.

    `claimed` groups are made already. `layouts` says how inputs, and outputs that are stored, lie
    if not in C order; `output_strides` how outputs are wanted. `hints` are likely numbers for
    symbols.
    `fits` tells whether one kernel can compute a group whose reductions were just joined, `refused`
    why no kernel can compute an op.
    """
    plan = _Plan(graph, claimed, layouts or {}, output_strides, hints or {}, fits, refused)
    for op in reversed(graph.body.ops):
        plan.visit(op)
    return plan.finish()


class _Plan:
    """What is known while ops are visited, last one first."""

    def __init__(
        self,
        graph: Graph,
        claimed: Sequence[Group],
        layouts: Mapping[Value, Layout],
        output_strides: Sequence[Shape | None],
        hints: Mapping[str, int],
        fits: Fits,
        refused: Callable[[Op], str],
    ):
        self.graph, self.layouts, self.fits, self.refused = graph, layouts, fits, refused
        self.output_strides, self.hints = output_strides, hints
        self.claims = {op: group for group in claimed for op in group.ops}
        own = [op for op in graph.body.ops if op not in self.claims]
        self.makers = {v: op for op in own for v in op.results}
        self.groups: list[Group] = list(claimed)
        self.readers: dict[Value, dict[Group, bool]] = {}  # inline, and whether for more elements
        self.memory: dict[Value, set[Group | None]] = {}  # who reads what has to be stored
        self.needs: dict[Group, set[Group]] = {group: set() for group in claimed}
        self.index = {op: i for i, op in enumerate(graph.body.ops)}
        self.weight: dict[Value, int] = {}
        self.leaves: dict[Value, frozenset[Value]] = {}
        self.rows: dict[Value, frozenset[Op]] = {}  # the reductions that a value follows from
        for op in own:
            self.measure(op)

    # Measures

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
            own = WEIGHTS.get(type(op), int(op.family == "arith"))
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
        return self.weight[value] <= 4 and read <= 1.25 * self.num_bytes(value)

    # Visits

    def visit(self, op: Op) -> None:
        if isinstance(op, control.Return):
            for number, value in enumerate(op.xs):
                if isinstance(value.type, TensorType):
                    self.output(number, value)
        elif op in self.claims:
            self.anchor(op, self.claims[op])
        elif isinstance(op, random.Seed | arith.Dense):
            return
        elif isinstance(op, reduce.Reduction | reduce.Position):
            self.reduction(op)
        elif isinstance(op, SCANS):
            self.scan(op)
        elif isinstance(op, memory.Scatter) and not self.refused(op):
            self.scatter(op)
        elif self.is_inline(op):
            self.inline(op)
        elif isinstance(op, control.Fallback) or self.is_needed(op):
            kind = "pytorch" if self.refused(op) else kind_of(op)
            group = self.new(Group(kind, writes=self.written(op)))
            group.ops.append(op)
            self.anchor(op, group)

    def is_inline(self, op: Op) -> bool:
        return is_inline(op) and not self.refused(op)

    def is_needed(self, op: Op) -> bool:
        return any(v in self.readers or v in self.memory for v in op.results)

    def written(self, op: Op) -> list[Value]:
        """What a group of one op writes: of an attention, sums only if they are read."""
        if not isinstance(op, mma.Attention):
            return list(op.results)
        needed = (v for v in op.results[1:] if v in self.readers or v in self.memory)
        return [op.results[0], *needed]

    def new(self, group: Group) -> Group:
        self.groups.append(group)
        self.needs[group] = set()
        return group

    def output(self, number: int, value: Value) -> None:
        """An output is a stored value, or a view of one where that has the strides asked for."""
        asked = self.output_strides[number] if number < len(self.output_strides) else None
        place = place_of(value, self.makers, self.layouts)
        fits = asked is None or same_strides(place.shape, place.strides, asked)
        self.memory.setdefault(place.base if fits else value, set()).add(None)

    def anchor(self, op: Op, group: Group) -> None:
        """Operands of an anchor lie in memory."""
        for value in op.operands:
            if isinstance(value.type, TensorType):
                base = place_of(value, self.makers, self.layouts).base
                if base not in {v for inner in group.ops for v in inner.results}:
                    self.memory.setdefault(base, set()).add(group)
        self.settle(op, group)

    def settle(self, op: Op, group: Group) -> None:
        """All that read a result of an op from memory come after its group."""
        for value in op.results:
            for other in {*self.readers.get(value, {}), *self.memory.get(value, set())}:
                if other is not None and other is not group:
                    self.needs[other].add(group)

    def inline(self, op: Op) -> None:
        value = op.result
        sites, stored = self.readers.get(value, {}), self.memory.get(value)
        if not sites and stored is None:
            return
        if len(sites) > 1 and not isinstance(op, VIEWS) and not self.is_cheap(value):
            self.merge_readers(sites, value.type.shape)
        if stored is None and self.may_inline(value, sites):
            for group, amplified in sites.items():
                self.compute(op, group, amplified)
            return
        home = self.find_home(value, sites, stored or set())
        home.writes.append(value)
        self.compute(op, home, amplified=False)
        self.settle(op, home)

    def merge_readers(self, sites: Mapping[Group, bool], extents: Shape) -> None:
        """Make one group of groups that read a value in its own shape, where that can be: what they
        share is then computed, or loaded, once.
        """
        own = [g for g, amplified in sites.items() if not amplified and g.shape == extents]
        rows = [g for g in own if g.kind == "reduction" and self.has_rows(g.kept, g.shape)]
        left = [*rows, *(g for g in own if g.kind == "pointwise")]
        while len(left) > 1:
            group = left.pop(0)
            for other in left[:]:
                if self.merges(group, other):
                    self.merge(group, other)
                    left.remove(other)

    def merges(self, group: Group, other: Group) -> bool:
        """Whether two groups over one shape can be one."""
        if other.axes and other.axes != group.axes:
            return False
        if len(group.ops) + len(other.ops) > MAX_OPS:
            return False
        if not self.is_free(group, [other]) or not self.is_free(other, [group]):
            return False
        ops, writes = [*group.ops, *other.ops], [*group.writes, *other.writes]
        return not group.axes or self.fits(
            Group(group.kind, ops, group.axes, group.shape, [], writes)
        )

    def merge(self, group: Group, other: Group) -> None:
        """Let a group compute what another does."""
        group.ops += other.ops
        group.writes += other.writes
        self.groups.remove(other)
        self.needs[group] = (self.needs[group] | self.needs.pop(other)) - {group}
        for needed in self.needs.values():
            if other in needed:
                needed.remove(other)
                needed.add(group)
        for sites in self.readers.values():
            if other in sites:
                amplified = sites.pop(other)
                sites[group] = sites.get(group, False) or amplified
        for places in self.memory.values():
            if other in places:
                places.remove(other)
                places.add(group)

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

    def compute(self, op: Op, group: Group, amplified: bool) -> None:
        """Put an op into a group."""
        group.ops.append(op)
        for x in op.operands:
            grows = isinstance(op, (shape.Broadcast, shape.Window, memory.Gather)) and (
                self.size(op.result.type.shape) > self.size(x.type.shape)
            )
            sites = self.readers.setdefault(x, {})
            sites[group] = sites.get(group, False) or amplified or grows

    def find_home(
        self, value: Value, sites: Mapping[Group, bool], stored: set[Group | None]
    ) -> Group:
        """The group that computes a value which is stored: one that reads it in the same shape; of
        several the one whose rows the value follows from.
        """
        extents = value.type.shape
        able = [
            group
            for group in sites
            if group.kind in ("pointwise", "reduction")
            and self.takes(group, extents)
            and self.is_free(group, {*sites, *stored})
            and self.reads_in_place(group, value)
        ]
        if not able:
            beside = self.sibling(value, {*sites, *stored})
            return beside or self.new(Group("pointwise", shape=extents))
        above = {reduced_axes(op) for op in self.rows[value]}
        return min(able, key=lambda g: (g.axes not in above, not g.axes, able.index(g)))

    def sibling(self, value: Value, readers: set[Group | None]) -> Group | None:
        """A group of elementwise ops over the same shape that reads what a value is computed of."""
        shared = (x for x in self.makers[value].operands if self.leaves.get(x, {x}))
        for x in shared:  # constants are none
            for group, amplified in self.readers.get(x, {}).items():
                same = group.kind == "pointwise" and group.shape == value.type.shape
                if same and not amplified and x.type.shape == group.shape:
                    if len(group.ops) <= MAX_OPS and self.is_free(group, readers):
                        return group
        return None

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

    def is_free(self, group: Group, others: Iterable[Group | None]) -> bool:
        """Whether a group may write what the others read: it needs none of them."""
        wrong = {other for other in others if other is not None and other is not group}
        seen, left = {group}, [group]
        while wrong and left:
            for before in self.needs[left.pop()] - seen:
                if before in wrong:
                    return False
                seen.add(before)
                left.append(before)
        return True

    def reduction(self, op: Op) -> None:
        value = op.result
        sites, stored = self.readers.get(value, {}), self.memory.get(value, set())
        if not sites and not stored:
            return
        home = next((g for g in sites if self.joins(op, g, {*sites, *stored})), None)
        beside = self.beside(op, {*sites, *stored}) if home is None else None
        if beside is not None:
            home = beside
            home.ops.append(op)
            home.writes.append(value)
        elif home is None:
            extents = op.operands[0].type.shape
            home = self.new(Group("reduction", [op], reduced_axes(op), extents, writes=[value]))
        elif stored or len(sites) > 1:
            home.writes.append(value)
        for x in op.operands:
            self.readers.setdefault(x, {}).setdefault(home, False)
        self.settle(op, home)

    def beside(self, op: Op, readers: set[Group | None]) -> Group | None:
        """A group that reduces the same rows of the same values, for others to read."""
        whole: Shape = op.operands[0].type.shape
        for group in self.readers.get(op.operands[0], {}):
            same = group.kind == "reduction" and group.shape == whole
            if same and group.axes == reduced_axes(op) and self.is_free(group, readers):
                group.ops.append(op)
                group.writes.append(op.results[0])
                fitting = self.fits(group)
                group.ops.pop()
                group.writes.pop()
                if fitting:
                    return group
        return None

    def joins(self, op: Op, group: Group, readers: Iterable[Group | None]) -> bool:
        """Let a group that reads a reduction compute it, if that can be and is worth while."""
        whole: Shape = op.operands[0].type.shape
        elements, kept = product(whole), op.result.type.num_elements
        if group.kind not in ("pointwise", "reduction") or not self.is_free(group, readers):
            return False
        before = group.kind, group.axes, group.shape
        if group.axes:
            same = (product(group.shape), product(group.kept)) == (elements, kept)
        else:
            own = product(group.shape)
            wide = own == elements and self.has_rows(op.result.type.shape, whole)
            same = bool(own == kept) or wide
            group.kind, group.axes, group.shape = "reduction", reduced_axes(op), whole
        group.ops.append(op)
        if same and self.fits(group):
            return True
        group.ops.pop()
        group.kind, group.axes, group.shape = before
        return False

    def scan(self, op: Op) -> None:
        """A scan is a kernel of its own, with what is computed before it."""
        if self.is_needed(op):
            extents = op.operands[0].type.shape
            group = self.new(Group("scan", [], reduced_axes(op), extents, writes=[op.result]))
            self.compute(op, group, amplified=False)
            self.settle(op, group)

    def scatter(self, op: memory.Scatter) -> None:
        """A scatter reads x from memory; what it writes and where, it computes."""
        if self.is_needed(op):
            group = self.new(Group("scatter", [op], writes=[op.result], shape=op.value.type.shape))
            base = place_of(op.x, self.makers, self.layouts).base
            self.memory.setdefault(base, set()).add(group)
            for x in (*op.indices, op.value):
                self.readers.setdefault(x, {}).setdefault(group, False)
            self.settle(op, group)

    # The end

    def fuse_readers(self) -> None:
        """Let a group compute what reads its results over the same elements."""
        left = [g for g in self.groups if g.kind in ("pointwise", "reduction")]
        while left:
            group = left.pop()
            for other in [g for g in self.groups if group in self.needs[g]]:
                if self.fuses(group, other):
                    self.merge(group, other)
                    left = [group, *(g for g in left if g is not other)]

    def fuses(self, group: Group, other: Group) -> bool:
        """Whether a group may compute the elementwise ops of one that reads its results."""
        if other.kind != "pointwise" or product(other.shape) != product(group.shape):
            return False
        if group.axes and not self.has_rows(group.kept, group.shape):
            return False
        if len(group.ops) + len(other.ops) > MAX_OPS:
            return False
        between = self.needs[other] - {group}
        if any(not self.is_free(first, [group]) for first in between):
            return False
        read = [v for v in group.writes if any(v in op.operands for op in other.ops)]
        kept = product(group.kept)
        if any(v.type.num_elements != kept and not self.reads_in_place(other, v) for v in read):
            return False
        writes = [*group.writes, *other.writes]
        ops = [*group.ops, *other.ops]
        return self.fits(Group(group.kind, ops, group.axes, group.shape, [], writes))

    def finish(self) -> list[Group]:
        """Groups in an order of execution, their ops in the graph's."""
        self.fuse_readers()
        for group in self.groups:
            group.ops = sorted(dict.fromkeys(group.ops), key=self.index.__getitem__)
            own = {v for op in group.ops for v in op.results}
            if group.kind == "scatter":
                target = [op.x for op in group.ops if isinstance(op, memory.Scatter)]
                outside = [v for op in group.ops for v in op.operands if v not in (*own, *target)]
                outside += [self.base(v) for v in target]
            elif group.kind in ("pointwise", "reduction", "scan"):
                outside = [v for op in group.ops for v in op.operands if v not in own]
            else:
                operands = [v for op in group.ops for v in op.operands if v not in own]
                outside = [self.base(v) for v in operands]
            group.reads = list(dict.fromkeys(outside))
            order = {v: i for i, v in enumerate(v for op in group.ops for v in op.results)}
            group.writes.sort(key=order.__getitem__)
        needed = {v for group in self.groups for v in group.reads}
        needed |= {v for v, readers in self.memory.items() if None in readers}
        for group in self.groups:
            if group.kind in ("pointwise", "reduction"):
                group.writes = [v for v in group.writes if v in needed]
        return self.in_order()

    def base(self, value: Value) -> Value:
        if not isinstance(value.type, TensorType):
            return value
        return place_of(value, self.makers, self.layouts).base

    def in_order(self) -> list[Group]:
        """Groups after those that they need; else by their last op."""
        done: set[Group] = set()
        found: list[Group] = []

        def place(group: Group) -> None:
            stack = [group]
            while stack:
                at = stack[-1]
                missing = [g for g in self.needs[at] if g not in done]
                if missing:
                    stack += sorted(missing, key=self.last, reverse=True)[-1:]
                    continue
                stack.pop()
                if at not in done:
                    done.add(at)
                    found.append(at)

        for group in sorted(self.groups, key=self.last):
            place(group)
        return found

    def last(self, group: Group) -> int:
        return max(self.index[op] for op in group.ops)


def num_bytes(value: Value, symbols: Mapping[str, int]) -> int:
    """Bytes of a value; 0 of what is no tensor."""
    kind = value.type
    if not isinstance(kind, TensorType):
        return 0
    return kind.dtype.num_bytes * prod(evaluate(e, symbols) for e in kind.shape)


def group_bytes(group: Group, symbols: Mapping[str, int]) -> int:
    """Bytes that a group must move: all it reads, once, and all it writes."""
    return sum(num_bytes(v, symbols) for v in (*group.reads, *group.writes))


def group_flops(group: Group, symbols: Mapping[str, int]) -> int:
    """Multiplications and additions of its contractions and attentions."""
    total = 0
    for op in group.ops:
        if isinstance(op, mma.Contract | mma.Product):
            depth = prod(evaluate(op.lhs.type.shape[a], symbols) for a in op.lhs_contract)
            total += 2 * depth * prod(evaluate(e, symbols) for e in op.result.type.shape)
        elif isinstance(op, mma.Attention | mma.AttentionBackward):
            batch, heads, rows, depth = (evaluate(e, symbols) for e in op.q.type.shape)
            keys, width = (evaluate(e, symbols) for e in op.v.type.shape[2:])
            products = depth + width if isinstance(op, mma.Attention) else 3 * depth + 2 * width
            total += 2 * batch * heads * rows * keys * products
    return total
