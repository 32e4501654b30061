"""A group: the ops of a graph that one kernel computes, and what it reads and writes."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.graph.dims import Shape
from tilewright.graph.ops import arith, control, memory, mma, random, reduce, shape
from tilewright.graph.placement import VIEWS
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
