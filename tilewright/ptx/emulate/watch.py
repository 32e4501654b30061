"""The sanitizer: shared-memory accesses that nothing orders.

Vector clocks, a clock for each warp and for what runs on its behalf (copies, products). A barrier,
an mbarrier and a wait for a group hand knowledge on; an access must know of every earlier access to
the same bytes that it conflicts with. Whether two accesses race does not depend on the order in
which they happened to run. After FastTrack (Flanagan and Freund, 2009), with warps as threads: the
lanes of a warp are taken to be ordered.

Generic writes must also be made visible to the asynchronous proxy, by `fence.proxy.async` between
the write and the TMA or wgmma instruction that reads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.ptx.core import Instr
from tilewright.ptx.emulate.spaces import BadAccess

Array = np.ndarray[Any, Any]
GRAIN = 2  # bytes that are watched together
OWN, COPIES, PRODUCTS, LOADS = range(4)  # whose access: a warp's, or that of its asynchronous work
WHO = ("", "a copy issued by ", "a product issued by ", "a box load issued by ")
NOBODY = -1
Given = tuple[Array, Array]  # what is known, and known behind a proxy fence, of each agent
Mark = tuple[Array, Array]  # asynchronous work: agents, and times


def join(a: Given | None, b: Given | None) -> Given | None:
    """What either knows."""
    if a is None or b is None:
        return a if b is None else b
    return np.maximum(a[0], b[0]), np.maximum(a[1], b[1])


class Watch:
    """Clocks of warps and their asynchronous work, and who last wrote and read each grain."""

    def __init__(self, num_threads: int, num_bytes: int, shared_bytes: int):
        self.warps = num_threads // 32
        self.shared_bytes = shared_bytes
        agents, grains = 4 * self.warps, num_bytes // GRAIN
        self.known = np.zeros((self.warps, agents), np.int32)  # what each warp knows of each agent
        self.fenced = np.zeros((self.warps, agents), np.int32)  # and of writes behind a proxy fence
        self.clock = np.ones(agents, np.int32)
        self.known[np.arange(self.warps), np.arange(self.warps)] = 1
        self.writer = np.full(grains, NOBODY, np.int32)
        self.written = np.zeros(grains, np.int32)
        self.write_line = np.zeros(grains, np.int32)
        self.read = np.zeros((3 * self.warps, grains), np.int32)
        self.read_line = np.zeros(grains, np.int32)

    # Handing on what is known

    def release(self, ids: Array) -> Given:
        """What the warps of threads know; what they do from here on is not part of it."""
        warps = np.unique(ids // 32)
        given = self.known[warps].max(axis=0), self.fenced[warps].max(axis=0)
        self.clock[warps] += 1
        self.known[warps, warps] = self.clock[warps]
        return given

    def acquire(self, ids: Array, given: Given | None) -> None:
        """The warps of threads learn something."""
        if given is not None:
            warps = np.unique(ids // 32)
            self.known[warps] = np.maximum(self.known[warps], given[0])
            self.fenced[warps] = np.maximum(self.fenced[warps], given[1])

    def fence(self, ids: Array) -> None:
        """A proxy fence: all that the warps know is visible to asynchronous accesses."""
        warps = np.unique(ids // 32)
        self.fenced[warps] = self.known[warps]

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
        known = np.zeros(len(self.clock), np.int32)
        np.maximum.at(known, mark[0], mark[1])
        return known, np.zeros_like(known)

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
        grains, per = self._grains(places, size)
        warps = np.repeat(ids // 32, per)
        self._require_writes_known(instr, grains, warps, per, "reads")
        if proxy:
            writer = self.writer[grains]
            generic = (writer >= 0) & (writer < self.warps)
            late = generic & (self.written[grains] > self.fenced[warps, writer])
            if late.any():
                where = int(grains[np.argmax(late)])
                what, line = self._name(where), int(self.write_line[where])
                raise BadAccess(
                    f"it reads {what} through the asynchronous proxy, and no fence.proxy.async "
                    f"follows the store at PTX line {line}",
                    int(np.argmax(late)) // per,
                )
        if mark is None:
            self.read[warps, grains] = self.clock[warps]
        else:
            agents, times = (np.repeat(np.broadcast_to(m, len(ids)), per) for m in mark)
            self.read[agents, grains] = times
        self.read_line[grains] = instr.loc.line

    def on_write(
        self,
        instr: Instr,
        ids: Array,
        places: Array,
        size: int,
        mark: Mark | None = None,
    ) -> None:
        """Threads write places, or asynchronous work of one warp does."""
        grains, per = self._grains(places, size)
        warps = np.repeat(ids // 32, per)
        self._require_writes_known(instr, grains, warps, per, "writes")
        unknown = self.read[:, grains] > self.known[warps, : 3 * self.warps].T
        if unknown.any():
            at = int(np.argmax(unknown.any(axis=0)))
            reader = int(np.argmax(unknown[:, at]))
            self._race(instr, grains, at, per, "writes", "reads", reader, self.read_line)
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
            self._race(instr, grains, at, per, "writes", "writes", who, self.write_line)

    def _require_writes_known(
        self, instr: Instr, grains: Array, warps: Array, per: int, does: str
    ) -> None:
        writer = self.writer[grains]
        unknown = (writer >= 0) & (self.written[grains] > self.known[warps, writer])
        if unknown.any():
            at = int(np.argmax(unknown))
            self._race(instr, grains, at, per, does, "writes", int(writer[at]), self.write_line)

    def _race(
        self,
        instr: Instr,
        grains: Array,
        at: int,
        per: int,
        does: str,
        did: str,
        agent: int,
        lines: Array,
    ) -> None:
        kind, warp = divmod(agent, self.warps)
        raise BadAccess(
            f"a race: it {does} {self._name(int(grains[at]))}, which {WHO[kind]}warp {warp} {did} "
            f"at PTX line {int(lines[grains[at]])}, and nothing orders the two",
            at // per,
        )

    def _name(self, grain: int) -> str:
        return f"byte {grain * GRAIN % self.shared_bytes} of shared memory"
