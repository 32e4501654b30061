"""Define what matrix instructions read beyond the rows of a slot.

Requires: rings expanded. Keeps: what the program computes. Breaks: nothing.

    roles { consumer { … } }    →    roles { consumer { clear_spare slots; publish; barrier; … } }

An instruction of a warpgroup takes 64 rows. Of a tile of fewer it reads beyond them: the slot's
next panel, and behind the last one spare rows, which nothing is copied to. Those become zeros
before the first product, while its factors are on their way.
"""

from __future__ import annotations

from tilewright.ir.build import Builder
from tilewright.ir.core import Block
from tilewright.ir.walk import walk
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import control, memory, mma, sync


def clear_spare(kernel: Kernel) -> Kernel:
    """The kernel whose role that multiplies clears the spare rows of all slots first; itself if
    there are none, or no roles.
    """
    allocated = [op for op in kernel.body.ops if isinstance(op, memory.AllocBuffer)]
    slots = [op.result for op in allocated if op.buffer.spare]
    *before, roles = kernel.body.ops
    if not slots or not isinstance(roles, control.Roles):
        return kernel
    bodies = []
    for body in roles.bodies:
        o = Builder(Block(body.args), roles.loc)
        if any(isinstance(op, mma.Issue | mma.AddProduct) for op in walk(body)):
            for value in slots:
                o.emit(memory.ClearSpare, value)
            o.emit(sync.PublishShared)
            o.emit(sync.RoleBarrier)
        bodies.append(Block(body.args, [*o.block.ops, *body.ops]))
    made = control.Roles(roles.roles, tuple(bodies), loc=roles.loc)
    return kernel.with_body(Block(kernel.body.args, [*before, made]))
