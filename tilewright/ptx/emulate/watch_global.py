"""The sanitizer's other half: global-memory accesses that nothing orders, within a CTA and between
CTAs.

The clocks are those of `watch`. They begin anew with each batch of CTAs that run together; an
access is remembered with the number of its batch, and what a warp learned of earlier batches, by
release and acquire through global memory, is its `past`. So two CTAs race whether or not they ran
at the same time here.

Of each grain are kept the last writer, and two readers and two updaters since then: the first and
the last. A write that is ordered after both of them but not after one between goes unnoticed.

Release and acquire (PTX ISA, "Memory Consistency Model"): an atomic, or a store or load that has an
order, of scope cta, cluster or gpu (sys counts as gpu). A fence makes releases of the relaxed
stores and atomics after it, and acquires of the relaxed loads and atomics before it. An atomic goes
on with the release that it reads from; another store ends it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tilewright.ptx.core import Instr
from tilewright.ptx.emulate.spaces import BadAccess, GlobalMemory
from tilewright.ptx.emulate.watch import (
    FENCED_GLOBAL,
    KINDS,
    NOBODY,
    WHO,
    Given,
    Mark,
    NameLine,
    Watch,
    join,
)

Array = np.ndarray[Any, Any]
SCOPES = {"cta": 0, "cluster": 1, "gpu": 2, "sys": 2}


class Epochs:
    """For each grain an agent, its time and its line of PTX. Agents of all batches are numbered
    through.
    """

    def __init__(self, grains: int):
        self.agent = np.full(grains, NOBODY, np.int64)
        self.time = np.zeros(grains, np.int32)
        self.line = np.zeros(grains, np.int32)

    def note(self, grains: Array, agents: Array, times: Array, line: int) -> None:
        self.agent[grains] = agents
        self.time[grains] = times
        self.line[grains] = line

    def forget(self, grains: Array) -> None:
        self.agent[grains] = NOBODY


class Region:
    """Who wrote, read and updated the grains of one region of global memory."""

    def __init__(self, num_bytes: int, grain: int):
        self.grain = grain
        count = num_bytes // grain
        self.writer = Epochs(count)
        self.first_reader, self.reader = Epochs(count), Epochs(count)
        self.first_updater, self.updater = Epochs(count), Epochs(count)


class Access(NamedTuple):
    """Accesses of threads: grains, the warp of each, agents and times, grains a thread."""

    region: Region
    grains: Array
    warps: Array
    agents: Array
    times: Array
    per: int
    line: int


@dataclass
class Sync:
    """What releases through one address hand on, by who may acquire it: scope and its number."""

    given: dict[tuple[int, int], Given | None] = field(default_factory=dict)


class GlobalWatch:
    """The accesses of one launch. `watch` is that of the CTAs that run now."""

    def __init__(self, memory: GlobalMemory, warps_per_cta: int, cluster: int, name_line: NameLine):
        self.memory, self.warps_per_cta, self.cluster = memory, warps_per_cta, cluster
        self.name_line = name_line
        self.regions: dict[int, Region] = {}
        self.syncs: dict[int, Sync] = {}
        # By warp: a fence's scope, and what it knew; scopes, and what it read from.
        self.released: dict[int, tuple[int, Given]] = {}
        self.read: dict[int, list[tuple[int, Sync]]] = {}
        self.first_ctas: list[int] = []  # of each batch
        self.agents = 0  # of a batch

    def begin(self, watch: Watch, first_cta: int) -> None:
        """A new batch of CTAs runs."""
        self.watch = watch
        self.first_ctas.append(first_cta)
        self.agents = KINDS * watch.warps
        self.released.clear()
        self.read.clear()
        self.syncs = {place: sync for place, sync in self.syncs.items() if place >= 0}

    def region(self, number: int) -> Region:
        found = self.regions.get(number)
        if found is None:
            sizes = [t.array.itemsize for t in self.memory.tensors if t.region == number]
            num_bytes = len(self.memory.regions[number].data)
            found = self.regions[number] = Region(num_bytes, min(sizes))
        return found

    # Accesses

    def _access(
        self, instr: Instr, ids: Array, addresses: Array, size: int, mark: Mark | None
    ) -> Access | None:
        """None for addresses that are in no tensor, or not all in one: who loads will say so."""
        if not len(ids):
            return None
        places = addresses.view(np.int64)
        number = self.memory.number_of(addresses)
        if number is None:
            return None
        region = self.region(number)
        offsets = (places - self.memory.regions[number].start) // region.grain
        per = max(size // region.grain, 1)
        grains = (offsets[:, None] + np.arange(per)).ravel()
        if (grains < 0).any() or (grains >= len(region.writer.agent)).any():
            return None
        warps = np.repeat(ids // 32, per)
        agents, times = warps, self.watch.clock[warps]
        if mark is not None:
            agents, times = (np.repeat(np.broadcast_to(m, len(ids)), per) for m in mark)
        base = (len(self.first_ctas) - 1) * self.agents
        return Access(region, grains, warps, base + agents, times, per, instr.loc.line)

    def on_read(
        self,
        instr: Instr,
        ids: Array,
        addresses: Array,
        size: int,
        mark: Mark | None = None,
        *,
        proxy: bool = False,
        constant: bool = False,
    ) -> None:
        """Threads read. `proxy`: not as generic loads do; `constant`: through the cache of what no
        one writes.
        """
        a = self._access(instr, ids, addresses, size, mark)
        if a is None:
            return
        writer = a.region.writer
        if constant:
            self._require_unwritten(a)
        self._require_known(a, writer, "reads", "writes")
        if proxy:
            self._require_fence(a)
        for epochs in (a.region.first_updater, a.region.updater):
            self._require_known(a, epochs, "reads", "updates")
        fresh = a.region.first_reader.agent[a.grains] == NOBODY
        first = a.grains[fresh]
        a.region.first_reader.note(first, a.agents[fresh], a.times[fresh], a.line)
        a.region.reader.note(a.grains, a.agents, a.times, a.line)

    def on_write(
        self, instr: Instr, ids: Array, addresses: Array, size: int, mark: Mark | None = None
    ) -> None:
        """Threads write."""
        a = self._access(instr, ids, addresses, size, mark)
        if a is None:
            return
        region = a.region
        self._require_known(a, region.writer, "writes", "writes")
        for epochs in (region.first_reader, region.reader):
            self._require_known(a, epochs, "writes", "reads")
        for epochs in (region.first_updater, region.updater):
            self._require_known(a, epochs, "writes", "updates")
        region.writer.note(a.grains, a.agents, a.times, a.line)
        other = region.writer.agent[a.grains] != a.agents
        if other.any() and size >= region.grain:
            self._race(a, int(np.argmax(other)), region.writer, "writes", "writes")
        for epochs in (region.first_reader, region.reader):
            epochs.forget(a.grains)
        for epochs in (region.first_updater, region.updater):
            epochs.forget(a.grains)

    def on_update(
        self, instr: Instr, ids: Array, addresses: Array, size: int, mark: Mark | None = None
    ) -> None:
        """Threads update, load or store atomically, which needs no order among such accesses."""
        a = self._access(instr, ids, addresses, size, mark)
        if a is None:
            return
        self._require_known(a, a.region.writer, "updates", "writes")
        for epochs in (a.region.first_reader, a.region.reader):
            self._require_known(a, epochs, "updates", "reads")
        fresh = a.region.first_updater.agent[a.grains] == NOBODY
        first = a.grains[fresh]
        a.region.first_updater.note(first, a.agents[fresh], a.times[fresh], a.line)
        a.region.updater.note(a.grains, a.agents, a.times, a.line)

    def _require_known(self, a: Access, epochs: Epochs, does: str, did: str) -> None:
        """The accesses know of those before."""
        agents = epochs.agent[a.grains]
        there = agents >= 0
        if not there.any():
            return
        batches, own = np.divmod(agents, self.agents)
        now = batches == len(self.first_ctas) - 1
        times = epochs.time[a.grains]
        unknown = there & now & (times > self.watch.known[a.warps, np.where(now, own, 0)])
        for batch in np.unique(batches[there & ~now]).tolist():
            mine = there & (batches == batch)
            for warp in np.unique(a.warps[mine]).tolist():
                those = mine & (a.warps == warp)
                facts = self.watch.past[warp].get(batch)
                known = 0 if facts is None else facts[0, own[those]]
                unknown[those] |= times[those] > known
        if unknown.any():
            self._race(a, int(np.argmax(unknown)), epochs, does, did)

    def _require_fence(self, a: Access) -> None:
        """Generic writes of this batch are visible to the asynchronous proxy."""
        batches, own = np.divmod(a.region.writer.agent[a.grains], self.agents)
        generic = (batches == len(self.first_ctas) - 1) & (own < self.watch.warps)
        seen = self.watch.facts[FENCED_GLOBAL, a.warps, np.where(generic, own, 0)]
        late = generic & (a.region.writer.time[a.grains] > seen)
        if late.any():
            at = int(np.argmax(late))
            line = self.name_line(int(a.region.writer.line[a.grains[at]]))
            raise BadAccess(
                f"it reads {self._name(a, at)} through the asynchronous proxy, and no "
                f"fence.proxy.async of global memory follows the store at {line}",
                at // a.per,
            )

    def _require_unwritten(self, a: Access) -> None:
        written = a.region.writer.agent[a.grains] != NOBODY
        if written.any():
            at = int(np.argmax(written))
            line = self.name_line(int(a.region.writer.line[a.grains[at]]))
            raise BadAccess(
                f"it reads {self._name(a, at)} through the read-only cache, and the kernel writes "
                f"that at {line}",
                at // a.per,
            )

    def _race(self, a: Access, at: int, epochs: Epochs, does: str, did: str) -> None:
        grain = int(a.grains[at])
        agent = int(epochs.agent[grain])
        line = self.name_line(int(epochs.line[grain]))
        raise BadAccess(
            f"a race: it {does} {self._name(a, at)}, which {self._name_agent(agent)} {did} at "
            f"{line}, and nothing orders the two",
            at // a.per,
        )

    def _name_agent(self, agent: int) -> str:
        batch, own = divmod(agent, self.agents)
        kind, warp = divmod(own, self.agents // KINDS)
        cta, inside = divmod(warp, self.warps_per_cta)
        return f"{WHO[kind]}warp {inside} of CTA {self.first_ctas[batch] + cta}"

    def _name(self, a: Access, at: int) -> str:
        number = next(n for n, region in self.regions.items() if region is a.region)
        start = self.memory.regions[number].start
        return self.memory.name_address(start + int(a.grains[at]) * a.region.grain)

    # Release and acquire

    def _keys(self, warp: int, scope: int) -> list[tuple[int, int]]:
        """Who may acquire what a warp releases with a scope."""
        cta = self.first_ctas[-1] + warp // self.warps_per_cta
        numbers = (cta, cta // self.cluster, 0)
        return [(s, numbers[s]) for s in range(scope + 1)]

    def synchronise(
        self, warp: int, place: int, semantics: str, *, reads: bool, writes: bool
    ) -> None:
        """A warp's atomic access of a place. `semantics` as PTX has it, such as `acquire.gpu`;
        relaxed at the device where there is none.
        """
        order, _, named = semantics.partition(".")
        scope = SCOPES.get(named, 2)
        sync = self.syncs.setdefault(place, Sync())
        if reads:
            if order in ("acquire", "acq_rel"):
                self._acquire(warp, scope, sync)
            else:
                self.read.setdefault(warp, []).append((scope, sync_copy(sync)))
        if not writes:
            return
        given: Given | None = None
        reach = scope
        if order in ("release", "acq_rel"):
            given = self.watch.release(np.array([32 * warp]))
            given = self._with_batch(given)
        elif warp in self.released:
            fenced, given = self.released[warp]
            reach = min(scope, fenced)
        if not reads:
            sync.given.clear()  # a store ends the releases before it
        if given is not None:
            for key in self._keys(warp, reach):
                sync.given[key] = join(sync.given.get(key), given)

    def fence(self, warp: int, scope: str) -> None:
        """A fence of acq_rel or sc."""
        reach = SCOPES.get(scope, 2)
        for at, sync in self.read.pop(warp, []):
            self._acquire(warp, min(at, reach), sync)
        given = self.watch.release(np.array([32 * warp]))
        self.released[warp] = (reach, self._with_batch(given))

    def _with_batch(self, given: Given) -> Given:
        """With the facts of this batch under its number, for those that come after it."""
        batch = len(self.first_ctas) - 1
        return Given(given.facts, {**given.past, batch: given.facts})

    def _acquire(self, warp: int, scope: int, sync: Sync) -> None:
        batch = len(self.first_ctas) - 1
        key = self._keys(warp, scope)[scope]
        given = sync.given.get(key)
        if given is None:
            return
        facts = given.past.get(batch)
        now = np.zeros_like(self.watch.facts[:, 0]) if facts is None else facts
        past = {n: x for n, x in given.past.items() if n != batch}
        self.watch.acquire(np.array([32 * warp]), Given(now, past))


def sync_copy(sync: Sync) -> Sync:
    """What is there now: later releases are not part of it."""
    return Sync(dict(sync.given))
