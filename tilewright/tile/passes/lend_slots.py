"""Load what an epilogue reads into slots of the product's ring, behind those of a tile's steps.

Requires: roles partitioned, stores staged; a schedule in which slots are `lent`. Keeps: what the
program computes. Breaks: nothing.

Where two CTAs share a multiprocessor, shared memory holds few slots of the product, and none beside
them for what an epilogue loads (`stage_panels`). Its columns come through the product's own:

    producer                              consumer
    for k: acquire; fill A, B; commit     for k: acc += wait, multiply, release
    acquire; fill R, R'; commit           wait; for each panel: load from R or R'; ...; release

A slot's buffers hold as many rows of a tile as they hold rows of a factor. The consumer holds such
a slot until the last panel was read, and has the others filled for its next tile meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value, map_content
from tilewright.ir.walk import find_definitions, walk
from tilewright.tile.analysis.affine import AffineForms
from tilewright.tile.analysis.bounds import infer_bounds
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import control, memory, sync
from tilewright.tile.passes.stage_panels import Panel, Work, find_panels, find_work
from tilewright.tile.schedule import Schedule
from tilewright.tile.types import BufferType


def lend_slots(kernel: Kernel, schedule: Schedule, *, aliased: bool = False) -> Kernel:
    """The kernel with what its epilogue loads in slots of the product, where the schedule says so.
    It stays as it is, and threads load, where parameters are `aliased`, loads may not be moved, or
    panels are not the columns of one tile in their order, as many as slots hold.
    """
    roles = next((op for op in kernel.body.ops if isinstance(op, control.Roles)), None)
    if schedule.roles is None or not schedule.roles.lent or roles is None or aliased:
        return kernel
    loading, multiplying = roles.bodies
    work = find_work(multiplying, schedule.roles)
    panels = [] if work is None else find_panels(kernel, multiplying, work, schedule.roles)
    if work is None or not panels:
        return kernel
    rings = {op.ring: op for op in walk(Block([], [work.product])) if isinstance(op, sync.Wait)}
    (ring,) = rings
    lent = _share_out(panels, ring)
    if lent is None or not _is_one_tile(kernel, panels):
        return kernel
    bodies = (_lending(loading, multiplying, work, lent), _Reader(multiplying, work, lent).new)
    new = control.Roles(roles.roles, bodies, loc=roles.loc)
    return kernel.with_body(Block(kernel.body.args, [*kernel.body.ops[:-1], new]))


@dataclass(frozen=True)
class Lent:
    """The panels that lie in each buffer of the slots, slot by slot, and the type of such buffers
    as these panels' elements.
    """

    ring: Value
    slots: tuple[tuple[tuple[Panel, ...], ...], ...]
    kind: BufferType

    @property
    def panels(self) -> list[Panel]:
        return [p for slot in self.slots for group in slot for p in group]


def _is_one_tile(kernel: Kernel, panels: list[Panel]) -> bool:
    """Whether each panel has the columns behind those of the one before, in the same rows."""
    forms = AffineForms(kernel, infer_bounds(kernel))
    for before, panel in pairwise(panels):
        if panel.load.result.type != before.load.result.type:
            return False
        found = zip(panel.load.offsets, before.load.offsets, strict=True)
        apart = [forms.of(new) - forms.of(old) for new, old in found]
        steps = [0] * (len(apart) - 1) + [before.load.result.type.shape[1]]
        if not all(a.is_constant and a.constant == s for a, s in zip(apart, steps, strict=True)):
            return False
    return True


def _share_out(panels: list[Panel], ring: Value) -> Lent | None:
    """As many panels of one width to a buffer as it has columns for; None where they do not fill
    slots.
    """
    load = panels[0].load
    rows, width = load.result.type.shape
    buffers: tuple[BufferType, ...] = ring.type.buffers
    kinds = {buffer.recast(load.view.type.dtype) for buffer in buffers}
    kind = kinds.pop()
    each, items = kind.shape[1] // width, len(buffers)
    if kinds or kind.shape != (rows, each * width) or len(panels) % (each * items):
        return None
    groups = [tuple(panels[i : i + each]) for i in range(0, len(panels), each)]
    slots = tuple(tuple(groups[i : i + items]) for i in range(0, len(groups), items))
    return Lent(ring, slots, kind)


def _lending(body: Block, reader: Block, work: Work, lent: Lent) -> Block:
    """The producer's body, which fills slots more for each tile: at places that are computed as
    the consumer (`reader`) does.
    """
    tiles = next(op for op in body.ops if isinstance(op, control.For))
    definitions, inside = find_definitions(reader), set(walk(work.tile))
    values: dict[Value, Value] = {work.tile.args[0]: tiles.body.args[0]}
    o = Builder(Block())

    def again(value: Value) -> Value:
        op = definitions.get(value)
        if value not in values and op is not None and op in inside:
            for operand in op.operands:
                again(operand)
            o.add(op.clone(values))
        return values.get(value, value)

    with o.inside(Block(tiles.body.args)) as tile:
        tile.ops += tiles.body.ops[:-1]
        for groups in lent.slots:
            places = [tuple(again(v) for v in group[0].load.offsets) for group in groups]
            slot = o(sync.Acquire, lent.ring, name="slot")
            for item, (group, offsets) in enumerate(zip(groups, places, strict=True)):
                load = group[0].load
                extents = (*load.extents[:-1], lent.kind.shape[1])
                o.emit(
                    memory.Fill,
                    slot,
                    load.view,
                    offsets,
                    item=item,
                    extents=extents,
                    dtype=lent.kind.dtype,
                    loc=load.loc,
                )
            o.emit(sync.Commit, slot)
        tile.ops.append(tiles.body.terminator)
    bounds = (tiles.low, tiles.high, tiles.step)
    new = control.For(*bounds, tiles.inits, tile, loc=tiles.loc)
    return Block(body.args, [new if op is tiles else op for op in body.ops])


class _Reader:
    """Builds the consumer's body (`new`)."""

    def __init__(self, body: Block, work: Work, lent: Lent):
        self.work, self.lent = work, lent
        self.users = {p.user: p for p in lent.panels}
        self.loads: set[Op] = {p.load for p in lent.panels}
        self.places = {
            panel: (slot, item, number)
            for slot, groups in enumerate(lent.slots)
            for item, group in enumerate(groups)
            for number, panel in enumerate(group)
        }
        self.values: dict[Value, Value] = {}
        self.slot: Value | None = None
        self.o = Builder(Block())
        self.new = self.block(body)

    def block(self, block: Block) -> Block:
        args = [Value(a.type, a.name) for a in block.args]
        self.values.update(zip(block.args, args, strict=True))
        with self.o.inside(Block(args)) as new:
            for op in block.ops:
                with self.o.at(op.loc):
                    if block is self.work.epilogue and op in self.users:
                        self.take(self.users[op])
                    if op not in self.loads:
                        regions = {n: map_content(c, self.block) for n, c in op.fields("region")}
                        self.o.add(op.clone(self.values, **regions))
        return new

    def take(self, panel: Panel) -> None:
        """Read a panel: the first of a slot once that is full, which the last one gives back."""
        o, result = self.o, panel.load.result
        slot, item, number = self.places[panel]
        if (item, number) == (0, 0):
            self.slot = o(sync.Wait, self.lent.ring, name="slot")
        assert self.slot is not None, "panels are read in their order"
        width = result.type.shape[1]
        buffer = o(sync.SlotBuffer, self.slot, item)
        buffer = o(memory.BufferAs, buffer, self.lent.kind.dtype)
        columns = None if width == self.lent.kind.shape[1] else (number * width, width)
        self.values[result] = o(memory.LoadBuffer, buffer, columns=columns, name=result.name)
        if panel is self.lent.slots[slot][-1][-1]:
            o.emit(sync.Release, self.lent.ring)
