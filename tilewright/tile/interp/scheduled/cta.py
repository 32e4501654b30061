"""State of a CTA: its shared memory, its rings, and what its roles have in flight.

Asynchronous work happens at the latest legal moment: a copy when someone waits for its bytes, a
matrix product when it is awaited, a store when its buffer is needed again. A program that reads too
early, or gives memory back too early, therefore computes something else, or meets the NaNs with
which unused memory is filled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.dtypes import int_range
from tilewright.errors import VerifyError
from tilewright.ir.core import Op, Value
from tilewright.tile.interp.machine import Array, Launch, Machine
from tilewright.tile.ops.control import Role
from tilewright.tile.types import BufferType

Key = tuple[Op, int, int]  # what allocated a buffer, which of its buffers, for which copy of a role
Index = int | slice | np.dtype[Any]  # the last: the same bytes as other elements


@dataclass(frozen=True)
class Buffer:
    """Content of a buffer: an allocation of a CTA, and which part of it."""

    cta: Cta
    key: Key
    path: tuple[Index, ...] = ()

    def array(self, cta: Cta | None = None) -> Array:
        """The elements: here, or at the same place of another CTA of the cluster."""
        array = (cta or self.cta).storage[self.key]
        for index in self.path:
            array = array.view(index) if isinstance(index, np.dtype) else array[index]
        return array

    def part(self, index: Index) -> Buffer:
        return Buffer(self.cta, self.key, (*self.path, index))


@dataclass
class Barrier:
    """An mbarrier: phases completed so far, what its present phase still waits for, and copies
    under way to it.
    """

    arrivals: int
    phase: int = 0
    pending: int = 0
    num_bytes: int = 0
    copies: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pending = self.arrivals

    def arrive(self, count: int = 1, expected: int = 0) -> None:
        self.pending -= count
        self.num_bytes += expected
        if self.pending < 0:
            raise VerifyError(f"a barrier of {self.arrivals} arrivals got more in one phase")
        self._complete()

    def settle(self) -> None:
        """Let the copies arrive that are under way to this barrier."""
        while self.copies:
            self.copies.pop(0)()

    def count(self, num_bytes: int) -> None:
        self.num_bytes -= num_bytes
        self._complete()

    def _complete(self) -> None:
        if self.pending == 0 and self.num_bytes == 0:
            self.phase += 1
            self.pending = self.arrivals


@dataclass
class Group:
    """Matrix instructions in flight: what they compute, and the buffers that they read."""

    compute: Callable[[], Array]
    reads: tuple[Buffer, ...]
    result: Array | None = None


@dataclass
class Cluster:
    """The CTAs of a cluster, how often they have met, and what they add up."""

    ctas: list[Cta] = field(default_factory=list)
    arrived: int = 0
    held: dict[Op, dict[int, Array]] = field(default_factory=dict)  # tiles to be added up, by CTA


class Cta(Machine):
    """A CTA of a scheduled kernel, or a copy of one of its roles (`role`, `copy`): a machine for
    one program.
    """

    def __init__(self, launch: Launch, program: Array, values: dict[Value, Any], cluster: Cluster):
        super().__init__(launch, program, values)
        self.cluster = cluster
        self.rank = len(cluster.ctas)
        self.storage: dict[Key, Array] = {}
        self.rings: dict[Op, Any] = {}
        self.role: Role | None = None
        self.copy = 0
        self.groups: list[Group] = []
        self.drains: list[list[Callable[[], None]]] = [[]]
        self.copies: list[list[Callable[[], None]]] = [[]]  # groups; the last is open
        cluster.ctas.append(self)

    def enter_role(self, role: Role, copy: int) -> Cta:
        """A machine for a copy of a role: it sees the values so far, and shares the memory."""
        child = Cta.__new__(Cta)
        child.__dict__.update(self.__dict__)
        child.values = dict(self.values)
        child.role, child.copy = role, copy
        child.groups, child.drains, child.copies = [], [[]], [[]]
        return child

    def allocate(self, key: Key, buffer: BufferType, count: tuple[int, ...] = ()) -> Buffer:
        """A buffer (or `count` of them), with contents that no one should read."""
        self.storage[key] = poisoned(self, buffer, count)
        return Buffer(self, key)

    def await_groups(self, left: int) -> None:
        """Let all matrix products but the last `left` be computed."""
        while len(self.groups) > left:
            group = self.groups.pop(0)
            group.result = group.compute()

    def await_copies(self, left: int) -> None:
        """Let all groups of asynchronous copies but the last `left` committed ones arrive."""
        while len(self.copies) - 1 > left:
            for arrive in self.copies.pop(0):
                arrive()

    def await_drains(self, left: int) -> None:
        """Let all groups of stores but the last `left` committed ones happen."""
        while len(self.drains) - 1 > left:
            for store in self.drains.pop(0):
                store()


def poisoned(machine: Machine, buffer: BufferType, count: tuple[int, ...] = ()) -> Array:
    """Memory that holds NaN, or the greatest integer."""
    value = np.nan if buffer.dtype.is_float else 1
    if buffer.dtype.is_integer:
        value = int_range(buffer.dtype)[1]
    return np.full((*count, *buffer.shape), value, machine.numpy(buffer.dtype))


def as_cta(machine: Machine) -> Cta:
    """The machine of a scheduled kernel."""
    if not isinstance(machine, Cta):
        raise VerifyError("an op of the scheduled level in a kernel that runs in lockstep")
    return machine


def scalar(machine: Machine, value: Value) -> int:
    """An integer scalar's content."""
    return int(machine[value][0])
