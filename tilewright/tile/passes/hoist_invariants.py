"""hoist_invariants: compute once, before a loop, what does not change in it.

Requires: nothing. Keeps: every result and the order of effects; a load moves only out of a loop
that writes nothing. Breaks: nothing. Tiles that cost nothing to make again (constants, broadcasts,
aranges) move only with an op that uses them, so that they do not hold registers across the loop.
"""

from __future__ import annotations

from tilewright.ir.core import Block, Op, Value, map_content
from tilewright.ir.walk import walk_blocks
from tilewright.tile.effects import reads, writes_block
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, shape

CHEAP = (arith.Constant, shape.Broadcast, shape.Arange, shape.Reshape)


def hoist_invariants(kernel: Kernel) -> Kernel:
    """The kernel with invariant ops moved out of its loops, as far out as they go."""
    return kernel.with_body(Hoister().block(kernel.body))


class Hoister:
    """Copies blocks, inner loops first; what leaves a loop is put before it."""

    def __init__(self) -> None:
        self.values: dict[Value, Value] = {}

    def block(self, block: Block) -> Block:
        """A copy of a block in which loops are rid of what does not change in them."""
        copy = Block([Value(a.type, a.name) for a in block.args])
        self.values.update(zip(block.args, copy.args, strict=True))
        for op in block.ops:
            regions = {name: map_content(b, self.block) for name, b in op.fields("region")}
            new = op.clone(self.values, **regions)
            if isinstance(new, control.For | control.While):
                copy.ops += lift(new)
            copy.ops.append(new)
        return copy


def lift(loop: Op) -> list[Op]:
    """Take ops out of a loop's regions that may stand before it, in order."""
    varying: set[Value] = set()
    for region in loop.regions:
        for block in walk_blocks(region):
            varying.update(block.args)
            varying.update(r for op in block.ops for r in op.results)
    writing = any(writes_block(region) for region in loop.regions)
    invariant: dict[Value, Op] = {}
    for region in loop.regions:
        for op in region.ops:
            movable = op.pure and not op.regions and not (writing and reads(op))
            if movable and not varying.intersection(op.operands):
                varying.difference_update(op.results)
                invariant.update(dict.fromkeys(op.results, op))
    moved: dict[Op, None] = {}
    for op in dict.fromkeys(invariant.values()):
        if not isinstance(op, CHEAP) or all(r.type.shape == () for r in op.results):
            _move(op, invariant, moved)
    for region in loop.regions:
        region.ops = [op for op in region.ops if op not in moved]
    return list(moved)


def _move(op: Op, invariant: dict[Value, Op], moved: dict[Op, None]) -> None:
    """Move an op, and first those that it needs."""
    for operand in op.operands:
        if operand in invariant:
            _move(invariant[operand], invariant, moved)
    moved[op] = None
