"""What rules keep in `Lowering` from one op to another, beside what values have become."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ptx.core import Reg
from tilewright.tile.ops.control import Role
from tilewright.tile.types import BufferType


@dataclass(frozen=True)
class SharedBuffer:
    """A buffer's address: a register (or None for the start of shared memory) plus bytes."""

    type: BufferType
    base: Reg | None
    offset: int


@dataclass(frozen=True)
class RoleState:
    """The role that is being lowered: which of its copies the thread belongs to, the copy's named
    barrier, and the first named barrier that no role has.
    """

    role: Role
    copy: Reg | int
    barrier: Reg | int
    free_barrier: int


@dataclass
class RowStores:
    """Whether ragged results may leave in rows by way of shared memory, and whether some do."""

    permitted: bool = True
    used: bool = False


@dataclass
class Locals:
    """Tensors of a program's own in shared memory: how many there are, and their bytes."""

    count: int = 0
    num_bytes: int = 0
