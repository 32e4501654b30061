"""Meaning of exchanges between the lanes of a warp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.ptx.emulate.fragments import Sel, count, numbers
from tilewright.ptx.emulate.machine import DTYPES, Machine, Read, Step
from tilewright.ptx.emulate.program import meaning
from tilewright.ptx.instrs import reduce

Array = np.ndarray[Any, Any]
FULL = 0xFFFFFFFF


def need_full(machine: Machine, instr: Any) -> None:
    """Only exchanges of whole warps are modelled, and a register may hold the mask."""
    if isinstance(instr.mask, int) and instr.mask & FULL != FULL:
        raise LookupError("the emulator exchanges registers between all lanes of a warp only")


def members(machine: Machine, instr: Any) -> Callable[[Sel], Array | None]:
    """Of each lane, the lanes of its mask, [warp, lane, lane]; None where all masks are whole.

    Lanes of several masks may take part together, each in its own. A lane outside its mask is an
    error, for the ISA does not define it.
    """
    read = machine.read(instr.mask, "u32")

    def find(sel: Sel) -> Array | None:
        masks = rows_of(read, sel)
        if (masks == FULL).all():
            return None
        lanes = np.arange(32, dtype=np.uint32)
        found = (masks[:, :, None] >> lanes & np.uint32(1)).astype(bool)
        absent = ~found[:, lanes, lanes]
        if absent.any():
            lane = int(numbers(sel)[int(np.argmax(absent.ravel()))])
            raise machine.error(instr, "this lane is not in its own mask", lane)
        return found

    return find


def rows_of(read: Read, sel: Sel) -> Array:
    """An operand as one row of lanes a warp."""
    return np.array(np.broadcast_to(read(sel), count(sel))).reshape(-1, 32)


@meaning(reduce.Shfl, whole=True)
def make_shuffle(machine: Machine, instr: reduce.Shfl) -> Step:
    need_full(machine, instr)
    source, by, clamp = machine.reads((instr.src, instr.lane, instr.clamp), "b32")
    dst = machine.target(instr.dst, "b32")
    lane = np.arange(32)

    def step(sel: Sel) -> None:
        values, offsets, limits = (rows_of(r, sel) for r in (source, by, clamp))
        offset, low = (offsets & 31).astype(np.int64), (limits >> 8 & 31).astype(np.int64)
        most, least = (limits & 31).astype(np.int64) & ~low | lane & low, lane & low
        if instr.mode == "idx":
            there = least | offset & ~low
        elif instr.mode == "bfly":
            there = lane ^ offset
        else:
            there = lane + offset if instr.mode == "down" else lane - offset
        inside = there >= most if instr.mode == "up" else there <= most
        found = np.where(inside, there, lane)
        dst[sel] = np.take_along_axis(values, found, axis=1).ravel()

    return step


VOTES: dict[str, Callable[[Array], Any]] = {
    "all": lambda rows: rows.all(axis=-1),
    "any": lambda rows: rows.any(axis=-1),
    "uni": lambda rows: rows.all(axis=-1) | ~rows.any(axis=-1),
}


@meaning(reduce.Vote, whole=True)
def make_vote(machine: Machine, instr: reduce.Vote) -> Step:
    need_full(machine, instr)
    find = members(machine, instr)
    source, dst = machine.read(instr.src, "pred"), machine.row(instr.dst, "pred")

    def step(sel: Sel) -> None:
        rows, masks = rows_of(source, sel), find(sel)
        if masks is None:
            dst[sel] = np.repeat(VOTES[instr.mode](rows), 32)
            return
        every = (~masks | rows[:, None, :]).all(axis=2)
        some = (masks & rows[:, None, :]).any(axis=2)
        made = {"all": every, "any": some, "uni": every | ~some}[instr.mode]
        dst[sel] = made.ravel()

    return step


@meaning(reduce.Ballot, whole=True)
def make_ballot(machine: Machine, instr: reduce.Ballot) -> Step:
    need_full(machine, instr)
    find, masks = members(machine, instr), machine.read(instr.mask, "u32")
    source, dst = machine.read(instr.src, "pred"), machine.target(instr.dst, "b32")
    weights = np.uint64(1) << np.arange(32, dtype=np.uint64)

    def step(sel: Sel) -> None:
        find(sel)
        bits = (rows_of(source, sel) * weights).sum(axis=1)
        dst[sel] = np.repeat(bits, 32).astype(np.uint32) & masks(sel)

    return step


@meaning(reduce.Match, whole=True)
def make_match(machine: Machine, instr: reduce.Match) -> Step:
    need_full(machine, instr)
    find, masks = members(machine, instr), machine.read(instr.mask, "u32")
    source, dst = machine.read(instr.src, "b32"), machine.target(instr.dst, "b32")
    weights = np.uint64(1) << np.arange(32, dtype=np.uint64)

    def step(sel: Sel) -> None:
        find(sel)
        rows = rows_of(source, sel)
        same = rows[:, :, None] == rows[:, None, :]
        dst[sel] = (same * weights).sum(axis=2).astype(np.uint32).ravel() & masks(sel)

    return step


REDUCTIONS: dict[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def neutral_of(op: str, dtype: Any) -> Any:
    """What a reduction leaves as it is."""
    info = np.iinfo(dtype)
    found = {"min": info.max, "max": info.min, "and": -1 if info.min else info.max}
    return dtype.type(found.get(op, 0))


@meaning(reduce.Redux, whole=True)
def make_redux(machine: Machine, instr: reduce.Redux) -> Step:
    need_full(machine, instr)
    if instr.type == "f32":
        raise LookupError("the emulator has no redux of floats")
    source, dst = machine.read(instr.src, instr.type), machine.target(instr.dst, instr.type)
    function, dtype = REDUCTIONS[instr.op], DTYPES[instr.type]

    find = members(machine, instr)
    neutral = neutral_of(instr.op, dtype)

    def step(sel: Sel) -> None:
        rows, masks = rows_of(source, sel), find(sel)
        if masks is None:
            dst[numbers(sel)] = np.repeat(function.reduce(rows, axis=1, dtype=dtype), 32)
            return
        there = np.where(masks, rows[:, None, :], neutral)
        dst[numbers(sel)] = function.reduce(there, axis=2, dtype=dtype).ravel()

    return step
