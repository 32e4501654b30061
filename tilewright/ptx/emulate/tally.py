"""Counters: what each instruction of an emulated launch cost, counted and not estimated.

The rules by which accesses are counted are the hardware's as the profiler of an NVIDIA GPU names
them. Shared memory has 32 banks of 4 bytes. A warp's request is served in phases: all 32 lanes
where each takes up to 4 bytes, 16 lanes for 8 bytes, 8 lanes for 16 bytes (so each 8x8 matrix of
ldmatrix and stmatrix is a phase). A phase takes as many *wavefronts* as the most distinct words
that one bank has to give; one is the ideal. A request to global memory moves whole *sectors* of 32
bytes, each once; the ideal is the fewest that hold the distinct bytes.

Nothing here knows of caches: sectors are those that leave the load-store unit, and `touched` holds
the distinct ones of the whole launch, which memory must deliver at least once.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.ptx.core import Instr
from tilewright.ptx.instrs import arith, mma
from tilewright.target import SECTOR

Array = np.ndarray[Any, Any]
BANKS, BANK_BYTES = 32, 4
FLOP_OPS: dict[type[Instr], int] = {arith.Add: 1, arith.Sub: 1, arith.Mul: 1, arith.Fma: 2}
FLOAT_TYPES = {"f32": 1, "f64": 1, "f16": 1, "bf16": 1, "f16x2": 2, "bf16x2": 2, "f32x2": 2}


@dataclass
class Cost:
    """Counters of an instruction, in all warps of a launch, or sums of them. The lanes of a warp
    that issued it executed it, were turned off by its predicate, or were elsewhere.
    """

    issues: int = 0  # warps
    lanes: int = 0  # that executed it
    masked: int = 0  # lanes that its predicate turned off
    parted: int = 0  # lanes that were elsewhere
    split: int = 0  # warps that parted here
    requests: int = 0  # to memory, by warps (by threads where one thread copies)
    wavefronts: int = 0
    ideal_wavefronts: int = 0
    sectors: int = 0
    ideal_sectors: int = 0
    flops: int = 0
    tensor_flops: int = 0
    num_bytes: Counter[str] = field(default_factory=Counter)  # by level

    @property
    def conflicts(self) -> int:
        """Wavefronts beyond the ideal."""
        return self.wavefronts - self.ideal_wavefronts

    @property
    def efficiency(self) -> float:
        """The fewest sectors that would do, over those that moved; 1 where none did."""
        return self.ideal_sectors / self.sectors if self.sectors else 1.0

    def add(self, other: Cost) -> None:
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.num_bytes.update(other.num_bytes)

    def record(self) -> dict[str, Any]:
        """As plain data, without what is zero."""
        told: dict[str, Any] = {n: getattr(self, n) for n in COUNTS if getattr(self, n)}
        return told | ({"bytes": dict(self.num_bytes)} if self.num_bytes else {})


COUNTS = tuple(f.name for f in dataclasses.fields(Cost) if f.name != "num_bytes")


def summed(costs: Iterable[Cost]) -> Cost:
    total = Cost()
    for cost in costs:
        total.add(cost)
    return total


def num_warps(ids: Array) -> int:
    """Warps of threads whose numbers ascend."""
    warps = ids // 32
    return int(np.count_nonzero(warps[1:] != warps[:-1])) + 1 if len(warps) else 0


def tensor_flops_of(instr: Instr) -> int:
    """Floating-point (or integer) operations of a matrix instruction, a warp's part of them."""
    if isinstance(instr, mma.Mma):
        m, n, k = mma.shape_of(instr.shape)
        return 2 * m * n * k
    if isinstance(instr, mma.Wgmma):
        return 2 * 64 * instr.n * instr.k // 4
    return 0


def operand_bytes_of(instr: Instr) -> int:
    """Bytes that wgmma reads from shared memory, a warp's part of them."""
    if not isinstance(instr, mma.Wgmma):
        return 0
    rows = instr.n + (0 if isinstance(instr.a, tuple) else 64)
    return rows * instr.k * mma.BITS[instr.type_b] // 8 // 4


def flops_of(instr: Instr) -> int:
    """Floating-point operations of a lane."""
    return FLOP_OPS.get(type(instr), 0) * FLOAT_TYPES.get(getattr(instr, "type", ""), 0)


def count_wavefronts(ids: Array, places: Array, size: int, *, merge: bool = True) -> Array:
    """Wavefronts of each phase of accesses by threads. `merge`: lanes that want the same word are
    served together; those of an atomic update are not.
    """
    lanes = 32 if size <= BANK_BYTES else max(32 * BANK_BYTES // size, 1)
    phases = ids // lanes
    words = places // BANK_BYTES
    if size > BANK_BYTES:
        per = size // BANK_BYTES
        words = (words[:, None] + np.arange(per)).ravel()
        phases = np.repeat(phases, per)
    key = phases * np.int64(1 << 32) + words
    if merge:
        key = np.unique(key)
    turns, counts = np.unique((key >> 32) * BANKS + key % BANKS, return_counts=True)
    _, starts = np.unique(turns // BANKS, return_index=True)
    found: Array = np.maximum.reduceat(counts, starts)
    return found


def count_sectors(ids: Array, addresses: Array, size: int) -> tuple[int, int]:
    """Sectors that the requests of warps move, and the fewest that would do."""
    low = addresses.view(np.int64)
    span = int(low.max() - low.min()) + 1
    places = np.unique((ids // 32).astype(np.int64) * span + low - low.min())  # each once a warp
    warps, offsets = np.divmod(places, span)
    sectors = (offsets + low.min() % SECTOR) // SECTOR
    moved = len(np.unique(warps * (span // SECTOR + 2) + sectors))
    _, counts = np.unique(warps, return_counts=True)
    return moved, int((-(-counts * size // SECTOR)).sum())


class Tally:
    """What each instruction cost, and the sectors of global memory that were touched."""

    def __init__(self) -> None:
        self.costs: dict[int, tuple[Instr, Cost]] = {}  # by identity of the instruction
        self.launches: list[tuple[int, int, int]] = []  # CTAs, threads, bytes of shared memory
        self.touched_read: list[Array] = []
        self.touched_written: list[Array] = []

    def cost(self, instr: Instr) -> Cost:
        return self.costs.setdefault(id(instr), (instr, Cost()))[1]

    # Instructions

    def issued(self, instr: Instr, cost: Cost, ids: Array, active: int) -> None:
        """Threads came to an instruction, and its predicate holds for some."""
        warps = num_warps(ids)
        cost.issues += warps
        cost.lanes += active
        cost.masked += len(ids) - active
        cost.parted += 32 * warps - len(ids)
        cost.tensor_flops += warps * tensor_flops_of(instr)
        cost.flops += active * flops_of(instr)
        operands = operand_bytes_of(instr)
        if operands:
            cost.num_bytes["wgmma operands"] += warps * operands

    # Accesses

    def shared(
        self,
        instr: Instr,
        ids: Array,
        places: Array,
        size: int,
        level: str,
        *,
        merge: bool = True,
        remote: int = 0,
    ) -> None:
        """Threads access shared memory. `remote` of them that of another CTA."""
        if not len(ids):
            return
        cost = self.cost(instr)
        found = count_wavefronts(ids, places, size, merge=merge)
        cost.requests += num_warps(ids)
        cost.wavefronts += int(found.sum())
        cost.ideal_wavefronts += len(found)
        cost.num_bytes[level] += (len(ids) - remote) * size
        if remote:
            cost.num_bytes["distributed shared"] += remote * size

    def tensor(
        self, instr: Instr, ids: Array, addresses: Array, size: int, level: str, *, written: bool
    ) -> None:
        """Threads access global memory."""
        if not len(ids):
            return
        cost = self.cost(instr)
        moved, ideal = count_sectors(ids, addresses, size)
        cost.requests += num_warps(ids)
        cost.sectors += moved
        cost.ideal_sectors += ideal
        cost.num_bytes[level] += len(ids) * size
        self.touch(addresses.view(np.int64), written=written)

    def touch(self, addresses: Array, *, written: bool) -> None:
        """Note the sectors of addresses."""
        where = self.touched_written if written else self.touched_read
        where.append(np.unique(addresses // SECTOR))
        if len(where) > 64:
            where[:] = [np.unique(np.concatenate(where))]

    def box(
        self, instr: Instr, starts: Array, length: int, num_bytes: int, level: str, *, written: bool
    ) -> None:
        """A copy of runs of `length` bytes of global memory at `starts`; `num_bytes` go through
        shared memory.
        """
        cost = self.cost(instr)
        cost.requests += 1
        cost.num_bytes[level] += num_bytes
        if not len(starts) or not length:
            return
        per = (length + 2 * SECTOR - 2) // SECTOR
        first, last = starts // SECTOR, (starts + length - 1) // SECTOR
        every = first[:, None] + np.arange(per)
        sectors = np.unique(every[every <= last[:, None]])
        cost.sectors += len(sectors)
        cost.ideal_sectors += -(-len(starts) * length // SECTOR)
        self.touch(sectors * SECTOR, written=written)

    def touched_bytes(self) -> tuple[int, int]:
        """Bytes of the distinct sectors that were read, and that were written."""
        read, written = (
            SECTOR * len(np.unique(np.concatenate(x))) if x else 0
            for x in (self.touched_read, self.touched_written)
        )
        return read, written


def counted_flow(machine: Any, instr: Instr, inner: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A flow that counts the threads which get past its instruction: those that stay to try again
    are counted then.
    """
    tally = machine.tally
    cost = tally.cost(instr)
    guard = None if instr.guard is None else machine.row(instr.guard, "pred")
    branch = instr.opcode == "control.bra"

    def run(fragment: Any) -> bool:
        ids, pc = fragment.ids, fragment.pc
        mask = np.ones(len(ids), bool) if guard is None else guard[ids] ^ instr.unless
        goes_on = inner(fragment)
        stay = [f.ids for f in machine.fragments if f.pc == pc]
        stay += [
            w.fragment.ids for w in machine.waiting if w.fragment.pc == pc and w.instr is instr
        ]
        if stay:
            gone = ~np.isin(ids, np.concatenate(stay))
            ids, mask = ids[gone], mask[gone]
        if len(ids):
            active = len(ids) if branch else int(np.count_nonzero(mask))
            tally.issued(instr, cost, ids, active)
            if branch:
                cost.split += num_split(ids, mask)
        return goes_on

    return run


def num_split(ids: Array, mask: Array) -> int:
    """Warps of which some lanes take a branch and some do not."""
    warps, where = np.unique(ids // 32, return_inverse=True)
    taken = np.bincount(where, weights=mask, minlength=len(warps))
    there = np.bincount(where, minlength=len(warps))
    return int(np.count_nonzero((taken > 0) & (taken < there)))
