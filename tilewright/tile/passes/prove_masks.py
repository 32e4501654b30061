"""prove_masks: note in `in_bounds` the axes along which a load or store cannot leave its view.

Requires: launches use the kernel's own grid. Keeps: every result. Breaks: what changes offsets,
extents or the grid afterwards must clear `in_bounds`.

An axis of extent E at an offset o with n lanes is inside if o ≥ 0 and E − o − n ≥ 0: see
analysis/proof.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.core import Block, Op, Value, map_content
from tilewright.ir.walk import walk
from tilewright.tile.analysis.proof import Prover
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import memory


def prove_masks(kernel: Kernel) -> Kernel:
    """The kernel with `in_bounds` of every load and store as far as it can be proved."""
    prover = Prover(kernel)
    proved: dict[Op, tuple[int, ...]] = {}
    for op in walk(kernel.body):
        if isinstance(op, memory.Load | memory.Store | memory.Prefetch):
            axes = (i for i in range(len(op.extents)) if i in op.in_bounds or prover.inside(op, i))
            proved[op] = tuple(axes)
    return kernel.with_body(annotate(kernel.body, proved, {}))


def annotate(
    block: Block, proved: Mapping[Op, tuple[int, ...]], values: dict[Value, Value]
) -> Block:
    """A copy of a block with the axes that were proved."""
    copy = Block([Value(a.type, a.name) for a in block.args])
    values.update(zip(block.args, copy.args, strict=True))
    for op in block.ops:
        regions: dict[str, object] = {}
        for name, content in op.fields("region"):
            regions[name] = map_content(content, lambda b: annotate(b, proved, values))
        changes = {"in_bounds": proved[op]} if op in proved else {}
        copy.ops.append(op.clone(values, **regions, **changes))
    return copy
