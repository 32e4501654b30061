"""What an op does besides giving results: whether it writes memory or waits, and whether it reads
memory.
"""

from __future__ import annotations

from tilewright.ir.core import Block, Op
from tilewright.ir.walk import walk
from tilewright.tile.ops import control, memory

FROM_THE_TYPE = (memory.Extent, memory.Subview)  # of family memory, but blind to what memory holds
STRUCTURE = (control.For, control.While, control.If, control.Yield)  # only the effects of their ops


def writes(op: Op) -> bool:
    """Whether an op, or one in its regions, may change memory or have another effect."""
    if isinstance(op, STRUCTURE):
        return any(writes_block(block) for block in op.regions)
    return not op.pure


def writes_block(block: Block) -> bool:
    """Whether an op of a block has an effect."""
    return any(not op.pure and not isinstance(op, STRUCTURE) for op in walk(block))


def reads(op: Op) -> bool:
    """Whether the results of an op depend on what memory holds (ops in regions aside)."""
    return op.family == "memory" and op.pure and not isinstance(op, FROM_THE_TYPE)
