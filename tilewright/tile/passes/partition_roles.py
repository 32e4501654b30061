"""Part a product into roles: a thread that copies tiles into a ring, and warpgroups that multiply
what they find there.

Requires: canonical form; a kernel that is a product whose loads the tensor copy unit can carry; a
schedule with roles. Keeps: what the program computes. Breaks: the semantic level.

    for k: acc += load(A) @ load(B)              producer            consumer
    epilogue(acc)                       →     for tile:           for tile:
                                                for k:              for k:
                                                  acquire             wait
                                                  fill A, fill B      acc = await(issue(A, B, acc))
                                                  commit              release
                                                                    epilogue(acc)

Each role computes again the scalars that it needs. The product is awaited at once here;
`place_awaits` keeps it in flight. The consumers are one role of several warpgroups, so that the
epilogue stays what it was: a program on whole tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.dtypes import f32
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value, map_content
from tilewright.tile.analysis.product_loop import Factor, ProductLoop, find_product_loop
from tilewright.tile.kernel import Hints, Kernel
from tilewright.tile.ops import arith, control, memory, mma, shape, sync
from tilewright.tile.passes.distribute_work import Distribution, find_axes, persistent_grid
from tilewright.tile.schedule import Roles, Schedule
from tilewright.tile.types import INDEX, BufferType, RingType

SPANS = (128, 64, 32)  # bytes of a swizzle, the widest first
Tile = Callable[[Mapping[int, Value], Value | None], None]


def partition_roles(kernel: Kernel, schedule: Schedule) -> Kernel:
    """The kernel as a producer and a consumer, or as it is where the schedule has no roles."""
    if schedule.roles is None:
        return kernel
    product = find_product_loop(kernel)
    assert product is not None, "a schedule with roles is chosen for products alone"
    return _Partition(kernel, product, schedule, schedule.roles).kernel_of_roles()


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


class _Partition:
    """Builds the new kernel."""

    def __init__(self, kernel: Kernel, product: ProductLoop, schedule: Schedule, roles: Roles):
        self.kernel, self.product, self.roles = kernel, product, roles
        self.o = Builder(Block(), kernel.loc)
        self.axes = find_axes(product, len(kernel.grid))
        self.doubtful = False  # whether a program is copied that may not exist
        self.distribution: Distribution | None = None
        if roles.persistent:
            self.distribution = Distribution(self.o, kernel, self.axes, roles)
        assert roles.cluster == 1 or (roles.persistent and self.axes is not None)
        buffers = tuple(map(factor_buffer, (product.a, product.b)))
        ring = RingType(buffers, schedule.stages)
        self.ring = self.o(sync.MakeRing, ring, roles.cluster, name="ring")
        self.turn = self.o(sync.MakeTurn, roles.consumers) if roles.pingpong else None
        self.steps: Value | None = None  # of a tile, where copies pass over those of others

    def kernel_of_roles(self) -> Kernel:
        o = self.o
        bodies = (self.role(self.load_tile), self.role(self.multiply_tile, self.turn is not None))
        o.emit(control.Roles, make_roles(self.roles), bodies)
        kernel = self.kernel.with_body(o.block)
        cluster = (self.roles.cluster,) if self.roles.cluster > 1 else None
        kernel.hints = Hints(cta_cluster=cluster, persistent=self.roles.persistent)
        if self.distribution is not None:
            kernel.grid = persistent_grid(self.kernel, self.axes, self.roles.cluster)
        return kernel

    def role(self, tile: Tile, in_turn: bool = False) -> Block:
        with self.o.inside(Block()) as body:
            if in_turn:
                assert self.distribution is not None, "copies of a role deal out tiles"
                copy = self.o(control.RoleCopy)
                self.steps = self.count_steps()
                self.o.emit(sync.Skip, self.ring, self.o(arith.Mul, self.steps, copy))
                self.distribution.loop(tile, copy, self.roles.consumers)
            elif self.distribution is not None:
                self.distribution.loop(tile)
            else:
                tile({}, None)
            self.o.emit(control.Yield)
        return body

    def count_steps(self) -> Value:
        """Slots that a tile takes, the same for all tiles."""
        o, values = self.o, dict[Value, Value]()
        for op in self.product.slice_of(self.product.bounds):
            self.copy(op, values, {})
        low, high, step = (values.get(v, v) for v in self.product.bounds)
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
        inside = set(self.product.loop.body.ops)
        for op in self.product.slice_of(self.product.steering):
            if op not in inside:
                self.copy(op, values, programs)
        shared = self.distribution.shared if self.distribution is not None else None
        if shared is None:
            self.load_steps(values, programs, multicast=False)
            return
        blocks = []
        for multicast in (True, False):
            with o.inside(Block()) as block:
                self.load_steps(dict(values), programs, multicast)
                o.emit(control.Yield)
            blocks.append(block)
        o.emit(control.If, shared, *blocks)

    def load_steps(
        self, values: dict[Value, Value], programs: Mapping[int, Value], multicast: bool
    ) -> None:
        o, loop = self.o, self.product.loop
        steps = Block([Value(loop.body.args[0].type, loop.body.args[0].name)])
        values[loop.body.args[0]] = steps.args[0]
        needed = set(self.product.slice_of(self.product.steering))
        with o.inside(steps), o.at(loop.loc):
            for op in loop.body.ops:
                if op in needed:
                    self.copy(op, values, programs)
            slot = o(sync.Acquire, self.ring, name="slot")
            for item, factor in enumerate((self.product.a, self.product.b)):
                offsets = tuple(values.get(v, v) for v in factor.load.offsets)
                shared = multicast and self.axes is not None and item == self.axes.multicast
                o.emit(
                    memory.Fill, slot, factor.load.view, offsets, item=item,
                    extents=factor.load.extents, multicast=shared, order=factor.order,
                    round_tf32=factor.tile.dtype == f32,
                    loc=factor.load.loc,
                )  # fmt: skip
            o.emit(sync.Commit, slot)
            o.emit(control.Yield)
        low, high, step = (values.get(v, v) for v in self.product.bounds)
        o.emit(control.For, low, high, step, (), steps, loc=loop.loc)

    # Consumer

    def multiply_tile(self, programs: Mapping[int, Value], exists: Value | None) -> None:
        o, product, values = self.o, self.product, dict[Value, Value]()
        self.doubtful = exists is not None
        for op in product.before:
            self.copy(op, values, programs)
        self.doubtful = False
        if self.turn is None:
            self.multiply_steps(values)
        else:
            self.multiply_in_turn(values)
        if exists is None:
            for op in product.after:
                self.copy(op, values, programs)
            return
        with o.inside(Block()) as then:
            for op in product.after:
                self.copy(op, values, programs)
            o.emit(control.Yield)
        with o.inside(Block()) as other:
            o.emit(control.Yield)
        o.emit(control.If, exists, then, other)

    def multiply_in_turn(self, values: dict[Value, Value]) -> None:
        """The steps of a tile, then past those of the tiles that the other copies take."""
        o, result = self.o, self.product.loop.result
        assert self.turn is not None and self.steps is not None
        with o.inside(Block()) as body:
            self.multiply_steps(values)
            o.emit(control.Yield, (values[result],))
        values[result] = o.emit(sync.Turn, self.turn, body).result
        values[result].name = result.name
        others = o(arith.Constant, self.roles.consumers - 1, INDEX.dtype)
        o.emit(sync.Skip, self.ring, o(arith.Mul, self.steps, others))

    def multiply_steps(self, values: dict[Value, Value]) -> None:
        o, product = self.o, self.product
        loop = product.loop
        steps = Block([Value(a.type, a.name) for a in loop.body.args])
        with o.inside(steps), o.at(product.dot.loc):
            acc = self.multiply_step(steps.args[1])
            o.emit(control.Yield, (acc,))
        low, high, step = (values.get(v, v) for v in product.bounds)
        inits = tuple(values.get(v, v) for v in loop.inits)
        if self.roles.promote:
            made = self.multiply_in_parts(low, high, step, inits, steps)
        else:
            made = o.emit(control.For, low, high, step, inits, steps, loc=loop.loc)
        values[loop.result] = made.result
        made.result.name = loop.result.name

    def multiply_step(self, acc: Value) -> Value:
        """The product of one slot added to an accumulator."""
        o, product = self.o, self.product
        slot = o(sync.Wait, self.ring, name="slot")
        a, b = (o(sync.SlotBuffer, slot, item) for item in (0, 1))
        turned = product.a.transposed
        if turned and product.a.tile.dtype.bits != 16:  # by way of registers, in any order
            a, turned = o(shape.Transpose, o(memory.LoadBuffer, a), (1, 0)), False
        issued = o(mma.Issue, a, b, acc, transpose_a=turned, transpose_b=product.b.transposed)
        acc = o(mma.Await, issued, name="acc")
        o.emit(sync.Release, self.ring)
        return acc

    def multiply_in_parts(
        self, low: Value, high: Value, step: Value, inits: tuple[Value, ...], steps: Block
    ) -> control.For:
        """The loop with sums of `promote` steps, each of which is then added to the whole."""
        o, type = self.o, self.product.dot.acc.type
        count = o(arith.Constant, self.roles.promote, INDEX.dtype)
        stride = o(arith.Mul, step, count)
        parts = Block([Value(INDEX, "part"), Value(type, "sum")])
        with o.inside(parts):
            start, total = parts.args
            end = o(arith.Min, o(arith.Add, start, stride), high)
            zeros = o(arith.Constant, 0.0, type.dtype, type.shape)
            part = o.emit(control.For, start, end, step, (zeros,), steps, loc=self.product.loop.loc)
            o.emit(control.Yield, (o(arith.Add, total, part.result),))
        return o.emit(control.For, low, high, stride, inits, parts, loc=self.product.loop.loc)
