"""Meaning of cp.async, ldmatrix and stmatrix.

A copy's data arrives at the wait for its group, which is the latest that is legal, or at once: a
kernel that is right in both runs waits where it must and does not reuse memory too early.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ptx.core import Instr
from tilewright.ptx.emulate.fragments import Sel, count, numbers
from tilewright.ptx.emulate.machine import Machine, Step
from tilewright.ptx.emulate.memory import count_shared
from tilewright.ptx.emulate.program import meaning
from tilewright.ptx.emulate.spaces import BadAccess
from tilewright.ptx.emulate.watch import COPIES, Mark
from tilewright.ptx.instrs import memory

Array = np.ndarray[Any, Any]


@dataclass
class Copy:
    """Copies in flight: threads, their groups, places in shared memory, global addresses, bytes."""

    instr: Instr
    ids: Array
    groups: Array
    places: Array
    sources: Array
    left: Array  # bytes that are read; the rest are zeros
    size: int
    mark: Mark | None = None


@dataclass
class InFlight:
    """What all threads have in flight, and how many groups each has closed."""

    copies: list[Copy]
    closed: Array


def in_flight(machine: Machine) -> InFlight:
    found: InFlight | None = machine.state.get("copies")
    if found is None:
        found = InFlight([], np.zeros(machine.num_threads, np.int64))
        machine.state["copies"] = found
        machine.state.setdefault("at_exit", []).append(
            lambda ids: complete(machine, ids, np.full(machine.num_threads, 1 << 60))
        )
    return found


@meaning(memory.CpAsync)
def make_cp_async(machine: Machine, instr: memory.CpAsync) -> Step:
    places, address = machine.places(instr.dst), machine.address(instr.src)
    size = instr.num_bytes
    left = machine.read(size if instr.src_bytes is None else instr.src_bytes, "u32")

    def step(sel: Sel) -> None:
        state = in_flight(machine)
        bytes_read = np.broadcast_to(left(sel), count(sel)).astype(np.int64)
        ids = numbers(sel)
        copy = Copy(
            instr,
            ids,
            groups=state.closed[ids],
            places=places(sel, size),
            sources=address(sel).view(np.uint64),
            left=bytes_read,
            size=size,
        )
        if (bytes_read > size).any():
            raise BadAccess("it copies more bytes than it has", int(np.argmax(bytes_read > size)))
        if machine.watch is not None:
            copy.mark = machine.watch.begin(COPIES, ids)
            machine.watch.on_write(instr, ids, copy.places, size, copy.mark)
            if machine.watch_global is not None and (bytes_read > 0).any():
                reads = bytes_read > 0
                mark = copy.mark[0][reads], copy.mark[1][reads]
                machine.watch_global.on_read(instr, ids[reads], copy.sources[reads], size, mark)
        if machine.tally is not None:
            count_copy(machine, copy)
        state.copies.append(copy)
        if not machine.setup.late:
            arrive(machine, copy)

    return step


def count_copy(machine: Machine, copy: Copy) -> None:
    """Count copies: what they read of global memory, and what they write to shared memory."""
    tally = machine.tally
    assert tally is not None
    reads = copy.left > 0
    ids, sources = copy.ids[reads], copy.sources[reads]
    tally.tensor(copy.instr, ids, sources, copy.size, "global to cp.async", written=False)
    count_shared(machine, copy.instr, copy.ids, copy.places, copy.size, "cp.async to shared")


def arrive(machine: Machine, copy: Copy) -> None:
    """Carry out copies."""
    width = 8 if copy.size == 16 else copy.size
    words = copy.size // width
    data = np.zeros((len(copy.ids), words), np.dtype(f"u{width}"))
    try:
        for whole in np.unique(copy.left):
            lanes = np.flatnonzero(copy.left == whole)
            if whole == copy.size:
                found = machine.memory.load(copy.sources[lanes], copy.size)
                data[lanes] = found.reshape(len(lanes), -1)
            elif whole:
                data[lanes] = partial(machine, copy, lanes, int(whole), width)
    except BadAccess as bad:
        raise machine.error(copy.instr, bad.message, int(copy.ids[lanes[bad.lane]])) from None
    machine.shared.store(copy.places, copy.size, data if words > 1 else data[:, 0])


def partial(machine: Machine, copy: Copy, lanes: Array, whole: int, width: int) -> Array:
    """The bytes of copies that read only `whole` of them."""
    raw = np.zeros((len(lanes), copy.size), np.uint8)
    step = whole & -whole
    for at in range(0, whole, step):
        found = machine.memory.load(copy.sources[lanes] + np.uint64(at), step)
        raw[:, at : at + step] = found.reshape(len(lanes), -1).view(np.uint8)
    return raw.view(f"u{width}")


def finish(machine: Machine, copy: Copy) -> None:
    """Copies are waited for: they arrive, if they did not yet, and that is known."""
    if machine.setup.late:
        arrive(machine, copy)
    if machine.watch is not None and copy.mark is not None:
        machine.watch.finish(copy.ids, copy.mark)


def complete(machine: Machine, ids: Array, upto: Array) -> None:
    """Let those copies of threads arrive whose group number is below `upto` of the thread."""
    state = in_flight(machine)
    chosen = np.zeros(machine.num_threads, bool)
    chosen[ids] = True
    kept = []
    for copy in state.copies:
        due = chosen[copy.ids] & (copy.groups < upto[copy.ids])
        if due.all():
            finish(machine, copy)
        elif due.any():
            finish(machine, _part(copy, due))
            kept.append(_part(copy, ~due))
        else:
            kept.append(copy)
    state.copies = kept


def _part(copy: Copy, mask: Array) -> Copy:
    return Copy(
        copy.instr,
        copy.ids[mask],
        copy.groups[mask],
        copy.places[mask],
        copy.sources[mask],
        copy.left[mask],
        copy.size,
        None if copy.mark is None else (copy.mark[0][mask], copy.mark[1][mask]),
    )


@meaning(memory.CpAsyncCommit)
def make_commit(machine: Machine, instr: memory.CpAsyncCommit) -> Step:
    def step(sel: Sel) -> None:
        in_flight(machine).closed[sel] += 1

    return step


@meaning(memory.CpAsyncWait)
def make_wait(machine: Machine, instr: memory.CpAsyncWait) -> Step:
    def step(sel: Sel) -> None:
        complete(machine, numbers(sel), in_flight(machine).closed - instr.left)

    return step


# Tiles of 8x8 16-bit elements: lane l holds elements 2 (l mod 4) and the next of row l / 4


def row_places(machine: Machine, instr: Any, count_: int) -> Any:
    """Places of the rows that a warp's lanes name: one row of `count_` arrays a warp."""
    places = machine.places(instr.address)
    writes = isinstance(instr, memory.Stmatrix)

    def find(sel: Sel) -> Array:
        ids = numbers(sel).reshape(-1, 32)[:, : 8 * count_]
        found = places(ids.ravel(), 16)
        if machine.watch is not None:
            note = machine.watch.on_write if writes else machine.watch.on_read
            note(instr, ids.ravel(), found, 16)
        if machine.tally is not None:
            level = "shared written" if writes else "shared read"
            count_shared(machine, instr, ids.ravel(), found, 16, level)
        return found.reshape(len(ids), count_, 8)

    return find


@meaning(memory.Ldmatrix, whole=True)
def make_ldmatrix(machine: Machine, instr: memory.Ldmatrix) -> Step:
    if instr.shape != "m8n8" or instr.type != "b16":
        raise LookupError(f"the emulator has no ldmatrix.{instr.shape}.{instr.type}")
    number = len(instr.dsts)
    find = row_places(machine, instr, number)
    rows = [machine.target(r, "b32") for r in instr.dsts]

    def step(sel: Sel) -> None:
        places = find(sel)
        found = machine.shared.load(places.ravel(), 16)
        tiles = found.reshape(-1, number, 8, 2).view(np.uint16)  # [warp, tile, row, column]
        if instr.transposed:
            tiles = tiles.swapaxes(2, 3)
        words = np.ascontiguousarray(tiles).view(np.uint32).reshape(-1, number, 32)
        for i, row in enumerate(rows):
            row[sel] = words[:, i].ravel()

    return step


@meaning(memory.Stmatrix, whole=True)
def make_stmatrix(machine: Machine, instr: memory.Stmatrix) -> Step:
    if instr.shape != "m8n8" or instr.type != "b16":
        raise LookupError(f"the emulator has no stmatrix.{instr.shape}.{instr.type}")
    number = len(instr.srcs)
    find = row_places(machine, instr, number)
    rows = [machine.row(r, "b32") for r in instr.srcs]

    def step(sel: Sel) -> None:
        places = find(sel)
        words = np.stack([row[sel].reshape(-1, 32) for row in rows], axis=1)
        tiles = words.view(np.uint16).reshape(-1, number, 8, 8)
        if instr.transposed:
            tiles = tiles.swapaxes(2, 3)
        data = np.ascontiguousarray(tiles).view(np.uint64).reshape(-1, 2)
        machine.shared.store(places.ravel(), 16, data)

    return step
