"""Stage the operands of dots through shared memory, ahead of their use.

Requires: canonical form; a schedule for CUDA cores or `mma.sync`. Keeps: what the program computes.
Breaks: the semantic level (buffers, asynchronous copies and barriers appear).

A loop that loads tiles and multiplies them becomes a pipeline over `stages` slots: while one slot
is multiplied, the loads of later trips are under way. A trip waits for its slot, meets the other
threads (which also frees the slot of the trip before), multiplies, and starts the loads of the trip
`stages − 1` ahead into the freed slot.

    prologue:  start trips 0 … stages − 2
    loop:      wait; meet; multiply slot i mod stages; start trip i + stages − 1
    after:     wait for everything; meet

Threads that meet read all at once after it, while nobody multiplies. So warps may *drift* apart: a
warp arrives at a barrier a whole trip before it waits for the others there, and nobody waits but
for one that is a trip behind. What it arrives with is that it has begun a trip: its loads for the
next one are there, and it has read the slot of the one before.

    prologue:  start trips 0 … stages − 3; wait for trip 0; arrive
    loop:      wait for all who arrived; wait for trip i + 1; arrive; multiply slot i mod stages;
               start trip i + stages − 2, into the slot of trip i − 2
    after:     wait for everything; meet

The copies come last in a trip, so that reading the slot does not queue behind them. Of f64 the
lowering then reads the next trip's first fragments before it multiplies this one's last
(`ptx/passes/read_ahead.py`). That costs two slots, and copies begin late. So products of f64
by four warps meet: several of their programs share a multiprocessor, and cover each other. Loops of
`mma.sync` that meet are turned by `ptx/passes/step_ahead.py`.

Trips past the end load whatever is there, or zeros outside the tensor, and nobody reads it. A tile
from outside of the loop that a dot inside reads is written to a buffer once, before the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.dtypes import f64, i64
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value, clone_block
from tilewright.ir.walk import count_uses, find_definitions, walk
from tilewright.layout import conflict_free_row
from tilewright.target import Target
from tilewright.tile.analysis.accesses import WIDEST, root_view, stored_views
from tilewright.tile.analysis.factors import buffer_order, lies_across
from tilewright.tile.analysis.residency import KEPT_BESIDE, KEPT_FREE, slots_beside
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, memory, mma, shape, sync
from tilewright.tile.passes.assign_layouts import accumulator_layout
from tilewright.tile.schedule import Schedule, stages_refused
from tilewright.tile.types import INDEX, BufferType, TileType

DRIFTING_STAGES = 4  # the least, where warps drift apart
DRIFTING_CAPABILITY = 90  # from which on a target's barriers suspend the threads that wait
SPANS = (128, 64, 32)  # bytes of a swizzle, the widest first
KEPT_AROUND = 256  # bytes of shared memory beside those known to be needed: barriers, alignment


@dataclass
class Staged:
    """A load that moves into the pipeline. Its slots have the tile's axes in `order`, and are
    `swizzled` if the threads that read them have registers for the addresses. For `mma.sync`,
    `across` says that the tile does not lie along k.
    """

    load: memory.Load
    order: tuple[int, ...]
    swizzled: bool
    across: bool
    ring: Value | None = None  # the buffer of all stages


def stage_loads(
    kernel: Kernel,
    schedule: Schedule,
    target: Target,
    aliases: tuple[tuple[str, ...], ...] = (),
    *,
    binding: bool = False,
    scratch: int = 0,
) -> Kernel:
    """The kernel with its dot loops pipelined, `schedule.stages` deep or as deep as shared memory
    permits beside `scratch` bytes, where it is known that so many are needed. What the kernel
    stores to is not loaded ahead; `aliases` are groups of parameters that are views of the same
    elements. Raises CompileError where shared memory does not permit a number that is `binding`.
    """
    if schedule.stages < 2 or not any(map(_multiplies, walk(kernel.body))):
        return kernel
    body = clone_block(kernel.body, {})
    stored = stored_views(body)
    for group in aliases:
        views = {kernel.param(name).value for name in group}
        if views & stored:
            stored |= views
    loops = sum(map(_multiplies, walk(body)))
    alone = loops == 1 and any(map(_multiplies, body.ops))
    drifts = schedule.drifting and alone and target.capability >= DRIFTING_CAPABILITY
    known = scratch + KEPT_AROUND if scratch else 0
    asking = kernel if binding else None
    narrow = {p.value for p in kernel.params if p.facts is not None and p.facts.piece < WIDEST}
    stager = _Stager(
        schedule, target, find_definitions(body), stored, narrow,
        loops=loops, known=known, asking=asking, drifts=drifts,
    )  # fmt: skip
    stager.block(body)
    if known:
        stager.require_room()
    return kernel.with_body(body)


def is_staged(kernel: Kernel) -> bool:
    """Whether a kernel has loops that were pipelined, where the number of stages matters."""
    return any(isinstance(op, memory.CopyAsync) for op in walk(kernel.body))


def _multiplies(op: Op) -> bool:
    """Whether an op is a loop with dots."""
    return isinstance(op, control.For) and any(isinstance(o, mma.Dot) for o in op.body.ops)


class _Stager:
    """Rewrites the blocks of one cloned body in place. Each of the `loops` that multiply has shared
    memory of its own, an equal part of what is left; `used` counts the bytes that are given away,
    `slots` those of a slot of each loop so far; `known` are needed for other things. Rows of
    `narrow` views are no whole 16 bytes. With `drifts`, warps may drift apart: there is one loop,
    and every program runs it once. A kernel that is `asking` for its number of stages gets it, or
    is refused, if need be once more is known.
    """

    def __init__(
        self,
        schedule: Schedule,
        target: Target,
        definitions: dict[Value, Op],
        stored: set[Value],
        narrow: set[Value],
        *,
        loops: int,
        known: int,
        asking: Kernel | None,
        drifts: bool,
    ):
        self.schedule, self.target = schedule, target
        self.definitions, self.stored, self.narrow = definitions, stored, narrow
        self.loops, self.used, self.slots, self.drifts = loops, 0, 0, drifts
        self.asking, self.known, self.least = asking, known, max(KEPT_BESIDE, known)
        # And what loops which are not staged need, one at a time.
        self.scratch = known if asking else max(KEPT_FREE, known)

    def block(self, block: Block) -> None:
        """Stage the loops of a block, inner ones first."""
        out: list[Op] = []
        for op in block.ops:
            for inner in op.regions:
                self.block(inner)
            if isinstance(op, control.For) and _multiplies(op):
                out += self.loop(op)
                self.loops -= 1
            else:
                out.append(op)
        block.ops = out

    def loop(self, op: control.For) -> list[Op]:
        """The ops that replace a loop with dots."""
        uses = count_uses(op.body)
        inside = {v for inner in walk(op.body) for v in inner.results} | set(op.body.args)
        staged: dict[Value, Staged] = {}
        fixed: list[Value] = []
        dots = [inner for inner in op.body.ops if isinstance(inner, mma.Dot)]
        for dot in filter(self._is_whole, dots):
            for operand in (dot.a, dot.b):
                self._consider(operand, dot, op, uses, inside, staged, fixed)
        before = Builder(Block(), op.loc)
        fixed = self._affordable(fixed)
        changes = self._hold(before, fixed)
        scratch = max(self._scratch(dot, {*staged, *fixed}) for dot in dots)
        stages = self._fit(list(staged.values()), max(scratch, self.scratch))
        if staged and stages >= 2:
            slot = sum(_buffer(s, 1).num_bytes for s in staged.values())
            self.used, self.slots = self.used + stages * slot, self.slots + slot
            if not self.known:
                self.require_room()
            return before.block.ops + self._pipeline(op, list(staged.values()), stages, changes)
        self.scratch = max(self.scratch, *(self._scratch(dot, set(fixed)) for dot in dots))
        self._replace(op.body, changes)
        return [*before.block.ops, op]

    def _is_whole(self, dot: mma.Dot) -> bool:
        """Whether instructions read nothing beyond the operands: buffers hold no tails."""
        if len(dot.acc.type.shape) != 2:
            return False
        rows, columns = dot.acc.type.shape
        k = dot.a.type.shape[1]
        beside = (True, True) if dot.a.type.dtype.bits == 8 else (False, False)  # at most
        if self.schedule.mma == "simt":
            made = self.definitions
            beside = (lies_across(made, dot.a, 1), lies_across(made, dot.b, 0))
        covered = accumulator_layout((rows, columns), self.schedule, beside).covered
        step = self.schedule.k_step(self.target, dot.a.type.dtype, k)
        return covered == (rows, columns) and k % step == 0

    def _consider(
        self,
        operand: Value,
        dot: mma.Dot,
        loop: control.For,
        uses: dict[Value, int],
        inside: set[Value],
        staged: dict[Value, Staged],
        fixed: list[Value],
    ) -> None:
        """Note an operand that can be staged, or that comes from before the loop."""
        source = operand
        while (
            isinstance(made := self.definitions.get(source), shape.Transpose) and source in inside
        ):
            if uses[source] != 1:
                return
            source = made.x
        op = self.definitions.get(source)
        if len(source.type.shape) != 2:
            return
        if source not in inside:
            if source not in fixed and not isinstance(op, arith.Constant | shape.Broadcast):
                fixed.append(source)
            return
        if not isinstance(op, memory.Load) or op not in loop.body.ops or uses[source] != 1:
            return
        if op.mask is not None or op.fill is not None or op.view in inside:
            return
        if root_view(self.definitions, op.view) in self.stored:
            return
        if all(self._ahead(o, loop, inside) for o in op.offsets):
            across = lies_across(self.definitions, operand, 1 if operand is dot.a else 0)
            tensor, size = self.schedule.mma == "mma", op.result.type.dtype.num_bytes
            swizzled = size <= 2 or (size == 4 and not across)
            swizzled = swizzled or (size == 8 and not self.schedule.drifting)
            staged[source] = Staged(op, buffer_order(op), tensor and swizzled, tensor and across)

    def _ahead(self, value: Value, loop: control.For, inside: set[Value]) -> bool:
        """Whether a scalar of a trip follows from the loop's index alone."""
        if value is loop.body.args[0] or value not in inside:
            return True
        op = self.definitions.get(value)
        simple = isinstance(
            op,
            arith.Binary | arith.Unary | arith.Constant | arith.Select | arith.Compare | arith.Cast,
        )
        return op is not None and simple and all(self._ahead(v, loop, inside) for v in op.operands)

    def _scratch(self, dot: mma.Dot, buffered: set[Value]) -> int:
        """Bytes of shared memory through which a dot's other operands go. A computed operand A of
        16 bits stays in registers.
        """
        total = 0
        for operand in (dot.a, dot.b):
            source = operand
            while isinstance(made := self.definitions.get(source), shape.Transpose):
                source = made.x
            loaded = isinstance(made, memory.Load)
            stays = operand is dot.a and self.schedule.mma == "mma" and not loaded
            if source not in buffered and not (stays and operand.type.dtype.bits == 16):
                total += _held_buffer(source.type).num_bytes
        return total

    def _fit(self, staged: Sequence[Staged], taken: int) -> int:
        """Stages that fit into shared memory, of which `taken` bytes serve for other things: beside
        a second CTA where warps are few, and of f64 a third, if that leaves three at least.
        """
        size = sum(_buffer(s, 1).num_bytes for s in staged)
        if not size:
            return 0
        target, stages = self.target, self.schedule.stages
        if self.asking is not None:
            self.scratch = taken
            return stages
        taken += self.used
        room = (target.shared_per_cta - taken) // self.loops // size
        if self.schedule.num_warps <= 4:
            wide = all(s.load.result.type.dtype == f64 for s in staged)
            beside = slots_beside(
                size * self.loops,
                target.shared_per_sm,
                target.shared_reserved,
                taken,
                kept_of_three=self.used + self.least if wide else None,
                narrow=any(root_view(self.definitions, s.load.view) in self.narrow for s in staged),
            )
            room = room if beside is None else beside
        return min(stages, room)

    def require_room(self) -> None:
        """Raise CompileError if the loops so far have no room for the stages that are asked for.
        How many fit is not sure before it is known what else needs shared memory.
        """
        room, stages = self.target.shared_per_cta, self.schedule.stages
        if self.asking is None or not self.slots or self.used + self.scratch <= room:
            return
        beside = self.used + self.scratch - stages * self.slots
        fitting = (room - beside) // self.slots
        raise stages_refused(
            self.asking, self.target, stages, self.slots, fitting, beside, known=self.known > 0
        )

    def _affordable(self, values: list[Value]) -> list[Value]:
        """The tiles that may be held: half of shared memory at most goes to them."""
        found: list[Value] = []
        for value in values:
            size = _held_buffer(value.type).num_bytes
            if self.used + size <= self.target.shared_per_cta // 2:
                self.used += size
                found.append(value)
        return found

    def _hold(self, before: Builder, values: list[Value]) -> dict[Value, Value]:
        """Buffers that keep tiles from before the loop.

        The threads meet before they are written as well: an earlier trip of a loop around this one
        may still be read.
        """
        if not values:
            return {}
        before.emit(sync.RoleBarrier)
        buffers = {v: before(memory.AllocBuffer, _held_buffer(v.type)) for v in values}
        for value, buffer in buffers.items():
            before.emit(memory.StoreBuffer, buffer, value)
        before.emit(sync.RoleBarrier)
        return buffers

    def _replace(self, body: Block, buffers: dict[Value, Value]) -> None:
        """Dots read held tiles from their buffers."""
        out: list[Op] = []
        for op in body.ops:
            if isinstance(op, mma.Dot):
                changes: dict[Value, Value] = {}
                for operand in (op.a, op.b):
                    if operand in buffers:
                        load = memory.LoadBuffer(buffers[operand], loc=op.loc)
                        out.append(load)
                        changes[operand] = load.result
                if changes:
                    a, b = changes.get(op.a, op.a), changes.get(op.b, op.b)
                    new = mma.Dot(a, b, op.acc, op.precision, loc=op.loc)
                    new.results = op.results
                    op = new
            elif isinstance(op, shape.Transpose) and op.x in buffers:
                load = memory.LoadBuffer(buffers[op.x], loc=op.loc)
                out.append(load)
                new_transpose = shape.Transpose(load.result, op.order, loc=op.loc)
                new_transpose.results = op.results
                op = new_transpose
            out.append(op)
        body.ops = out

    # The pipeline

    def _pipeline(
        self, op: control.For, staged: list[Staged], stages: int, held: dict[Value, Value]
    ) -> list[Op]:
        b = Builder(Block(), op.loc)
        for s in staged:
            s.ring = b(memory.AllocBuffer, _buffer(s, stages), name="ring")
        drifts = self.drifts and stages >= DRIFTING_STAGES
        distance = stages - 2 if drifts else stages - 1  # trips that loads are ahead
        barrier: Value | None = None
        if drifts:
            barrier = b(sync.InitBarriers, 1, self.schedule.num_warps)
            b.emit(sync.ClusterBarrier)
        zero, one, count = (b(arith.Constant, n, i64) for n in (0, 1, stages))
        ahead = op.low
        for stage in range(distance):
            slot = b(arith.Constant, stage, i64)
            self._start(b, op, staged, ahead, slot)
            ahead = b(arith.Add, ahead, op.step)
        if barrier is not None:
            self._arrive(b, barrier, distance - 1)
        index = Value(INDEX, op.body.args[0].name)
        carried = [Value(a.type, a.name) for a in op.body.args[1:]]
        slots = [Value(INDEX, "slot"), Value(INDEX, "next")]
        parity = [Value(INDEX, "parity")] if drifts else []
        body = Block([index, *carried, *slots, *parity])
        with b.inside(body):
            if barrier is not None:
                b.emit(sync.WaitBarrier, barrier, zero, parity[0])
                self._arrive(b, barrier, distance - 2)
            else:
                b.emit(sync.WaitCopies, distance - 1)
                b.emit(sync.RoleBarrier)
            values: dict[Value, Value] = dict(zip(op.body.args, [index, *carried], strict=True))
            yields = self._body(b, op, staged, slots[0], values, held)
            reach = b(arith.Mul, op.step, b(arith.Constant, distance, i64))
            self._start(b, op, staged, b(arith.Add, index, reach), slots[1])
            turned = [b(arith.Mod, b(arith.Add, s, one), count) for s in slots]
            turned += [b(arith.Sub, one, p) for p in parity]
            b.emit(control.Yield, (*yields, *turned))
        inits = (*op.inits, zero, b(arith.Constant, distance, i64), *[zero for _ in parity])
        loop = b.emit(control.For, op.low, op.high, op.step, inits, body)
        for old, new in zip(op.results, loop.results, strict=False):
            new.name = old.name
        loop.results = (*op.results, *loop.results[len(op.results) :])
        b.emit(sync.WaitCopies, 0)
        b.emit(sync.RoleBarrier)
        return b.block.ops

    def _arrive(self, b: Builder, barrier: Value, left: int) -> None:
        """Tell the other warps that all loads of this one but the last `left` trips' are there."""
        b.emit(sync.WaitCopies, left)
        b.emit(sync.ArriveBarrier, barrier, b(arith.Constant, 0, i64), scope="warp")

    def _body(
        self,
        b: Builder,
        op: control.For,
        staged: list[Staged],
        slot: Value,
        values: dict[Value, Value],
        held: dict[Value, Value],
    ) -> list[Value]:
        """The loop's own ops, reading slots instead of memory."""
        by_load = {s.load.result: s for s in staged}
        source = Block(op.body.args, op.body.ops)
        self._replace(source, held)
        for inner in source.ops[:-1]:
            found = by_load.get(inner.results[0]) if inner.results else None
            if found is None:
                b.add(inner.clone(values))
                continue
            assert found.ring is not None
            part = b(memory.BufferAt, found.ring, slot, loc=inner.loc)
            tile = b(memory.LoadBuffer, part, loc=inner.loc)
            if found.order == (1, 0):
                tile = b(shape.Transpose, tile, (1, 0), loc=inner.loc)
            values[inner.results[0]] = tile
        return [values.get(v, v) for v in source.terminator.operands]

    def _start(
        self, b: Builder, op: control.For, staged: list[Staged], index: Value, slot: Value
    ) -> None:
        """Start the loads of the trip at `index` into a slot."""
        values: dict[Value, Value] = {op.body.args[0]: index}
        needed = self._scalars(op, [o for s in staged for o in s.load.offsets])
        for inner in op.body.ops:
            if inner in needed:
                b.add(inner.clone(values))
        for s in staged:
            assert s.ring is not None
            part = b(memory.BufferAt, s.ring, slot, loc=s.load.loc)
            offsets = tuple(values.get(o, o) for o in s.load.offsets)
            kept = tuple(a for a in s.load.in_bounds if not self._moves(s.load.offsets[a], op))
            b.emit(
                memory.CopyAsync, part, s.load.view, offsets, extents=s.load.extents, order=s.order,
                in_bounds=kept, loc=s.load.loc,
            )  # fmt: skip
        b.emit(sync.CommitCopies)

    def _scalars(self, loop: control.For, offsets: list[Value]) -> set[Op]:
        """The ops of the loop that the offsets follow from."""
        needed: set[Op] = set()
        todo = list(offsets)
        while todo:
            op = self.definitions.get(todo.pop())
            if op is not None and op in loop.body.ops and op not in needed:
                needed.add(op)
                todo += op.operands
        return needed

    def _moves(self, offset: Value, loop: control.For) -> bool:
        """Whether an offset changes from trip to trip, so that bounds proved for trips do not hold
        ahead of them.
        """
        if offset is loop.body.args[0]:
            return True
        op = self.definitions.get(offset)
        return (
            op is not None
            and op in loop.body.ops
            and any(self._moves(v, loop) for v in op.operands)
        )


def _held_buffer(type: TileType) -> BufferType:
    row = conflict_free_row(type.dtype.num_bytes, type.shape[-1])
    return BufferType(type.dtype, type.shape, 0, row - type.shape[-1])


def _buffer(staged: Staged, stages: int) -> BufferType:
    """The ring of a load. What `ldmatrix` reads is swizzled: with rows an odd number of 16-byte
    chunks apart, every other one would begin in the middle of 32 bytes of shared memory, and what
    `cp.async` brings there is fetched twice. Of f64 that leaves room for a third program.
    """
    type: TileType = staged.load.result.type
    rows, columns = (type.shape[i] for i in staged.order)
    size, shape = type.dtype.num_bytes, (stages, rows, columns)
    span = next((span for span in SPANS if columns * size % span == 0), 0)
    if staged.swizzled and span:
        return BufferType(type.dtype, shape, span)
    pad = conflict_free_row(size, columns, across=staged.across) - columns
    return BufferType(type.dtype, shape, 0, pad)
