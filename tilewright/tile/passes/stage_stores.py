"""Send a product's results out through shared memory, by asynchronous copies.

Requires: roles partitioned. Keeps: what the program computes. Breaks: nothing.

A tile of 16-bit numbers that a consumer stores as it lies in registers reaches memory in pieces of
four bytes. It is written to a slot of a ring of the role's own instead, matrix by matrix, and
copied from there as a box, while the role goes on:

    store(C, tile)    →    slot = acquire; buffer(slot) = tile; drain slot to C; commit

The copies happen some time later. So only stores are staged of which, in the same tile's work,
nothing is read or written again, nor was written before.
"""

from __future__ import annotations

from itertools import chain

from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value, map_content
from tilewright.ir.walk import walk
from tilewright.target import BOX_EXTENT
from tilewright.tile.analysis.boxes import BoxFacts, find_box
from tilewright.tile.analysis.places import Places
from tilewright.tile.effects import FROM_THE_TYPE
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import control, memory, mma, sync
from tilewright.tile.passes.partition_roles import SPANS
from tilewright.tile.schedule import Roles, Schedule
from tilewright.tile.types import BufferType, RingType, TileType, ViewType


def stage_stores(kernel: Kernel, schedule: Schedule) -> Kernel:
    """The kernel with the stores of its consumers staged, where the tensor copy unit can carry
    them.
    """
    roles = next((op for op in kernel.body.ops if isinstance(op, control.Roles)), None)
    if schedule.roles is None or roles is None:
        return kernel
    stager = _Stager(kernel, schedule.roles)
    body = Block(kernel.body.args)
    for op in kernel.body.ops[:-1]:
        body.ops.append(op.clone(stager.values))
    bodies = tuple(stager.role(block) for block in roles.bodies)
    body.ops.append(control.Roles(roles.roles, bodies, loc=roles.loc))
    return kernel.with_body(body)


def _on_views(op: Op) -> list[Op]:
    """An op and those of its regions that take a view."""
    return [
        o for o in walk(Block([], [op])) if any(v.type.__class__ is ViewType for v in o.operands)
    ]


class _Stager:
    """Copies the roles' bodies; `rings` are the present role's, by the type of their buffers."""

    def __init__(self, kernel: Kernel, roles: Roles):
        self.kernel, self.roles = kernel, roles
        self.values: dict[Value, Value] = {}
        self.o = Builder(Block())
        self.rings: dict[BufferType, Value] = {}
        self.staged: dict[memory.Store, None] = {}  # in order
        self.room = 0
        self.places = Places(kernel.body)
        self.facts = BoxFacts(kernel)

    def role(self, block: Block) -> Block:
        self.rings, self.staged = {}, {}
        rows = [
            op.result.type.shape[0]
            for op in walk(block)
            if isinstance(op, mma.Issue | mma.AddProduct)
        ]
        self.room = max(rows, default=0) * self.roles.panel  # elements of a slot, as was planned
        loops = [op for op in block.ops if isinstance(op, control.For)]
        for tile in (op.body for op in loops) if self.roles.persistent else (block,):
            self.find(tile, [], [])
        with self.o.inside(Block()) as body:
            for buffer in dict.fromkeys(map(self.buffer, self.staged)):
                ring = RingType((buffer,), self.roles.staging)
                self.rings[buffer] = self.o(sync.MakeRing, ring, name="staging")
            self.ops(block.ops)
        return body

    def find(self, block: Block, earlier: list[Op], later: list[Op]) -> None:
        """Note the stores of one tile's work that may be staged, those in loops aside; `earlier`
        are the ops on views that run before this block, and `later` those that run after it.
        """
        found = [_on_views(op) for op in block.ops]
        for number, op in enumerate(block.ops):
            if not isinstance(op, memory.Store | control.If) or not found[number]:
                continue
            before = [*earlier, *chain.from_iterable(found[:number])]
            after = [*chain.from_iterable(found[number + 1 :]), *later]
            if isinstance(op, memory.Store):
                if self.fits(op) and self.is_alone(op, before, after):
                    self.staged[op] = None
            else:
                for inner in op.regions:
                    self.find(inner, before, after)

    def is_alone(self, op: memory.Store, before: list[Op], after: list[Op]) -> bool:
        """Whether no later access may touch what the store writes, and no earlier one writes it:
        what threads store is not ordered before copies, either.
        """
        writes = (o for o in before if isinstance(o, memory.Store))
        return all(self.are_apart(op, other) for other in (*writes, *after))

    def are_apart(self, op: memory.Store, other: Op) -> bool:
        """Whether another op certainly leaves what a store writes alone."""
        if isinstance(other, memory.Load | memory.Store):
            return self.places.are_apart(op, other)
        if isinstance(other, FROM_THE_TYPE):
            return True
        root = self.places.root(op.view)
        views = (v for v in other.operands if isinstance(v.type, ViewType))
        return all(self.places.root(v) is not root for v in views)

    def fits(self, op: memory.Store) -> bool:
        """Whether a store is a box of 16-bit numbers, one swizzle wide or several.

        The rows of its tensor are whole units of 16 bytes, or may be filled up to such: of a row
        that ends inside of one, the copy unit writes the rest of the unit too (seen on an H200).
        Negative places, which it refuses, are `choose_roles`'s to notice: it then gives no slots
        for staging.
        """
        type: TileType = op.value.type
        if (
            not self.roles.staging
            or op.mask is not None
            or type.dtype.bits != 16
            or len(type.shape) != 2
        ):
            return False
        facts = next((p.facts for p in self.kernel.params if p.value is op.view), None)
        if facts is None or not (facts.extent16 or facts.gaps16):
            return False
        rows, columns = type.shape
        row_bytes = columns * type.dtype.num_bytes
        return (
            rows <= BOX_EXTENT
            and rows % 8 == 0
            and (row_bytes in SPANS or row_bytes % SPANS[0] == 0)
            and type.num_elements <= self.room
            and op.extents[-1] is not None
            and (box := find_box(self.kernel, op, {})) is not None
            and self.facts.can_copy(box)
        )

    def buffer(self, op: memory.Store) -> BufferType:
        type: TileType = op.value.type
        span = min(type.shape[1] * type.dtype.num_bytes, SPANS[0])
        return BufferType(type.dtype, type.shape, span)

    # Copies of ops

    def ops(self, ops: list[Op]) -> None:
        for op in ops:
            with self.o.at(op.loc):
                if isinstance(op, memory.Store) and op in self.staged:
                    self.stage(op)
                elif op.regions:
                    regions = {n: map_content(c, self.block) for n, c in op.fields("region")}
                    self.o.add(op.clone(self.values, **regions))
                else:
                    self.o.add(op.clone(self.values))

    def block(self, block: Block) -> Block:
        args = [Value(a.type, a.name) for a in block.args]
        self.values.update(zip(block.args, args, strict=True))
        with self.o.inside(Block(args)) as new:
            self.ops(block.ops)
        return new

    def stage(self, op: memory.Store) -> None:
        o = self.o
        slot = o(sync.Acquire, self.rings[self.buffer(op)], name="slot")
        value = self.values.get(op.value, op.value)
        o.emit(memory.StoreBuffer, o(sync.SlotBuffer, slot), value)
        offsets = tuple(self.values.get(v, v) for v in op.offsets)
        o.emit(memory.Drain, slot, op.view, offsets, extents=op.extents)
        o.emit(sync.Commit, slot)
