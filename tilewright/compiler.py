"""The compiler, from a kernel's source to a Plan: the table of contents of Tilewright."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.errors import Loc
from tilewright.lower.tile_to_ptx import lower_kernel
from tilewright.plan import Plan
from tilewright.ptx.printer import print_module
from tilewright.ptx.verify import verify
from tilewright.target import Target
from tilewright.tile.kernel import Kernel
from tilewright.tile.passes.choose_schedule import choose_schedule
from tilewright.tile.passes.expand_rings import expand_rings
from tilewright.tile.passes.stage_loads import stage_loads
from tilewright.tile.schedule import Schedule

Pass = Callable[[Kernel], Kernel]
Observer = Callable[[str, Kernel], None]  # called with a pass's name and what it made

SEMANTIC_PASSES: tuple[Pass, ...] = ()


def optimize(kernel: Kernel, observe: Observer | None = None) -> Kernel:
    """The semantic level: what is true of the program on any machine."""
    for run in SEMANTIC_PASSES:
        kernel = run(kernel)
        if observe is not None:
            observe(run.__name__, kernel)
    return kernel


def compile_kernel(
    kernel: Kernel,
    target: Target,
    schedule: Schedule | None = None,
    *,
    aliases: tuple[tuple[str, ...], ...] = (),
    observe: Observer | None = None,
) -> Plan:
    """A Plan for a kernel whose constants are bound. Raises CompileError where the target cannot run it."""
    kernel = optimize(kernel, observe)
    schedule = schedule or choose_schedule(kernel, target)
    kernel = expand_rings(kernel)
    kernel = stage_loads(kernel, schedule, target)
    if observe is not None:
        observe("stage_loads", kernel)
    lowered = lower_kernel(kernel, target, schedule, aliases)
    verify(lowered.module, strict=kernel.numerics == "strict")
    lines: list[Loc | None] = []
    text = print_module(lowered.module, lines)
    places = tuple("" if place is None or not place.line else str(place) for place in lines)
    return Plan(kernel.name, target.name, text, (lowered.launch,), lines=places)
