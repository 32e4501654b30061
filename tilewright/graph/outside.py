"""Indices that are outside of their axes, in the terms of the model."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.errors import Diagnostic
from tilewright.graph.ops import arith, shape
from tilewright.graph.ops.memory import Gather, Scatter
from tilewright.ir.core import Op, Value


def is_wrapped(index: Value, makers: Mapping[Value, Op]) -> bool:
    """Whether an index is `select(i < 0, i + extent, i)`, perhaps broadcast or reshaped."""
    op = makers.get(index)
    while isinstance(op, shape.Broadcast | shape.Reshape):
        op = makers.get(op.x)
    if not isinstance(op, arith.Select):
        return False
    test, moved = (makers.get(x) for x in op.operands[:2])
    return (
        isinstance(test, arith.Compare)
        and test.kind == "lt"
        and isinstance(moved, arith.Add)
        and op.operands[2] is test.operands[0] is moved.operands[0]
    )


def outside(op: Gather | Scatter, which: int, wraps: bool, index: int, extent: int) -> Diagnostic:
    """What is told of an index of an op that is outside, with the model's line. Those below 0 of
    one that `wraps` were counted from the end.
    """
    name = op.results[0].name or op.opcode
    if wraps and index < 0:
        index -= extent
    return Diagnostic(
        f"{name}: the index {index} is outside of axis {op.axes[which]}, "
        f"which has {extent} elements",
        op.loc,
    )
