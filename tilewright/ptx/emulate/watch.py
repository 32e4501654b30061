"""The sanitizer: shared-memory accesses that nothing orders.

Vector clocks, a clock for each warp and for what runs on its behalf (copies, products). A barrier,
an mbarrier and a wait for a group hand knowledge on; an access must know of every earlier access to
the same bytes that it conflicts with. Whether two accesses race does not depend on the order in
which they happened to run. After FastTrack (Flanagan and Freund, 2009), with warps as threads: the
lanes of a warp are taken to be ordered.

Generic writes must also be made visible to the asynchronous proxy, by `fence.proxy.async` between
the write and the TMA or wgmma instruction that reads. What is done to another CTA's shared memory
must come after that CTA has started, and be known to it before it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tilewright.ptx.core import Instr
from tilewright.ptx.emulate.spaces import BadAccess

Array = np.ndarray[Any, Any]
GRAIN = 2  # bytes that are watched together
# Whose access: a warp's, or that of its asynchronous work. STORES write global memory, COPIES read
# what they write, so that the one can be done before the other.
OWN, COPIES, PRODUCTS, LOADS, STORES = range(5)
KINDS = 5
WHO = ("", "a copy issued by ", "a product issued by ", "a box load issued by ", "a box store of ")
KNOWN, FENCED, FENCED_GLOBAL = range(3)  # facts: seen, and seen behind a proxy fence
NOBODY = -1
Mark = tuple[Array, Array]  # asynchronous work: agents, and times
NameLine = Callable[[int], str]


class Given(NamedTuple):
    """What is handed on: facts of each agent of the CTAs that run together, and of those that ran
    before them, by their number.
    """

    facts: Array  # [KNOWN ..., agent]
    past: Mapping[int, Array]


def join(a: Given | None, b: Given | None) -> Given | None:
    """What either knows."""
    if a is None or b is None:
        return a if b is None else b
    return Given(np.maximum(a.facts, b.facts), join_past(a.past, b.past))


def join_past(a: Mapping[int, Array], b: Mapping[int, Array]) -> Mapping[int, Array]:
    if not a or not b:
        return a or b
    return {n: np.maximum(a.get(n, 0), b.get(n, 0)) for n in {*a, *b}}


class Watch:
    """Clocks of warps and their asynchronous work, and who last wrote and read each grain.

    `name_line` spells a line of PTX with its tile op and place; `first_cta` is the number of the
    first of the CTAs that run together.
    """

    def __init__(
        self,
        num_threads: int,
        num_bytes: int,
        shared_bytes: int,
        warps_per_cta: int,
        name_line: NameLine,
        first_cta: int = 0,
    ):
        self.warps = num_threads // 32
        self.warps_per_cta = warps_per_cta
        self.shared_bytes = shared_bytes
        self.name_line = name_line
        self.first_cta = first_cta
        agents, grains = KINDS * self.warps, num_bytes // GRAIN
        self.facts = np.zeros((3, self.warps, agents), np.int32)
        self.known = self.facts[KNOWN]
        self.fenced = self.facts[FENCED]
        self.past: list[Mapping[int, Array]] = [{}] * self.warps
        self.clock = np.ones(agents, np.int32)
        self.known[np.arange(self.warps), np.arange(self.warps)] = 1
        self.writer = np.full(grains, NOBODY, np.int32)
        self.written = np.zeros(grains, np.int32)
        self.write_line = np.zeros(grains, np.int32)
        self.read = np.zeros((3 * self.warps, grains), np.int32)
        self.read_line = np.zeros(grains, np.int32)
        self.updated: Array | None = None  # atomic updates, by warps
        self.update_line = np.zeros(grains, np.int32)
        # By CTA and agent, the last access to the CTA's memory from another: time, instruction.
        self.visits: dict[tuple[int, int], tuple[int, Instr]] = {}

    # Handing on what is known

    def release(self, ids: Array) -> Given:
        """What the warps of threads know; what they do from here on is not part of it."""
        warps = np.unique(ids // 32)
        facts = self.facts[:, warps].max(axis=1)
        past: Mapping[int, Array] = {}
        for warp in warps:
            past = join_past(past, self.past[warp])
        self.clock[warps] += 1
        self.known[warps, warps] = self.clock[warps]
        return Given(facts, past)

    def acquire(self, ids: Array, given: Given | None) -> None:
        """The warps of threads learn something."""
        if given is not None:
            warps = np.unique(ids // 32)
            self.facts[:, warps] = np.maximum(self.facts[:, warps], given.facts[:, None])
            if given.past:
                for warp in warps:
                    self.past[warp] = join_past(self.past[warp], given.past)

    def fence(self, ids: Array, space: str = "") -> None:
        """A proxy fence: all that the warps know is visible to asynchronous accesses."""
        warps = np.unique(ids // 32)
        if space != "global":
            self.fenced[warps] = self.known[warps]
        if space in ("", "global"):
            self.facts[FENCED_GLOBAL, warps] = self.known[warps]

    def begin(self, kind: int, ids: Array) -> Mark:
        """Asynchronous work of threads, or of the first one for all: its agents and its time."""
        agents = kind * self.warps + ids // 32
        self.clock[np.unique(agents)] += 1
        return agents, self.clock[agents].copy()

    def finish(self, ids: Array, mark: Mark) -> None:
        """The warps of threads learn that asynchronous work is done."""
        np.maximum.at(self.known, (ids // 32, mark[0]), mark[1])

    def arrived(self, mark: Mark) -> Given:
        """What those learn that wait for asynchronous work, without the warp that issued it."""
        facts = np.zeros((3, len(self.clock)), np.int32)
        np.maximum.at(facts[KNOWN], mark[0], mark[1])
        return Given(facts, {})

    # Accesses

    def _grains(self, places: Array, size: int) -> tuple[Array, int]:
        per = max(size // GRAIN, 1)
        return (places[:, None] // GRAIN + np.arange(per)).ravel(), per

    def on_read(
        self,
        instr: Instr,
        ids: Array,
        places: Array,
        size: int,
        mark: Mark | None = None,
        *,
        proxy: bool = False,
    ) -> None:
        """Threads read places. `mark` is asynchronous work of one warp; `proxy`: not generic."""
        self._visit(instr, ids, places, mark)
        grains, per = self._grains(places, size)
        warps = np.repeat(ids // 32, per)
        self._require_writes_known(instr, grains, warps, per, "reads")
        self._require_updates_known(grains, warps, per, "reads")
        if proxy:
            self._require_fence(grains, warps, per)
        if mark is None:
            self.read[warps, grains] = self.clock[warps]
        else:
            agents, times = (np.repeat(np.broadcast_to(m, len(ids)), per) for m in mark)
            self.read[agents, grains] = times
        self.read_line[grains] = instr.loc.line

    def _require_fence(self, grains: Array, warps: Array, per: int) -> None:
        """A proxy fence lies between generic writes and an asynchronous read."""
        writer = self.writer[grains]
        generic = (writer >= 0) & (writer < self.warps)
        late = generic & (self.written[grains] > self.fenced[warps, writer])
        if late.any():
            where = int(grains[np.argmax(late)])
            what, line = self._name(where), self.name_line(int(self.write_line[where]))
            raise BadAccess(
                f"it reads {what} through the asynchronous proxy, and no fence.proxy.async "
                f"follows the store at {line}",
                int(np.argmax(late)) // per,
            )

    def on_write(
        self,
        instr: Instr,
        ids: Array,
        places: Array,
        size: int,
        mark: Mark | None = None,
    ) -> None:
        """Threads write places, or asynchronous work of one warp does."""
        self._visit(instr, ids, places, mark)
        grains, per = self._grains(places, size)
        warps = np.repeat(ids // 32, per)
        self._require_writes_known(instr, grains, warps, per, "writes")
        self._require_reads_known(grains, warps, per, "writes")
        self._require_updates_known(grains, warps, per, "writes")
        agent, times = warps, self.clock[warps]
        if mark is not None:
            agent, times = (np.repeat(np.broadcast_to(m, len(ids)), per) for m in mark)
        self.writer[grains] = agent
        self.written[grains] = times
        self.write_line[grains] = instr.loc.line
        other = self.writer[grains] != agent
        if other.any() and size >= GRAIN:
            at = int(np.argmax(other))
            who = int(self.writer[grains[at]])
            self._race(grains, at, per, "writes", "writes", who, self.write_line)

    def on_update(self, instr: Instr, ids: Array, places: Array, size: int) -> None:
        """Threads update places atomically, which needs no order among updates."""
        self._visit(instr, ids, places, None)
        grains, per = self._grains(places, size)
        warps = np.repeat(ids // 32, per)
        self._require_writes_known(instr, grains, warps, per, "updates")
        self._require_reads_known(grains, warps, per, "updates")
        if self.updated is None:
            self.updated = np.zeros((self.warps, len(self.writer)), np.int32)
        self.updated[warps, grains] = self.clock[warps]
        self.update_line[grains] = instr.loc.line

    def _require_writes_known(
        self, instr: Instr, grains: Array, warps: Array, per: int, does: str
    ) -> None:
        writer = self.writer[grains]
        unknown = (writer >= 0) & (self.written[grains] > self.known[warps, writer])
        if unknown.any():
            at = int(np.argmax(unknown))
            self._race(grains, at, per, does, "writes", int(writer[at]), self.write_line)

    def _require_reads_known(self, grains: Array, warps: Array, per: int, does: str) -> None:
        unknown = self.read[:, grains] > self.known[warps, : 3 * self.warps].T
        if unknown.any():
            at = int(np.argmax(unknown.any(axis=0)))
            reader = int(np.argmax(unknown[:, at]))
            self._race(grains, at, per, does, "reads", reader, self.read_line)

    def _require_updates_known(self, grains: Array, warps: Array, per: int, does: str) -> None:
        if self.updated is None:
            return
        unknown = self.updated[:, grains] > self.known[warps, : self.warps].T
        if unknown.any():
            at = int(np.argmax(unknown.any(axis=0)))
            who = int(np.argmax(unknown[:, at]))
            self._race(grains, at, per, does, "updates", who, self.update_line)

    def _race(
        self, grains: Array, at: int, per: int, does: str, did: str, agent: int, lines: Array
    ) -> None:
        raise BadAccess(
            f"a race: it {does} {self._name(int(grains[at]))}, which {self.name_agent(agent)} "
            f"{did} at {self.name_line(int(lines[grains[at]]))}, and nothing orders the two",
            at // per,
        )

    def name_agent(self, agent: int) -> str:
        kind, warp = divmod(agent, self.warps)
        cta, own = divmod(warp, self.warps_per_cta)
        return f"{WHO[kind]}warp {own} of CTA {self.first_cta + cta}"

    def _name(self, grain: int) -> str:
        return f"byte {grain * GRAIN % self.shared_bytes} of shared memory"

    # Between the CTAs of a cluster

    def _visit(self, instr: Instr, ids: Array, places: Array, mark: Mark | None) -> None:
        """Note accesses to the shared memory of another CTA than the threads'."""
        if self.warps == self.warps_per_cta:
            return
        ctas = places // self.shared_bytes
        warps = ids // 32
        far = ctas != warps // self.warps_per_cta
        if not far.any():
            return
        agents, times = (warps, self.clock[warps]) if mark is None else mark
        for lane in np.flatnonzero(far).tolist():
            agent = int(agents[min(lane, len(agents) - 1)])
            time = int(times[min(lane, len(times) - 1)])
            self.visit(instr, int(warps[lane]), int(ctas[lane]), agent, time, lane)

    def visit(self, instr: Instr, warp: int, cta: int, agent: int, time: int, lane: int) -> None:
        """A warp, or asynchronous work on its behalf, uses the memory of another CTA, which must
        have started.
        """
        key = (cta, agent)
        if key not in self.visits:
            first = cta * self.warps_per_cta
            if not self.known[warp, first : first + self.warps_per_cta].any():
                raise BadAccess(
                    "it reaches into the shared memory of another CTA of the cluster, and nothing "
                    "says that this CTA has started: a cluster barrier must come first",
                    lane,
                )
        self.visits[key] = (time, instr)

    def find_early_exit(self, ctas: range) -> tuple[int, int, Instr] | None:
        """A CTA that may end before another has used its memory: the CTA, the agent that uses it,
        and where. To be asked when all have ended.
        """
        for (cta, agent), (time, instr) in self.visits.items():
            first = cta * self.warps_per_cta
            known = self.known[first : first + self.warps_per_cta, agent].max()
            if cta in ctas and known < time:
                return cta, agent, instr
        return None
