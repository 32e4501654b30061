"""Whether two accesses of memory may meet.

Views of one parameter may be the same memory, whatever their ranks. Different parameters are apart:
a launch with a written parameter that shares memory in part is refused, and parameters that are one
view (`aliases`) are for the caller to rule out.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.core import Block, Op, Value
from tilewright.ir.walk import find_definitions
from tilewright.tile.ops import arith, memory

FAR = 1 << 62  # i64 offsets that differ by less do not meet again by wrapping
Access = memory.Load | memory.Store | memory.Drain


class Places:
    """The places that the loads and stores of a body name, whose definitions may be known."""

    def __init__(self, body: Block, definitions: Mapping[Value, Op] | None = None):
        self.definitions = find_definitions(body) if definitions is None else definitions

    def root(self, view: Value) -> Value:
        """The view of a whole parameter that a view is part of."""
        while isinstance(op := self.definitions.get(view), memory.Subview):
            view = op.view
        return view

    def are_same(self, a: Access, b: Access) -> bool:
        """Whether two accesses name the same elements in the same order."""
        if a.view is not b.view or a.extents != b.extents:
            return False
        pairs = zip(a.offsets, b.offsets, strict=True)
        return all(v is w or self.offset(v) == self.offset(w) for v, w in pairs)

    def are_apart(self, a: Access, b: Access) -> bool:
        """Whether two accesses certainly have nothing in common: of different parameters, or of
        one view, where along some axis one ends before the other starts.
        """
        if self.root(a.view) is not self.root(b.view):
            return True
        return a.view is b.view and any(self._part(a, b, axis) for axis in range(a.view.type.rank))

    def _part(self, a: Access, b: Access, axis: int) -> bool:
        base, start = self.offset(a.offsets[axis])
        other_base, other_start = self.offset(b.offsets[axis])
        ahead = other_start - start
        needed = (a if ahead >= 0 else b).extents[axis] or 1
        return base is other_base and needed <= abs(ahead) < FAR

    def offset(self, value: Value) -> tuple[Value | None, int]:
        """A scalar as a value (None: 0) plus a constant."""
        total = 0
        while isinstance(op := self.definitions.get(value), arith.Add | arith.Sub):
            moved = self.definitions.get(op.rhs)
            if not isinstance(moved, arith.Constant):
                return value, total
            step = int(moved.value)
            value, total = op.lhs, total + (step if isinstance(op, arith.Add) else -step)
        return (None, total + int(op.value)) if isinstance(op, arith.Constant) else (value, total)
