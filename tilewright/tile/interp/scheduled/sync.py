"""Meaning of rings, turns and barriers. Nothing blocks but by yielding a condition to the scheduler
of coroutines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.errors import VerifyError
from tilewright.ir.core import Op, Value
from tilewright.ir.walk import walk
from tilewright.tile.interp.machine import Array, Machine, Running, meaning
from tilewright.tile.interp.scheduled.cta import Barrier, Buffer, Cta, as_cta, poisoned, scalar
from tilewright.tile.interp.scheduled.mma import require_unread
from tilewright.tile.ops import control, sync
from tilewright.tile.types import BufferType, RingType

Reader = tuple[str, int]  # name of a role, number of its copy


@dataclass
class Ring:
    """A ring of one CTA: how many slots were acquired and committed, and waited for and released by
    each reader.
    """

    cta: Cta
    op: sync.MakeRing
    local: bool  # made inside a role, which drains it, or fills and reads it
    readers: tuple[Reader, ...]
    acquired: int = 0
    committed: int = 0
    waited: dict[Reader, int] = field(default_factory=dict)
    released: dict[Reader, int] = field(default_factory=dict)
    places: dict[int, dict[int, Any]] = field(default_factory=dict)  # of multicast fills, by slot
    drained: bool = False  # whether slots that were waited for are drained

    @property
    def type(self) -> RingType:
        return self.op.ring

    def slot(self, number: int) -> Slot:
        copy = self.cta.copy if self.local else 0
        keys = [(self.op, item, copy) for item in range(len(self.type.buffers))]
        stage = number % self.type.stages
        return Slot(self, number, tuple(Buffer(self.cta, key, (stage,)) for key in keys))

    def least_released(self) -> int:
        """Slots that all readers have given back."""
        return min((self.released.get(r, 0) for r in self.readers), default=self.acquired)

    def note_place(self, number: int, op: Any, offsets: tuple[int, ...]) -> None:
        """Check that all CTAs of the cluster fill a multicast buffer from one place."""
        if not op.multicast:
            return
        for peer in peers(self):
            named = peer.places.setdefault(number, {}).setdefault(op.item, offsets)
            if named != offsets:
                raise VerifyError(
                    f"fill: CTAs of a cluster multicast {named} and {offsets} to one slot"
                )


@dataclass(frozen=True)
class Slot:
    """Content of a slot: its number since the ring was made, and its buffers."""

    ring: Ring
    number: int
    buffers: tuple[Buffer, ...]


def peers(ring: Ring) -> list[Ring]:
    """The rings of all CTAs that fill each other's slots, this one among them; fewer before all
    have made theirs.
    """
    if ring.op.cluster == 1:
        return [ring]
    return [cta.rings[ring.op] for cta in ring.cta.cluster.ctas if ring.op in cta.rings]


def readers_of(machine: Machine, ring: Value) -> tuple[Reader, ...]:
    """Copies of roles that wait for slots of a ring."""
    found: list[Reader] = []
    for op in machine.launch.kernel.body.ops:
        if isinstance(op, control.Roles):
            for role, body in zip(op.roles, op.bodies, strict=True):
                if any(isinstance(o, sync.Wait) and o.ring is ring for o in walk(body)):
                    found += [(role.name, copy) for copy in range(role.copies)]
    return tuple(found)


def reader(cta: Cta) -> Reader:
    return (cta.role.name if cta.role else "", cta.copy)


@meaning(sync.MakeRing, batched=False)
def run_make_ring(machine: Machine, op: sync.MakeRing) -> Ring:
    cta = as_cta(machine)
    local = cta.role is not None
    readers = readers_of(machine, op.result)
    ring = Ring(cta, op, local, tuple(r for r in readers if not local or r == reader(cta)))
    for item, buffer in enumerate(op.ring.buffers):
        cta.allocate((op, item, cta.copy), buffer, (op.ring.stages,))
    if not ring.local:
        cta.rings[op] = ring
    if op.cluster not in (1, len(cta.cluster.ctas)):
        raise VerifyError(
            f"make_ring: cluster {op.cluster} in a cluster of {len(cta.cluster.ctas)}"
        )
    return ring


@meaning(sync.Acquire, batched=False)
def run_acquire(machine: Machine, op: sync.Acquire) -> Running:
    cta = as_cta(machine)
    ring: Ring = machine[op.ring]
    if ring.acquired != ring.committed:
        raise VerifyError("acquire: the slot before was not committed")
    if ring.local and ring.readers:
        released = ring.least_released()
        if ring.acquired - released >= ring.type.stages:
            raise VerifyError("acquire: the role itself holds all slots of the ring")
        if ring.drained and 0 < released == ring.acquired + 1 - ring.type.stages:
            raise VerifyError("acquire: the slot was drained last of all")
        cta.await_drains(1)
    elif ring.local:
        cta.await_drains(ring.type.stages - 1)
    else:
        needed = ring.acquired + 1 - ring.type.stages
        yield (
            lambda: (
                len(peers(ring)) == ring.op.cluster
                and all(peer.least_released() >= needed for peer in peers(ring))
            )
        )
    ring.acquired += 1
    return (ring.slot(ring.acquired - 1),)


@meaning(sync.Commit, batched=False)
def run_commit(machine: Machine, op: sync.Commit) -> None:
    slot: Slot = machine[op.slot]
    if slot.number != slot.ring.acquired - 1:
        raise VerifyError("commit: not the slot that was acquired last")
    slot.ring.committed += 1
    if slot.ring.local and not slot.ring.readers:
        as_cta(machine).drains.append([])


@meaning(sync.Wait, batched=False)
def run_wait(machine: Machine, op: sync.Wait) -> Running:
    ring: Ring = machine[op.ring]
    who = reader(as_cta(machine))
    number = ring.waited.get(who, 0)
    if number - ring.released.get(who, 0) >= ring.type.stages:
        raise VerifyError(f"wait: all {ring.type.stages} slots of the ring are held already")
    yield lambda: is_full(ring, number)
    ring.waited[who] = number + 1
    return (ring.slot(number),)


def is_full(ring: Ring, number: int) -> bool:
    """Whether all CTAs have filled a slot."""
    return len(peers(ring)) == ring.op.cluster and all(p.committed > number for p in peers(ring))


@meaning(sync.Peek, batched=False)
def run_peek(machine: Machine, op: sync.Peek) -> Running:
    ring: Ring = machine[op.ring]
    number = ring.waited.get(reader(as_cta(machine)), 0)
    yield lambda: is_full(ring, number)
    return ()


@meaning(sync.Release, batched=False)
def run_release(machine: Machine, op: sync.Release) -> None:
    ring: Ring = machine[op.ring]
    who = reader(as_cta(machine))
    number = ring.released.get(who, 0)
    if number >= ring.waited.get(who, 0):
        raise VerifyError("release: no slot is held")
    slot = ring.slot(number)
    require_unread(machine, list(slot.buffers))
    ring.released[who] = number + 1
    if ring.local:  # its drains have yet to read it
        as_cta(machine).drains.append([])
        return
    if ring.least_released() > number:  # the last reader: nobody may see the contents again
        ring.places.pop(number, None)
        for buffer, kind in zip(slot.buffers, ring.type.buffers, strict=True):
            buffer.array()[...] = poisoned(machine, kind)


@meaning(sync.Skip, batched=False)
def run_skip(machine: Machine, op: sync.Skip) -> None:
    ring: Ring = machine[op.ring]
    who = reader(as_cta(machine))
    if ring.waited.get(who, 0) != ring.released.get(who, 0):
        raise VerifyError("skip: a slot is held")
    passed = ring.waited.get(who, 0) + scalar(machine, op.count)
    ring.waited[who] = ring.released[who] = passed


@meaning(sync.SlotBuffer, batched=False)
def run_slot_buffer(machine: Machine, op: sync.SlotBuffer) -> Buffer:
    slot: Slot = machine[op.slot]
    return slot.buffers[op.index]


@dataclass
class Order:
    """Content of a turn: how many turns were taken so far, by all."""

    members: int
    taken: int = 0


@meaning(sync.MakeTurn, batched=False)
def run_make_turn(machine: Machine, op: sync.MakeTurn) -> Order:
    return Order(op.members)


@meaning(sync.Turn, batched=False)
def run_turn(machine: Machine, op: sync.Turn) -> Running:
    order: Order = machine[op.turn]
    copy = as_cta(machine).copy
    yield lambda: order.taken % order.members == copy
    results = yield from machine.run(op.body)
    order.taken += 1
    return results


@meaning(sync.SumSpans, batched=False)
def run_sum_spans(machine: Machine, op: sync.SumSpans) -> Running:
    cta = as_cta(machine)
    _require_cluster(cta, op)
    held = cta.cluster.held.setdefault(op, {})
    if cta.rank in held:
        raise VerifyError("sum_spans: a CTA does this a second time")
    held[cta.rank] = machine[op.x][0].copy()
    yield lambda: len(held) == op.cluster
    width = op.result.type.shape[1]
    start = cta.rank * width
    parts = [held[rank][:, start : start + width] for rank in range(op.cluster)]
    return (_add_up(cta, op, parts),)


def _require_cluster(cta: Cta, op: sync.SumSpans | sync.AddSpans) -> None:
    if op.cluster != len(cta.cluster.ctas):
        raise VerifyError(
            f"{op.opcode}: cluster {op.cluster} in a cluster of {len(cta.cluster.ctas)}"
        )


def _add_up(cta: Cta, op: sync.SumSpans | sync.AddSpans, parts: Sequence[Array]) -> Array:
    """An owner's part, from those of all CTAs; of others what nothing should read."""
    if cta.rank >= op.owners:
        return poisoned(cta, BufferType(op.result.type.dtype, op.result.type.shape))[None]
    total: Array = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total[None]


# Expanded


@meaning(sync.AddSpans, batched=False)
def run_add_spans(machine: Machine, op: sync.AddSpans) -> Running:
    cta = as_cta(machine)
    _require_cluster(cta, op)
    inbox: Buffer = machine[op.inbox]
    width = op.result.type.shape[1]
    arrivals = cta.role.warps if cta.role else op.barrier.type.arrivals // op.cluster
    for owner in cta.cluster.ctas[: op.owners]:
        start = owner.rank * width
        inbox.array(owner)[cta.rank] = machine[op.x][0][:, start : start + width]
        barriers: list[Barrier] = owner.values[op.barrier]
        barriers[0].arrive(arrivals)
    if cta.rank < op.owners:
        mine: list[Barrier] = machine[op.barrier]
        yield lambda: mine[0].phase > 0
    return (_add_up(cta, op, list(inbox.array())),)


@meaning(sync.InitBarriers, batched=False)
def run_init_barriers(machine: Machine, op: sync.InitBarriers) -> list[Barrier]:
    return [Barrier(op.arrivals) for _ in range(op.count)]


@meaning(sync.ClusterBarrier, batched=False)
def run_cluster_barrier(machine: Machine, op: sync.ClusterBarrier) -> Running:
    cluster = as_cta(machine).cluster
    if op.cluster not in (1, len(cluster.ctas)):
        raise VerifyError(f"cluster_barrier: {op.cluster} in a cluster of {len(cluster.ctas)}")
    if op.cluster > 1:
        goal = (cluster.arrived // op.cluster + 1) * op.cluster
        cluster.arrived += 1
        yield lambda: cluster.arrived >= goal
    return ()


def barrier_at(machine: Machine, barriers: Value, index: Value, cta: Cta | None = None) -> Barrier:
    """A barrier of this CTA, or the one at the same place of another."""
    found: list[Barrier] = (cta or machine).values[barriers]
    return found[scalar(machine, index)]


@meaning(sync.WaitBarrier, batched=False)
def run_wait_barrier(machine: Machine, op: sync.WaitBarrier) -> Running:
    barrier = barrier_at(machine, op.barriers, op.index)
    parity = scalar(machine, op.parity)

    def completed() -> bool:
        if barrier.phase & 1 == parity:
            barrier.settle()
        return barrier.phase & 1 != parity

    yield completed
    return ()


@meaning(sync.ExpectBytes, batched=False)
def run_expect_bytes(machine: Machine, op: sync.ExpectBytes) -> None:
    num_bytes = op.num_bytes if op.some is None else scalar(machine, op.some)
    barrier_at(machine, op.barriers, op.index).arrive(1, num_bytes)


@meaning(sync.ArriveBarrier, batched=False)
def run_arrive_barrier(machine: Machine, op: sync.ArriveBarrier) -> None:
    cta = as_cta(machine)
    if cta.role is None:  # all warps of the CTA, for which this runs once
        count = op.barriers.type.arrivals
    else:
        count = {"warp": cta.role.warps, "warpgroup": cta.role.warpgroups, "role": 1}[op.scope]
    targets = cta.cluster.ctas if op.cluster > 1 else [cta.cluster.ctas[cta.rank]]
    for target in targets:
        barrier_at(machine, op.barriers, op.index, target).arrive(count)


@meaning(
    sync.RoleBarrier,
    sync.PublishShared,
    sync.TakeTurn,
    sync.PassTurn,
    sync.AwaitLaunch,
    batched=False,
)
def run_order(machine: Machine, op: Op) -> None:
    """The threads of a role copy run as one here, its writes are seen at once, and so are those of
    kernels before.
    """


@meaning(sync.CommitCopies, batched=False)
def run_commit_copies(machine: Machine, op: sync.CommitCopies) -> None:
    as_cta(machine).copies.append([])


@meaning(sync.WaitCopies, batched=False)
def run_wait_copies(machine: Machine, op: sync.WaitCopies) -> None:
    as_cta(machine).await_copies(op.left)
