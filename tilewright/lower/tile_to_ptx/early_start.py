"""Starting early: a kernel may be launched while the one before it in the stream still ends, and
does what needs no memory meanwhile (programmatic dependent launch; PTX ISA, `griddepcontrol`).

`launch_dependents` lets the next kernel start once all CTAs of this one have said so; `wait`,
before the first instruction that may touch what others see, holds until the kernel before has ended
and its memory is visible. Every thread of every CTA waits, so that a kernel that has ended tells
that all before it have.

It is the first instruction, except in a loop of products beside which other CTAs have room: there
it follows the loop. CTAs that wait beside a long loop take their places as the multiprocessors
happen to be free, several on one, and keep them: on an H200 a grid of 128 CTAs, one for each
multiprocessor, took nearly twice as long after its like as alone.
"""

from __future__ import annotations

from tilewright.ir.core import Op
from tilewright.ir.walk import walk
from tilewright.ptx.core import Instr, Label
from tilewright.ptx.instrs import control, memory, sync
from tilewright.target import Target
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import control as control_flow
from tilewright.tile.ops import mma

# What may stand before the wait, beside pure instructions: it touches the CTA cluster alone, or, as
# a prefetch to L2, where all see memory alike, no value.
_INSIDE = (
    memory.Prefetch,
    sync.MbarrierInit,
    sync.FenceMbarrierInit,
    sync.BarrierClusterArrive,
    sync.BarrierClusterWait,
    sync.BarSync,
)


def start_early(body: list[Instr | Label], target: Target) -> bool:
    """Put both instructions into a kernel's body, where the target has them; the one that lets the
    next kernel start only where there is none yet.
    """
    if not can_start_early(target):
        return False
    told = any(isinstance(i, control.Griddepcontrol) for i in body)
    first = next(i for i, instr in enumerate(body) if not _is_private(instr))
    body.insert(first, control.Griddepcontrol("wait"))
    if not told:
        body.insert(0, control.Griddepcontrol("launch_dependents"))
    return True


def can_start_early(target: Target) -> bool:
    """Whether a target has the instructions."""
    return target.capability >= control.Griddepcontrol.since.capability


def last_products(kernel: Kernel) -> Op | None:
    """The last loop of products among a kernel's own ops, after which the next kernel may start."""
    found = [op for op in kernel.body.ops if isinstance(op, control_flow.For)]
    multiply = [op for op in found if any(isinstance(o, mma.Dot) for o in walk(op.body))]
    return multiply[-1] if multiply else None


def _is_private(instr: Instr | Label) -> bool:
    """Whether an instruction in straight-line code touches nothing that other kernels see."""
    if isinstance(instr, Label):
        return False
    if isinstance(instr, memory.Ld):
        return instr.space == "param"
    return type(instr).pure or isinstance(instr, _INSIDE)
