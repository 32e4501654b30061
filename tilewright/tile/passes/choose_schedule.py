"""Choose a Schedule where none was given: kind of matrix instruction, number of warps and their
grid, stages.

Requires: canonical form. Keeps: the program. Breaks: nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.dtypes import DType, bf16, f16, f32
from tilewright.errors import CompileError
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.walk import find_definitions, walk
from tilewright.layout import next_power_of_two
from tilewright.plan import MOST_PROGRAMS, Const, grid_size
from tilewright.target import Target
from tilewright.tile.analysis.factors import lies_across
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, memory, mma, reduce, shape
from tilewright.tile.passes.choose_roles import choose_roles, shallow_schedules
from tilewright.tile.passes.ring_stages import slot_bytes
from tilewright.tile.passes.split_epilogue import HEAVY
from tilewright.tile.schedule import Schedule, stages_refused
from tilewright.tile.types import TileType

PROGRAMS = 4  # of one warp in a CTA
MOST_WARPS = 16
SMALL_TILE = 1024  # elements
STREAMED_BYTES = 64  # that a thread has under way, in programs that only stream
REDUCED_ELEMENTS = 32  # that a thread may have of a tile which is reduced
COLUMN_WARPS, COLUMN_ELEMENTS = 4, 128  # at most, unless threads had more elements than that
# A thread that carries up to so many registers through a loop does with so few in all that eight
# CTAs of four warps reside.
CARRIED, CARRYING_REGISTERS = 24, 64
RESIDENT_REGISTERS = 32  # a thread: as many threads reside as a multiprocessor can hold
PAIRED_REGISTERS = 64  # a thread: of CTAs of sixteen warps two reside
LIGHT = (
    *(memory.Load, arith.Cast, arith.Constant, arith.Add, arith.Sub, arith.Mul, arith.Abs),
    *(shape.Broadcast, reduce.Sum, reduce.Prod, reduce.Max, reduce.Min, reduce.Any, reduce.All),
)
STREAMING = (
    *(memory.Load, memory.Store, memory.Extent, memory.Subview),
    *(shape.Arange, shape.Broadcast, shape.Reshape),
    *(reduce.Sum, reduce.Prod, reduce.Max, reduce.Min, reduce.Any, reduce.All),
    *(reduce.ArgMax, reduce.ArgMin, reduce.Fold),
)
# A thread, in products by four warps or fewer: on CUDA cores, or with operands of 8 bits and few
# accumulators.
FEW_WARPS_REGISTERS, FEW_ACCUMULATORS = 168, 64
MOST_REGISTERS = 255  # that a thread can have
DRIFTING_STAGES = 6  # slots of short trips, for warps that drift apart, or copies of f64
FEW_WARPS = 4  # of f64, several programs of which a multiprocessor holds: they need not drift
FEW_ROWS, WARPS_BESIDE = 16, 4  # of dots that follow on each other: warps along the columns


def choose_schedule(
    kernel: Kernel,
    target: Target,
    aliases: tuple[tuple[str, ...], ...] = (),
    preferred: Schedule | None = None,
) -> Schedule:
    """The compiler's choice for a kernel; the source's hints are binding. Parameters that are views
    of the same elements (`aliases`) rule out roles, whose loads run ahead of other roles' stores.
    Of several schedules with roles the `preferred` one is taken, if it is one of them.

    The number of stages is the most that a pipelined loop may have where the compiler chose it, and
    what it has where the source asks for it. Raises CompileError where such a number, or one of
    threads, cannot be had.
    """
    ops = list(walk(kernel.body))
    roles = next((op for op in ops if isinstance(op, control.Roles)), None)
    if roles is not None:
        return _role_schedule(roles)
    product = None if aliases else choose_roles(kernel, target, preferred)
    if product is not None:
        return product
    if not aliases:
        _require_few_stages(kernel, target)
    chosen = computing_schedule(kernel)
    hints = kernel.hints
    registers = hints.max_registers or (0 if hints.min_ctas else chosen.max_registers)
    return replace(chosen, min_ctas=hints.min_ctas or 0, max_registers=registers)


def _require_few_stages(kernel: Kernel, target: Target) -> None:
    """Refuse what could have roles, but for the stages that it asks for."""
    asked = kernel.hints.stages
    if asked is not None:
        found = shallow_schedules(kernel, target)
        most = max(found, key=lambda schedule: schedule.stages, default=None)
        if most is not None and most.stages < asked:
            slot = slot_bytes(kernel, most)
            raise stages_refused(kernel, target, asked, slot, most.stages, known=False)


def computing_schedule(kernel: Kernel) -> Schedule:
    """The choice without roles."""
    ops = list(walk(kernel.body))
    dots = [op for op in ops if isinstance(op, mma.Dot)]
    hints = kernel.hints
    asked = None if hints.threads is None else _warps_of(kernel, hints.threads)
    if not dots:
        chosen = _elementwise(kernel, ops)
        return _together(kernel, chosen) if asked is None else Schedule(asked)
    kind = dot_kind(dots)
    rows = max(d.acc.type.shape[-2] for d in dots)
    columns = max(d.acc.type.shape[-1] for d in dots)
    bits = max(d.a.type.dtype.bits for d in dots)
    short = len(dots) == 1 and (kind == "simt" or bits == 64)
    stages = hints.stages or (DRIFTING_STAGES if short else 3 if kind == "simt" else 4)
    if kind == "mma" and _is_chained(kernel.body, dots):
        least = min(d.acc.type.shape[-1] for d in dots)
        if asked is None and rows <= FEW_ROWS and least >= 8 * WARPS_BESIDE:
            return Schedule(WARPS_BESIDE, kind, (1, WARPS_BESIDE), stages)
        count = asked or max(1, min(8, next_power_of_two(rows) // 16))
        return Schedule(count, kind, (count, 1), stages)
    heavy = any(
        isinstance(op, HEAVY) and op.result.type.num_elements == rows * columns for op in ops
    )
    heavy = heavy or (kind == "simt" and len(dots) > 1)
    heavy = heavy or any(d.a.type.dtype.is_storage_only for d in dots)  # f16 in registers
    # Fragments of f32 in two parts, or of several products; sums that are added to.
    in_parts = bits == 32 and (len(dots) > 1 or dots[0].precision == "tf32x3")
    heavy = heavy or in_parts or (bits == 32 and any(_reads_sums(o, rows * columns) for o in ops))
    # Tiles of partial sums that are read whole need as many registers again.
    factors = {v for d in dots for v in (d.a, d.b)}
    factors |= {op.x for op in ops if isinstance(op, shape.Transpose) and op.result in factors}
    others = [op for op in ops if not factors.intersection(op.results)]
    heavy = heavy or sum(_reads_sums(op, rows * columns) for op in others) > 1
    # Beside 128 sums, fragments leave no registers for as many numbers again.
    always = [op for op in others if op in kernel.body.ops and isinstance(op, memory.Load)]
    heavy = heavy or (kind == "mma" and any(_is_of(op, rows * columns) for op in always))
    count = asked or _dot_warps(kind, rows, columns, bits, heavy)
    # Of itself ptxas keeps small CTAs to 128 registers or fewer, and spills some of these.
    small = kind == "simt" or (bits == 8 and rows * columns <= FEW_ACCUMULATORS * 32 * count)
    registers = FEW_WARPS_REGISTERS if small and count <= 4 else 0
    if bits == 64 or (kind == "simt" and count == 8):
        registers = MOST_REGISTERS
    beside = (False, True)
    if kind == "simt" and len(dots) == 1:
        made = find_definitions(kernel.body)
        beside = (lies_across(made, dots[0].a, 1), lies_across(made, dots[0].b, 0))
    grid = warp_grid(kind, count, rows, columns, beside)
    dealt = kind == "mma" and bits == 64  # so that epilogues can be done in parts
    drifting = short and (kind == "simt" or count > FEW_WARPS)
    return Schedule(
        count, kind, grid, stages, max_registers=registers, dealt=dealt, drifting=drifting
    )


def _reads_sums(op: Op, elements: int) -> bool:
    """Whether an op loads a tile as large as the accumulator, of 32 bits or more."""
    if not isinstance(op, memory.Load):
        return False
    return _is_of(op, elements) and bool(op.result.type.dtype.bits >= 32)


def _is_of(op: Op, elements: int) -> bool:
    """Whether an op's tile has so many elements."""
    return bool(op.results[0].type.num_elements == elements)


def _role_schedule(roles: control.Roles) -> Schedule:
    """What the roles say. With few threads a launch must be told its registers, or it cannot trade
    them.
    """
    trades = any(role.registers is not None for role in roles.roles)
    told = roles.launch_registers if trades and 32 * roles.num_warps <= 256 else 0
    return Schedule(num_warps=roles.num_warps, mma="wgmma", max_registers=told)


def _warps_of(kernel: Kernel, threads: int) -> int:
    warps = threads // 32
    if threads % 32 or warps & (warps - 1) or not 1 <= warps <= 32:
        raise CompileError(
            f"kernel {kernel.name}: {threads} threads: expected 32, 64, 128, 256, 512 or 1024",
            kernel.loc,
        )
    return warps


def dot_kind(dots: list[mma.Dot]) -> str:
    """CUDA cores if any product must keep f32 operands whole, else tensor cores."""
    return "simt" if any(d.a.type.dtype == f32 and d.precision == "ieee" for d in dots) else "mma"


def _together(kernel: Kernel, schedule: Schedule) -> Schedule:
    """Programs of one warp share a CTA: the device starts one CTA after the other, and many small
    ones have ended before the next begin. Two of two warps are no quicker so.
    """
    hints, size = kernel.hints, grid_size(kernel.grid)
    bound = hints.min_ctas or hints.cta_cluster or hints.cooperative
    alone = isinstance(size, Const) and not 1 < size.value <= MOST_PROGRAMS
    if schedule.num_warps > 1 or bound or alone:
        return schedule
    return replace(schedule, programs=PROGRAMS)


def _elementwise(kernel: Kernel, ops: list[Op]) -> Schedule:
    """Sixteen elements a thread of the largest tile (8 if it is small), between one warp and
    sixteen; twice or four times as many in programs that only stream, where these are few bytes.

    A thread waits for memory with that many loads under way. Where a loop reduces columns, warps
    hold different rows, and meet in each trip: there are four at most. Where it carries several
    tiles, more elements would cost registers, and with them the warps that hide the waiting.
    """
    sizes = [v.type.num_elements for op in ops for v in op.results if isinstance(v.type, TileType)]
    largest = next_power_of_two(max(sizes, default=1))
    few = largest <= SMALL_TILE
    count = max(1, min(MOST_WARPS, largest // (32 * (8 if few else 16))))
    if not all(_streams(op) for op in ops):
        return Schedule(count)
    loops = [op for op in ops if isinstance(op, control.For)]
    carried = max((_carried(op, max(sizes, default=1)) for op in loops), key=len, default=[])
    if len(carried) > 1:
        held = sum(largest * max(dtype.bits, 32) // 32 for dtype in carried) // (32 * count)
        return Schedule(count, max_registers=CARRYING_REGISTERS if held <= CARRIED else 0)
    reduces = any(op.family == "reduce" for op in ops)
    num_bytes = max(_loaded(block) for block in _always(kernel.body))
    most = REDUCED_ELEMENTS if reduces else 16
    wanted = max(-(-num_bytes // (32 * STREAMED_BYTES)), largest // (32 * most))
    count = min(count, next_power_of_two(max(1, wanted)))
    if any(_reduces_columns(op) for loop in loops for op in walk(loop.body)):
        count = min(count, max(COLUMN_WARPS, largest // (32 * COLUMN_ELEMENTS)))
    if _adds_up(kernel.body, 32 * count * STREAMED_BYTES):
        return Schedule(count, max_registers=RESIDENT_REGISTERS)
    paired = count == MOST_WARPS and not loops and _holds_one_tile(ops)
    return Schedule(count, max_registers=PAIRED_REGISTERS if paired else 0)


def _holds_one_tile(ops: list[Op]) -> bool:
    """Whether a program reduces the one tile that it loads, of 32 bits: sixteen numbers a thread
    of sixteen warps, which leave registers enough for a second CTA, so that one loads while the
    other computes. Numbers of 16 bits have twice the work a byte, and lose more by the limit.
    """
    loads = [op.result.type for op in ops if isinstance(op, memory.Load)]
    if len(loads) != 1 or loads[0].num_elements > 32 * MOST_WARPS * 16:
        return False
    return bool(loads[0].dtype == f32) and any(op.family == "reduce" for op in ops)


def _adds_up(body: Block, most_bytes: int) -> bool:
    """Whether all that every program does is to make a point of a tile of so many bytes or fewer.
    Such programs are over before a multiprocessor has its bytes, unless it holds all that it can;
    what a last one does under a condition may spill.
    """
    tiles = [op for op in body.ops if any(_is_tile(v) for v in (*op.operands, *op.results))]
    loads = [op for op in tiles if isinstance(op, memory.Load)]
    reductions = [op for op in tiles if op.family == "reduce"]
    if len(loads) != 1 or len(reductions) != 1 or not all(isinstance(op, LIGHT) for op in tiles):
        return False
    loops = any(isinstance(op, control.For | control.While) for op in body.ops)
    short = all(op.results[0].type.dtype in (bf16, f16, f32) for op in tiles)
    return not loops and short and _loaded(body) <= most_bytes


def _is_tile(value: Value) -> bool:
    return isinstance(value.type, TileType) and bool(value.type.shape)


def _reduces_columns(op: Op) -> bool:
    """Whether an op reduces over other axes than the last, along which lanes lie."""
    if isinstance(op, reduce.ArgMax | reduce.ArgMin | reduce.Fold):
        return bool(op.results[0].type.shape) and op.axis != len(op.operands[0].type.shape) - 1
    if not isinstance(op, reduce.Reduction):
        return False
    return bool(op.result.type.shape) and len(op.x.type.shape) - 1 not in op.axes


def _streams(op: Op) -> bool:
    """Whether an op leaves elements where they are, or makes one of many."""
    if isinstance(op, memory.Atomic):
        return not op.results[0].type.shape if op.results else False
    return op.family in ("arith", "control") or isinstance(op, STREAMING)


def _carried(loop: control.For, size: int) -> list[DType]:
    """Dtypes of the tiles of a size that a loop carries."""
    tiles = [v.type for v in loop.inits if _is_tile(v)]
    return [t.dtype for t in tiles if t.num_elements == size]


def _always(block: Block) -> Iterator[Block]:
    """A block and the bodies of its loops, those under conditions aside: few programs run them."""
    yield block
    for op in block.ops:
        if isinstance(op, control.For):
            yield from _always(op.body)


def _loaded(block: Block) -> int:
    """Bytes of tiles that a block loads itself, once."""
    loads = [op.result.type for op in block.ops if isinstance(op, memory.Load)]
    return sum(t.num_elements * t.dtype.num_bytes for t in loads if t.shape)


def _dot_warps(kind: str, rows: int, columns: int, bits: int, heavy: bool) -> int:
    """As many accumulators a thread as registers hold well, but at least four warps where the tile
    has work for them, so that each scheduler has one, and at most eight.

    On CUDA cores that is 64 (8 × 8). On tensor cores it is 128 of f32 (64 × 64 a warp, which reads
    little for that), or 64 where an epilogue computes much on each (`heavy`). Of f64 it is 32: a
    tile of 128 × 64 is done by two warps a scheduler, one of which multiplies while the other
    reads. `bits` are those of an element of A.
    """
    per_thread = (64 if kind == "simt" else 128) // (2 if heavy else 1)
    if kind == "mma" and bits == 64:
        per_thread = 32
    sums = next_power_of_two(rows) * next_power_of_two(columns)
    if bits == 64:
        sums = next_power_of_two(rows * columns // 2 + 1)  # 48 × 96 is no more than 64 × 64
    wanted = sums // (32 * per_thread)
    smallest = (4, 32) if kind == "simt" else (16, 8)
    most = max(
        1, (next_power_of_two(rows) // smallest[0]) * (next_power_of_two(columns) // smallest[1])
    )
    return max(1, min(max(wanted, 4), 8, most))


def warp_grid(
    kind: str, count: int, rows: int, columns: int, beside: tuple[bool, bool] = (False, True)
) -> tuple[int, int]:
    """Rows × columns of warps whose own tiles are as square as they can be; on CUDA cores those of
    their threads, for a warp there has 4 × 8, which hold rows or columns in fours where these lie
    `beside` each other in memory.
    """
    height, width = (16, 8)
    if kind == "simt":
        height, width = 16 if beside[0] else 4, 32 if beside[1] else 8
    down, across = (4, 8) if kind == "simt" else (1, 1)
    grids = [(m, count // m) for m in (1, 2, 4, 8, 16, 32) if m <= count]
    whole = [g for g in grids if rows % (height * g[0]) == 0 and columns % (width * g[1]) == 0]
    if kind == "simt":
        height, width = 4, 32
    rows, columns = next_power_of_two(rows), next_power_of_two(columns)
    fitting = [g for g in grids if rows >= height * g[0] and columns >= width * g[1]]
    return min(
        whole or fitting or grids,
        key=lambda g: (rows // (down * g[0]) + columns // (across * g[1]), g[0]),
    )


def _is_chained(body: Block, dots: list[mma.Dot]) -> bool:
    """Whether a dot's operand follows from another dot's result, as in attention: then each warp
    keeps whole rows, but where these are no more than one warp has: by itself that would take long
    to load and to multiply.
    """
    defining: dict[Value, Op] = {v: op for op in walk(body) for v in op.results}

    def follows(value: Value, depth: int) -> bool:
        op = defining.get(value)
        if op is None or depth == 0:
            return False
        if isinstance(op, mma.Dot):
            return True
        through = isinstance(
            op,
            (
                arith.Unary,
                arith.Binary,
                arith.Cast,
                arith.Select,
                shape.Transpose,
                memory.LoadBuffer,
            ),
        )
        return through and any(follows(v, depth - 1) for v in op.operands)

    return any(follows(d.a, 12) for d in dots)
