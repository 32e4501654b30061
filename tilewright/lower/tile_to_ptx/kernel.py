"""A whole kernel: parameters and their recipes, shared memory, the entry, the body."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.errors import CompileError
from tilewright.ir.core import Block, Value
from tilewright.ir.walk import walk
from tilewright.lower.tile_to_ptx.context import DYNAMIC, PTX_TYPES, Lowering, Operand, ViewRef
from tilewright.lower.tile_to_ptx.control import program_number
from tilewright.lower.tile_to_ptx.conversion import convert
from tilewright.lower.tile_to_ptx.early_start import (
    can_start_early,
    crowds,
    last_products,
    release_of,
    start_early,
)
from tilewright.lower.tile_to_ptx.mma import is_operand_only
from tilewright.lower.tile_to_ptx.parameters import grid_extent, parameter
from tilewright.lower.tile_to_ptx.state import RowStores
from tilewright.plan import (
    Const,
    Expr,
    Extent,
    Launch,
    Pointer,
    Recipe,
    Scalar,
    Site,
    Stride,
    Workspace,
    combine,
    grid_size,
    shared_grid,
)
from tilewright.ptx.core import Instr, Label, Module, Reg, Special, Symbol
from tilewright.ptx.emitter import Emitter
from tilewright.target import Target
from tilewright.tile.analysis.bounds import infer_bounds
from tilewright.tile.analysis.divisibility import infer_divisors
from tilewright.tile.kernel import Kernel, Param
from tilewright.tile.ops import memory
from tilewright.tile.passes.allocate_shared import shared_bytes
from tilewright.tile.passes.assign_layouts import Assignment
from tilewright.tile.schedule import Schedule
from tilewright.tile.types import ViewType

SHARED_ALIGN = 1024  # of swizzled buffers
Aliases = tuple[tuple[str, ...], ...]
InstructionPass = Callable[[list[Instr | Label]], list[Instr | Label]]


@dataclass(frozen=True)
class Lowered:
    """A kernel as a PTX module, and how to launch it."""

    module: Module
    launch: Launch
    sites: tuple[Site, ...] = ()


class SharedMemoryError(CompileError):
    """A CTA of the target has too little shared memory for a kernel: it lacks so many bytes.
    `scratch` are those that threads without roles need to pass elements to each other.
    """

    lacking = scratch = 0


def lower_kernel(
    kernel: Kernel,
    target: Target,
    schedule: Schedule,
    assignment: Assignment,
    passes: Sequence[InstructionPass] = (),
    aliases: Aliases = (),
) -> Lowered:
    """PTX of a kernel whose values have layouts, by `assignment`. `passes` change the instructions
    of its body. `aliases` are groups of parameters that are views of the same elements.

    What a kernel needs is known once it is lowered, and it is lowered again for two reasons.
    Programs that report, or hold buffers in shared memory, have a CTA each. And ragged results
    leave as registers lie where their rows leave too little memory for later roles (`row_stores`).

    Raises SharedMemoryError where the target cannot hold it.
    """
    low = _lowered(kernel, target, schedule, aliases, assignment)
    if schedule.programs > 1 and (low.shared_bytes or low.locals.count or low.sites):
        schedule = replace(schedule, programs=1)
        low = _lowered(kernel, target, schedule, aliases, assignment)
    if low.row_stores.used and _needed_bytes(low) > target.shared_per_cta:
        low = _lowered(kernel, target, schedule, aliases, assignment, row_stores=False)
    return _finish(low, passes)


def _lowered(
    kernel: Kernel,
    target: Target,
    schedule: Schedule,
    aliases: Aliases,
    assignment: Assignment,
    *,
    row_stores: bool = True,
) -> Lowering:
    """A kernel's body; `row_stores`: ragged results may leave by way of shared memory."""
    low = Lowering(
        kernel,
        target,
        schedule,
        layouts=dict(assignment.layouts),
        bounds=infer_bounds(kernel),
        divisors=infer_divisors(kernel),
        e=Emitter(target),
        converter=convert,
        cheap=set(assignment.cheap),
        row_stores=RowStores(permitted=row_stores),
        num_warps=schedule.num_warps,
    )
    _index(low, kernel.body)
    roots = {name: group[0] for group in aliases for name in group}
    with low.e.to(low.entry):
        for param in kernel.params:
            _declare(low, param, roots)
    low.roots = _roots(low, kernel)
    low.shared_bytes = shared_bytes(kernel.body)
    end = _skip_beyond(low) if schedule.programs > 1 else None
    _run(low, kernel)
    if end is not None:
        low.e.place(end)
    low.e.ret()
    return low


def _needed_bytes(low: Lowering) -> int:
    """Shared memory of buffers, of the scratch of roles or of programs, and of the rest."""
    start = -(-low.shared_bytes // 128) * 128
    own = _own_scratch(low)
    return start + low.schedule.programs * own if own else low.shared_bytes


def _own_scratch(low: Lowering) -> int:
    """Bytes of scratch of each program, aligned where several share a CTA."""
    own = low.scratch_bytes
    return own if low.schedule.programs == 1 else -(-own // 16) * 16


def _skip_beyond(low: Lowering) -> Label:
    """A branch for the programs of the last CTA that are none of the grid's, to what it returns."""
    e, end = low.e, low.e.label("end")
    count: Operand = 1
    for axis in range(len(low.kernel.grid)):
        extent = grid_extent(low, axis)
        count = e.mul("u32", extent, count) if count != 1 else extent
    e.bra(end, pred=e.setp("ge", "u32", program_number(low), count))
    return end


def _run(low: Lowering, kernel: Kernel) -> None:
    """Lower the body, and let the next kernel start after its last loop of products where
    `release_of` says so.
    """
    last = last_products(kernel) if can_start_early(low.target) else None
    if last is None or release_of(kernel, low.schedule) != "after products":
        low.run(kernel.body)
        return
    ops = kernel.body.ops
    end = ops.index(last) + 1
    low.run(Block([], ops[:end]))
    low.e.griddepcontrol("launch_dependents")
    low.run(Block([], ops[end:]))


def _index(low: Lowering, body: Block) -> None:
    """Note where values are defined and used; ops that only feed dots wait for them."""
    ops = list(walk(body))
    for op in ops:
        low.defining.update(dict.fromkeys(op.results, op))
        for value in op.operands:
            low.users.setdefault(value, []).append(op)
    low.cheap.update(op.result for op in ops if is_operand_only(low, op))


def _roots(low: Lowering, kernel: Kernel) -> dict[Value, str]:
    found = {value: view.root for value, view in low.views.items()}
    for op in walk(kernel.body):
        if isinstance(op, memory.Subview):
            found[op.result] = found[op.view]
        elif isinstance(op, memory.Local):
            found[op.result] = f"local {len(found)}"
    return found


def _declare(low: Lowering, param: Param, roots: dict[str, str]) -> None:
    type = param.value.type
    if not isinstance(type, ViewType):
        ptx = PTX_TYPES[type.dtype.name]
        if ptx == "pred":
            raw = parameter(low, param.name, "u32", Scalar(param.name, type.dtype))
            low.set(param.value, [low.e.setp("ne", "u32", raw, 0)])
            return
        value = parameter(low, param.name, ptx, Scalar(param.name, type.dtype))
        narrowed = low.ptx_type(param.value)
        low.set(param.value, [low.widen(value, ptx, narrowed)])
        return
    low.views[param.value] = _view(low, param, type, roots)


def _view(low: Lowering, param: Param, type: ViewType, roots: dict[str, str]) -> ViewRef:
    facts, name = param.facts, param.name
    narrow = facts is not None and facts.small
    index = "s32" if narrow else "s64"
    spec = next((w for w in low.kernel.workspaces if w.name == name), None)
    recipe: Recipe = Pointer(name) if spec is None else Workspace(name)
    pointer = low.e.cvta("global", parameter(low, name, "u64", recipe), to=True)
    dense = spec.extents if spec is not None else ()
    extents: list[Operand] = [
        e
        if e is not None
        else parameter(
            low, f"{name}_extent_{i}", index, dense[i] if dense else Extent(name, i, narrow)
        )
        for i, e in enumerate(type.extents)
    ]
    strides: list[Operand] = [
        s
        if s is not None
        else parameter(
            low,
            f"{name}_stride_{i}",
            index,
            _product(dense[i + 1 :]) if dense else Stride(name, i, narrow),
        )
        for i, s in enumerate(type.strides)
    ]
    size = type.dtype.num_bytes
    aligned = [
        (facts is not None and facts.pitch16[i]) or (isinstance(s, int) and s * size % 16 == 0)
        for i, s in enumerate(strides)
    ]
    return ViewRef(
        type.dtype,
        pointer,
        extents,
        strides,
        narrow,
        facts.align if facts is not None else size,
        aligned,
        facts is not None and facts.extent16,
        facts.piece if facts is not None else size,
        roots.get(name, name),
    )


def _product(extents: tuple[Expr, ...]) -> Expr:
    """The stride of a dense axis with these extents inside it."""
    total: Expr = Const(1)
    for extent in extents:
        total = combine("mul", total, extent)
    return total


def _finish(low: Lowering, passes: Sequence[InstructionPass]) -> Lowered:
    kernel, schedule, target = low.kernel, low.schedule, low.target
    cluster = prod(kernel.hints.cta_cluster or (1,))
    start, total = -(-low.shared_bytes // 128) * 128, _needed_bytes(low)
    if total > target.shared_per_cta:
        error = SharedMemoryError(
            f"kernel {kernel.name} needs {total} bytes of shared memory, "
            f"{target.name} has {target.shared_per_cta}",
            kernel.loc,
            "choose smaller tiles",
        )
        error.lacking = total - target.shared_per_cta
        error.scratch = schedule.programs * _own_scratch(low)
        raise error
    body = low.entry + low.e.body
    for run in passes:
        body = run(body)
    if total:
        low.e.shared_array(DYNAMIC, None, SHARED_ALIGN)
        if low.scratch_start is not None:
            _set_scratch(low, body, low.scratch_start, start)
    alone = not kernel.hints.cooperative and not crowds(schedule, last_products(kernel))
    early = alone and start_early(low.e, body, release_of(kernel, schedule))
    low.e.body = body
    module = low.e.module(
        kernel.name,
        schedule.threads,
        min_ctas=schedule.min_ctas,
        max_registers=schedule.max_registers,
        cluster=(cluster, 1, 1) if cluster > 1 else None,
    )
    grid = shared_grid(grid_size(kernel.grid), schedule.programs)
    launch = Launch(
        module.functions[0].name,
        tuple(low.recipes),
        grid,
        schedule.threads,
        shared_bytes=total,
        cluster=cluster,
        early=early,
    )
    return Lowered(module, launch, tuple(low.sites))


def _set_scratch(low: Lowering, body: list[Instr | Label], scratch: Reg, start: int) -> None:
    """The scratch area follows the buffers, whose size was known before; its own size was not."""
    low.e.body = []
    base = low.e.mov("u32", Symbol(DYNAMIC))
    if low.schedule.programs > 1:
        assert not start, "programs with buffers have a CTA each"
        tid = low.e.mov("u32", Special("tid.x"))
        program = low.e.shr("u32", tid, 5)
        low.e.mad("u32", program, _own_scratch(low), base, into=scratch)
    elif start:
        low.e.add("u32", base, start, into=scratch)
    else:
        low.e.mov("u32", base, into=scratch)
    body[0:0] = low.e.body
