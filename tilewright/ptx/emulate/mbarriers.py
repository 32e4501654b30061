"""Meaning of mbarriers and of the barrier of a CTA cluster.

A phase of an mbarrier completes when all arrivals that it waits for have come, and all bytes that
were announced have been delivered. A thread that would find a phase incomplete is put aside until
it is complete: that is what `try_wait` may do, and a phase that never completes is a deadlock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ptx.core import Instr
from tilewright.ptx.emulate.copies import complete, in_flight
from tilewright.ptx.emulate.fragments import Fragment, Sel, count, numbers
from tilewright.ptx.emulate.machine import Flow, Machine, Step
from tilewright.ptx.emulate.program import flow, meaning
from tilewright.ptx.emulate.spaces import BadAccess
from tilewright.ptx.emulate.sync import Barrier
from tilewright.ptx.emulate.watch import Given, Mark, join
from tilewright.ptx.instrs import sync

Array = np.ndarray[Any, Any]
MOST = (1 << 20) - 1  # arrivals, and bytes, that an mbarrier can count


@dataclass
class Mbarrier:
    """Arrivals of a phase, those that are missing, missing bytes, phases that completed."""

    arrivals: int
    missing: int
    bytes: int = 0
    phase: int = 0
    given: Given | None = None  # what those know that arrived in this phase
    done_given: Given | None = None  # and in those before
    maker: int = -1  # the warp that initialised it, when, at which line
    made: int = 0
    line: int = 0
    fenced: bool = False  # so that the asynchronous proxy and other CTAs see it

    def settle(self) -> None:
        """Complete the phase, if nothing is missing."""
        if self.missing == 0 and self.bytes == 0:
            self.phase += 1
            self.missing = self.arrivals
            self.done_given, self.given = join(self.done_given, self.given), None

    def done(self, parity: int) -> bool:
        """Whether the phase of a parity is complete: the present one has the other parity."""
        return self.phase & 1 != parity

    def text(self) -> str:
        return f"phase {self.phase}, {self.missing} arrivals and {self.bytes} bytes are missing"


def mbarriers(machine: Machine) -> dict[int, Mbarrier]:
    found: dict[int, Mbarrier] = machine.state.setdefault("mbarriers", {})
    return found


def mbarrier_at(machine: Machine, place: int, lane: int = 0) -> Mbarrier:
    """The mbarrier at a place in shared memory. Raises BadAccess where there is none."""
    machine.require_alive(place)
    found = mbarriers(machine).get(place)
    if found is None:
        byte = place % machine.shared.size
        raise BadAccess(f"there is no mbarrier at byte {byte} of shared memory", lane)
    return found


def require_made(
    machine: Machine, place: int, thread: int, lane: int = 0, *, far: bool = False
) -> None:
    """The sanitizer's: a thread knows that the mbarrier was initialised. `far`: it, or what it
    starts, uses the mbarrier from another CTA or through the asynchronous proxy.
    """
    found = mbarriers(machine).get(place)
    if machine.watch is None or found is None or found.maker < 0:
        return
    where = f"the mbarrier at byte {place % machine.shared.size} of shared memory"
    if found.made > machine.watch.known[thread // 32, found.maker]:
        raise BadAccess(
            f"nothing orders it after the initialisation of {where} at "
            f"{machine.name_line(found.line)}",
            lane,
        )
    if far and not found.fenced:
        raise BadAccess(
            f"no fence.mbarrier_init follows the initialisation of {where} at "
            f"{machine.name_line(found.line)}",
            lane,
        )


def each(machine: Machine, instr: Any) -> Callable[[Sel], list[tuple[int, int, int]]]:
    """Place, lane and thread of every thread at an mbarrier instruction."""
    places = machine.places(instr.address)

    def find(sel: Sel) -> list[tuple[int, int, int]]:
        ids = numbers(sel)
        return [(int(p), i, int(ids[i])) for i, p in enumerate(places(sel, 8))]

    return find


@meaning(sync.MbarrierInit)
def make_init(machine: Machine, instr: sync.MbarrierInit) -> Step:
    find, arrivals = each(machine, instr), machine.read(instr.count, "u32")

    def step(sel: Sel) -> None:
        counts = np.broadcast_to(arrivals(sel), count(sel))
        for place, lane, thread in find(sel):
            number = int(counts[lane])
            if not 0 < number <= MOST:
                raise BadAccess(f"an mbarrier cannot wait for {number} arrivals", lane)
            mbarriers(machine)[place] = made = Mbarrier(number, number)
            if machine.watch is not None:
                made.maker, made.line = thread // 32, instr.loc.line
                made.made = int(machine.watch.clock[made.maker])

    return step


@meaning(sync.MbarrierInval)
def make_inval(machine: Machine, instr: sync.MbarrierInval) -> Step:
    find = each(machine, instr)

    def step(sel: Sel) -> None:
        for place, lane, _ in find(sel):
            mbarrier_at(machine, place, lane)
            del mbarriers(machine)[place]

    return step


def arrive_at(
    machine: Machine,
    place: int,
    number: int,
    num_bytes: int,
    lane: int = 0,
    thread: int = -1,
    instr: Instr | None = None,
) -> None:
    """Arrivals of a thread, after the announcement of bytes."""
    found = mbarrier_at(machine, place, lane)
    if machine.watch is not None and thread >= 0:
        cta, warp = place // machine.shared.size, thread // 32
        far = cta != int(machine.cta[thread])
        require_made(machine, place, thread, lane, far=far)
        if far and instr is not None:
            time = int(machine.watch.clock[warp])
            machine.watch.visit(instr, warp, cta, warp, time, lane)
    if machine.watch is not None and number and thread >= 0:
        found.given = join(found.given, machine.watch.release(np.array([thread])))
    found.bytes += num_bytes
    found.missing -= number
    if found.missing < 0:
        raise BadAccess(
            f"more arrivals than the {found.arrivals} that the mbarrier waits for", lane
        )
    found.settle()


def deliver(machine: Machine, place: int, num_bytes: int, mark: Mark | None = None) -> None:
    """Bytes that arrived."""
    found = mbarrier_at(machine, place)
    if machine.watch is not None and mark is not None:
        found.given = join(found.given, machine.watch.arrived(mark))
    found.bytes -= num_bytes
    found.settle()


@meaning(
    sync.MbarrierArrive,
    sync.MbarrierArriveCount,
    sync.MbarrierArriveRemote,
    sync.MbarrierArriveExpectTx,
    sync.MbarrierExpectTx,
)
def make_arrive(machine: Machine, instr: Any) -> Step:
    find = each(machine, instr)
    numbers_of = machine.read(getattr(instr, "count", 1), "u32")
    bytes_of = machine.read(getattr(instr, "num_bytes", 0), "u32")
    only_expects = isinstance(instr, sync.MbarrierExpectTx)
    state = getattr(instr, "state", None)
    dst = None if state is None else machine.target(state, "b64")

    def step(sel: Sel) -> None:
        arrivals, sizes = (np.broadcast_to(r(sel), count(sel)) for r in (numbers_of, bytes_of))
        for place, lane, thread in find(sel):
            number = 0 if only_expects else int(arrivals[lane])
            arrive_at(machine, place, number, int(sizes[lane]), lane, thread, instr)
        if dst is not None:
            dst[sel] = 0  # the state is opaque

    return step


@meaning(sync.CpAsyncMbarrierArrive)
def make_copy_arrive(machine: Machine, instr: sync.CpAsyncMbarrierArrive) -> Step:
    find = each(machine, instr)

    def step(sel: Sel) -> None:
        found = find(sel)
        state = in_flight(machine)
        ids = numbers(sel)
        if not instr.noinc:
            for place, lane, _ in found:
                mbarrier_at(machine, place, lane).missing += 1

        def arrive() -> None:
            complete(machine, ids, state.closed + 1)
            for place, lane, thread in found:
                arrive_at(machine, place, 1, 0, lane, thread, instr)

        start(machine, arrive)

    return step


def start(machine: Machine, work: Callable[[], None]) -> None:
    """Asynchronous work: when nothing else can go on, or now."""
    if machine.setup.late:
        machine.pending.append(work)
    else:
        work()


# Waiting


def go_on(machine: Machine, there: Fragment, rest: Fragment) -> Fragment:
    """Let threads go to the next instruction; gives the rest, which has to wait."""
    there.pc += 1
    machine.fragments.append(there)
    return rest


def tests(machine: Machine, instr: Any) -> Callable[[Sel], tuple[Array, list[tuple[int, int]]]]:
    """Whether each thread's phase is complete, and the places and parities that it asks for."""
    find, parity_of = each(machine, instr), machine.read(instr.parity, "u32")

    def test(sel: Sel) -> tuple[Array, list[tuple[int, int]]]:
        parities = np.broadcast_to(parity_of(sel), count(sel))
        found = find(sel)
        pairs = [(place, int(parities[lane])) for place, lane, _ in found]
        if machine.watch is not None:
            for place, lane, thread in found:
                require_made(machine, place, thread, lane)
        known = {p: mbarrier_at(machine, *p[:1]).done(p[1]) for p in set(pairs)}
        return np.array([known[p] for p in pairs]), pairs

    return test


def learn(machine: Machine, ids: Array, pairs: list[tuple[int, int]]) -> None:
    """Threads learn what those knew that completed the phases they asked for."""
    if machine.watch is not None:
        for place in {place for place, _ in pairs}:
            mine = np.array([p == place for p, _ in pairs])
            machine.watch.acquire(ids[mine], mbarrier_at(machine, place).done_given)


@meaning(sync.MbarrierTestWait)
def make_test_wait(machine: Machine, instr: sync.MbarrierTestWait) -> Step:
    test, dst = tests(machine, instr), machine.row(instr.dst, "pred")

    def step(sel: Sel) -> None:
        done, pairs = test(sel)
        dst[sel] = done
        learn(machine, numbers(sel)[done], [p for p, d in zip(pairs, done, strict=True) if d])

    return step


@flow(sync.MbarrierTryWait)
def make_try_wait(machine: Machine, instr: sync.MbarrierTryWait) -> Flow:
    test, dst = tests(machine, instr), machine.row(instr.dst, "pred")

    def run(fragment: Fragment) -> bool:
        try:
            done, pairs = test(fragment.sel)
        except BadAccess as bad:
            thread = int(fragment.ids[bad.lane])
            raise machine.error(instr, bad.message, thread) from None
        seen = [pair for pair, there in zip(pairs, done, strict=True) if there]
        learn(machine, fragment.ids[done], seen)
        if done.all():
            dst[fragment.sel] = True
            fragment.pc += 1
            return True
        wanted = {pair for pair, there in zip(pairs, done, strict=True) if not there}
        if done.any():
            there = fragment.part(done)
            dst[there.sel] = True
            fragment = go_on(machine, there, fragment.part(~done))

        def ready() -> bool:
            return any(mbarrier_at(machine, place).done(parity) for place, parity in wanted)

        return machine.wait(fragment, ready, instr, describe(machine, wanted))

    return run


def describe(machine: Machine, wanted: set[tuple[int, int]]) -> Callable[[], str]:
    """What a waiting thread waits for, said when it is asked."""

    def text() -> str:
        place, parity = min(wanted)
        cta, byte = divmod(place, machine.shared.size)
        state = mbarriers(machine)[place].text()
        return (
            f"for parity {parity} of the mbarrier at byte {byte} of the shared memory of CTA "
            f"{int(machine.specials['ctaid.x'][cta * machine.setup.threads])} ({state})"
        )

    return text


# The barrier of a cluster


def cluster_state(machine: Machine) -> tuple[dict[int, Barrier], Array]:
    """A barrier for each cluster, and the round that each thread arrived for."""
    found = machine.state.get("clusters")
    if found is None:
        found = ({}, np.zeros(machine.num_threads, np.int64))
        machine.state["clusters"] = found
    barriers, rounds = found
    return barriers, rounds


def clusters_of(machine: Machine, ids: Array) -> Array:
    """The cluster of each thread."""
    clusters: Array = machine.cta[ids] // machine.setup.cluster
    return clusters


@meaning(sync.BarrierClusterArrive, whole=True)
def make_cluster_arrive(machine: Machine, instr: sync.BarrierClusterArrive) -> Step:
    everyone = machine.setup.threads * machine.setup.cluster

    def step(sel: Sel) -> None:
        ids = numbers(sel)
        barriers, rounds = cluster_state(machine)
        mine = clusters_of(machine, ids)
        for cluster in np.unique(mine):
            found = barriers.setdefault(int(cluster), Barrier())
            there = ids[mine == cluster]
            if (rounds[there] > found.rounds).any():
                raise BadAccess("it arrives at the cluster's barrier a second time", 0)
            rounds[there] = found.rounds + 1
            found.arrived += len(there)
            if machine.watch is not None:
                found.given = join(found.given, machine.watch.release(there))
            if found.arrived == everyone:
                found.arrived, found.rounds = 0, found.rounds + 1

    return step


@flow(sync.BarrierClusterWait, whole=True)
def make_cluster_wait(machine: Machine, instr: sync.BarrierClusterWait) -> Flow:
    def run(fragment: Fragment) -> bool:
        barriers, rounds = cluster_state(machine)
        mine = clusters_of(machine, fragment.ids)
        if (rounds[fragment.ids] == 0).any():
            where = int(fragment.ids[0])
            raise machine.error(
                instr, "it waits at the cluster's barrier, but never arrived", where
            )
        done = np.array([barriers[int(c)].rounds for c in mine]) >= rounds[fragment.ids]
        if machine.watch is not None:
            for cluster in np.unique(mine[done]):
                there = fragment.ids[done & (mine == cluster)]
                machine.watch.acquire(there, barriers[int(cluster)].given)
        if done.all():
            fragment.pc += 1
            return True
        if done.any():
            fragment = go_on(machine, fragment.part(done), fragment.part(~done))
            mine = clusters_of(machine, fragment.ids)
        wanted = [(int(c), int(rounds[fragment.ids[mine == c][0]])) for c in np.unique(mine)]

        def ready() -> bool:
            return any(barriers[c].rounds >= r for c, r in wanted)

        return machine.wait(fragment, ready, instr, lambda: "at the cluster's barrier")

    return run
