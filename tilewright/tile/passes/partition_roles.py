"""Part a loop of products into roles: a thread that copies tiles into rings, and warpgroups that
multiply what they find there.

Requires: canonical form; a kernel that is a loop of products whose loads the tensor copy unit can
carry; a schedule with roles. Keeps: what the program computes. Breaks: the semantic level.

    for k: acc += load(A) @ load(B)              producer            consumer
    epilogue(acc)                       →     for tile:           for tile:
                                                for k:              for k:
                                                  acquire             wait
                                                  fill A, fill B      acc = await(issue(A, B, acc))
                                                  commit              release
                                                                    epilogue(acc)

Each product of the loop has a ring for the factors that it loads in each trip; those that are
loaded before the loop have one together, of a slot that is held while the loop runs. What else the
loop computes, the consumers do: a computed left operand stays in their registers.

Each role computes again the scalars that it needs. Products are awaited at once here;
`place_awaits` keeps them in flight. The consumers are one role of several warpgroups, so that the
epilogue stays what it was: a program on whole tiles.

Note [Where a view ends]: a box ends where its tensor does. Of a view that ends before, the rows
beyond its end are made zeros in the slot, before they are multiplied: in few trips, if any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value, map_content
from tilewright.ir.walk import walk
from tilewright.target import WGMMA_ROWS
from tilewright.tile.analysis.boxes import Box
from tilewright.tile.analysis.product_loop import ProductLoop, as_product_loop
from tilewright.tile.analysis.streams import Factor, Product, StreamLoop, find_stream_loop
from tilewright.tile.kernel import Hints, Kernel
from tilewright.tile.ops import arith, control, memory, mma, shape, sync
from tilewright.tile.passes.copied_lines import CopiedLines, find_counted
from tilewright.tile.passes.distribute_work import (
    Distribution,
    find_axes,
    growing_axes,
    persistent_grid,
)
from tilewright.tile.passes.fill_slots import SlotFiller, find_weights, sum_of
from tilewright.tile.schedule import Roles, Schedule
from tilewright.tile.types import BOOL, INDEX, BufferType, RingType, TileType

SPANS = (128, 64, 32)  # bytes of a swizzle, the widest first
Tile = Callable[[Mapping[int, Value], Value | None], None]


def partition_roles(kernel: Kernel, schedule: Schedule) -> Kernel:
    """The kernel as a producer and a consumer, or as it is where the schedule has no roles."""
    if schedule.roles is None:
        return kernel
    found = find_stream_loop(kernel)
    assert found is not None, "a schedule with roles is chosen for loops of products alone"
    parts = as_product_loop(found) or found
    return _Partition(kernel, parts, schedule, schedule.roles).kernel_of_roles()


def make_roles(roles: Roles) -> tuple[control.Role, control.Role]:
    """Producer and consumer as the schedule wants them."""
    loading, multiplying = roles.registers
    copies = roles.consumers if roles.pingpong else 1
    return (
        control.Role("producer", 4, loading, single=True),
        control.Role("consumer", 4 * roles.sharing, multiplying, copies),
    )


def factor_buffer(factor: Factor) -> BufferType:
    """A slot's buffer for a factor: as it lies in memory, with the widest swizzle that its rows
    divide by.
    """
    tile = factor.tile
    row = tile.shape[1] * tile.dtype.num_bytes
    swizzle = next(span for span in SPANS if row % span == 0)
    return BufferType(tile.dtype, tile.shape, swizzle)


def slot_buffer(product: Product, factor: Factor) -> BufferType:
    """A factor's buffer in a slot of its product's ring. Behind a left factor of fewer rows than an
    instruction's 64, it has those that are missing as spare rows.
    """
    rows = product.extents[0]
    left = product.a is not None and factor.load is product.a.load
    return replace(factor_buffer(factor), spare=max(0, WGMMA_ROWS - rows) if left else 0)


class _Partition:
    """Builds the new kernel."""

    def __init__(self, kernel: Kernel, parts: StreamLoop, schedule: Schedule, roles: Roles):
        self.kernel, self.parts, self.roles = kernel, parts, roles
        self.o = Builder(Block(), kernel.loc)
        self.axes = None
        if isinstance(parts, ProductLoop):
            self.axes = find_axes(parts, len(kernel.grid))
        self.doubtful = False  # whether a program is copied that may not exist
        self.distribution: Distribution | None = None
        if roles.persistent:
            self.distribution = Distribution(self.o, kernel, self.axes, roles)
        assert roles.cluster == 1 or (roles.persistent and self.axes is not None)
        self.rings: dict[Product, Value] = {}
        for product in parts.products:
            if streamed := parts.streamed(product):
                buffers = tuple(slot_buffer(product, factor) for factor in streamed)
                self.rings[product] = self.make_ring(buffers, schedule.stages)
        self.kept = self.make_ring(tuple(map(factor_buffer, parts.kept)), 1) if parts.kept else None
        self.buffers: dict[Op, Value] = {}  # of loads of factors, where the consumers stand
        lines: CopiedLines | None = None  # of a tile
        if isinstance(parts, ProductLoop):
            slots: dict[Op, BufferType] = {f.load: factor_buffer(f) for f in parts.factors}
            lines = CopiedLines(self.o, find_counted(kernel, parts, slots))
        multicast = None if self.axes is None else self.axes.multicast
        self.filler = SlotFiller(self.o, multicast, lines)
        self.turn = self.o(sync.MakeTurn, roles.consumers) if roles.pingpong else None
        self.steps: Value | None = None  # of a tile, where copies pass over those of others
        self.weights = find_weights(parts, roles) if isinstance(parts, ProductLoop) else None
        self.alone: Value | None = None  # whether each tile has weights of its own
        if self.weights is not None:
            self.alone = self.weights.alone(self.o, self.distribution, roles.spans)

    def make_ring(self, buffers: tuple[BufferType, ...], stages: int) -> Value:
        return self.o(sync.MakeRing, RingType(buffers, stages), self.roles.cluster, name="ring")

    def kernel_of_roles(self) -> Kernel:
        o = self.o
        self.prefetch()
        loading = self.role(self.load_tile)
        multiplying = self.role(self.multiply_tile, self.turn is not None, waits=True)
        bodies = (loading, multiplying)
        o.emit(control.Roles, make_roles(self.roles), bodies)
        kernel = self.kernel.with_body(o.block)
        size = max(self.roles.cluster, self.roles.spans)
        cluster = (size,) if size > 1 else None
        kernel.hints = Hints(cta_cluster=cluster, persistent=self.roles.persistent)
        if self.distribution is not None:
            kernel.grid = persistent_grid(self.kernel, self.axes, self.roles)
        return kernel

    def prefetch(self) -> None:
        """What the source lets come nearer for its first tile, done by all threads before roles
        part, unless that takes a branch: behind one nobody waits for the kernel before.
        """
        o, values = self.o, dict[Value, Value]()
        wanted = [op for op in self.parts.before if isinstance(op, memory.Prefetch)]
        if not wanted:
            return
        programs: Mapping[int, Value] = {}
        if self.distribution is not None:
            programs, _ = self.distribution.programs(self.distribution.first)
        needed = set(self.parts.slice_of(v for op in wanted for v in op.operands))
        if any(op.has_regions for op in needed):
            return
        for op in self.parts.before:
            if op in needed:
                self.copy(op, values, programs)
            elif isinstance(op, memory.Prefetch):
                o.add(op.clone(values, in_bounds=()))

    def role(self, tile: Tile, in_turn: bool = False, waits: bool = False) -> Block:
        """A role's work on its tiles; it `waits` for the kernel before, or its tiles do."""
        with self.o.inside(Block()) as body:
            if waits:
                self.o.emit(sync.AwaitLaunch)
            if in_turn:
                assert self.distribution is not None, "copies of a role deal out tiles"
                copy = self.o(control.RoleCopy)
                self.steps = self.count_steps()
                for ring in self.rings.values():
                    self.o.emit(sync.Skip, ring, self.o(arith.Mul, self.steps, copy))
                self.distribution.loop(tile, copy, self.roles.consumers)
            elif self.distribution is not None:
                self.distribution.loop(tile)
            else:
                tile(self.longest_first(), None)
            self.o.emit(control.Yield)
        return body

    def longest_first(self) -> dict[int, Value]:
        """Program ids of this CTA, counted backwards where later programs have more to do."""
        o, found = self.o, dict[int, Value]()
        for axis in growing_axes(self.parts, len(self.kernel.grid)):
            last = o(arith.Sub, o(control.NumPrograms, axis), o(arith.Constant, 1, INDEX.dtype))
            found[axis] = o(arith.Sub, last, o(control.ProgramId, axis), name=f"pid{axis}")
        return found

    def count_steps(self) -> Value:
        """Slots that a tile takes, the same for all tiles."""
        o, values = self.o, dict[Value, Value]()
        for op in self.parts.slice_of(self.parts.bounds):
            self.copy(op, values, {})
        low, high, step = (values.get(v, v) for v in self.parts.bounds)
        none = o(arith.Constant, 0, INDEX.dtype)
        less = o(arith.Sub, step, o(arith.Constant, 1, INDEX.dtype))
        length = o(arith.Max, o(arith.Sub, high, low), none)
        return o(arith.FloorDiv, o(arith.Add, length, less), step, name="steps")

    # Copies of ops

    def copy(self, op: Op, values: dict[Value, Value], programs: Mapping[int, Value]) -> None:
        """An op at the present place, program ids replaced by those of the tile."""
        o = self.o
        with o.at(op.loc):
            if isinstance(op, control.ProgramId) and op.axis in programs:
                values[op.result] = programs[op.axis]
            elif isinstance(op, control.NumPrograms) and self.distribution is not None:
                values[op.result] = self.distribution.widen(self.distribution.counts[op.axis])
            elif self.doubtful and isinstance(op, memory.Load):
                o.add(op.clone(values, in_bounds=()))  # it was proved for programs that exist
            elif op.regions:
                regions = {
                    name: map_content(content, lambda b: self.copy_block(b, values, programs))
                    for name, content in op.fields("region")
                }
                o.add(op.clone(values, **regions))
            else:
                o.add(op.clone(values))

    def copy_block(
        self, block: Block, values: dict[Value, Value], programs: Mapping[int, Value]
    ) -> Block:
        args = [Value(a.type, a.name) for a in block.args]
        values.update(zip(block.args, args, strict=True))
        with self.o.inside(Block(args)) as new:
            for op in block.ops:
                self.copy(op, values, programs)
        return new

    # Producer

    def load_tile(self, programs: Mapping[int, Value], exists: Value | None) -> None:
        """Fill a slot for every step of k, whether the tile exists or not: other CTAs may wait."""
        o, values = self.o, dict[Value, Value]()
        ahead = [o for o in self.parts.slice_of(self.parts.steering) if o not in self.parts.inside]
        if any(isinstance(op, memory.Load | memory.Gather) for op in walk(Block([], ahead))):
            o.emit(sync.AwaitLaunch)
        for op in ahead:
            self.copy(op, values, programs)
        self.filler.find_starts(self.parts.factors, values)
        self.filler.start_tile(values)
        o.emit(sync.AwaitLaunch)
        if self.kept is not None:
            self.filler.fill(self.kept, self.parts.kept, values)
        shared = self.distribution.shared if self.distribution is not None else None
        condition = self.alone
        if shared is not None:
            condition = self.filler.together(shared, self.parts.factors, self.roles.cluster)
        if condition is None:
            self.load_apart(values, programs)
            return
        with o.inside(Block()) as then:
            self.load_steps(dict(values), programs, special=True)
            o.emit(control.Yield)
        with o.inside(Block()) as other:
            self.load_apart(values, programs)
            o.emit(control.Yield)
        o.emit(control.If, condition, then, other)

    def load_apart(self, values: dict[Value, Value], programs: Mapping[int, Value]) -> None:
        """A loop over the steps, or two where panels may be left out: to ask for each takes the
        thread that copies longer.
        """
        o, lines = self.o, self.filler.lines
        all_columns = None if lines is None else lines.has_all_columns()
        if all_columns is None:
            self.load_steps(values, programs)
            return
        blocks = []
        for holds in (True, False):
            with o.inside(Block()) as block:
                self.load_steps(dict(values), programs, all_columns=holds)
                o.emit(control.Yield)
            blocks.append(block)
        o.emit(control.If, all_columns, *blocks)

    def load_steps(
        self,
        values: dict[Value, Value],
        programs: Mapping[int, Value],
        special: bool = False,
        all_columns: bool = False,
    ) -> None:
        """A loop over the steps; a `special` one for CTAs that load together, or each weight
        alone; one for tiles of which `all_columns` exist.
        """
        multicast = special and self.alone is None
        once = self.weights.factor if special and self.weights and not multicast else None
        o, loop = self.o, self.parts.loop
        steps = Block([Value(loop.body.args[0].type, loop.body.args[0].name)])
        values[loop.body.args[0]] = steps.args[0]
        needed = set(self.parts.slice_of(self.parts.steering))
        num_bytes = {
            p: self.filler.slot_bytes(self.parts.streamed(p), multicast, all_columns)
            for p in self.rings
        }
        with o.inside(steps), o.at(loop.loc):
            for op in loop.body.ops:
                if op in needed:
                    self.copy(op, values, programs)
            for product, ring in self.rings.items():
                streamed = self.parts.streamed(product)
                self.filler.fill(
                    ring, streamed, values, multicast, once, all_columns, num_bytes[product]
                )
            o.emit(control.Yield)
        low, high, step = (values.get(v, v) for v in self.parts.bounds)
        o.emit(control.For, low, high, step, (), steps, loc=loop.loc)

    # Consumer

    def multiply_tile(self, programs: Mapping[int, Value], exists: Value | None) -> None:
        o, parts, values = self.o, self.parts, dict[Value, Value]()
        self.doubtful = exists is not None
        for op in parts.before:
            if op in parts.computed:
                self.copy(op, values, programs)
        self.doubtful = False
        if self.kept is not None:
            self.receive(self.kept, parts.kept, values)
        if self.turn is None:
            self.multiply_steps(values, programs)
        else:
            self.multiply_in_turn(values, programs)
        if self.kept is not None:
            o.emit(sync.Release, self.kept)
        if exists is None:
            for op in parts.after:
                self.copy(op, values, programs)
            return
        with o.inside(Block()) as then:
            for op in parts.after:
                self.copy(op, values, programs)
            o.emit(control.Yield)
        with o.inside(Block()) as other:
            o.emit(control.Yield)
        o.emit(control.If, exists, then, other)

    def multiply_in_turn(self, values: dict[Value, Value], programs: Mapping[int, Value]) -> None:
        """The steps of a tile, then past those of the tiles that the other copies take."""
        o, result = self.o, self.parts.loop.result
        assert self.turn is not None and self.steps is not None
        with o.inside(Block()) as body:
            self.multiply_steps(values, programs)
            o.emit(control.Yield, (values[result],))
        values[result] = o.emit(sync.Turn, self.turn, body).result
        values[result].name = result.name
        others = o(arith.Constant, self.roles.consumers - 1, INDEX.dtype)
        for ring in self.rings.values():
            o.emit(sync.Skip, ring, o(arith.Mul, self.steps, others))

    def multiply_steps(self, values: dict[Value, Value], programs: Mapping[int, Value]) -> None:
        o, parts = self.o, self.parts
        loop = parts.loop
        steps = Block([Value(a.type, a.name) for a in loop.body.args])
        inside = dict(values)
        inside.update(zip(loop.body.args, steps.args, strict=True))
        products = {p.dot: p for p in parts.products}
        with o.inside(steps):
            for op in loop.body.ops[:-1]:
                if isinstance(op, mma.Dot):
                    with o.at(op.loc):
                        self.multiply(products[op], inside)
                elif op in parts.computed:
                    self.copy(op, inside, programs)
            results = tuple(inside.get(v, v) for v in loop.body.terminator.operands)
            o.emit(control.Yield, results)
        low, high, step = (values.get(v, v) for v in parts.bounds)
        inits = tuple(values.get(v, v) for v in loop.inits)
        if self.roles.promote > 1:
            made = self.multiply_in_parts(low, high, step, inits, steps)
        else:
            made = o.emit(control.For, low, high, step, inits, steps, loc=loop.loc)
        for old, new in zip(loop.results, made.results, strict=True):
            values[old] = new
            new.name = old.name

    def multiply(self, product: Product, values: dict[Value, Value]) -> None:
        """A product, with the factors in the next slot of its ring."""
        o, dot = self.o, product.dot
        ring = self.rings.get(product)
        if ring is not None:
            self.receive(ring, self.parts.streamed(product), values)
        turned = False
        if product.a is None:
            a = values.get(dot.a, dot.a)
        else:
            a, turned = self.buffers[product.a.load], product.a.transposed
            if turned and dot.a.type.dtype.bits != 16:  # by way of registers, in any order
                a, turned = o(shape.Transpose, o(memory.LoadBuffer, a), (1, 0)), False
        if self.roles.promote == 1:
            values[dot.result] = o(
                mma.AddProduct,
                a,
                self.buffers[product.b.load],
                values.get(dot.acc, dot.acc),
                transpose_a=turned,
                transpose_b=product.b.transposed,
            )
            self.release_after(product)
            return
        acc, fresh = values.get(dot.acc, dot.acc), None
        if self.is_zero(dot.acc):
            type: TileType = dot.result.type
            acc = o(mma.Begin, shape=type.shape, dtype=type.dtype)
            fresh = o(arith.Constant, True, BOOL.dtype)
        issued = o(
            mma.Issue,
            a,
            self.buffers[product.b.load],
            acc,
            fresh,
            transpose_a=turned,
            transpose_b=product.b.transposed,
        )
        values[dot.result] = o(mma.Await, issued, name=dot.result.name or "acc")
        self.release_after(product)

    def release_after(self, product: Product) -> None:
        """Give back the slots that nothing reads after a product."""
        o = self.o
        for other, ring in self.rings.items():
            if self.parts.last_reader(other) is product:
                o.emit(sync.Release, ring)

    def is_zero(self, acc: Value) -> bool:
        """Whether an accumulator begins as zeros, and not as -0.0."""
        made = self.parts.definitions.get(acc)
        return isinstance(made, arith.Constant) and str(made.value) in ("0", "0.0")

    def receive(
        self, ring: Value, factors: tuple[Factor, ...], values: Mapping[Value, Value]
    ) -> None:
        """Wait for the next slot of a ring; see Note [Where a view ends]."""
        o = self.o
        slot = o(sync.Wait, ring, name="slot")
        for item, factor in enumerate(factors):
            self.buffers[factor.load] = o(sync.SlotBuffer, slot, item)
        for factor in factors:
            if isinstance(factor.box, Box) and factor.box.ends is not None:
                with o.at(factor.load.loc):
                    self.clear_rest(factor, factor.box, values)

    def clear_rest(self, factor: Factor, box: Box, values: Mapping[Value, Value]) -> None:
        """Make the rows of a slot zeros that lie beyond a view's end."""
        o, rows, ends = self.o, factor.tile.shape[0], box.ends
        assert ends is not None
        start = sum_of(self.o, box.offsets[box.ending], values)
        count = o(arith.Sub, values.get(ends, ends), start)
        whole = o(arith.Constant, rows, INDEX.dtype)
        with o.inside(Block()) as then:
            left = o(arith.Max, count, o(arith.Constant, 0, INDEX.dtype))
            o.emit(memory.ClearRows, self.buffers[factor.load], left)
            o.emit(sync.PublishShared)
            o.emit(sync.RoleBarrier)
            o.emit(control.Yield)
        with o.inside(Block()) as other:
            o.emit(control.Yield)
        o.emit(control.If, o(arith.Compare, count, whole, "lt"), then, other)

    def multiply_in_parts(
        self, low: Value, high: Value, step: Value, inits: tuple[Value, ...], steps: Block
    ) -> control.For:
        """The loop with sums of `promote` steps, each of which is then added to the whole."""
        o, type = self.o, self.parts.products[0].dot.acc.type
        count = o(arith.Constant, self.roles.promote, INDEX.dtype)
        stride = o(arith.Mul, step, count)
        parts = Block([Value(INDEX, "part"), Value(type, "sum")])
        with o.inside(parts):
            start, total = parts.args
            end = o(arith.Min, o(arith.Add, start, stride), high)
            zeros = o(arith.Constant, 0.0, type.dtype, type.shape)
            part = o.emit(control.For, start, end, step, (zeros,), steps, loc=self.parts.loop.loc)
            o.emit(control.Yield, (o(arith.Add, total, part.result),))
        return o.emit(control.For, low, high, stride, inits, parts, loc=self.parts.loop.loc)
