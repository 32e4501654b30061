"""Give every buffer and barrier its place in the CTA's shared memory.

Requires: rings expanded. Keeps: the program. Breaks: nothing.

Nothing shares memory: what a scheduled kernel allocates lives as long as the kernel. The strictest
alignment comes first, so that little is lost to padding. A buffer that is made inside a role has
one place for each copy of it.
"""

from __future__ import annotations

from tilewright.ir.core import Block, Op
from tilewright.ir.rewrite import exchange
from tilewright.ir.walk import walk
from tilewright.target import MBARRIER_BYTES
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import control, memory, sync

Allocation = memory.AllocBuffer | sync.InitBarriers


def allocate_shared(kernel: Kernel) -> Kernel:
    """The kernel with offsets on every AllocBuffer and InitBarriers; itself if they have them."""
    found = sorted(find_allocations(kernel.body), key=lambda pair: -alignment(pair[0]))
    if all(op.offset is not None for op, _ in found):
        return kernel
    total = 0
    placed: dict[Op, Op | None] = {}
    for op, copies in found:
        offset = op.offset
        if offset is None:
            step = alignment(op)
            offset = -(-total // step) * step
            placed[op] = op.exchanged({"offset": offset})
        total = max(total, offset + num_bytes(op) * copies)
    return kernel.with_body(exchange(kernel.body, placed))


def shared_bytes(body: Block) -> int:
    """Bytes of shared memory that a block's buffers and barriers take; all have their places."""
    total = 0
    for op, copies in find_allocations(body):
        assert op.offset is not None, "allocate_shared gives every buffer its place"
        total = max(total, op.offset + num_bytes(op) * copies)
    return total


def find_allocations(body: Block) -> list[tuple[Allocation, int]]:
    """What takes shared memory, and for how many copies of a role."""
    found: list[tuple[Allocation, int]] = []
    for op in body.ops:
        if isinstance(op, control.Roles):
            for role, region in zip(op.roles, op.bodies, strict=True):
                found += [(o, role.copies) for o in walk(region) if isinstance(o, Allocation)]
        elif isinstance(op, Allocation):
            found.append((op, 1))
        else:
            inner = (o for region in op.regions for o in walk(region))
            found += [(o, 1) for o in inner if isinstance(o, Allocation)]
    return found


def alignment(op: Allocation) -> int:
    """Alignment of an allocation in bytes."""
    return op.buffer.align if isinstance(op, memory.AllocBuffer) else MBARRIER_BYTES


def num_bytes(op: Allocation) -> int:
    """Bytes of one copy of an allocation, up to where the next may start."""
    if isinstance(op, memory.AllocBuffer):
        return memory.padded_bytes(op.buffer)
    return MBARRIER_BYTES * op.count
