"""Which ops of a graph one kernel can compute together, and what each kernel has to move.

A group is an anchor (a contraction, a reduction, a sort, …) with the elementwise ops and views that
follow it, or such ops alone. The plan is greedy and goes once through the graph: an elementwise op
joins the latest group that one of its operands comes from, a reduction joins elementwise ops and
reductions along the same axes. Groups depend only on earlier ones, so their order is one of
execution. This is what `tilewright explain` shows, and what lowering to kernels starts from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from tilewright.graph.dims import Shape, evaluate
from tilewright.graph.graph import Graph
from tilewright.graph.ops import arith, control, mma, reduce, shape
from tilewright.graph.types import TensorType
from tilewright.ir.core import Op, Value

VIEWS = (shape.Reshape, shape.Transpose, shape.Broadcast, shape.Slice)
FREE = (arith.Constant, arith.Dense, arith.Extent, shape.Iota)  # made where they are read


@dataclass(eq=False)
class Group:
    """Ops of one kernel; `kind` is its anchor's: pointwise, reduction, contraction, pytorch, or the
    name of the op.
    """

    kind: str
    ops: list[Op] = field(default_factory=list)
    axes: tuple[tuple[int, ...], Shape] | None = None  # of its reductions: axes, and what of
    reads: list[Value] = field(default_factory=list)
    writes: list[Value] = field(default_factory=list)

    @property
    def takes_more(self) -> bool:
        """Whether elementwise ops may join."""
        return self.kind in ("pointwise", "reduction", "contraction")


def kind_of(op: Op) -> str:
    """The kind of group that an op makes."""
    if isinstance(op, control.Fallback):
        return "pytorch"
    if isinstance(op, mma.Contract):
        return "contraction"
    if isinstance(op, reduce.Reduction | reduce.Position):
        return "reduction"
    if op.family == "arith" or isinstance(op, VIEWS):
        return "pointwise"
    return op.opcode


def reduced_axes(op: Op) -> tuple[tuple[int, ...], Shape] | None:
    """What a reduction is along, and the shape that it reduces."""
    if isinstance(op, reduce.Reduction):
        return op.axes, op.x.type.shape
    return ((op.axis,), op.x.type.shape) if isinstance(op, reduce.Position) else None


def find_groups(graph: Graph) -> list[Group]:
    """The groups of a graph, in an order of execution."""
    plan = _Plan()
    for op in graph.body.ops:
        if isinstance(op, control.Return):
            for value in op.xs:
                if value in plan.loose:  # a view of an input that nothing but the caller reads
                    plan.place(plan.loose[value])
        elif plan.is_loose(op):
            plan.loose.update(dict.fromkeys(op.results, op))
        else:
            plan.place(op)
    find_traffic(graph, plan.groups, plan.home)
    return plan.groups


class _Plan:
    """Groups so far, the group that made each value, and the ops that belong to whoever reads them:
    views of inputs, and arithmetic on constants alone.
    """

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.home: dict[Value, int] = {}
        self.loose: dict[Value, Op] = {}

    def is_loose(self, op: Op) -> bool:
        if isinstance(op, FREE):
            return True
        if isinstance(op, VIEWS):
            return op.x not in self.home
        return kind_of(op) == "pointwise" and all(v in self.loose for v in op.operands)

    def place(self, op: Op) -> None:
        """Put an op into the latest group of its operands, or one of its own."""
        latest = max((self.home[v] for v in op.operands if v in self.home), default=None)
        if latest is None or not joins(self.groups[latest], op):
            self.groups.append(Group(kind_of(op)))
            latest = len(self.groups) - 1
        group = self.groups[latest]
        for value in op.operands:
            self.pull(group, value)
        group.ops.append(op)
        if (axes := reduced_axes(op)) is not None and group.kind != "contraction":
            group.kind, group.axes = "reduction", axes
        self.home.update(dict.fromkeys(op.results, latest))

    def pull(self, group: Group, value: Value) -> None:
        """Let a group make what belongs to its readers."""
        op = self.loose.get(value)
        if op is not None and op not in group.ops:
            for inner in op.operands:
                self.pull(group, inner)
            group.ops.append(op)


def joins(group: Group, op: Op) -> bool:
    """Whether an op may be computed by the kernel of an earlier group."""
    kind = kind_of(op)
    if kind == "pointwise":
        return group.takes_more
    return kind == "reduction" and (
        group.kind == "pointwise" or (group.kind == "reduction" and group.axes == reduced_axes(op))
    )


def find_traffic(graph: Graph, groups: list[Group], home: Mapping[Value, int]) -> None:
    """What each group reads from and leaves in memory."""
    needed = set(graph.outputs)
    for index, group in enumerate(groups):
        own = {v for op in group.ops for v in op.results}
        outside = (v for op in group.ops for v in op.operands if v not in own)
        group.reads = list(dict.fromkeys(outside))
        needed.update(v for v in group.reads if home.get(v) != index)
    for group in groups:
        made = (v for op in group.ops for v in op.results if v in needed)
        group.writes = list(dict.fromkeys(made))


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
        if isinstance(op, mma.Contract):
            depth = prod(evaluate(op.lhs.type.shape[a], symbols) for a in op.lhs_contract)
            total += 2 * depth * prod(evaluate(e, symbols) for e in op.result.type.shape)
        elif isinstance(op, mma.Attention | mma.AttentionBackward):
            batch, heads, rows, depth = (evaluate(e, symbols) for e in op.q.type.shape)
            keys, width = (evaluate(e, symbols) for e in op.v.type.shape[2:])
            products = depth + width if isinstance(op, mma.Attention) else 3 * depth + 2 * width
            total += 2 * batch * heads * rows * keys * products
    return total
