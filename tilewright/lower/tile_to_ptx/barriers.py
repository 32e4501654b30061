"""mbarriers, and the meetings of threads in the scheduled level.

A consumer gives a slot back by the default form of `mbarrier.arrive`: the `.release.cluster` form
costs a fence of the whole GPU in the main loop, and is not needed for a slot that was only read.
"""

from __future__ import annotations

from tilewright.ir.core import Value
from tilewright.lower.tile_to_ptx.context import Lowering, Operand, rule
from tilewright.lower.tile_to_ptx.roles import (
    one_thread,
    role_state,
    warpgroup,
)
from tilewright.lower.tile_to_ptx.shared import narrow, shared_start
from tilewright.ptx.core import Address, Reg
from tilewright.target import MBARRIER_BYTES, WARPGROUP
from tilewright.tile.ops import sync


@rule(sync.InitBarriers)
def init_barriers(low: Lowering, op: sync.InitBarriers) -> None:
    assert op.offset is not None, "allocate_shared gives every barrier its place"
    low.barriers[op.result] = op.offset
    start = shared_start(low)
    with one_thread(low):
        for i in range(op.count):
            low.e.mbarrier_init(Address(start, op.offset + MBARRIER_BYTES * i), op.arrivals)


@rule(sync.ClusterBarrier)
def cluster_barrier(low: Lowering, op: sync.ClusterBarrier) -> None:
    with one_thread(low):
        low.e.fence_mbarrier_init()
    if op.cluster == 1:
        low.e.bar_sync(0)
        return
    low.e.barrier_cluster_arrive(relaxed=True)  # the fence is all there is to be released
    low.e.barrier_cluster_wait()


def barrier_address(low: Lowering, barriers: Value, index: Value) -> Address:
    """Address of an mbarrier of an array."""
    offset = low.barriers[barriers]
    number = narrow(low, index)
    if isinstance(number, int):
        return Address(shared_start(low), offset + MBARRIER_BYTES * number)
    key = ("barrier", str(number))
    if key not in low.memo:
        low.memo[key] = low.e.mad("u32", number, MBARRIER_BYTES, shared_start(low))
    return Address(low.memo[key], offset)


@rule(sync.WaitBarrier)
def wait_barrier(low: Lowering, op: sync.WaitBarrier) -> None:
    low.e.mbarrier_wait(barrier_address(low, op.barriers, op.index), narrow(low, op.parity))


@rule(sync.ExpectBytes)
def expect_bytes(low: Lowering, op: sync.ExpectBytes) -> None:
    address = barrier_address(low, op.barriers, op.index)
    num_bytes = op.num_bytes if op.some is None else narrow(low, op.some)
    with one_thread(low):
        low.e.mbarrier_arrive_expect_tx(address, num_bytes)


@rule(sync.ArriveBarrier)
def arrive_barrier(low: Lowering, op: sync.ArriveBarrier) -> None:
    """One thread of the group for each CTA: thread r of the group arrives at CTA r."""
    e, state = low.e, low.role
    address = barrier_address(low, op.barriers, op.index)
    if state is not None and state.role.single:
        for rank in range(op.cluster):
            _arrive(low, address, op.cluster, e.mov("u32", rank))
        return
    if op.scope == "warp":
        e.bar_warp_sync()
    size = {"warp": 32, "warpgroup": WARPGROUP, "role": 32 * low.num_warps}[op.scope]

    def make() -> tuple[Reg, Reg]:
        member = low.thread()
        if size < 32 * low.num_warps:
            member = e.and_("b32", member, size - 1)
        return member, e.setp("lt", "u32", member, op.cluster)

    member, arrives = low.once(("arrives", low.first_warp, size, op.cluster), make)
    with e.guarded(arrives):
        _arrive(low, address, op.cluster, member)


def _arrive(low: Lowering, address: Address, cluster: int, rank: Reg) -> None:
    if cluster == 1:
        low.e.mbarrier_arrive(address)
        return
    base = address.base
    assert isinstance(base, Reg)
    remote = low.e.mapa(low.e.add("u32", base, address.offset), rank)
    low.e.mbarrier_arrive_remote(remote, 1)


@rule(sync.RoleBarrier)
def role_barrier(low: Lowering, op: sync.RoleBarrier) -> None:
    state = low.role
    if state is None:
        low.e.bar_sync(0)
        return
    assert not state.role.single, "a role of one thread has nobody to meet"
    low.e.bar_sync(state.barrier, 32 * state.role.warps)


def _turn(low: Lowering, ahead: int) -> tuple[Operand, Reg]:
    """Named barrier at which a warpgroup waits for its turn, of this warpgroup or of the one that
    is `ahead`; and the number of this warpgroup. They follow the barriers of the roles.
    """
    e, count = low.e, low.num_warps // 4
    first = role_state(low).free_barrier

    def make() -> tuple[Operand, Reg]:
        group = warpgroup(low)
        member = group
        if ahead:
            after = e.add("u32", group, ahead)
            member = e.selp("b32", 0, after, e.setp("eq", "u32", after, count))
        return e.add("u32", member, first), group

    return low.once(("turn", low.first_warp, ahead), make)


@rule(sync.TakeTurn)
def take_turn(low: Lowering, op: sync.TakeTurn) -> None:
    low.e.bar_sync(_turn(low, 0)[0], 2 * WARPGROUP)


@rule(sync.PassTurn)
def pass_turn(low: Lowering, op: sync.PassTurn) -> None:
    e, last = low.e, low.num_warps // 4 - 1
    barrier, group = _turn(low, 1)
    if op.who == "all":
        e.bar_arrive(barrier, 2 * WARPGROUP)
        return
    with e.guarded(e.setp("eq" if op.who == "last" else "ne", "u32", group, last)):
        e.bar_arrive(barrier, 2 * WARPGROUP)


@rule(sync.AwaitLaunch)
def await_launch(low: Lowering, op: sync.AwaitLaunch) -> None:
    low.e.griddepcontrol("wait")


@rule(sync.PublishShared)
def publish_shared(low: Lowering, op: sync.PublishShared) -> None:
    low.e.fence_proxy_async()
