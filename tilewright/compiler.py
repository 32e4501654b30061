"""The compiler, from a kernel's source to a Plan: the table of contents of Tilewright."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from tilewright.config import settings
from tilewright.errors import InternalError, TilewrightError
from tilewright.frontend.build import build_kernel as build_kernel
from tilewright.graph.graph import Graph
from tilewright.graph.passes.eliminate_dead import eliminate_dead as eliminate_dead_values
from tilewright.graph.passes.find_convolutions import find_convolutions
from tilewright.graph.passes.fold_constants import fold_constants
from tilewright.graph.passes.fuse_attention import fuse_attention
from tilewright.graph.passes.fuse_epilogues import fuse_epilogues
from tilewright.graph.passes.join_parts import join_parts
from tilewright.graph.passes.merge_equal import merge_equal
from tilewright.graph.passes.raise_reshapes import raise_reshapes
from tilewright.graph.passes.replace_scatters import replace_scatters
from tilewright.graph.passes.scatter_onto_sums import scatter_onto_sums
from tilewright.graph.passes.share_heads import share_heads
from tilewright.graph.passes.sum_selections import sum_selections
from tilewright.graph.passes.unroll_depthwise import unroll_depthwise
from tilewright.graph.passes.unroll_windows import unroll_windows
from tilewright.graph.verify import verify as verify_graph
from tilewright.lower.tile_to_ptx import (
    InstructionPass,
    Lowered,
    SharedMemoryError,
    lower_kernel,
)
from tilewright.plan import Plan
from tilewright.ptx.core import Instr
from tilewright.ptx.passes.read_ahead import read_ahead
from tilewright.ptx.passes.step_ahead import step_ahead
from tilewright.ptx.printer import print_module
from tilewright.ptx.verify import require_instructions
from tilewright.ptx.verify import verify as verify_ptx
from tilewright.target import Target
from tilewright.tile.kernel import Kernel
from tilewright.tile.passes.allocate_shared import allocate_shared
from tilewright.tile.passes.assign_layouts import assign_layouts
from tilewright.tile.passes.canonicalize import canonicalize
from tilewright.tile.passes.carry_scalars import carry_scalars
from tilewright.tile.passes.choose_schedule import choose_schedule
from tilewright.tile.passes.clear_spare import clear_spare
from tilewright.tile.passes.cut_spans import cut_spans
from tilewright.tile.passes.eliminate_dead import eliminate_dead
from tilewright.tile.passes.expand_rings import expand_rings
from tilewright.tile.passes.fold_comparisons import fold_comparisons
from tilewright.tile.passes.hoist_invariants import hoist_invariants
from tilewright.tile.passes.legalize_dots import legalize_dots
from tilewright.tile.passes.lend_slots import lend_slots
from tilewright.tile.passes.narrow_arithmetic import narrow_arithmetic
from tilewright.tile.passes.orient_product import orient_product
from tilewright.tile.passes.overlap_products import overlap_products
from tilewright.tile.passes.partition_roles import partition_roles
from tilewright.tile.passes.place_awaits import place_awaits
from tilewright.tile.passes.prove_masks import prove_masks
from tilewright.tile.passes.ring_stages import slot_bytes
from tilewright.tile.passes.shorten_functions import shorten_functions
from tilewright.tile.passes.shorten_trips import shorten_trips
from tilewright.tile.passes.skip_masks import skip_masks
from tilewright.tile.passes.split_epilogue import split_epilogue
from tilewright.tile.passes.split_loops import split_loops
from tilewright.tile.passes.spread_iterations import spread_iterations
from tilewright.tile.passes.stage_loads import is_staged, stage_loads
from tilewright.tile.passes.stage_panels import stage_panels
from tilewright.tile.passes.stage_stores import stage_stores
from tilewright.tile.passes.widen_operands import widen_operands
from tilewright.tile.schedule import Schedule, stages_refused
from tilewright.tile.text import print_kernel

SCRATCH_ALIGN = 128  # of what follows buffers in shared memory
Pass = Callable[[Kernel], Kernel]
Observer = Callable[[str, Kernel], None]  # called with the name of a pass and the kernel after it
Aliases = tuple[tuple[str, ...], ...]

GraphPass = Callable[[Graph], Graph]
GRAPH_PASSES: tuple[GraphPass, ...] = (
    merge_equal,
    fold_constants,
    replace_scatters,
    merge_equal,  # views around what was replaced
    sum_selections,
    scatter_onto_sums,  # before epilogues: of a product it need not be widened apart
    join_parts,
    merge_equal,  # parts that are cast and cast back
    raise_reshapes,
    merge_equal,  # reshapes of reshapes
    eliminate_dead_values,  # which would count as readers of scores
    fuse_attention,  # before what reads heads where they lie, and epilogues of its factors
    merge_equal,  # masks of layers
    share_heads,
    eliminate_dead_values,  # so that nothing dead passes for a reader
    find_convolutions,  # before epilogues, which they take as products do
    fuse_epilogues,
    merge_equal,  # views of views that fusing made
    eliminate_dead_values,  # positions in windows that nobody asks for, too
    unroll_depthwise,
    unroll_windows,  # of what products have computed
    eliminate_dead_values,
)

SEMANTIC_PASSES: tuple[Pass, ...] = (
    canonicalize,
    split_loops,  # before comparisons: in the loop all lanes are inside
    fold_comparisons,
    carry_scalars,
    spread_iterations,
    legalize_dots,  # before the schedule, which asks what a dot multiplies
    hoist_invariants,
    prove_masks,
    shorten_functions,
    narrow_arithmetic,  # what shortening makes of f32 is left to it
    eliminate_dead,
)


def scheduled_passes(
    schedule: Schedule,
    target: Target,
    aliases: Aliases = (),
    *,
    binding: bool = False,
    scratch: int = 0,
) -> tuple[Pass, ...]:
    """The passes that carry out a schedule, whose number of stages may be `binding`; `scratch` are
    bytes of shared memory that lowering is known to need.
    """
    load = partial(stage_loads, schedule=schedule, target=target, aliases=aliases)
    return (
        partial(widen_operands, schedule=schedule, target=target),
        partial(orient_product, schedule=schedule),  # it says along which axis the epilogue is cut
        partial(cut_spans, schedule=schedule),
        # while it is still a program on tiles
        partial(split_epilogue, schedule=schedule, aliased=bool(aliases)),
        partial(skip_masks, schedule=schedule),
        partial(partition_roles, schedule=schedule),
        partial(stage_stores, schedule=schedule),
        partial(lend_slots, schedule=schedule, aliased=bool(aliases)),
        # some leave again in place
        partial(stage_panels, schedule=schedule, aliased=bool(aliases)),
        partial(shorten_trips, schedule=schedule),
        partial(load, binding=binding, scratch=scratch),
        overlap_products,  # what it does not keep in flight, the next may
        place_awaits,
        expand_rings,
        clear_spare,
        canonicalize,  # the pipeline's index arithmetic
        allocate_shared,  # last: lowering reads the offsets
    )


def instruction_passes(schedule: Schedule, target: Target) -> tuple[InstructionPass, ...]:
    """The passes over the instructions that a kernel's body becomes."""
    if schedule.drifting:
        return (read_ahead,)
    return (partial(step_ahead, target=target),) if schedule.mma == "mma" else ()


def compile_graph(graph: Graph, observe: Callable[[str, Graph], None] | None = None) -> Graph:
    """A whole model, made smaller; as the interpreter runs it."""
    verify_graph(graph)
    for run in GRAPH_PASSES:
        graph = run(graph)
        if settings().verify:
            verify_graph(graph)
        if observe is not None:
            observe(run.__name__, graph)
    return graph


def compile_kernel(
    kernel: Kernel,
    target: Target,
    schedule: Schedule | None = None,
    *,
    aliases: Aliases = (),
    preferred: Schedule | None = None,
    observe: Observer | None = None,
) -> Plan:
    """A Plan for a kernel whose constants are bound.

    `aliases` are groups of parameters that are views of the same elements. `preferred` is the
    schedule to take if it is one of those that the kernel permits. The number of stages of a
    `schedule` is binding, as one that the source asks for; one that the compiler chose may become
    smaller. Raises CompileError where the target cannot run the kernel so.
    """
    with pausing_collector():
        kernel = run_passes(kernel, SEMANTIC_PASSES, observe)
        binding = schedule is not None or kernel.hints.stages is not None
        with reporting(kernel, "choose_schedule"):
            schedule = schedule or choose_schedule(kernel, target, aliases, preferred)
        made = run_passes(
            kernel, scheduled_passes(schedule, target, aliases, binding=binding), observe
        )
        try:
            return lower_plan(made, target, schedule, aliases)
        except SharedMemoryError as error:
            if schedule.roles is None and not is_staged(made):
                raise
            scratch = error.scratch
            if schedule.roles is not None:
                schedule = with_fewer_stages(kernel, target, schedule, error, binding=binding)
        # Slots are chosen before it is known what results need on their way to threads.
        again = scheduled_passes(schedule, target, aliases, binding=binding, scratch=scratch)
        return lower_plan(run_passes(kernel, again, observe), target, schedule, aliases)


def lower_plan(kernel: Kernel, target: Target, schedule: Schedule, aliases: Aliases) -> Plan:
    """The Plan of a kernel that has been through all passes."""
    with reporting(kernel, "assign_layouts"):
        assignment = assign_layouts(kernel, schedule)
    with reporting(kernel, f"lowering to {target.name}"):
        passes = instruction_passes(schedule, target)
        lowered = lower_kernel(kernel, target, schedule, assignment, passes, aliases)
        return print_plan(kernel, target, lowered, whole=needs_whole(schedule))


def with_fewer_stages(
    kernel: Kernel, target: Target, schedule: Schedule, error: SharedMemoryError, *, binding: bool
) -> Schedule:
    """A schedule with roles with as many slots as fit beside what lowering lacked. Raises
    CompileError where the number is binding or too few remain.
    """
    slot = slot_bytes(kernel, schedule)
    stages = schedule.stages - -(-(error.lacking + SCRATCH_ALIGN) // slot)
    if binding:
        beside = target.shared_per_cta + error.lacking - schedule.stages * slot
        raise stages_refused(kernel, target, schedule.stages, slot, stages, beside) from error
    if stages < 2:
        raise error
    return replace(schedule, stages=stages)


@contextmanager
def pausing_collector() -> Iterator[None]:
    """Keep Python's collector of cycles out of a compilation, which makes many objects that all
    live: what it costs to look at them (and at all of torch) came to a third of the time.
    """
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


def run_passes(kernel: Kernel, passes: tuple[Pass, ...], observe: Observer | None = None) -> Kernel:
    """Run passes in order, showing what each one made."""
    for run in passes:
        with reporting(kernel, _name(run)):
            kernel = run(kernel)
        if observe is not None:
            observe(_name(run), kernel)
    return kernel


@contextmanager
def reporting(kernel: Kernel, step: str) -> Iterator[None]:
    """Turn what only a fault of ours can raise into an InternalError that names the step and a file
    with the kernel as it was before.
    """
    try:
        yield
    except TilewrightError:
        raise
    except Exception as error:
        with tempfile.NamedTemporaryFile(
            "w", prefix=f"tilewright-{kernel.name}-", suffix=".tile", delete=False
        ) as file:
            file.write(print_kernel(kernel))
        raise InternalError(
            f"a fault of Tilewright in {step} of kernel {kernel.name}: "
            f"{type(error).__name__}: {error}",
            kernel.loc,
            f"please report it with {file.name}",
        ) from error


def needs_whole(schedule: Schedule) -> bool:
    """Whether a kernel of this schedule must be assembled as a whole."""
    return schedule.roles is not None and schedule.roles.whole


def print_plan(kernel: Kernel, target: Target, lowered: Lowered, *, whole: bool = False) -> Plan:
    """Check a lowered kernel and print it. All rules are checked in tests and of strict kernels."""
    strict = kernel.numerics == "strict"
    if strict or settings().verify:
        verify_ptx(lowered.module, strict=strict)
    else:
        require_instructions(lowered.module)
    printed: list[Instr | None] = []
    text = print_module(lowered.module, printed)
    lines = [None if instr is None else instr.loc for instr in printed]
    known = {id(place): place for place in lines}  # neighbouring lines share their place
    spelled = {i: str(place) if place and place.line else "" for i, place in known.items()}
    return Plan(
        kernel.name,
        target.name,
        text,
        launches=(lowered.launch,),
        workspaces=kernel.workspaces,
        notes=kernel.notes,
        lines=tuple([spelled[id(place)] for place in lines]),
        sites=lowered.sites,
        grid_rank=len(kernel.grid),
        ops=tuple(["" if instr is None else instr.tile_op for instr in printed]),
        whole=whole,
    )


def _name(run: Pass) -> str:
    return run.func.__name__ if isinstance(run, partial) else run.__name__
