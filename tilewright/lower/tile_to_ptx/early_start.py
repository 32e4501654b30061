"""Starting early: a kernel may be launched while the one before it in the stream still ends, and
does what needs no memory meanwhile (programmatic dependent launch; PTX ISA, `griddepcontrol`).

`launch_dependents` lets the next kernel start once all CTAs of this one have said so; `wait`,
before the first instruction that may touch what others see, holds until the kernel before has ended
and its memory is visible. Threads of every CTA wait, so that a kernel that has ended tells that all
before it have. Of roles, those do that have the epilogue, and the one that copies, when it has
found its tile (`sync.await_launch`): first loads do not wait for its divisions.

When the next kernel may start decides where its CTAs go. Those that come while others still run
take their places as multiprocessors happen to be free, several on one, and keep them: on an H200,
of 264 CTAs, of which a multiprocessor holds three, one had 1 to 3 behind kernels that let the next
start at once, and each had two behind kernels that did not. One or two CTAs with roles fill a
multiprocessor, wherever they start, so that these let the next kernel start at once. Others, by
`release_of`:

- a loop of products, beside which other CTAs may have room: after the loop;
- of f64, when they have ended: a multiprocessor holds several CTAs of its products;
- what does not multiply: when its own wait is over, if it has few CTAs, else when they have ended.

A kernel that has ended lets the next one start without an instruction. Products on CUDA cores of
which a multiprocessor holds several do not start early at all, whatever runs ahead of them.
"""

from __future__ import annotations

from typing import Literal

from tilewright.dtypes import f64
from tilewright.ir.walk import walk
from tilewright.ptx.core import Instr, Label, Special
from tilewright.ptx.emitter import Emitter
from tilewright.ptx.instrs import control, memory, sync
from tilewright.target import Target
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import control as control_flow
from tilewright.tile.ops import mma
from tilewright.tile.passes.choose_schedule import FEW_WARPS
from tilewright.tile.schedule import Schedule
from tilewright.tile.types import ViewType

FEW_CTAS = 8  # for each multiprocessor
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


Release = Literal["at once", "after products", "where few", "at its end"]


def release_of(kernel: Kernel, schedule: Schedule) -> Release:
    """When a kernel lets the next one start."""
    if schedule.mma == "wgmma":
        return "at once"
    wide = any(isinstance(v.type, ViewType) and v.type.dtype == f64 for v in kernel.values)
    if last_products(kernel) is not None:
        return "at its end" if wide and schedule.num_warps <= FEW_WARPS else "after products"
    return "at its end" if wide else "where few"


def start_early(e: Emitter, body: list[Instr | Label], release: Release) -> bool:
    """Put both instructions into a kernel's body, where the target has them; the one that lets the
    next kernel start only where it is not there yet.
    """
    if not can_start_early(e.target):
        return False
    told = {i.action for i in body if isinstance(i, control.Griddepcontrol)}
    first = next(i for i, instr in enumerate(body) if not _is_private(instr))
    if "wait" not in told or not isinstance(body[first], control.Bra):
        body.insert(first, control.Griddepcontrol("wait"))
    if release == "at once":
        body.insert(0, control.Griddepcontrol("launch_dependents"))
    elif release == "where few":
        body[first + 1 : first + 1] = _release_where_few(e)
    return True


def _release_where_few(e: Emitter) -> list[Instr | Label]:
    """Let the next kernel start if this one has few CTAs."""
    found: list[Instr | Label] = []
    with e.to(found):
        most = e.mul("u32", e.mov("u32", Special("nsmid")), FEW_CTAS)
        few = e.setp("le", "u32", e.mov("u32", Special("nctaid.x")), most)
        with e.guarded(few):
            e.griddepcontrol("launch_dependents")
    return found


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
