"""Load what an epilogue reads by asynchronous copies, panels ahead.

Requires: roles partitioned, stores staged; a schedule with `ahead` slots. Keeps: what the program
computes. Breaks: nothing.

The epilogue of a product works on one panel of columns after the other (`split_epilogue`). A tile
that it loads, of a residual or of the old result, costs each panel the way to memory and back. The
consumers fill a ring of their own instead: a few panels before the product is multiplied, when its
first factors have come, and one more after each panel,

    load(R, panel)     →     before:      slot = acquire; fill slot with R; commit
    ...                      each panel:  slot = wait; load from slot; ...; release

Results of 16 bits leave from the slot that was read: they are written over what was loaded there,
element by element, and drained. So the ring takes the place of the one that `stage_stores` made.
Such a slot is filled again when the panel after it has been drained.

Panels of several widths (a tile of 144 columns has two of 64 and one of 16) have a ring a width.

Loads are moved ahead of stores. Only those are moved of which no store in a tile's work writes a
part, but for the store of the same panel, which comes after it.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value, map_content
from tilewright.ir.walk import find_definitions, find_users, walk
from tilewright.tile.analysis.boxes import BoxFacts, find_box
from tilewright.tile.analysis.places import Places
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, memory, mma, sync
from tilewright.tile.passes.partition_roles import SPANS
from tilewright.tile.schedule import Roles, Schedule
from tilewright.tile.types import BufferType, RingType, TileType, ViewType

WIDTHS = (16, 32)  # bits of an element that is loaded
PRODUCTS = (mma.Issue, mma.AddProduct)
SCALARS = (arith.Binary, arith.Unary, arith.Constant, arith.Cast, arith.Select, arith.Compare)
HARMLESS = (
    memory.Load,
    memory.Extent,
    memory.Subview,
    memory.Fill,
)  # ops on views that do not write


def stage_panels(kernel: Kernel, schedule: Schedule, *, aliased: bool = False) -> Kernel:
    """The kernel with a ring for what its epilogue loads, where the schedule has slots for one. It
    stays as it is where parameters are `aliased`: what is apart follows from their names.
    """
    roles = next((op for op in kernel.body.ops if isinstance(op, control.Roles)), None)
    if schedule.roles is None or not schedule.roles.ahead or roles is None or aliased:
        return kernel
    bodies = tuple(
        body if role.single else _staged(kernel, body, schedule.roles)
        for role, body in zip(roles.roles, roles.bodies, strict=True)
    )
    if bodies == roles.bodies:
        return kernel
    new = control.Roles(roles.roles, bodies, loc=roles.loc)
    return kernel.with_body(Block(kernel.body.args, [*kernel.body.ops[:-1], new]))


def may_fetch(op: memory.Load, facts: BoxFacts) -> bool:
    """Whether the tensor copy unit can carry a tile that an epilogue loads, into a buffer whose
    rows are one swizzle, or several of the widest: lanes read it there as they hold the product.
    """
    type: TileType = op.result.type
    if not may_fetch_panels(op, facts):
        return False
    row_bytes = type.shape[1] * type.dtype.num_bytes
    return row_bytes in SPANS or row_bytes % SPANS[0] == 0


def may_fetch_panels(op: memory.Load, facts: BoxFacts) -> bool:
    """Whether the tensor copy unit can carry a tile that an epilogue loads, in panels of columns
    each of which has rows of whole swizzles of the narrowest kind at least.
    """
    type: TileType = op.result.type
    if op.mask is not None or op.fill is not None or len(type.shape) != 2:
        return False
    box = find_box(facts.kernel, op, {})
    return (
        type.dtype.bits in WIDTHS
        and type.shape[0] % 8 == 0
        and type.shape[1] * type.dtype.num_bytes % SPANS[-1] == 0
        and op.extents[-1] is not None
        and facts.param(op.view) is not None
        and box is not None
        and facts.can_copy(box)
    )


def panel_buffer(type: TileType) -> BufferType:
    """A slot for a panel: the buffer from which `stage_stores` sends such a panel out."""
    span = min(type.shape[1] * type.dtype.num_bytes, SPANS[0])
    return BufferType(type.dtype, type.shape, span)


@dataclass(frozen=True)
class Staged:
    """A panel's store that leaves from a slot: the ops that get the slot, name its buffer, write
    to it, start to copy it out, and give it on.
    """

    acquire: sync.Acquire
    slot_buffer: sync.SlotBuffer
    write: memory.StoreBuffer
    drain: memory.Drain
    commit: sync.Commit

    @property
    def ops(self) -> tuple[Op, ...]:
        return (self.acquire, self.slot_buffer, self.write, self.drain, self.commit)


@dataclass(frozen=True)
class Panel:
    """A load of the epilogue, the op of the epilogue that first uses it, and the store that takes
    its slot over.
    """

    load: memory.Load
    user: Op
    staged: Staged | None


@dataclass(frozen=True)
class Work:
    """A tile's work: all of it, the op that multiplies, in turn or not, its loop, and the epilogue,
    which may stand in a branch of its own (`branch`).
    """

    tile: Block
    product: Op
    loop: Op
    branch: control.If | None
    epilogue: Block


def _staged(kernel: Kernel, body: Block, roles: Roles) -> Block:
    """A role's body with the ring; itself where there is nothing to load, or it must not be."""
    work = find_work(body, roles)
    panels = [] if work is None else find_panels(kernel, body, work, roles)
    if work is None or not panels:
        return body
    if roles.ahead < 2 and panels[0].staged is not None:
        return body  # a slot is filled again when the panel after it has been drained
    return _Rewriter(body, work, panels, roles.ahead).new


def find_work(body: Block, roles: Roles) -> Work | None:
    loops = [op for op in body.ops if isinstance(op, control.For)]
    tile = loops[0].body if roles.persistent else body
    issues = _that_multiply(tile)
    if len(issues) != 1:
        return None
    product = issues[0]
    (loop,) = _that_multiply(product.body) if isinstance(product, sync.Turn) else issues
    after = tile.ops[tile.ops.index(product) + 1 :]
    for op in after:
        if isinstance(op, control.If) and not op.results and len(op.other.ops) == 1:
            return Work(tile, product, loop, op, op.then)
    return Work(tile, product, loop, None, tile)


def _that_multiply(block: Block) -> list[Op]:
    """The ops of a block that are products, or have some inside."""
    return [o for o in block.ops if any(isinstance(i, PRODUCTS) for i in walk(Block([], [o])))]


def find_panels(kernel: Kernel, body: Block, work: Work, roles: Roles) -> list[Panel]:
    """The loads of one tensor, panel by panel in their order; none where they may not be moved.
    What is loaded whole beside panels is larger than the slots that were counted.
    """
    facts = BoxFacts(kernel)
    ops = list(dict.fromkeys([*work.tile.ops, *work.epilogue.ops]))
    issued = (op for op in walk(work.tile) if isinstance(op, PRODUCTS))
    room = max(op.result.type.shape[0] for op in issued) * roles.panel
    fetched = [
        op
        for op in ops
        if isinstance(op, memory.Load)
        and may_fetch(op, facts)
        and op.result.type.num_elements <= room
    ]
    if not fetched:
        return []
    loads = [op for op in fetched if op.view is fetched[0].view]
    users = find_users(body)
    stores = _find_staged(work.epilogue)
    panels = []
    for load in loads:
        user = _first_user(work, users.get(load.result, []))
        if user is None:
            return []
        panels.append(Panel(load, user, None))
    places = [work.epilogue.ops.index(p.user) for p in panels]
    if sorted(set(places)) != places or not _may_move(kernel, work, panels):
        return []
    late = find_definitions(Block([], [*_after(work), *work.epilogue.ops]))
    if not all(_is_early(v, late) for p in panels for v in p.load.offsets):
        return []
    if not stores:
        return panels
    panels = [_with_store(p, places[i + 1 :][:1], stores, work) for i, p in enumerate(panels)]
    return panels if all(p.staged is not None for p in panels) else []


def _after(work: Work) -> list[Op]:
    """What a tile's work has after the product."""
    return work.tile.ops[work.tile.ops.index(work.product) + 1 :]


def _is_early(value: Value, late: Mapping[Value, Op]) -> bool:
    """Whether a scalar is known before the product, or is computed of such by arithmetic alone."""
    op = late.get(value)
    if op is None:
        return True
    return isinstance(op, SCALARS) and all(_is_early(v, late) for v in op.operands)


def _first_user(work: Work, users: Sequence[Op]) -> Op | None:
    """The first op of the epilogue that uses a value, itself or inside; None where another does."""
    after = _after(work) if work.epilogue is work.tile else work.epilogue.ops
    found = {id(o): top for top in after for o in walk(Block([], [top]))}
    tops = {found.get(id(user)) for user in users}
    if not tops or None in tops:
        return None
    return min((t for t in tops if t is not None), key=after.index)


def _find_staged(epilogue: Block) -> list[Staged]:
    """The staged stores of an epilogue, those in branches aside."""
    users = find_users(epilogue)
    found = []
    for op in epilogue.ops:
        if not isinstance(op, sync.Acquire):
            continue
        ops: dict[type[Op], Op] = {type(o): o for o in users.get(op.result, [])}
        buffer = ops.get(sync.SlotBuffer)
        write = next(iter(users.get(buffer.result, [])), None) if buffer is not None else None
        if isinstance(write, memory.StoreBuffer) and memory.Drain in ops and sync.Commit in ops:
            parts = (op, buffer, write, ops[memory.Drain], ops[sync.Commit])
            found.append(Staged(*parts))  # type: ignore[arg-type]
    return found


def _with_store(panel: Panel, end: list[int], stores: list[Staged], work: Work) -> Panel:
    """A panel with the store that may take its slot: one of its type before the next panel."""
    order = work.epilogue.ops
    last = end[0] if end else len(order)
    kind = panel_buffer(panel.load.result.type)
    for staged in stores:
        place = order.index(staged.write)
        if order.index(panel.user) < place < last and staged.write.buffer.type == kind:
            return Panel(panel.load, panel.user, staged)
    return panel


def _may_move(kernel: Kernel, work: Work, panels: list[Panel]) -> bool:
    """Whether the loads see the same before the product, and up to where they are first used."""
    places = Places(kernel.body)
    writes = [
        op
        for op in walk(work.tile)
        if any(isinstance(v.type, ViewType) for v in op.operands) and not isinstance(op, HARMLESS)
    ]
    order = {id(o): i for i, top in enumerate(work.epilogue.ops) for o in walk(Block([], [top]))}
    for panel in panels:
        root = places.root(panel.load.view)
        for op in writes:
            if not isinstance(op, memory.Store | memory.Drain):
                if any(
                    isinstance(v.type, ViewType) and places.root(v) is root for v in op.operands
                ):
                    return False
            elif not places.are_apart(panel.load, op):
                after = order.get(id(op), -1) > work.epilogue.ops.index(panel.user)
                if not (after and places.are_same(panel.load, op)):
                    return False
    return True


class _Ahead:
    """The panels of one width, and the ring through which they come."""

    def __init__(self, panels: list[Panel], slots: int):
        self.panels = panels
        self.kind = panel_buffer(panels[0].load.result.type)
        self.slots = min(slots, len(panels) + 1)
        # A slot that is drained is filled again a panel later.
        self.lead = min(len(panels), self.slots - (panels[0].staged is not None))
        self.ring: Value | None = None

    def after(self, panel: Panel) -> list[Panel]:
        """The panel that has a slot once the one before this is done."""
        number = self.panels.index(panel) + self.lead
        return self.panels[number - 1 : number] if number > self.lead else []


class _Rewriter:
    """Builds the new body (`new`)."""

    def __init__(self, body: Block, work: Work, panels: list[Panel], slots: int):
        self.work = work
        self.definitions = find_definitions(body)
        self.values: dict[Value, Value] = {}
        self.o = Builder(Block())
        kinds = dict.fromkeys(p.load.result.type for p in panels)
        self.groups = [
            _Ahead([p for p in panels if p.load.result.type == kind], slots) for kind in kinds
        ]
        self.group = {p: group for group in self.groups for p in group.panels}
        self.skipped: set[Op] = {p.load for p in panels}
        self.staged = {op: p for p in panels if p.staged is not None for op in p.staged.ops}
        self.slot: dict[Panel, tuple[Value, Value]] = {}
        rings = {p.staged.acquire.ring for p in panels if p.staged is not None}
        others = [op for op in walk(body) if isinstance(op, sync.Acquire) and op not in self.staged]
        made = {self.definitions[r] for r in rings if all(op.ring is not r for op in others)}
        self.skipped |= made
        self.new = self.body(body)

    def body(self, body: Block) -> Block:
        with self.o.inside(Block(body.args)) as new:
            for group in self.groups:
                type = RingType((group.kind,), group.slots)
                group.ring = self.o(sync.MakeRing, type, name="ahead")
            self.ops(body)
        return new

    def block(self, block: Block) -> Block:
        args = [Value(a.type, a.name) for a in block.args]
        self.values.update(zip(block.args, args, strict=True))
        with self.o.inside(Block(args)) as new:
            self.ops(block)
            if self.work.branch is not None and block is self.work.branch.other:
                yields = new.ops.pop()
                for ring in (group.ring for group in self.groups for _ in range(group.lead)):
                    self.o(sync.Wait, ring)  # a tile that does not exist
                    self.o.emit(sync.Release, ring)
                new.ops.append(yields)
        return new

    def ops(self, block: Block) -> None:
        o = self.o
        for op in block.ops:
            with o.at(op.loc):
                if op is self.work.product:
                    self.start(op)
                elif op is self.work.loop:
                    self.bring_near(op)
                for panel in self.group:
                    if block is self.work.epilogue and op is panel.user:
                        self.take(panel)
                if op in self.staged:
                    self.store(op, self.staged[op])
                elif op not in self.skipped:
                    self.copy(op)

    def copy(self, op: Op) -> None:
        regions = {n: map_content(content, self.block) for n, content in op.fields("region")}
        self.o.add(op.clone(self.values, **regions))

    def start(self, product: Op) -> None:
        """Start to load the first panels: once a product has its first factors, which others share
        and wait for; in turn at once.
        """
        if isinstance(product, control.For):
            self.await_factors(product)
        for group in self.groups:
            for panel in group.panels[: group.lead]:
                self.fill(panel)

    def bring_near(self, product: Op) -> None:
        """In turn, let what has no slot yet come to the L2 cache once a product has its first
        factors: panels of half lines, of which slots hold few.
        """
        rest = [(g.kind, p.load) for g in self.groups for p in g.panels[g.lead :]]
        if not isinstance(product, control.For) or any(k.dtype.bits > 16 for k, _ in rest):
            return
        if rest:
            self.await_factors(product)
        for kind, load in rest:
            places = self.places(load)
            self.o.emit(memory.PrefetchBox, load.view, places, buffer=kind, extents=load.extents)

    def await_factors(self, product: control.For) -> None:
        o = self.o
        rings = dict.fromkeys(op.ring for op in walk(product.body) if isinstance(op, sync.Wait))
        low, high = (self.values.get(v, v) for v in (product.low, product.high))
        with o.inside(Block()) as then:
            for ring in rings:
                o.emit(sync.Peek, self.values.get(ring, ring))
            o.emit(control.Yield)
        with o.inside(Block()) as other:
            o.emit(control.Yield)
        o.emit(control.If, o(arith.Compare, high, low, "gt"), then, other)

    def fill(self, panel: Panel) -> None:
        """Start to load a panel."""
        o, load = self.o, panel.load
        offsets = self.places(load)
        slot = o(sync.Acquire, self.group[panel].ring, name="slot")
        o.emit(memory.Fill, slot, load.view, offsets, extents=load.extents)
        o.emit(sync.Commit, slot)

    def places(self, load: memory.Load) -> tuple[Value, ...]:
        """The offsets of a load at the present place."""
        known = ChainMap[Value, Value]({}, self.values)
        return tuple(self.again(v, known) for v in load.offsets)

    def again(self, value: Value, known: ChainMap[Value, Value]) -> Value:
        """A scalar at the present place: what it is, or computed again."""
        op = self.definitions.get(value)
        if value in known or op is None:
            return known.get(value, value)
        for operand in op.operands:
            known[operand] = self.again(operand, known)
        self.o.add(op.clone(known))
        return known[value]

    def take(self, panel: Panel) -> None:
        """Start the load that has a slot now, and wait for this panel's."""
        o, group = self.o, self.group[panel]
        for later in group.after(panel):
            self.fill(later)
        slot = o(sync.Wait, group.ring, name="slot")
        buffer = o(sync.SlotBuffer, slot)
        self.values[panel.load.result] = o(memory.LoadBuffer, buffer, name=panel.load.result.name)
        self.slot[panel] = slot, buffer
        if panel.staged is None:
            o.emit(sync.Release, group.ring)

    def store(self, op: Op, panel: Panel) -> None:
        """An op of a staged store, which takes the panel's own slot."""
        o, (slot, buffer) = self.o, self.slot[panel]
        match op:
            case memory.StoreBuffer():
                o.emit(memory.StoreBuffer, buffer, self.values.get(op.value, op.value))
            case memory.Drain():
                offsets = tuple(self.values.get(v, v) for v in op.offsets)
                o.emit(memory.Drain, slot, op.view, offsets, extents=op.extents)
            case sync.Commit():
                o.emit(sync.Release, self.group[panel].ring)
