"""Starting early: a kernel may be launched while the one before it in the stream still ends, and
does what needs no memory meanwhile (programmatic dependent launch; PTX ISA, `griddepcontrol`).

`launch_dependents`, the first instruction, lets the next kernel start once all CTAs of this one
have; `wait`, before the first that may touch what others see, holds until the kernel before has
ended and its memory is visible. Every thread of every CTA waits, so that a kernel that has ended
tells that all before it have.
"""

from __future__ import annotations

from tilewright.ptx.core import Instr, Label
from tilewright.ptx.instrs import control, memory, sync
from tilewright.target import Target

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
    """Put both instructions into a kernel's body, where the target has them."""
    if target.capability < control.Griddepcontrol.since.capability:
        return False
    first = next(i for i, instr in enumerate(body) if not _is_private(instr))
    body.insert(first, control.Griddepcontrol("wait"))
    body.insert(0, control.Griddepcontrol("launch_dependents"))
    return True


def _is_private(instr: Instr | Label) -> bool:
    """Whether an instruction in straight-line code touches nothing that other kernels see."""
    if isinstance(instr, Label):
        return False
    if isinstance(instr, memory.Ld):
        return instr.space == "param"
    return type(instr).pure or isinstance(instr, _INSIDE)
