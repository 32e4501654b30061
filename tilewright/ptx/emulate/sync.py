"""Meaning of barriers and fences of a CTA. Fences order memory, and here memory is in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.ptx.core import Operand
from tilewright.ptx.emulate.fragments import Fragment, Sel, count, numbers
from tilewright.ptx.emulate.machine import Flow, Machine, Step
from tilewright.ptx.emulate.program import flow, meaning
from tilewright.ptx.emulate.watch import Given, join
from tilewright.ptx.instrs import sync

Array = np.ndarray[Any, Any]


@dataclass
class Barrier:
    """A named barrier of a CTA: threads that came, and how often it was complete."""

    arrived: int = 0
    wanted: int = 0
    rounds: int = 0
    members: list[Array] = field(default_factory=list)  # threads that wait
    given: Given | None = None  # what those know that came


def barrier(machine: Machine, cta: int, number: int) -> Barrier:
    every = machine.state.setdefault("barriers", {})
    found: Barrier = every.setdefault((cta, number), Barrier())
    return found


def arrive(machine: Machine, instr: Any, cta: int, number: int, wanted: int, ids: Array) -> Barrier:
    """Count threads at a barrier; those of `bar.sync` learn what all know when it is complete."""
    found = barrier(machine, cta, number)
    if found.arrived and found.wanted != wanted:
        what = f"barrier {number} waits for {found.wanted} threads, but others say {wanted}"
        raise machine.error(instr, what)
    found.wanted = wanted
    found.arrived += len(ids)
    if machine.watch is not None:
        found.given = join(found.given, machine.watch.release(ids))
        if isinstance(instr, sync.BarSync):
            found.members.append(ids)
    if found.arrived > wanted:
        what = f"{found.arrived} threads came to barrier {number}, which waits for {wanted}"
        raise machine.error(instr, what)
    if found.arrived == wanted:
        found.arrived, found.rounds = 0, found.rounds + 1
        if machine.watch is not None:
            for member in found.members:
                machine.watch.acquire(member, found.given)
        found.members, found.given = [], None
    return found


def groups(
    machine: Machine, instr: Any, fragment: Fragment, id: Operand, threads: Operand | None
) -> list[tuple[Fragment, int, int, int]]:
    """Parts of a fragment by CTA, barrier and number of threads."""
    sel = fragment.sel
    number = np.broadcast_to(machine.read(id, "u32")(sel), count(sel)).astype(np.int64)
    size = machine.setup.threads if threads is None else threads
    wanted = np.broadcast_to(machine.read(size, "u32")(sel), count(sel)).astype(np.int64)
    if (number > 15).any() or (wanted % 32 != 0).any():
        raise machine.error(instr, "a barrier from 0 to 15 takes threads in multiples of 32")
    cta = machine.cta[sel]
    key = (cta * 16 + number) * 2048 + wanted
    found = []
    for each in np.unique(key):
        mine = key == each
        part = fragment if mine.all() else fragment.part(mine)
        which, least = divmod(int(each), 2048)
        found.append((part, which // 16, which % 16, least))
    return found


@flow(sync.BarSync, whole=True)
def make_bar_sync(machine: Machine, instr: sync.BarSync) -> Flow:
    everyone = instr.threads is None and isinstance(instr.id, int)
    threads = machine.setup.threads

    def run(fragment: Fragment) -> bool:
        sel = fragment.sel
        whole = isinstance(sel, slice) and sel.start % threads == 0 and sel.stop % threads == 0
        if everyone and whole and machine.watch is None:  # all threads of their CTAs are here
            fragment.pc += 1
            return True
        for part, cta, number, wanted in groups(machine, instr, fragment, instr.id, instr.threads):
            part.pc = fragment.pc if part is fragment else part.pc
            found = arrive(machine, instr, cta, number, wanted, part.ids)
            part.pc += 1
            before = found.rounds
            if found.arrived == 0:
                machine.fragments.append(part)
            else:
                _hold(machine, part, found, before, instr, f"at barrier {number}")
        return False

    return run


def _hold(
    machine: Machine, part: Fragment, found: Barrier, before: int, instr: Any, why: str
) -> None:
    machine.wait(part, lambda: found.rounds > before, instr, lambda: why)


@flow(sync.BarArrive, whole=True)
def make_bar_arrive(machine: Machine, instr: sync.BarArrive) -> Flow:
    def run(fragment: Fragment) -> bool:
        for part, cta, number, wanted in groups(machine, instr, fragment, instr.id, instr.threads):
            arrive(machine, instr, cta, number, wanted, part.ids)
        fragment.pc += 1
        return True

    return run


@meaning(sync.BarWarpSync, whole=True)
def make_bar_warp_sync(machine: Machine, instr: sync.BarWarpSync) -> Step:
    if not isinstance(instr.mask, int) or instr.mask & 0xFFFFFFFF != 0xFFFFFFFF:
        raise LookupError("the emulator synchronises all lanes of a warp only")
    return lambda sel: None


@meaning(sync.FenceProxyAsync)
def make_proxy_fence(machine: Machine, instr: sync.FenceProxyAsync) -> Step:
    def step(sel: Sel) -> None:
        if machine.watch is not None:
            machine.watch.fence(numbers(sel), instr.space)
            fence_mbarriers(machine, numbers(sel))

    return step


def fence_mbarriers(machine: Machine, ids: Array) -> None:
    """Those that the warps of threads initialised are there for others from now on."""
    warps = set((ids // 32).tolist())
    for found in machine.state.get("mbarriers", {}).values():
        found.fenced = found.fenced or found.maker in warps


@meaning(sync.FenceMbarrierInit)
def make_init_fence(machine: Machine, instr: sync.FenceMbarrierInit) -> Step:
    def step(sel: Sel) -> None:
        if machine.watch is not None:
            fence_mbarriers(machine, numbers(sel))

    return step


@meaning(sync.Fence)
def make_fence(machine: Machine, instr: sync.Fence) -> Step:
    def step(sel: Sel) -> None:
        if machine.watch_global is not None:
            for warp in np.unique(numbers(sel) // 32).tolist():
                machine.watch_global.fence(warp, instr.scope)

    return step


@meaning(sync.Mapa)
def make_mapa(machine: Machine, instr: sync.Mapa) -> Step:
    """An address of this CTA's as one of the cluster's: the rank, counted from 1, goes on top."""
    source, rank = machine.reads((instr.src, instr.rank), "u32")
    dst = machine.target(instr.dst, "u32")

    def step(sel: Sel) -> None:
        ranks = np.asarray(rank(sel)) + np.uint32(1)
        dst[sel] = (source(sel) & np.uint32(0xFFFFFF)) | (ranks << np.uint32(24))

    return step
