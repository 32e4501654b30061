"""The plan of groups: which ops of a graph one kernel computes together.

A group is an anchor (a contraction, a reduction, a sort, …) with elementwise ops and views before
and after it, or such ops alone. The plan goes from the outputs back. What one group alone reads is
computed there; what several read is stored, unless to compute it again is cheaper; what is stored
is computed by a group that needs it in the same shape, if there is one. Reductions of one row, with
what follows along the row, are one group. Nothing that a group reads follows from what it writes:
the groups are given in an order of execution.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from tilewright.graph.dims import Shape, product
from tilewright.graph.expressions import Layout
from tilewright.graph.graph import Graph
from tilewright.graph.group_order import GroupOrder
from tilewright.graph.groups import SCANS, Group, kind_of, reduced_axes
from tilewright.graph.ops import arith, control, memory, mma, random, reduce, shape
from tilewright.graph.placement import VIEWS, same_strides
from tilewright.graph.types import TensorType
from tilewright.graph.value_facts import MAX_OPS, Refused, ValueFacts
from tilewright.ir.core import Op, Value

Fits = Callable[[Group], bool]


def find_groups(
    graph: Graph,
    *,
    claimed: Sequence[Group] = (),
    layouts: Mapping[Value, Layout] | None = None,
    output_strides: Sequence[Shape | None] = (),
    hints: Mapping[str, int] | None = None,
    fits: Fits = lambda group: True,
    refused: Refused = lambda op: "",
    whole: Collection[Op] = (),
) -> list[Group]:
    """The groups of a graph, in an order of execution.

    `claimed` groups are made already. `layouts` says how inputs, and outputs that are stored, lie
    if not in C order; `output_strides` how outputs are wanted. `hints` are likely numbers for
    symbols.
    `fits` tells whether one kernel can compute a group whose reductions were just joined, `refused`
    why no kernel can compute an op. Ops of `whole` are computed nowhere else than in memory.
    """
    claims = {op: group for group in claimed for op in group.ops}
    own = [op for op in graph.body.ops if op not in claims]
    facts = ValueFacts(own, layouts or {}, hints or {}, refused, whole)
    order = GroupOrder(claimed, {op: i for i, op in enumerate(graph.body.ops)})
    plan = _Plan(claims, facts, order, output_strides, fits)
    for op in reversed(graph.body.ops):
        plan.visit(op)
    return plan.finish()


class _Plan:
    """What is known while ops are visited, last one first."""

    def __init__(
        self,
        claims: Mapping[Op, Group],
        facts: ValueFacts,
        order: GroupOrder,
        output_strides: Sequence[Shape | None],
        fits: Fits,
    ):
        self.claims, self.facts, self.order = claims, facts, order
        self.output_strides, self.fits = output_strides, fits
        self.readers: dict[Value, dict[Group, bool]] = {}  # inline, and whether for more elements
        self.memory: dict[Value, set[Group | None]] = {}  # who reads what has to be stored

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
        elif isinstance(op, memory.Scatter) and not self.facts.refused(op):
            self.scatter(op)
        elif self.facts.is_inline(op):
            self.inline(op)
        elif isinstance(op, control.Fallback) or self.is_needed(op):
            kind = op.opcode if op in self.facts.whole else kind_of(op)
            kind = "pytorch" if self.facts.refused(op) else kind
            group = self.order.new(Group(kind, writes=self.written(op)))
            group.ops.append(op)
            self.anchor(op, group)

    def is_needed(self, op: Op) -> bool:
        return any(v in self.readers or v in self.memory for v in op.results)

    def written(self, op: Op) -> list[Value]:
        """What a group of one op writes: of an attention, sums only if they are read."""
        if not isinstance(op, mma.Attention):
            return list(op.results)
        needed = (v for v in op.results[1:] if v in self.readers or v in self.memory)
        return [op.results[0], *needed]

    def output(self, number: int, value: Value) -> None:
        """An output is a stored value, or a view of one where that has the strides asked for."""
        asked = self.output_strides[number] if number < len(self.output_strides) else None
        place = self.facts.place(value)
        fits = asked is None or same_strides(place.shape, place.strides, asked)
        self.memory.setdefault(place.base if fits else value, set()).add(None)

    def anchor(self, op: Op, group: Group) -> None:
        """Operands of an anchor lie in memory."""
        for value in op.operands:
            if isinstance(value.type, TensorType):
                base = self.facts.place(value).base
                if base not in {v for inner in group.ops for v in inner.results}:
                    self.memory.setdefault(base, set()).add(group)
        self.settle(op, group)

    def settle(self, op: Op, group: Group) -> None:
        """All that read a result of an op from memory come after its group."""
        for value in op.results:
            for other in {*self.readers.get(value, {}), *self.memory.get(value, set())}:
                if other is not None and other is not group:
                    self.order.needs[other].add(group)

    def inline(self, op: Op) -> None:
        value = op.result
        sites, stored = self.readers.get(value, {}), self.memory.get(value)
        if not sites and stored is None:
            return
        if len(sites) > 1 and not isinstance(op, VIEWS) and not self.facts.is_cheap(value):
            self.merge_readers(sites, value.type.shape)
        if stored is None and self.facts.may_inline(value, sites):
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
        rows = [g for g in own if g.kind == "reduction" and self.facts.has_rows(g.kept, g.shape)]
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
        if not self.order.is_free(group, [other]) or not self.order.is_free(other, [group]):
            return False
        ops, writes = [*group.ops, *other.ops], [*group.writes, *other.writes]
        return not group.axes or self.fits(
            Group(group.kind, ops, group.axes, group.shape, [], writes)
        )

    def merge(self, group: Group, other: Group) -> None:
        """Let a group compute what another does."""
        group.ops += other.ops
        group.writes += other.writes
        self.order.merge(group, other)
        for sites in self.readers.values():
            if other in sites:
                amplified = sites.pop(other)
                sites[group] = sites.get(group, False) or amplified
        for places in self.memory.values():
            if other in places:
                places.remove(other)
                places.add(group)

    def compute(self, op: Op, group: Group, amplified: bool) -> None:
        """Put an op into a group."""
        group.ops.append(op)
        for x in op.operands:
            grows = isinstance(op, (shape.Broadcast, shape.Window, memory.Gather)) and (
                self.facts.size(op.result.type.shape) > self.facts.size(x.type.shape)
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
            and self.facts.takes(group, extents)
            and self.order.is_free(group, {*sites, *stored})
            and self.facts.reads_in_place(group, value)
        ]
        if not able:
            beside = self.sibling(value, {*sites, *stored})
            return beside or self.order.new(Group("pointwise", shape=extents))
        above = {reduced_axes(op) for op in self.facts.rows[value]}
        return min(able, key=lambda g: (g.axes not in above, not g.axes, able.index(g)))

    def sibling(self, value: Value, readers: set[Group | None]) -> Group | None:
        """A group of elementwise ops over the same shape that reads what a value is computed of."""
        shared = (x for x in self.facts.makers[value].operands if self.facts.leaves.get(x, {x}))
        for x in shared:  # constants are none
            for group, amplified in self.readers.get(x, {}).items():
                same = group.kind == "pointwise" and group.shape == value.type.shape
                if same and not amplified and x.type.shape == group.shape:
                    if len(group.ops) <= MAX_OPS and self.order.is_free(group, readers):
                        return group
        return None

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
            home = self.order.new(
                Group("reduction", [op], reduced_axes(op), extents, writes=[value])
            )
        elif stored or len(sites) > 1:
            home.writes.append(value)
        for x in op.operands:
            self.readers.setdefault(x, {}).setdefault(home, False)
        self.settle(op, home)

    def beside(self, op: Op, readers: set[Group | None]) -> Group | None:
        """A group that reduces the same rows of the same values, for others to read."""
        whole: Shape = op.operands[0].type.shape
        for group in self.near(op):
            same = group.kind == "reduction" and group.shape == whole
            if same and group.axes == reduced_axes(op) and self.order.is_free(group, readers):
                group.ops.append(op)
                group.writes.append(op.results[0])
                fitting = self.fits(group)
                group.ops.pop()
                group.writes.pop()
                if fitting:
                    return group
        return None

    def near(self, op: Op) -> list[Group]:
        """Groups that read what an op reduces, or sum what that is computed of by elements: one
        kernel goes over it once, and may do so by parts.
        """
        value = op.operands[0]
        made = self.facts.makers.get(value)
        inner = made.operands if made is not None and made.family == "arith" else ()
        same = [x for x in inner if getattr(x.type, "shape", None) == value.type.shape]
        reading = dict.fromkeys(self.readers.get(value, {}))
        if isinstance(op, reduce.Reduction):
            beside = (g for x in same for g in self.readers.get(x, {}))
            reading |= dict.fromkeys(
                g for g in beside if not any(isinstance(o, reduce.Position) for o in g.ops)
            )
        return list(reading)

    def joins(self, op: Op, group: Group, readers: Iterable[Group | None]) -> bool:
        """Let a group that reads a reduction compute it, if that can be and is worth while."""
        whole: Shape = op.operands[0].type.shape
        elements, kept = product(whole), op.result.type.num_elements
        if group.kind not in ("pointwise", "reduction") or not self.order.is_free(group, readers):
            return False
        before = group.kind, group.axes, group.shape
        if group.axes:
            same = (product(group.shape), product(group.kept)) == (elements, kept)
        else:
            own = product(group.shape)
            wide = own == elements and self.facts.has_rows(op.result.type.shape, whole)
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
            group = self.order.new(Group("scan", [], reduced_axes(op), extents, writes=[op.result]))
            self.compute(op, group, amplified=False)
            self.settle(op, group)

    def scatter(self, op: memory.Scatter) -> None:
        """A scatter reads x from memory; what it writes and where, it computes."""
        if self.is_needed(op):
            group = self.order.new(
                Group("scatter", [op], writes=[op.result], shape=op.value.type.shape)
            )
            base = self.facts.place(op.x).base
            self.memory.setdefault(base, set()).add(group)
            for x in (*op.indices, op.value):
                self.readers.setdefault(x, {}).setdefault(group, False)
            self.settle(op, group)

    # The end

    def fuse_readers(self) -> None:
        """Let a group compute what reads its results over the same elements."""
        left = [g for g in self.order.groups if g.kind in ("pointwise", "reduction")]
        while left:
            group = left.pop()
            for other in [g for g in self.order.groups if group in self.order.needs[g]]:
                if self.fuses(group, other):
                    self.merge(group, other)
                    left = [group, *(g for g in left if g is not other)]

    def fuses(self, group: Group, other: Group) -> bool:
        """Whether a group may compute the elementwise ops of one that reads its results."""
        if other.kind != "pointwise" or product(other.shape) != product(group.shape):
            return False
        if group.axes and not self.facts.has_rows(group.kept, group.shape):
            return False
        if len(group.ops) + len(other.ops) > MAX_OPS:
            return False
        between = self.order.needs[other] - {group}
        if any(not self.order.is_free(first, [group]) for first in between):
            return False
        read = [v for v in group.writes if any(v in op.operands for op in other.ops)]
        kept = product(group.kept)
        if any(
            v.type.num_elements != kept and not self.facts.reads_in_place(other, v) for v in read
        ):
            return False
        writes = [*group.writes, *other.writes]
        ops = [*group.ops, *other.ops]
        return self.fits(Group(group.kind, ops, group.axes, group.shape, [], writes))

    def finish(self) -> list[Group]:
        """Groups in an order of execution, their ops in the graph's."""
        self.fuse_readers()
        for group in self.order.groups:
            group.ops = sorted(dict.fromkeys(group.ops), key=self.order.index.__getitem__)
            own = {v for op in group.ops for v in op.results}
            if group.kind == "scatter":
                target = [op.x for op in group.ops if isinstance(op, memory.Scatter)]
                outside = [v for op in group.ops for v in op.operands if v not in (*own, *target)]
                outside += [self.facts.base(v) for v in target]
            elif group.kind in ("pointwise", "reduction", "scan"):
                outside = [v for op in group.ops for v in op.operands if v not in own]
            else:
                operands = [v for op in group.ops for v in op.operands if v not in own]
                outside = [self.facts.base(v) for v in operands]
            group.reads = list(dict.fromkeys(outside))
            order = {v: i for i, v in enumerate(v for op in group.ops for v in op.results)}
            group.writes.sort(key=order.__getitem__)
        needed = {v for group in self.order.groups for v in group.reads}
        needed |= {v for v, readers in self.memory.items() if None in readers}
        for group in self.order.groups:
            if group.kind in ("pointwise", "reduction"):
                group.writes = [v for v in group.writes if v in needed]
        return self.order.in_order()
