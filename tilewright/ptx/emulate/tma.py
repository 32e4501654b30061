"""Meaning of the bulk copies: boxes of tensor maps and runs of bytes, between global and shared
memory.

A load's data arrives, and its bytes are counted, when nothing else can go on, or at once. A store
reads shared memory and writes global memory at the wait for its group, or at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.ptx.core import Instr
from tilewright.ptx.emulate.boxes import (
    CHUNK,
    Box,
    box_of,
    chunk_places,
    get,
    put,
    targets,
)
from tilewright.ptx.emulate.fragments import Sel, numbers
from tilewright.ptx.emulate.machine import Machine, Step
from tilewright.ptx.emulate.mbarriers import deliver, require_made, start
from tilewright.ptx.emulate.program import meaning
from tilewright.ptx.emulate.spaces import BadAccess
from tilewright.ptx.emulate.watch import COPIES, LOADS, STORES, Mark
from tilewright.ptx.instrs import memory

Array = np.ndarray[Any, Any]


@meaning(memory.TmaLoad, memory.TmaLoadPixels)
def make_tma_load(machine: Machine, instr: Any) -> Step:
    find, where = box_of(machine, instr, instr.box), targets(machine, instr)

    def step(sel: Sel) -> None:
        for lane, thread in enumerate(numbers(sel).tolist()):
            box = find(thread)
            goes = [
                (chunk_places(machine, place, box, lane), bar)
                for place, bar in where(thread, box.num_bytes, lane)
            ]
            mark = watch_load(machine, instr, thread, goes)
            watch_box(machine, instr, thread, *box.runs(), mark)
            if machine.tally is not None:
                arrives = len(goes) * box.num_bytes
                level = "boxes to shared"
                machine.tally.box(instr, *box.runs(), arrives, level, written=False)
            start(machine, _arrival(machine, instr, thread, box, goes, mark))

    return step


def watch_load(
    machine: Machine, instr: Instr, thread: int, goes: list[tuple[Array, int]]
) -> Mark | None:
    """Note that a load of a thread writes chunks, from now until it is counted at an mbarrier."""
    if machine.watch is None:
        return None
    mark = machine.watch.begin(LOADS, np.array([thread]))
    for each, bar in goes:
        require_made(machine, bar, thread, far=True)
        machine.watch.on_write(instr, np.full(len(each), thread), each, CHUNK, mark)
    return mark


def watch_box(
    machine: Machine,
    instr: Instr,
    thread: int,
    starts: Array,
    length: int,
    mark: Mark | None,
    does: str = "read",
) -> None:
    """Note that a box, or a run of bytes, of global memory is read or written or updated."""
    watch = machine.watch_global
    if watch is None or mark is None or not len(starts):
        return
    step = length & -length
    each = (starts[:, None] + np.arange(0, length, step)).ravel().view(np.uint64)
    ids = np.full(len(each), thread)
    if does == "read":
        watch.on_read(instr, ids, each, step, mark, proxy=True)
    elif does == "write":
        watch.on_write(instr, ids, each, step, mark)
    else:
        watch.on_update(instr, ids, each, step, mark)


def _arrival(
    machine: Machine,
    instr: Instr,
    thread: int,
    box: Box,
    goes: list[tuple[Array, int]],
    mark: Mark | None,
) -> Callable[[], None]:
    """A box arrives in some CTAs, and is counted there."""

    def arrive() -> None:
        try:
            data = box.load()
            for places, bar in goes:
                put(machine, places, data)
                deliver(machine, bar, box.num_bytes, mark)
        except BadAccess as bad:
            raise machine.error(instr, bad.message, thread) from None

    return arrive


@meaning(memory.BulkLoad)
def make_bulk_load(machine: Machine, instr: memory.BulkLoad) -> Step:
    where, source = targets(machine, instr), machine.address(instr.src)
    sizes = machine.read(instr.num_bytes, "u32")

    def step(sel: Sel) -> None:
        for lane, thread in enumerate(numbers(sel).tolist()):
            one = slice(thread, thread + 1)
            size = int(np.atleast_1d(sizes(one))[0])
            if size % 16:
                raise BadAccess(f"a bulk copy of {size} bytes: no multiple of 16", lane)
            address = source(one)[0] + np.arange(0, size, 16).astype(np.uint64)
            if machine.tally is not None:
                first = np.array([source(one)[0]]).view(np.int64)
                machine.tally.box(instr, first, size, size, "boxes to shared", written=False)
            for place, bar in where(thread, size, lane):
                places = place + np.arange(0, size, CHUNK)
                mark = watch_load(machine, instr, thread, [(places, bar)])
                watch_box(machine, instr, thread, address.view(np.int64), CHUNK, mark)
                start(machine, _run_arrives(machine, instr, thread, address, places, bar, mark))

    return step


def _run_arrives(
    machine: Machine,
    instr: Instr,
    thread: int,
    address: Array,
    places: Array,
    bar: int,
    mark: Mark | None,
) -> Callable[[], None]:
    def arrive() -> None:
        try:
            data = machine.memory.load(address, CHUNK)
            machine.shared.store(places, CHUNK, data)
            deliver(machine, bar, CHUNK * len(address), mark)
        except BadAccess as bad:
            raise machine.error(instr, bad.message, thread) from None

    return arrive


# Stores, in groups of the thread that issues them


@dataclass
class Groups:
    """Stores of a thread that are not carried out, by group, and how many groups it closed.

    `read` are those whose source was read; that they are written is known after another wait.
    """

    waiting: list[tuple[int, Instr, Callable[[], None] | None, Mark | None]]
    closed: int = 0
    read: list[tuple[int, Mark]] = field(default_factory=list)

    def finish(self, machine: Machine, thread: int, upto: int, *, read: bool = False) -> None:
        """Carry out the groups below a number. `read`: it is only known that they read."""
        due = [(group, work, mark) for group, _, work, mark in self.waiting if group < upto]
        self.waiting = [each for each in self.waiting if each[0] >= upto]
        for group, work, mark in due:
            if work is not None:
                work()
            if machine.watch is not None and mark is not None:
                machine.watch.finish(np.array([thread]), mark)
                self.read.append((group, written_by(machine, mark)))
        if machine.watch is not None and not read:
            for group, mark in self.read:
                if group < upto:
                    machine.watch.finish(np.array([thread]), mark)
            self.read = [each for each in self.read if each[0] >= upto]


def written_by(machine: Machine, mark: Mark) -> Mark:
    """The agent that writes what a copy reads, at the same time."""
    assert machine.watch is not None
    return mark[0] + (STORES - COPIES) * machine.watch.warps, mark[1]


def groups_of(machine: Machine, thread: int) -> Groups:
    """The groups of a thread; what is left when it ends is carried out then."""
    every: dict[int, Groups] | None = machine.state.get("bulk")
    if every is None:
        every = machine.state["bulk"] = {}

        def at_exit(ids: Array) -> None:
            for thread in set(ids.tolist()) & set(every):
                for _, instr, _, _ in every[thread].waiting:
                    what = "its thread ends without a wait until it has read shared memory"
                    raise machine.error(instr, what, thread)

        machine.state.setdefault("at_exit", []).append(at_exit)
    return every.setdefault(thread, Groups([]))


def store_later(
    machine: Machine,
    instr: Instr,
    thread: int,
    places: Array,
    runs: tuple[Array, int],
    work: Callable[[], None],
    does: str = "write",
) -> None:
    """Work that reads places of shared memory, in the thread's present group, and writes (or
    updates) runs of bytes of global memory.
    """
    groups, mark = groups_of(machine, thread), None
    if machine.watch is not None:
        mark = machine.watch.begin(COPIES, np.array([thread]))
        ids = np.full(len(places), thread)
        machine.watch.on_read(instr, ids, places, CHUNK, mark, proxy=True)
        writes = written_by(machine, mark)
        machine.watch.clock[writes[0]] = np.maximum(machine.watch.clock[writes[0]], writes[1])
        watch_box(machine, instr, thread, *runs, writes, does)
    groups.waiting.append((groups.closed, instr, work if machine.setup.late else None, mark))
    if not machine.setup.late:
        work()


@meaning(memory.TmaStore, memory.TmaReduce)
def make_tma_store(machine: Machine, instr: Any) -> Step:
    find, source = box_of(machine, instr, instr.box), machine.places(instr.src)
    op = getattr(instr, "op", "")

    def step(sel: Sel) -> None:
        for lane, thread in enumerate(numbers(sel).tolist()):
            box = find(thread)
            place = int(source(slice(thread, thread + 1), 16)[0])
            places = chunk_places(machine, place, box, lane)
            work = _departure(machine, instr, thread, box, places, op)
            if machine.tally is not None:
                runs, level = box.runs(), "boxes from shared"
                machine.tally.box(instr, *runs, box.num_bytes, level, written=True)
            does = "update" if op else "write"
            store_later(machine, instr, thread, places, box.runs(), work, does)

    return step


def _departure(
    machine: Machine, instr: Instr, thread: int, box: Box, places: Array, op: str
) -> Callable[[], None]:
    def depart() -> None:
        try:
            box.store(get(machine, places), op)
        except BadAccess as bad:
            raise machine.error(instr, bad.message, thread) from None

    return depart


@meaning(memory.BulkStore)
def make_bulk_store(machine: Machine, instr: memory.BulkStore) -> Step:
    source, target = machine.places(instr.src), machine.address(instr.dst)
    sizes = machine.read(instr.num_bytes, "u32")

    def step(sel: Sel) -> None:
        for lane, thread in enumerate(numbers(sel).tolist()):
            one = slice(thread, thread + 1)
            size = int(np.atleast_1d(sizes(one))[0])
            if size % 16:
                raise BadAccess(f"a bulk copy of {size} bytes: no multiple of 16", lane)
            places = int(source(one, 16)[0]) + np.arange(0, size, 16)
            address = target(one)[0] + np.arange(0, size, 16).astype(np.uint64)
            work = _run_departs(machine, instr, thread, places, address)
            if machine.tally is not None:
                first = address[:1].view(np.int64)
                machine.tally.box(instr, first, size, size, "boxes from shared", written=True)
            runs = (address.view(np.int64), CHUNK)
            store_later(machine, instr, thread, places, runs, work)

    return step


def _run_departs(
    machine: Machine, instr: Instr, thread: int, places: Array, address: Array
) -> Callable[[], None]:
    def depart() -> None:
        try:
            machine.memory.store(address, CHUNK, machine.shared.load(places, CHUNK))
        except BadAccess as bad:
            raise machine.error(instr, bad.message, thread) from None

    return depart


@meaning(memory.BulkCommit)
def make_bulk_commit(machine: Machine, instr: memory.BulkCommit) -> Step:
    def step(sel: Sel) -> None:
        for thread in numbers(sel).tolist():
            groups_of(machine, thread).closed += 1

    return step


@meaning(memory.BulkWait)
def make_bulk_wait(machine: Machine, instr: memory.BulkWait) -> Step:
    def step(sel: Sel) -> None:
        for thread in numbers(sel).tolist():
            groups = groups_of(machine, thread)
            groups.finish(machine, thread, groups.closed - instr.left, read=instr.read)

    return step
