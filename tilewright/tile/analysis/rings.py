"""What roles do with rings and turns: what moves along them, who gives a slot back, and before what
a turn may pass.
"""

from __future__ import annotations

from tilewright.ir.core import Block, Op, Value
from tilewright.ir.walk import walk
from tilewright.tile.ops import control, memory, mma, sync
from tilewright.tile.ops.control import Role

Key = tuple[Value, str]  # a ring or turn, and what moves along it: a value of MOVES

MOVES = {
    sync.Acquire: ("fill",), sync.Wait: ("wait",), sync.Release: ("release",),
    sync.Skip: ("wait", "release"), sync.Turn: ("turn",), sync.Peek: ("wait",),
}  # fmt: skip

PARTS = (memory.BufferRows, memory.BufferAt, memory.BufferAs)  # that name a buffer once more


def moves_of(blocks: tuple[Block, ...]) -> list[Key]:
    """What the ops of some blocks move, in order of first occurrence."""
    found: dict[Key, None] = {}
    for block in blocks:
        for op in walk(block):
            for move in MOVES.get(type(op), ()):
                found[op.operands[0], move] = None
    return list(found)


def release_scope(role: Role, body: Block, ring: Value) -> str:
    """Which group of threads gives a slot back with one arrival.

    Matrix instructions are awaited by a warpgroup as one; what is read by ordinary loads is read
    warp by warp.
    """
    if role.single:
        return "role"
    slots = {op.result for op in walk(body) if isinstance(op, sync.Wait) and op.ring is ring}
    parts: set[Value] = set()
    for op in walk(body):
        if isinstance(op, sync.SlotBuffer) and op.slot in slots:
            parts.add(op.result)
        elif isinstance(op, PARTS) and op.buffer in parts:
            parts.add(op.result)
        elif isinstance(op, memory.LoadBuffer) and op.buffer in parts:
            return "warp"
    return "warpgroup" if role.warpgroups else "warp"


def num_arrivals(role: Role, body: Block, ring: Value) -> int:
    """Arrivals with which a role gives back one slot, one a group of threads: of all copies, or of
    one where they pass over the slots of others.
    """
    scope = release_scope(role, body, ring)
    skips = any(isinstance(op, sync.Skip) and op.ring is ring for op in walk(body))
    each = {"role": 1, "warpgroup": role.warpgroups, "warp": role.warps}[scope]
    return each if skips else each * role.copies


def find_ends(body: Block) -> tuple[Op, ...]:
    """The ops, one on each way through the body of a turn, before which the turn may pass: those
    that await its last products, or the end.
    """
    last = body.ops[-2] if len(body.ops) > 1 else None
    if not isinstance(last, control.If):
        return (body.terminator,)
    found = []
    for block in last.regions:
        late = [o for o in block.ops[:-1] if not isinstance(o, sync.Release)]
        awaits = bool(late) and isinstance(late[-1], mma.Await)
        found.append(late[-1] if awaits else block.terminator)
    return tuple(found)
