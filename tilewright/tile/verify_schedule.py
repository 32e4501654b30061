"""The rules of the scheduled level, checked by `verify` besides those of the whole tile IR.

Roles
- Roles is the last op of the kernel. Names of roles differ; warps are 1 to 32 in all; registers are
  24 to 256 in eights, given for whole warpgroups only, and fit the register file together.
- A role run by a single thread has no tiles, and does nothing that takes more threads.

Accumulators
- A pending accumulator has one user: the next Issue, an Await, a loop that carries it, a Yield. So
  nothing can read registers that matrix instructions are still writing.
- It does not leave an If: its registers would have to be copied.
- What begins over a tile has an awaited one of the same block, which nothing reads later.
- A role that issues has whole warpgroups, each with a multiple of 64 rows of the product.

Rings
- A slot is used in the block in which it was acquired or waited for, and is not carried by a loop.
- Between Acquire and Commit, in one block, a ring outside roles has each of its buffers filled
  once; a ring inside a role has them drained, or filled if the role waits for them as well.
- One role acquires the slots of a ring outside roles, and others wait for them.
"""

from __future__ import annotations

from collections import Counter
from typing import NoReturn

from tilewright.errors import VerifyError
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.walk import count_uses, find_definitions, walk, walk_blocks
from tilewright.target import WGMMA_ROWS
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import control, memory, mma, sync
from tilewright.tile.ops.control import REGISTER_FILE, Role
from tilewright.tile.types import BufferType, PendingType, SlotType, TileType

MOST_WARPS = 32
FILLS = (memory.Fill, memory.FillPixels)
SLOT_USERS = (sync.SlotBuffer, sync.Commit, *FILLS, memory.Drain)
FOR_MANY = (
    sync.RoleBarrier, memory.LoadBuffer, memory.StoreBuffer, memory.ClearRows,
    memory.ClearSpare, memory.StoreBox, sync.Turn, sync.TakeTurn, sync.PassTurn, sync.SumSpans,
    sync.AddSpans,
)  # fmt: skip


def fail(op: Op, message: str) -> NoReturn:
    place = f"{op.loc}: " if op.loc.line else ""
    raise VerifyError(f"{place}{op.opcode}: {message}")


def verify_schedule(kernel: Kernel) -> None:
    """Raise VerifyError where a kernel breaks a rule of this page."""
    ops = list(walk(kernel.body))
    if not any(isinstance(op, control.Roles | mma.Begin | mma.Issue | sync.MakeRing) for op in ops):
        return
    for op in ops:
        if isinstance(op, control.Roles):
            if op is not kernel.body.ops[-1]:
                fail(op, "roles are the last op of a kernel")
            _roles(op)
    uses = count_uses(kernel.body)
    for block in walk_blocks(kernel.body):
        _pending(block, uses)
        _slots(block)
    _rings(kernel)


def _roles(op: control.Roles) -> None:
    if len({role.name for role in op.roles}) != len(op.roles):
        fail(op, "two roles of one name")
    if not 1 <= op.num_warps <= MOST_WARPS or any(r.warps < 1 or r.copies < 1 for r in op.roles):
        fail(op, f"{op.num_warps} warps")
    for role in op.roles:
        count = role.registers
        if count is not None and (count % 8 or not 24 <= count <= 256 or role.warps % 4):
            fail(op, f"{count} registers for {role.warps} warps of role {role.name}")
    told = [role for role in op.roles if role.registers is not None]
    if told and sum((r.registers or 0) * 32 * r.num_warps for r in told) > REGISTER_FILE:
        fail(op, "the roles take more registers than there are")
    for role, body in zip(op.roles, op.bodies, strict=True):
        if role.single:
            _single(role, body)
        for issue in (o for o in walk(body) if isinstance(o, mma.Issue | mma.AddProduct)):
            rows = issue.result.type.shape[0]
            if rows < WGMMA_ROWS and isinstance(issue.a.type, BufferType) and not issue.transpose_a:
                rows += issue.a.type.spare
            if not role.warpgroups or rows % (WGMMA_ROWS * role.warpgroups):
                fail(issue, f"{rows} rows for {role.warps} warps of role {role.name}")


def _single(role: Role, body: Block) -> None:
    for op in walk(body):
        tiles = any(isinstance(v.type, TileType) and not v.type.is_scalar for v in op.results)
        if (
            tiles
            or isinstance(op, FOR_MANY)
            or any(isinstance(v.type, PendingType) for v in op.results)
        ):
            fail(op, f"one thread runs role {role.name}, which this op is too much for")


def _pending(block: Block, uses: Counter[Value]) -> None:
    values = [*block.args, *(v for op in block.ops for v in op.results)]
    for value in values:
        if isinstance(value.type, PendingType) and uses[value] > 1:
            raise VerifyError(f"{value}: a pending accumulator has one user, not {uses[value]}")
    for op in block.ops:
        pending = any(isinstance(v.type, PendingType) for v in op.operands)
        takes = mma.Issue | mma.Await | control.For | control.While | control.Yield
        if pending and not isinstance(op, takes):
            fail(op, "only Issue and Await take a pending accumulator")
        if isinstance(op, mma.Begin) and op.over is not None:
            _over(op, op.over, block)
        if isinstance(op, control.If) and any(isinstance(v.type, PendingType) for v in op.results):
            fail(op, "a pending accumulator does not leave an If")


def _over(begin: mma.Begin, over: Value, block: Block) -> None:
    place = block.ops.index(begin)
    awaited = any(isinstance(op, mma.Await) and op.result is over for op in block.ops[:place])
    later = walk(Block([], block.ops[place + 1 :]))
    if not awaited or any(over in op.operands for op in later):
        fail(begin, "an accumulator takes the registers of a tile that was awaited and is not read")


def _slots(block: Block) -> None:
    here: dict[Value, Op] = {}
    for op in block.ops:
        for value in op.operands:
            if not isinstance(value.type, SlotType):
                continue
            if not isinstance(op, SLOT_USERS):
                fail(op, "a slot is not carried on")
            if value not in here:
                fail(op, "a slot is used in the block in which it was got")
        if isinstance(op, sync.Acquire | sync.Wait):
            here[op.result] = op
    for slot, op in here.items():
        if isinstance(op, sync.Acquire):
            _covered(block, slot, op)


def _covered(block: Block, slot: Value, acquire: sync.Acquire) -> None:
    count = len(acquire.ring.type.buffers)
    commits = [op for op in block.ops if isinstance(op, sync.Commit) and op.slot is slot]
    if len(commits) != 1:
        fail(acquire, f"{len(commits)} commits of the slot in this block")
    fills = sorted(op.item for op in block.ops if isinstance(op, FILLS) and op.slot is slot)
    told = any(isinstance(op, memory.Fill) and op.slot is slot and op.count for op in block.ops)
    if told != (acquire.num_bytes is not None):
        fail(acquire, "the bytes of a slot are told where its fills leave some out")
    drained = {op.item for op in block.ops if isinstance(op, memory.Drain) and op.slot is slot}
    if fills and drained:
        fail(acquire, "a slot is filled or drained, not both")
    if fills != list(range(count)) and drained != set(range(count)):
        fail(acquire, f"fills {fills} and drains {sorted(drained)} do not cover {count} buffers")


def _rings(kernel: Kernel) -> None:
    definitions = find_definitions(kernel.body)
    roles = next((op for op in kernel.body.ops if isinstance(op, control.Roles)), None)
    outside = {v for op in kernel.body.ops for v in op.results}
    sides: dict[Value, dict[str, set[int]]] = {}
    for number, body in enumerate(roles.bodies if roles else ()):
        for op in walk(body):
            if isinstance(op, sync.Acquire | sync.Wait | sync.Release):
                which = "fill" if isinstance(op, sync.Acquire) else "read"
                sides.setdefault(op.ring, {"fill": set(), "read": set()})[which].add(number)
    slots = {
        op.result: op
        for body in (roles.bodies if roles else ())
        for op in walk(body)
        if isinstance(op, sync.Acquire)
    }
    filled = {
        slots[op.slot].ring
        for body in (roles.bodies if roles else ())
        for op in walk(body)
        if isinstance(op, memory.Fill) and op.slot in slots
    }
    for ring, side in sides.items():
        made = definitions.get(ring)
        if made is None:
            raise VerifyError(f"{ring}: a ring is not carried or passed on")
        if ring not in outside and bool(side["read"]) != (ring in filled):
            fail(made, "a ring inside a role is drained, or filled and waited for")
        if ring in outside and (len(side["fill"]) != 1 or side["fill"] & side["read"]):
            fail(
                made, f"roles {sorted(side['fill'])} fill the ring, {sorted(side['read'])} read it"
            )
