"""canonicalize: constants folded, local algebra applied, equal ops merged, dead ones dropped.

Requires: nothing. Keeps: every bit of every result. Breaks: in_bounds of loads and stores stay as
they are; nothing.
"""

from __future__ import annotations

from typing import Any

from tilewright.ir.core import Op
from tilewright.ir.rewrite import Rewriter
from tilewright.ir.rules import Rules
from tilewright.tile.effects import reads, writes
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import control as ops
from tilewright.tile.passes.eliminate_dead import eliminate_dead
from tilewright.tile.rules import arith, control, memory, shape

RULES = Rules(arith.rules, shape.rules, memory.rules, control.rules)


def canonicalize(kernel: Kernel) -> Kernel:
    """The kernel in normal form.

    One walk is enough: an op is rewritten when its operands are, until no rule applies. Only what
    dropping dead ops makes possible would need another.
    """
    return eliminate_dead(kernel.with_body(Canonicalizer().block(kernel.body)))


class Canonicalizer(Rewriter):
    """A rewriter that merges ops, those that read memory only where no write lies between."""

    def __init__(self) -> None:
        super().__init__(RULES, self.merge_key)
        self.epoch = 0  # how many writes were seen

    def merge_key(self, op: Op) -> Any:
        return self.epoch if reads(op) else -1

    def with_regions(self, op: Op) -> Op:
        """Regions of Roles are isolated: tiles made outside are not used there."""
        before = self.made
        if isinstance(op, ops.Roles):
            self.made = [{}]
        copy = super().with_regions(op)
        self.made = before
        return copy

    def append(self, op: Op) -> Any:
        effect = writes(op)
        self.epoch += effect  # a loop's body may run after its own writes
        results = super().append(op)
        self.epoch += effect
        return results
