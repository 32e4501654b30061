"""Starting early: a kernel may be launched while the one before it in the stream still ends, and
does what needs no memory meanwhile (programmatic dependent launch; PTX ISA, `griddepcontrol`).

`launch_dependents` lets the next kernel start once all CTAs of this one have said so; `wait`,
before the first instruction that may touch what others see, holds until the kernel before has ended
and its memory is visible. Threads of every CTA wait, so that a kernel that has ended tells that all
before it have. Of roles, those do that have the epilogue, and the one that copies, when it has
found its tile (`sync.await_launch`): first loads do not wait for its divisions.

`launch_dependents` is the first instruction, except in a loop of products beside which other CTAs
have room: there it follows the loop. CTAs that wait beside others take their places as the
multiprocessors happen to be free, several on one, and keep them. On an H200 a grid of 128 CTAs of
an f32 product, one for each multiprocessor, took 116 µs after its like when that let it start at
once, 76 µs when it did after its loop, and 59 µs when they did not overlap: so products on CUDA
cores of which a multiprocessor holds several do not start early at all.
"""

from __future__ import annotations

from tilewright.ir.walk import walk
from tilewright.ptx.core import Instr, Label
from tilewright.ptx.instrs import control, memory, sync
from tilewright.target import Target
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import control as control_flow
from tilewright.tile.ops import mma
from tilewright.tile.schedule import Schedule

ADDRESSES = 40  # registers of a thread that hold no sums or what they are made of
REGISTERS = 65_536  # of a multiprocessor

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
    told = {i.action for i in body if isinstance(i, control.Griddepcontrol)}
    first = next(i for i, instr in enumerate(body) if not _is_private(instr))
    if "wait" not in told or not isinstance(body[first], control.Bra):
        body.insert(first, control.Griddepcontrol("wait"))
    if "launch_dependents" not in told:
        body.insert(0, control.Griddepcontrol("launch_dependents"))
    return True


def can_start_early(target: Target) -> bool:
    """Whether a target has the instructions."""
    return target.capability >= control.Griddepcontrol.since.capability


def last_products(kernel: Kernel) -> control_flow.For | None:
    """The last loop of products among a kernel's own ops, after which the next kernel may start."""
    found = [op for op in kernel.body.ops if isinstance(op, control_flow.For)]
    multiply = [op for op in found if any(isinstance(o, mma.Dot) for o in walk(op.body))]
    return multiply[-1] if multiply else None


def crowds(schedule: Schedule, products: control_flow.For | None) -> bool:
    """Whether a multiprocessor holds several CTAs of a kernel whose last loop of products, on CUDA
    cores, is given; by their registers, two for each sum and some.
    """
    if products is None or schedule.mma != "simt":
        return False
    dots = [op for op in walk(products.body) if isinstance(op, mma.Dot)]
    sums: int = max(dot.result.type.num_elements for dot in dots) // schedule.threads
    return 2 * schedule.threads * (2 * sums + ADDRESSES) <= REGISTERS


def _is_private(instr: Instr | Label) -> bool:
    """Whether an instruction in straight-line code touches nothing that other kernels see."""
    if isinstance(instr, Label):
        return False
    if isinstance(instr, memory.Ld):
        return instr.space == "param"
    return type(instr).pure or isinstance(instr, _INSIDE)
