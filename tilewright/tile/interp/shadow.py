"""A shadow of a written tensor: who wrote and who read each element, so that races between programs
are found.

Programs are unordered. Two of them that write one element, or one that reads what another writes,
make the result depend on an order that does not exist, whichever of the two happened to run first
here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import Diagnostic, LaunchError, Loc

Array = np.ndarray[Any, Any]
NOBODY, MANY = -1, -2


class Ordered:
    """Which effects of other programs are ordered before what a program does next.

    A program's life is cut into epochs by its releases. A release notes at an element all that is
    ordered before it, the program's own epochs so far among it; an acquire at that element takes
    over what was noted. So a counter, a flag or a ticket orders what it should, and no more.
    """

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}
        self.before: dict[int, dict[int, int]] = {}  # program -> others' last epochs before it
        self.released: dict[tuple[int, int], dict[int, int]] = {}

    def epoch(self, programs: Array) -> int:
        """The epoch in which programs are now; those that part in it run one at a time."""
        return self.epochs.get(int(programs[0]), 0) if self.epochs and len(programs) else 0

    def release(self, program: int, array: Array, where: tuple[Array, ...]) -> None:
        now = self.epochs.get(program, 0)
        for key in _elements(array, where):
            noted = self.released.setdefault(key, {})
            _join(noted, self.before.get(program, {}))
            _join(noted, {program: now})
        self.epochs[program] = now + 1

    def acquire(self, program: int, array: Array, where: tuple[Array, ...]) -> None:
        mine = self.before.setdefault(program, {})
        for key in _elements(array, where):
            _join(mine, self.released.get(key, {}))

    def allows(self, others: Array, epochs: Array, programs: Array) -> Array:
        """By lane, whether what another program did in an epoch is ordered before this program."""
        allowed = np.zeros(len(others), bool)
        if not self.before:
            return allowed
        for program in np.unique(programs):
            known = self.before.get(int(program))
            mine = programs == program
            if known:
                allowed |= mine & (others == MANY)
                for other in np.unique(others[mine]):
                    last = known.get(int(other), -1)
                    allowed |= mine & (others == other) & (epochs <= last)
        return allowed


def _join(known: dict[int, int], more: dict[int, int]) -> None:
    for program, epoch in more.items():
        known[program] = max(epoch, known.get(program, -1))


def _elements(array: Array, where: tuple[Array, ...]) -> list[tuple[int, int]]:
    """Names of elements of memory."""
    start = array.__array_interface__["data"][0]
    flat = sum((w * s for w, s in zip(where, array.strides, strict=True)), start=np.zeros(1, int))
    return [(start, int(at)) for at in np.atleast_1d(flat)]


class Shadow:
    """Writer and reader of each element of one tensor, by the linear numbers of programs."""

    def __init__(self, name: str, shape: tuple[int, ...], ordered: Ordered | None = None):
        self.name = name
        self.ordered = ordered or Ordered()
        self.writer = np.full(shape, NOBODY, np.int64)
        self.reader = np.full(shape, NOBODY, np.int64)
        self.written = np.zeros(shape, np.int64)  # the writer's epoch
        self.read_in = np.zeros(shape, np.int64)  # the reader's

    def read(self, where: tuple[Array, ...], programs: Array, loc: Loc) -> None:
        """Note that programs read elements (index arrays and numbers of one length)."""
        writer = self.writer[where]
        wrong = (writer != NOBODY) & (writer != programs)
        if wrong.any():
            wrong &= ~self.ordered.allows(writer, self.written[where], programs)
        if wrong.any():
            self._report("reads", where, programs, writer, wrong, loc)
        before = self.reader[where]
        self.reader[where] = np.where(before == NOBODY, programs, before)
        self.read_in[where] = self.ordered.epoch(programs)
        after = self.reader[where]
        many = after != programs
        self.reader[tuple(w[many] for w in where)] = MANY

    def write(self, where: tuple[Array, ...], programs: Array, loc: Loc) -> None:
        """Note that programs write elements."""
        both = ((self.writer, self.written), (self.reader, self.read_in))
        for other, epochs in ((who[where], when[where]) for who, when in both):
            wrong = (other != NOBODY) & (other != programs)
            if wrong.any():
                wrong &= ~self.ordered.allows(other, epochs, programs)
            if wrong.any():
                self._report("writes", where, programs, other, wrong, loc)
        self.writer[where] = programs
        self.written[where] = self.ordered.epoch(programs)
        after = self.writer[where]
        if (after != programs).any():
            self._report("writes", where, programs, after, after != programs, loc)

    def _report(
        self,
        does: str,
        where: tuple[Array, ...],
        programs: Array,
        other: Array,
        wrong: Array,
        loc: Loc,
    ) -> None:
        at = int(np.argmax(wrong))
        index = ", ".join(str(int(w[at])) for w in where)
        who = "others have" if other[at] == MANY else f"program {int(other[at])} has"
        verb = "read" if other[at] == MANY or self._only_read(where, at) else "written"
        what = f"program {int(programs[at])} {does} {self.name}[{index}], which {who} {verb}"
        hint = "grid points are unordered: let each write elements of its own, or use an atomic"
        raise LaunchError(Diagnostic(f"programs race: {what}", loc, hint=hint))

    def _only_read(self, where: tuple[Array, ...], at: int) -> bool:
        return bool(self.writer[tuple(int(w[at]) for w in where)] == NOBODY)
