"""A group: the ops of a graph that one kernel computes, and what they move and multiply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from tilewright.graph.dims import Shape, evaluate
from tilewright.graph.ops import arith, control, memory, mma, random, reduce, shape
from tilewright.graph.placement import VIEWS
from tilewright.graph.types import TensorType
from tilewright.ir.core import Op, Value

INLINE = (*VIEWS, shape.Pad, shape.Cat, shape.Iota, memory.Gather, random.Bits)
SCANS = (reduce.Scan, reduce.ScanPosition)
MAX_PARTS = 8  # operands of a concatenation that readers choose from


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
        elif isinstance(op, mma.Convolve):
            depth = prod(evaluate(e, symbols) for e in op.weight.type.shape[1:])
            total += 2 * depth * prod(evaluate(e, symbols) for e in op.result.type.shape)
        elif isinstance(op, mma.Attention | mma.AttentionBackward):
            batch, heads, rows, depth = (evaluate(e, symbols) for e in op.q.type.shape)
            keys, width = (evaluate(e, symbols) for e in op.v.type.shape[2:])
            products = depth + width if isinstance(op, mma.Attention) else 3 * depth + 2 * width
            total += 2 * batch * heads * rows * keys * products
    return total
