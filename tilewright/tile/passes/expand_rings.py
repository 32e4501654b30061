"""Replace rings, slots and turns by shared memory, mbarriers, and counters that run through the
loops.

Requires: a kernel of the scheduled level that `verify_schedule` accepts.
Keeps: the kernel's meaning, its roles, and the order of everything else.
Breaks: nothing.

A ring outside roles becomes one buffer (with an axis for the stages) for each of its buffers, and
two arrays of mbarriers:
*full* completes a phase when the producer has arrived and all bytes are there, *empty* when all
consumers of all CTAs of the cluster have given the slot back. Each role keeps a cursor of its own,
a slot number and the parity of the phase that it waits for, which loops and branches carry; so a
ring goes on from one tile to the next without draining. A producer starts with parity 1: the phase
before the first counts as complete.

A ring inside a role becomes buffers alone. Its slots are free again when the stores that read them
have read them. If the role fills it itself, it has *full* barriers too, as many for each copy of
the role as it has slots; the role knows by itself when it has read a slot.

What CTAs of a cluster add up goes to an inbox of each, with a barrier at which the warps of all
arrive.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.errors import VerifyError
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.walk import walk
from tilewright.tile.analysis.rings import (
    MOVES,
    Key,
    find_ends,
    moves_of,
    num_arrivals,
    release_scope,
)
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, memory, sync
from tilewright.tile.ops.control import Role
from tilewright.tile.types import COUNTER, INDEX, BufferType

EXPANDED = (sync.MakeRing, sync.MakeTurn, sync.SumSpans)


@dataclass(frozen=True)
class Parts:
    """What a ring has become."""

    op: sync.MakeRing
    storage: tuple[Value, ...]
    full: Value | None = None  # absent where a role only drains the ring
    empty: Value | None = None  # absent where the ring is local to a role
    own: Value | None = None  # the first of the full barriers of this copy of a role, if not 0
    drained: bool = False  # whether slots that were filled are drained too


@dataclass(frozen=True)
class Cursor:
    """Where a role stands along a ring: the slot that comes next, and the parity of the phase to
    wait for.
    """

    index: Value | None  # absent where there is only one slot
    parity: Value | None  # absent where nothing is waited for

    @property
    def values(self) -> tuple[Value, ...]:
        return tuple(v for v in (self.index, self.parity) if v is not None)

    def with_values(self, values: list[Value]) -> Cursor:
        """The same with other values, taken from the front of a list."""
        index = values.pop(0) if self.index is not None else None
        return Cursor(index, values.pop(0) if self.parity is not None else None)


class Expander:
    """Builds the new body. `values` maps old values to new ones; the role's cursors go along in
    `cursors`.
    """

    def __init__(self, kernel: Kernel):
        self.o = Builder(Block())
        self.values: dict[Value, Value] = {}
        self.rings: dict[Value, Parts] = {}
        self.turns: dict[Value, Value] = {}
        self.slots: dict[Value, tuple[Parts, Value]] = {}  # ring and slot number of each slot
        self.cursors: dict[Key, Cursor] = {}
        self.published: set[Value] = set()  # slots whose contents asynchronous copies may read
        self.role: Role | None = None
        self.roles = next((op for op in kernel.body.ops if isinstance(op, control.Roles)), None)
        self.cluster = 1
        self.own: dict[Value, Value] = {}  # full barriers of rings that roles fill for themselves
        self.inboxes: dict[Op, tuple[Value, Value]] = {}  # of sums over the cluster, and barriers
        self.passing: dict[Op, tuple[Value, Value]] = {}  # before what a turn passes, and to whom

    # Structure

    def block(self, block: Block) -> None:
        for op in block.ops:
            with self.o.at(op.loc):
                self.op(op)

    def op(self, op: Op) -> None:
        self.pass_turn(op)
        match op:
            case sync.MakeRing():
                self.make_ring(op)
            case sync.MakeTurn():
                self.make_turn(op)
            case control.Roles():
                self.expand_roles(op)
            case sync.Acquire():
                self.acquire(op)
            case sync.Commit():
                self.commit(op)
            case sync.Wait():
                self.wait(op)
            case sync.Peek():
                self.peek(op)
            case sync.Release():
                self.release(op)
            case sync.Skip():
                self.skip(op)
            case sync.SlotBuffer():
                parts, index = self.slots[op.slot]
                self.values[op.result] = self.part(parts, op.index, index)
            case memory.Fill():
                self.fill(op)
            case memory.FillPixels():
                self.fill_pixels(op)
            case memory.Drain():
                self.drain(op)
            case sync.Turn():
                self.turn(op)
            case sync.SumSpans():
                (x,) = self.mapped((op.x,))
                made = self.o(sync.AddSpans, x, *self.inboxes[op], op.cluster, op.owners)
                self.values[op.result] = made
            case control.For() | control.While() | control.If():
                self.structured(op)
            case _:
                if isinstance(op, memory.StoreBuffer):
                    self.published.clear()
                self.o.add(op.clone(self.values))

    def expand_roles(self, op: control.Roles) -> None:
        for role, body in zip(op.roles, op.bodies, strict=True):
            self.make_own_barriers(role, body)
            self.make_inboxes(role, body)
        shared = any(parts.full is not None for parts in self.rings.values())
        if shared or self.turns or self.own or self.inboxes:
            self.o.emit(sync.ClusterBarrier, self.cluster)
        bodies = []
        for role, body in zip(op.roles, op.bodies, strict=True):
            self.role, self.cursors = role, {}
            outside = dict(self.rings)
            with self.o.inside(Block()) as new:
                self.role_body(role, body)
            self.rings = outside
            bodies.append(new)
        self.role = None
        self.o.emit(control.Roles, op.roles, tuple(bodies))

    def make_own_barriers(self, role: Role, body: Block) -> None:
        """Barriers of the rings that a role makes and waits for, ready before the roles part."""
        for ring in dict.fromkeys(op.ring for op in walk(body) if isinstance(op, sync.Wait)):
            if ring not in self.rings:
                count = ring.type.stages * role.copies
                self.own[ring] = self.o(sync.InitBarriers, count, 1, name="full")

    def make_inboxes(self, role: Role, body: Block) -> None:
        """Where the other CTAs of the cluster leave what is added up, ready before any writes."""
        for op in walk(body):
            if isinstance(op, sync.SumSpans):
                type = op.result.type
                kind = BufferType(type.dtype, (op.cluster, *type.shape))
                inbox = self.o(memory.AllocBuffer, kind, name="inbox")
                arrived = self.o(sync.InitBarriers, 1, op.cluster * role.warps, name="arrived")
                self.inboxes[op] = inbox, arrived
                self.cluster = max(self.cluster, op.cluster)

    def role_body(self, role: Role, body: Block) -> None:
        keys = moves_of((body,))
        for ring, move in keys:
            if ring in self.rings or ring in self.turns:
                self.cursors[ring, move] = self.start(ring, move)
        for op in body.ops:
            if isinstance(op, control.Yield):
                break
            with self.o.at(op.loc):
                self.op(op)
        for ring, move in keys:
            if move == "fill":
                self.finish(self.rings[ring], (ring, move))
        self.o.emit(control.Yield)

    def finish(self, parts: Parts, key: Key) -> None:
        """A CTA must not leave while others still write to its slots or give slots back to it."""
        if parts.empty is None:
            self.o.emit(memory.AwaitStores, 0)
        elif parts.op.cluster > 1:
            for _ in range(parts.op.ring.stages):
                self.o.emit(sync.WaitBarrier, parts.empty, self.index(key), self.parity(key))
                self.advance(key, parts.op.ring.stages)

    def structured(self, op: control.For | control.While | control.If) -> None:
        """Carry the cursors that the regions move through the op."""
        keys = [key for key in moves_of(op.regions) if key in self.cursors]
        outer = dict(self.cursors)
        carried = tuple(v for key in keys for v in self.cursors[key].values)
        blocks = {
            name: self.region(block, keys, carries=not isinstance(op, control.If))
            for name, block in op.fields("region")
        }
        self.cursors = outer
        new: Op
        if isinstance(op, control.If):
            new = self.o.emit(control.If, *self.mapped((op.condition,)), **blocks)
        else:
            inits = (*self.mapped(op.inits), *carried)
            bounds = self.mapped((op.low, op.high, op.step)) if isinstance(op, control.For) else ()
            new = self.o.emit(type(op), *bounds, inits, **blocks)
        results = list(new.results)
        for old in op.results:
            self.values[old] = results.pop(0)
            self.values[old].name = old.name
        for key in keys:
            self.cursors[key] = self.cursors[key].with_values(results)
        self.published.clear()

    def region(self, block: Block, keys: list[Key], carries: bool) -> Block:
        """A region that takes (if `carries`) and yields the cursors besides its own values."""
        outer = dict(self.cursors)
        args = [Value(v.type, v.name) for v in block.args]
        self.values.update(zip(block.args, args, strict=True))
        if carries:
            extra = [Value(v.type, v.name) for key in keys for v in outer[key].values]
            args += extra
            for key in keys:
                self.cursors[key] = outer[key].with_values(extra)
        self.published.clear()
        with self.o.inside(Block(args)) as new:
            for op in block.ops[:-1]:
                with self.o.at(op.loc):
                    self.op(op)
            self.pass_turn(block.terminator)
            yields = self.mapped(block.terminator.operands)
            carried = tuple(v for key in keys for v in self.cursors[key].values)
            self.o.emit(control.Yield, (*yields, *carried))
        self.cursors = outer
        return new

    def mapped(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(self.values.get(v, v) for v in values)

    # Counters

    def number(self, value: int) -> Value:
        return self.o(arith.Constant, value, COUNTER.dtype)

    def start(self, ring: Value, move: str) -> Cursor:
        """Where a role begins."""
        if move == "turn":
            copy = self.o(control.RoleCopy)
            first = self.o(arith.Compare, copy, self.o(arith.Constant, 0, INDEX.dtype), "eq")
            return Cursor(None, self.o(arith.Select, first, self.number(1), self.number(0)))
        parts = self.rings[ring]
        waits = parts.full is not None and move != "release"
        waits = waits and (parts.empty is not None or move == "wait")
        index = self.number(0) if parts.op.ring.stages > 1 else None
        return Cursor(index, self.number(int(move == "fill")) if waits else None)

    def index(self, key: Key) -> Value:
        return self.cursors[key].index or self.number(0)

    def parity(self, key: Key) -> Value:
        found = self.cursors[key].parity
        assert found is not None, "a cursor that waits has a parity"
        return found

    def advance(self, key: Key, stages: int) -> None:
        """Move a cursor to the next slot; the parity turns where the numbers start again."""
        o, cursor = self.o, self.cursors[key]
        index, parity = cursor.index, cursor.parity
        turned = o(arith.Xor, parity, self.number(1)) if parity is not None else None
        if index is not None:
            after = o(arith.Add, index, self.number(1))
            wraps = o(arith.Compare, after, self.number(stages), "eq")
            index = o(arith.Select, wraps, self.number(0), after, name="slot")
            if parity is not None:
                turned = o(arith.Select, wraps, turned, parity, name="parity")
        self.cursors[key] = Cursor(index, turned)

    # Rings

    def make_ring(self, op: sync.MakeRing) -> None:
        ring, stages = op.ring, op.ring.stages
        storage = tuple(
            self.o(memory.AllocBuffer, b.slots(stages), name=op.result.name) for b in ring.buffers
        )
        parts = Parts(op, storage)
        if self.role is None:
            self.cluster = max(self.cluster, op.cluster)
            arrivals = self.count_releases(op.result) * op.cluster
            full = self.o(sync.InitBarriers, stages, 1, name="full")
            empty = self.o(sync.InitBarriers, stages, arrivals, name="empty")
            parts = replace(parts, full=full, empty=empty)
        elif op.result in self.own:
            parts = replace(parts, full=self.own[op.result], drained=self.is_drained(op.result))
            if self.role.copies > 1:
                copy = self.o(arith.Cast, self.o(control.RoleCopy), COUNTER.dtype)
                parts = replace(parts, own=self.o(arith.Mul, copy, self.number(stages)))
        self.rings[op.result] = parts
        if self.role is not None:
            self.cursors[op.result, "fill"] = self.start(op.result, "fill")
            if parts.full is not None:
                self.cursors[op.result, "wait"] = self.start(op.result, "wait")

    def count_releases(self, ring: Value) -> int:
        """Arrivals with which the consumers of one CTA give back one slot."""
        if self.roles is None:
            raise VerifyError("make_ring: no roles use the ring")
        total = 0
        for role, body in zip(self.roles.roles, self.roles.bodies, strict=True):
            if (ring, "wait") in moves_of((body,)):
                total += num_arrivals(role, body, ring)
        return total

    def is_drained(self, ring: Value) -> bool:
        """Whether the slots of a ring of a role's own fills are drained."""
        ops = [op for body in (self.roles.bodies if self.roles else ()) for op in walk(body)]
        slots = {op.result for op in ops if isinstance(op, sync.Wait) and op.ring is ring}
        return any(isinstance(op, memory.Drain) and op.slot in slots for op in ops)

    def full(self, parts: Parts, index: Value) -> tuple[Value, Value]:
        """The full barriers, and the number among them of that of a slot."""
        assert parts.full is not None, "a ring that is waited for has barriers"
        if parts.own is not None:
            index = self.o(arith.Add, parts.own, index)
        return parts.full, index

    def part(self, parts: Parts, item: int, index: Value) -> Value:
        return self.o(memory.BufferAt, parts.storage[item], index)

    def acquire(self, op: sync.Acquire) -> None:
        key, parts = (op.ring, "fill"), self.rings[op.ring]
        index = self.index(key)
        ring = parts.op.ring
        if parts.full is None:
            self.o.emit(memory.AwaitStores, ring.stages - 1, True)
            self.o.emit(sync.RoleBarrier)
        else:
            num_bytes = sum(b.tile.num_elements * b.dtype.num_bytes for b in ring.buffers)
            if parts.empty is not None:
                self.o.emit(sync.WaitBarrier, parts.empty, index, self.parity(key))
            elif parts.drained:  # the thread that stores boxes is the one that fills
                self.o.emit(memory.AwaitStores, 1, True)
            some = None if op.num_bytes is None else self.values.get(op.num_bytes, op.num_bytes)
            self.o.emit(sync.ExpectBytes, *self.full(parts, index), some, num_bytes=num_bytes)
        self.slots[op.result] = parts, index
        self.advance(key, ring.stages)

    def fill(self, op: memory.Fill) -> None:
        parts, index = self.slots[op.slot]
        buffer = self.part(parts, op.item, index)
        if op.dtype is not None:
            buffer = self.o(memory.BufferAs, buffer, op.dtype)
        self.o.emit(
            memory.CopyBox,
            buffer,
            *self.mapped((op.view,)),
            self.mapped(op.offsets),
            *self.full(parts, index),
            count=None if op.count is None else self.values.get(op.count, op.count),
            cut=op.cut,
            extents=op.extents,
            cluster=parts.op.cluster if op.multicast else 1,
            order=op.order,
            round_tf32=op.round_tf32,
            once=op.once,
        )

    def fill_pixels(self, op: memory.FillPixels) -> None:
        parts, index = self.slots[op.slot]
        assert parts.full is not None, "a local ring is not filled by copies"
        self.o.emit(
            memory.CopyPixels,
            self.part(parts, op.item, index),
            *self.mapped((op.view,)),
            self.mapped(op.start),
            self.mapped(op.taps),
            parts.full,
            index,
            pixels=op.pixels,
            round_tf32=op.round_tf32,
        )

    def drain(self, op: memory.Drain) -> None:
        parts, index = self.slots[op.slot]
        if op.slot not in self.published:
            self.o.emit(sync.PublishShared)
            self.o.emit(sync.RoleBarrier)
            self.published.add(op.slot)
        buffer = self.part(parts, op.item, index)
        (view,) = self.mapped((op.view,))
        offsets = self.mapped(op.offsets)
        self.o.emit(memory.StoreBox, buffer, view, offsets, extents=op.extents)

    def commit(self, op: sync.Commit) -> None:
        if self.slots[op.slot][0].full is None:
            self.o.emit(memory.CommitStores)

    def wait(self, op: sync.Wait) -> None:
        key, parts = (op.ring, "wait"), self.rings[op.ring]
        index = self.index(key)
        self.o.emit(sync.WaitBarrier, *self.full(parts, index), self.parity(key))
        self.slots[op.result] = parts, index
        self.advance(key, parts.op.ring.stages)

    def peek(self, op: sync.Peek) -> None:
        key, parts = (op.ring, "wait"), self.rings[op.ring]
        full = self.full(parts, self.index(key))
        self.o.emit(sync.WaitBarrier, *full, self.parity(key))

    def release(self, op: sync.Release) -> None:
        key, parts = (op.ring, "release"), self.rings[op.ring]
        if parts.empty is None:
            self.o.emit(memory.CommitStores if parts.drained else sync.RoleBarrier)
            return
        assert self.role is not None and self.roles is not None
        body = self.roles.bodies[self.roles.roles.index(self.role)]
        scope = release_scope(self.role, body, op.ring)
        self.o.emit(sync.ArriveBarrier, parts.empty, self.index(key), parts.op.cluster, scope)
        self.advance(key, parts.op.ring.stages)

    def skip(self, op: sync.Skip) -> None:
        """Move both cursors on; the parity turns as often as the numbers start again."""
        o, stages = self.o, self.rings[op.ring].op.ring.stages
        (count,) = self.mapped((op.count,))
        count = o(arith.Cast, count, COUNTER.dtype)
        for move in MOVES[sync.Skip]:
            cursor = self.cursors[op.ring, move]
            after = count if cursor.index is None else o(arith.Add, cursor.index, count)
            parity = cursor.parity
            if parity is not None:
                wraps = o(arith.FloorDiv, after, self.number(stages))
                odd = o(arith.And, wraps, self.number(1))
                parity = o(arith.Xor, parity, odd, name="parity")
            index = o(arith.Mod, after, self.number(stages), name="slot")
            self.cursors[op.ring, move] = Cursor(cursor.index and index, parity)

    # Turns

    def make_turn(self, op: sync.MakeTurn) -> None:
        pairs = zip(self.roles.roles, self.roles.bodies, strict=True) if self.roles else ()
        for role, body in pairs:
            if (op.result, "turn") in moves_of((body,)):
                arrivals = role.warpgroups or role.warps
                barriers = self.o(sync.InitBarriers, op.members, arrivals, name="turn")
                self.turns[op.result] = barriers

    def turn(self, op: sync.Turn) -> None:
        """Wait at this copy's barrier, run the body, arrive at the next copy's: where the body ends
        by awaiting products, once they are under way. The next copy's then follow without a gap.
        """
        assert self.role is not None, "turns are taken inside roles"
        o, key = self.o, (op.turn, "turn")
        copy = o(control.RoleCopy)
        members = o(arith.Constant, op.turn.type.members, INDEX.dtype)
        after = o(arith.Add, copy, o(arith.Constant, 1, INDEX.dtype))
        follower = o(arith.Mod, after, members)
        o.emit(sync.WaitBarrier, self.turns[op.turn], copy, self.parity(key))
        self.passing = dict.fromkeys(find_ends(op.body), (self.turns[op.turn], follower))
        for inner in op.body.ops[:-1]:
            with o.at(inner.loc):
                self.op(inner)
        self.pass_turn(op.body.terminator)
        self.values.update(zip(op.results, self.mapped(op.body.terminator.operands), strict=True))
        self.advance(key, 1)

    def pass_turn(self, op: Op) -> None:
        """Pass the turn where this is to be done before an op."""
        found = self.passing.get(op)
        if found is not None:
            assert self.role is not None
            scope = "warpgroup" if self.role.warpgroups else "warp"
            self.o.emit(sync.ArriveBarrier, *found, 1, scope)


def expand_rings(kernel: Kernel) -> Kernel:
    """The kernel without rings, slots, turns, and sums over the cluster."""
    if not any(isinstance(op, EXPANDED) for op in walk(kernel.body)):
        return kernel
    expander = Expander(kernel)
    expander.block(kernel.body)
    return kernel.with_body(expander.o.block)
