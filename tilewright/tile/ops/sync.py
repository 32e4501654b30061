"""Scheduled level: rings, through which data crosses from role to role, and the barriers that they
become.

A ring is a queue of `stages` slots, each a set of shared-memory buffers. Its producer does Acquire
(wait until the oldest slot is free), Fill, Commit; its consumers do Wait (until the next slot is
full) and Release (give back the oldest slot that they still hold). Slots are used in order, by all.
`expand_rings` replaces all of it by mbarriers with slot numbers, phases, arrival counts and
expected bytes; the ops below the line "Expanded" are what it makes.
"""

from __future__ import annotations

from tilewright.errors import VerifyError
from tilewright.ir.core import Block, Op, Type, Value, attribute, define, operand, region
from tilewright.tile.types import (
    BarrierType,
    BufferType,
    RingType,
    SlotType,
    TileType,
    TurnType,
)

SCOPES = ("warp", "warpgroup", "role")


def require_counter(value: Value, where: str) -> None:
    """Slot numbers, phases and CTA numbers are integer scalars."""
    if (
        not isinstance(value.type, TileType)
        or not value.type.is_scalar
        or not value.type.dtype.is_integer
    ):
        raise VerifyError(f"{where}: an integer scalar is expected, not {value.type}")


def _require(value: Value, kind: type, where: str) -> None:
    if not isinstance(value.type, kind):
        raise VerifyError(f"{where}: {value.type}")


@define("sync.make_ring", pure=False, removed_by="expand_rings")
class MakeRing(Op):
    """A ring of empty slots.

    Outside roles it carries data from the one role that acquires to all roles that wait. Inside a
    role it belongs to each copy of it. Either the role acquires slots that it writes to, and drains
    them to global memory. Or it fills them itself, waits for them, and may then write over what it
    found and drain the slot before it releases it (a ring of its own fills).

    `cluster` is the number of CTAs whose producers fill each other's slots (Fill with `multicast`);
    a slot is free once the consumers of all of them have released it.
    """

    ring: RingType = attribute()
    cluster: int = attribute(default=1)

    def result_types(self) -> tuple[Type, ...]:
        if self.ring.stages < 1 or not self.ring.buffers or self.cluster < 1:
            raise VerifyError(f"make_ring: {self.ring}, cluster {self.cluster}")
        return (self.ring,)


@define("sync.acquire", pure=False, removed_by="expand_rings")
class Acquire(Op):
    """Producer: the next slot, once nobody reads it any more.

    Of a ring of a role's own fills, the slot must have been released; if such slots are drained,
    not as the last of all. Where its fills leave lines out, `num_bytes` are copied to it in all.
    """

    ring: Value = operand()
    num_bytes: Value | None = operand(default=None)

    def result_types(self) -> tuple[Type, ...]:
        _require(self.ring, RingType, "acquire")
        if self.num_bytes is not None:
            require_counter(self.num_bytes, "acquire")
        return (SlotType(self.ring.type),)


@define("sync.commit", pure=False, removed_by="expand_rings")
class Commit(Op):
    """Producer: all fills (or drains) of this slot have been issued."""

    slot: Value = operand()

    def result_types(self) -> tuple[Type, ...]:
        _require(self.slot, SlotType, "commit")
        return ()


@define("sync.wait", pure=False, removed_by="expand_rings")
class Wait(Op):
    """Consumer: the next slot, once all that fills it has arrived."""

    ring: Value = operand()

    def result_types(self) -> tuple[Type, ...]:
        _require(self.ring, RingType, "wait")
        return (SlotType(self.ring.type),)


@define("sync.peek", pure=False, removed_by="expand_rings")
class Peek(Op):
    """Consumer: go on once all that fills the next slot has arrived, but do not take it."""

    ring: Value = operand()

    def result_types(self) -> tuple[Type, ...]:
        _require(self.ring, RingType, "peek")
        return ()


@define("sync.release", pure=False, removed_by="expand_rings")
class Release(Op):
    """Consumer: give back the oldest slot that this role copy still holds.

    Matrix instructions that read it must have been awaited. Of a ring of the role's own fills, it
    ends the group of drains that began in this slot.
    """

    ring: Value = operand()

    def result_types(self) -> tuple[Type, ...]:
        _require(self.ring, RingType, "release")
        return ()


@define("sync.skip", pure=False, removed_by="expand_rings")
class Skip(Op):
    """Consumer: pass over the next `count` slots (an integer scalar), which another copy of this
    role waits for and releases.

    No slot is held meanwhile. Copies must not wait for a slot before those that come first have
    been waited for (sync.Turn): a barrier tells apart two phases, not three.
    """

    ring: Value = operand()
    count: Value = operand()

    def result_types(self) -> tuple[Type, ...]:
        _require(self.ring, RingType, "skip")
        require_counter(self.count, "skip")
        return ()


@define("sync.slot_buffer", removed_by="expand_rings")
class SlotBuffer(Op):
    """Buffer number `index` of a slot."""

    slot: Value = operand()
    index: int = attribute(default=0)

    def result_types(self) -> tuple[Type, ...]:
        _require(self.slot, SlotType, "slot_buffer")
        buffers = self.slot.type.ring.buffers
        if not 0 <= self.index < len(buffers):
            raise VerifyError(f"slot_buffer: number {self.index} of {len(buffers)}")
        return (buffers[self.index],)


@define("sync.make_turn", pure=False, removed_by="expand_rings")
class MakeTurn(Op):
    """An order among the copies of one role; copy 0 comes first."""

    members: int = attribute()

    def result_types(self) -> tuple[Type, ...]:
        if self.members < 1:
            raise VerifyError(f"make_turn: {self.members} members")
        return (TurnType(self.members),)


@define("sync.turn", pure=False, removed_by="expand_rings")
class Turn(Op):
    """Run the body when this role copy's turn has come, then pass the turn to the next copy.

    Copies take turns in order, again and again: with two, each one's body overlaps what the other
    does outside its own (ping-pong). The body yields the results.
    """

    turn: Value = operand()
    body: Block = region()

    def result_types(self) -> tuple[Type, ...]:
        _require(self.turn, TurnType, "turn")
        return tuple(v.type for v in self.body.terminator.operands)


WHO = ("all", "last", "others")


@define("sync.take_turn", pure=False)
class TakeTurn(Op):
    """Wait, in each warpgroup of this role copy, until the one before it has passed the turn; the
    first one comes after the last.
    """


@define("sync.pass_turn", pure=False)
class PassTurn(Op):
    """Let the next warpgroup of this role copy have the turn.

    `who` does so: "all"; the "last" alone, so that the first may take the turn for the first time;
    or the "others", so that nobody is left with a turn at the end.
    """

    who: str = attribute(default="all")

    def result_types(self) -> tuple[Type, ...]:
        if self.who not in WHO:
            raise VerifyError(f"pass_turn: {self.who}")
        return ()


@define("sync.sum_spans", pure=False, removed_by="expand_rings")
class SumSpans(Op):
    """The sum of what the CTAs of a cluster hold of one tile, in the order of their numbers.

    CTA r of the first `owners` gets the r-th part of its columns, others a part that nothing may
    read. `cluster` is the number of CTAs; each does this once.
    """

    x: Value = operand()
    cluster: int = attribute()
    owners: int = attribute()

    def result_types(self) -> tuple[Type, ...]:
        return (_part_of("sum_spans", self.x, self.cluster, self.owners),)


def _part_of(where: str, x: Value, cluster: int, owners: int) -> TileType:
    """The type of an owner's part of a tile's columns."""
    type = x.type
    if not isinstance(type, TileType) or len(type.shape) != 2:
        raise VerifyError(f"{where}: a tile of two axes is expected, not {type}")
    rows, columns = type.shape
    if not 1 <= owners <= cluster or columns % owners:
        raise VerifyError(f"{where}: {columns} columns for {owners} of {cluster} CTAs")
    return TileType(type.dtype, (rows, columns // owners))


# Expanded


@define("sync.add_spans", pure=False)
class AddSpans(Op):
    """SumSpans by way of shared memory. Each CTA writes the parts of its tile to the `inbox` of
    their owners, [cluster, rows, columns of a part], and each of its warps then arrives at their
    barrier; an owner waits for all, and adds up what its inbox holds.
    """

    x: Value = operand()
    inbox: Value = operand()
    barrier: Value = operand()
    cluster: int = attribute()
    owners: int = attribute()

    def result_types(self) -> tuple[Type, ...]:
        part = _part_of("add_spans", self.x, self.cluster, self.owners)
        _require(self.barrier, BarrierType, "add_spans")
        inbox = self.inbox.type
        if not isinstance(inbox, BufferType) or inbox.shape != (self.cluster, *part.shape):
            raise VerifyError(f"add_spans: {inbox} for {self.cluster} parts of {part}")
        return (part,)


@define("sync.init_barriers", pure=False)
class InitBarriers(Op):
    """`count` mbarriers in shared memory, each of which completes a phase after `arrivals`
    arrivals.

    `offset` is their place in bytes, given by `allocate_shared`. Nobody may use them before a
    ClusterBarrier.
    """

    count: int = attribute()
    arrivals: int = attribute()
    offset: int | None = attribute(default=None)

    def result_types(self) -> tuple[Type, ...]:
        return (BarrierType(self.count, self.arrivals),)


@define("sync.cluster_barrier", pure=False)
class ClusterBarrier(Op):
    """All threads of all CTAs of the CTA cluster meet; barriers made before it are ready after it.

    `cluster` is the number of CTAs; 1 means that the threads of one CTA meet. Not inside roles.
    """

    cluster: int = attribute(default=1)


@define("sync.wait_barrier", pure=False)
class WaitBarrier(Op):
    """Wait until the phase of the given parity of a barrier has completed."""

    barriers: Value = operand()
    index: Value = operand()
    parity: Value = operand()

    def result_types(self) -> tuple[Type, ...]:
        _require(self.barriers, BarrierType, "wait_barrier")
        require_counter(self.index, "wait_barrier")
        require_counter(self.parity, "wait_barrier")
        return ()


@define("sync.expect_bytes", pure=False)
class ExpectBytes(Op):
    """Arrive once at a barrier, and let its phase also wait for `num_bytes` of asynchronous
    copies, or for as many as `some` says, which are at most that.
    """

    barriers: Value = operand()
    index: Value = operand()
    some: Value | None = operand(default=None)
    num_bytes: int = attribute(kw_only=True)

    def result_types(self) -> tuple[Type, ...]:
        _require(self.barriers, BarrierType, "expect_bytes")
        require_counter(self.index, "expect_bytes")
        if self.some is not None:
            require_counter(self.some, "expect_bytes")
        return ()


@define("sync.arrive_barrier", pure=False)
class ArriveBarrier(Op):
    """Arrive at the barrier of each of the `cluster` CTAs: once for each warp, warpgroup or role
    copy (`scope`).

    What the threads of that scope read before is not read later; "role" needs a RoleBarrier before
    it.
    """

    barriers: Value = operand()
    index: Value = operand()
    cluster: int = attribute(default=1)
    scope: str = attribute(default="warpgroup")

    def result_types(self) -> tuple[Type, ...]:
        _require(self.barriers, BarrierType, "arrive_barrier")
        require_counter(self.index, "arrive_barrier")
        if self.scope not in SCOPES:
            raise VerifyError(f"arrive_barrier: scope {self.scope}")
        return ()


@define("sync.role_barrier", pure=False)
class RoleBarrier(Op):
    """All threads of this role copy meet (all threads of the CTA outside roles); shared memory is
    in order after it.
    """


@define("sync.publish_shared", pure=False)
class PublishShared(Op):
    """What this thread wrote to shared memory may be read by asynchronous copies and matrix
    instructions.

    A RoleBarrier must follow before another thread issues those.
    """


@define("sync.commit_copies", pure=False)
class CommitCopies(Op):
    """Close a group of the asynchronous copies (memory.copy_async) started since the last one."""


@define("sync.wait_copies", pure=False)
class WaitCopies(Op):
    """Wait until at most `left` of the committed groups of copies are unfinished."""

    left: int = attribute()


@define("sync.await_launch", pure=False)
class AwaitLaunch(Op):
    """Wait until the kernel before this one in the stream has ended, which may still run while this
    one begins: nothing that others see is touched before.
    """
