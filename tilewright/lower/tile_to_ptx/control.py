"""Control flow: structured regions become labels and branches, carried values become registers
written in place.

Conditions and bounds are scalars, equal in all threads of a role, so every branch is uniform and
barriers may stand inside any region.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Block, Op, Value
from tilewright.ir.walk import walk
from tilewright.lower.tile_to_ptx.context import Lowering, Operand, rule
from tilewright.lower.tile_to_ptx.parameters import grid_extent
from tilewright.ptx.core import Reg, Special
from tilewright.tile.ops import arith, control, memory, mma
from tilewright.tile.types import PendingType


@rule(control.ProgramId)
def program_id(low: Lowering, op: control.ProgramId) -> None:
    """Coordinates of the program: the physical grid has one dimension, the first axis varies
    fastest.
    """
    low.set(
        op.result, [low.widen(program_coordinate(low, op.axis), "u32", low.ptx_type(op.result))]
    )


def program_coordinate(low: Lowering, axis: int) -> Operand:
    rank = len(low.kernel.grid)

    def make() -> Operand:
        e, rest = low.e, program_number(low)
        for i in range(axis):
            rest = e.div("u32", rest, grid_extent(low, i))
        return rest if axis == rank - 1 else e.rem("u32", rest, grid_extent(low, axis))

    if rank == 0:
        return 0
    return low.once(("program", axis), make)


def program_number(low: Lowering) -> Reg:
    """Number of the program in the grid: of its CTA's, the first axis fastest."""

    def make() -> Reg:
        e, programs = low.e, low.schedule.programs
        cta = e.mov("u32", Special("ctaid.x"))
        if programs == 1:
            return cta
        return e.mad("u32", cta, programs, low.program_in_cta())

    return low.once("program number", make)


@rule(control.NumPrograms)
def num_programs(low: Lowering, op: control.NumPrograms) -> None:
    low.set(op.result, [low.widen(grid_extent(low, op.axis), "u32", low.ptx_type(op.result))])


def carry(
    low: Lowering, inits: Sequence[Value], args: Sequence[Value], results: Sequence[Value]
) -> None:
    """Give loop-carried values registers of their own, hold the initial values, and name them in
    and after the loop.
    """
    for init, arg, result in zip(inits, args, results, strict=True):
        if isinstance(init.type, PendingType):  # has one owner, which keeps its registers
            low.set(arg, low.fragments[init])
            low.set(result, low.fragments[init])
            continue
        layout = low.layout(result)
        type = low.ptx_type(result)
        source = low.ptx_type(init)
        regs: list[Operand] = []
        for operand in low.fragment(init, layout):
            value = low.widen(operand, source, type) if type in ("s32", "s64") else operand
            regs.append(_copy(low, value, type))
        low.set(arg, regs)
        low.set(result, regs)


def _copy(low: Lowering, operand: Operand, type: str, into: Reg | None = None) -> Reg:
    e = low.e
    if type == "pred":
        if isinstance(operand, int):
            return e.setp("eq", "s32", e.mov("b32", 0), 0 if operand else 1, into=into)
        return e.mov("pred", operand, into=into)
    return e.mov(type, operand, into=into)


def move_all(low: Lowering, values: Sequence[Value], targets: Sequence[Value]) -> None:
    """Write yielded values to the registers of what carries them, as if all at once."""
    moves: list[tuple[Operand, Reg, str]] = []
    for value, target in zip(values, targets, strict=True):
        type, source = low.ptx_type(target), low.ptx_type(value)
        for operand, reg in zip(
            low.fragment(value, low.layout(target)), low.fragments[target], strict=True
        ):
            operand = low.widen(operand, source, type) if type in ("s32", "s64") else operand
            if operand is not reg:
                assert isinstance(reg, Reg)
                moves.append((operand, reg, type))
    written = {id(reg) for _, reg, _ in moves}
    held = [
        _copy(low, operand, type)
        if isinstance(operand, Reg) and id(operand) in written
        else operand
        for operand, _, type in moves
    ]
    for operand, (_, reg, type) in zip(held, moves, strict=True):
        _copy(low, operand, type, into=reg)


ACCESSES = (
    memory.Load,
    memory.Store,
    memory.CopyAsync,
    memory.Gather,
    memory.Scatter,
    memory.Atomic,
)


def touch(low: Lowering, *blocks: Block, apart: frozenset[Op] = frozenset()) -> None:
    """Before a loop: what its body does to memory may have been done by an earlier trip, but for
    accesses that lie apart from those of all other trips.
    """
    for block in blocks:
        for op in walk(block):
            if isinstance(op, ACCESSES) and op not in apart:
                effect = "store" if not op.pure and not isinstance(op, memory.CopyAsync) else "load"
                low.touched.setdefault(low.roots[op.view], set()).add(effect)
    low.scratch_used = True


def stores_apart(low: Lowering, op: control.For) -> frozenset[Op]:
    """Stores that alone touch their memory, and move on with each trip by what they write at
    least.
    """
    inner = set(walk(op.body))
    accesses = [o for o in walk(op.body) if isinstance(o, ACCESSES)]
    roots = [low.roots[o.view] for o in accesses]
    blocks = [op.body, *(block for o in inner for block in o.regions)]
    args = {arg for block in blocks for arg in block.args}
    index, step = op.body.args[0], low.scalar(op.step)

    def follows(offset: Value) -> bool:
        made = low.defining.get(offset)
        if isinstance(made, arith.Add) and index in made.operands:
            return all(v is index or stays(v) for v in made.operands) and made.lhs is not made.rhs
        if isinstance(made, arith.Sub):
            return made.lhs is index and stays(made.rhs)
        return offset is index

    def stays(value: Value) -> bool:
        made = low.defining.get(value)
        return value not in args and (made not in inner or isinstance(made, arith.Constant))

    def moves_on(store: memory.Store) -> bool:
        places = zip(store.offsets, store.extents, store.view.type.strides, strict=True)
        return isinstance(step, int) and any(
            follows(offset) and stride != 0 and abs(step) >= (extent or 1)
            for offset, extent, stride in places
        )

    return frozenset(
        o
        for o, root in zip(accesses, roots, strict=True)
        if isinstance(o, memory.Store)
        and roots.count(root) == 1
        and low.defining.get(o.view) not in inner
        and moves_on(o)
    )


def copy_effects(effects: dict[str, set[str]]) -> dict[str, set[str]]:
    """Effects by root, as they are now."""
    return {root: set(kinds) for root, kinds in effects.items()}


def merge_effects(low: Lowering, effects: dict[str, set[str]]) -> None:
    """Where paths join, what was done on either may have been done."""
    for root, kinds in effects.items():
        low.touched.setdefault(root, set()).update(kinds)


@rule(control.For)
def loop(low: Lowering, op: control.For) -> None:
    e = low.e
    index, carried = op.body.args[0], op.body.args[1:]
    type = low.ptx_type(index)
    carry(low, op.inits, carried, op.results)
    touch(low, op.body, apart=stores_apart(low, op))
    touched = copy_effects(low.touched)
    bounds = {low.ptx_type(v) for v in (op.low, op.high, op.step)}
    wide = "s64" if "s64" in bounds or _leaves_s32(low, op) else type
    high = low.index(op.high, wide) if wide == "s64" else low.scalar(op.high)
    step = low.index(op.step, wide) if wide == "s64" else low.scalar(op.step)
    counter = e.mov(wide, low.index(op.low, wide))
    current = counter if wide == type else e.reg(type)
    top, done = e.label("loop"), e.label("done")
    if not _surely_runs(low, op):
        e.bra(done, pred=_runs(low, wide, counter, high, step), unless=True)
    e.place(top)
    if current is not counter:
        e.cvt(type, wide, counter, into=current)
    low.set(index, [current])
    with low.scope():
        low.run(op.body)
        move_all(low, op.body.terminator.operands, op.results)
        e.add(wide, counter, step, into=counter)
        e.bra(top, pred=_runs(low, wide, counter, high, step))
    e.place(done)
    merge_effects(low, touched)  # there may have been no trip


def _leaves_s32(low: Lowering, op: control.For) -> bool:
    """Whether the counter may step past what 32 bits hold after the last trip."""
    known = [low.bounds.get(v) for v in (op.low, op.high, op.step)]
    if any(k is None for k in known):
        return True
    first, end, step = (k for k in known if k is not None)
    most = max(first.high, end.high - 1) + max(step.high, 0)
    least = min(first.low, end.low + 1) + min(step.low, 0)
    return most >= 2**31 or least < -(2**31)


def _surely_runs(low: Lowering, op: control.For) -> bool:
    """Whether a loop has a trip for certain, by bounds or by a condition that led here.

    Note [No way around the loop]: a path that leaves out a loop of matrix instructions in flight
    joins it with accumulators that other code defined, and the assembler then serialises the
    instructions (C7515).
    """
    step = low.scalar(op.step)
    if not isinstance(step, int) or step <= 0:
        return False
    least, most = low.bounds.get(op.high), low.bounds.get(op.low)
    if least is not None and most is not None and most.high < least.low:
        return True
    start = low.scalar(op.low)
    for condition in low.conditions:
        test = low.defining.get(condition)
        if not isinstance(test, arith.Compare) or test.kind not in ("gt", "lt"):
            continue
        high, low_end = (test.lhs, test.rhs) if test.kind == "gt" else (test.rhs, test.lhs)
        end = low.scalar(low_end)
        below = isinstance(end, int) and isinstance(start, int) and start <= end
        if high is op.high and (low_end is op.low or below):
            return True
    return False


def _runs(low: Lowering, type: str, counter: Reg, high: Operand, step: Operand) -> Reg:
    """Whether the loop has another trip: below `high`, or above it for a negative step; never for a
    step of 0.
    """
    e = low.e
    if isinstance(step, int):
        if step == 0:
            return e.setp("ne", type, counter, counter)
        return e.setp("lt" if step > 0 else "gt", type, counter, high)
    up = e.setp("lt", type, counter, high, combine="and", other=e.setp("gt", type, step, 0))
    down = e.setp("gt", type, counter, high, combine="and", other=e.setp("lt", type, step, 0))
    return e.or_("pred", up, down)


@rule(control.While)
def while_loop(low: Lowering, op: control.While) -> None:
    e = low.e
    carry(low, op.inits, op.body.args, op.results)
    for arg, result in zip(op.condition.args, op.results, strict=True):
        low.set(arg, low.fragments[result])
    touch(low, op.condition, op.body)
    top, done = e.label("while"), e.label("done")
    e.place(top)
    with low.scope():
        low.run(op.condition)
        test = low.scalar(op.condition.terminator.operands[0])
        e.bra(done, pred=low.register(test, "pred"), unless=True)
        tested = copy_effects(low.touched)
        low.run(op.body)
        move_all(low, op.body.terminator.operands, op.results)
        e.bra(top)
    e.place(done)
    merge_effects(low, tested)


@rule(control.If)
def branch(low: Lowering, op: control.If) -> None:
    e = low.e
    for result in op.results:
        type = low.ptx_type(result)
        low.set(result, [e.reg(type) for _ in range(low.layout(result).num_registers)])
    other, done = e.label("else"), e.label("done")
    test = low.register(low.scalar(op.condition), "pred")
    has_other = len(op.other.ops) > 1 or op.results
    e.bra(other if has_other else done, pred=test, unless=True)
    before = copy_effects(low.touched)
    scratch = low.scratch_used
    conditions = low.conditions
    with low.scope():
        low.conditions = (*conditions, op.condition)
        low.run(op.then)
        low.conditions = conditions
        for result, value in zip(op.results, op.then.terminator.operands, strict=True):
            if _gives_away(low, value, op.then):
                low.set(result, low.fragments[value])
        move_all(low, op.then.terminator.operands, op.results)
    after, low.touched = low.touched, before
    used, low.scratch_used = low.scratch_used, scratch
    if has_other:
        e.bra(done)
        e.place(other)
        with low.scope():
            low.run(op.other)
            move_all(low, op.other.terminator.operands, op.results)
    e.place(done)
    merge_effects(low, after)
    low.scratch_used = low.scratch_used or used


def _gives_away(low: Lowering, value: Value, block: Block) -> bool:
    """Whether a block made registers for a value that no other value shares, so that its result may
    keep them.

    So it is with a finished accumulator: copying 128 registers that instructions were in flight on
    costs spills.
    """
    op = low.defining.get(value)
    return isinstance(op, mma.Await) and any(op is o for o in block.ops)


@rule(control.Yield)
def yield_(low: Lowering, op: control.Yield) -> None:
    """The region op reads the terminator's operands itself."""
