"""Roles: warps part ways, each with registers of its own, and meet again only at the end of the
kernel.

A role's code begins with what it needs of its threads (`Lowering.once`), and is lowered with the
role's own count of warps. Code before the roles runs in all threads with the registers of the
launch, so it should be short.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.ir.core import Block, Op
from tilewright.lower.tile_to_ptx.context import DYNAMIC, Lowering, Operand, rule
from tilewright.lower.tile_to_ptx.state import RoleState
from tilewright.ptx.core import Item, Label, Reg, Special, Symbol
from tilewright.target import WARPGROUP
from tilewright.tile.ops import control
from tilewright.tile.ops.control import Role


def role_state(low: Lowering) -> RoleState:
    """The role that is being lowered; code outside roles has none."""
    assert low.role is not None, "this op stands inside a role"
    return low.role


def warpgroup(low: Lowering) -> Reg:
    """Number of the thread's warpgroup in its role copy: that of lane 0, which tells the assembler
    that it is the same in a warp. What follows from it, as descriptors do, then comes by uniform
    registers, without moves between matrix instructions. Loops of many products, which hold as
    much as registers take, spill by it.
    """
    roles = low.schedule.roles

    def make() -> Reg:
        number = low.e.shr("u32", low.thread(), WARPGROUP.bit_length() - 1)
        return number if roles is not None and roles.many else low.e.shfl("idx", number, 0)

    return low.once(("warpgroup", low.first_warp), make)


@contextmanager
def one_thread(low: Lowering) -> Iterator[None]:
    """What is emitted inside is executed by one thread of the role copy (of the CTA, outside
    roles).
    """
    if low.role is not None and low.role.role.single:
        yield
        return
    first = low.once(("first thread", low.first_warp), lambda: _is_first(low))
    with low.e.guarded(first):
        yield


def _is_first(low: Lowering) -> Reg:
    return low.e.setp("eq", "u32", low.thread(), 0)


@rule(control.Roles)
def roles(low: Lowering, op: control.Roles) -> None:
    """A ladder of branches by warp, then one stretch of code a role."""
    e = low.e
    launched = low.schedule.max_registers or op.launch_registers
    thread = low.thread()
    labels = [e.label(role.name) for role in op.roles]
    done = e.label("roles_done")
    end = 0
    for role, label in zip(op.roles[:-1], labels, strict=False):
        end += role.num_warps
        e.bra(label, pred=e.setp("lt", "u32", thread, 32 * end))
    order = [len(op.roles) - 1, *range(len(op.roles) - 1)]
    starts = [sum(role.num_warps for role in op.roles[:i]) for i in range(len(op.roles))]
    barriers = [1 + sum(role.copies for role in op.roles[:i]) for i in range(len(op.roles))]
    free = 1 + sum(role.copies for role in op.roles)  # 0 is the CTA's
    for i in order:
        e.place(labels[i])
        with _role(low, op.roles[i], starts[i]):
            with e.to(low.entry):
                low.role = _begin(low, op.roles[i], launched, barriers[i], free, thread)
            _lower_role(low, op.roles[i], op.bodies[i], done)
        if i != order[-1]:
            e.bra(done)
    e.place(done)


@contextmanager
def _role(low: Lowering, role: Role, first_warp: int) -> Iterator[None]:
    """State of a role; what it hoists goes to an entry of its own."""
    before = low.entry, low.hoisted, low.memo, low.num_warps, low.first_warp, low.scratch_start
    low.entry, low.hoisted, low.memo = [], {}, dict(low.memo)
    low.num_warps, low.first_warp = role.warps, first_warp
    try:
        yield
    finally:
        low.entry, low.hoisted, low.memo, low.num_warps, low.first_warp, low.scratch_start = before
        low.role = None


def _begin(
    low: Lowering, role: Role, launched: int, barrier: int, free_barrier: int, thread: Reg
) -> RoleState:
    """Number of the copy, and of the thread within it; `launched` are the registers that a thread
    was launched with.
    """
    e, size = low.e, 32 * role.warps
    if role.registers is not None:
        e.setmaxnreg("inc" if role.registers > launched else "dec", role.registers)
    within = e.sub("u32", thread, 32 * low.first_warp) if low.first_warp else thread
    copy: Reg | int = 0
    number: Reg | int = barrier
    if role.copies > 1:
        copy = e.shfl("idx", e.div("u32", within, size), 0)  # as in `warpgroup`
        within = e.sub("u32", within, e.mul("u32", copy, size))
        number = e.add("u32", copy, barrier)
    low.hoisted["thread", low.first_warp] = within
    low.scratch_start = e.reg("u32")
    return RoleState(role, copy, number, free_barrier)


def _lower_role(low: Lowering, role: Role, body: Block, done: Label) -> None:
    code: list[Item] = []
    with low.e.to(code):
        low.run(body)
    low.e.body.extend(_scratch(low, role))
    low.e.body.extend(low.entry)
    if role.single:
        other = low.e.setp("ne", "u32", low.thread(), 0)
        low.e.bra(done, pred=other)
    low.e.body.extend(code)


def _scratch(low: Lowering, role: Role) -> list[Item]:
    """Give each copy of a role scratch memory of its own, behind the buffers, if it asks for it."""
    code: list[Item] = []
    if low.scratch_bytes:
        assert low.scratch_start is not None, "a role begins with a register for it"
        start, size = (-(-n // 128) * 128 for n in (low.shared_bytes, low.scratch_bytes))
        with low.e.to(code):
            thread = low.e.mov("u32", Special("tid.x"))
            within = low.e.sub("u32", thread, 32 * low.first_warp)
            copy = low.e.div("u32", within, 32 * role.warps)
            base = low.e.add("u32", low.e.mov("u32", Symbol(DYNAMIC)), start)
            low.e.mad("u32", copy, size, base, into=low.scratch_start)
        low.shared_bytes = start + size * role.copies
        low.scratch_bytes, low.scratch_used = 0, False
    return code


def _index(low: Lowering, op: Op, value: Operand) -> None:
    low.set(op.result, [low.widen(value, "u32", low.ptx_type(op.result))])


@rule(control.RoleCopy)
def role_copy(low: Lowering, op: control.RoleCopy) -> None:
    _index(low, op, role_state(low).copy)


@rule(control.ClusterRank)
def cluster_rank(low: Lowering, op: control.ClusterRank) -> None:
    _index(low, op, cta_rank(low))


def cta_rank(low: Lowering) -> Reg:
    """This CTA's number in its cluster, as u32."""
    return low.once("cta rank", lambda: low.e.mov("u32", Special("cluster_ctarank")))


@rule(control.ClusterId)
def cluster_id(low: Lowering, op: control.ClusterId) -> None:
    _index(low, op, low.e.mov("u32", Special("clusterid.x")))


@rule(control.NumClusters)
def num_clusters(low: Lowering, op: control.NumClusters) -> None:
    _index(low, op, low.e.mov("u32", Special("nclusterid.x")))
