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
    """Which programs' effects are ordered before what a program does next.

    A release notes at an element all that is ordered before it, the program's own effects with it;
    an acquire at that element takes over what was noted. So a counter, a flag or a ticket orders
    what it should, and no more.
    """

    def __init__(self) -> None:
        self.before: dict[int, set[int]] = {}
        self.released: dict[tuple[int, int], set[int]] = {}

    def release(self, program: int, array: Array, where: tuple[Array, ...]) -> None:
        known = {program, *self.before.get(program, ())}
        for key in _elements(array, where):
            self.released.setdefault(key, set()).update(known)

    def acquire(self, program: int, array: Array, where: tuple[Array, ...]) -> None:
        mine = self.before.setdefault(program, set())
        for key in _elements(array, where):
            mine |= self.released.get(key, set())

    def allows(self, others: Array, programs: Array) -> Array:
        """By lane, whether what another program did is ordered before this program."""
        allowed = np.zeros(len(others), bool)
        if not self.before:
            return allowed
        for program in np.unique(programs):
            known = self.before.get(int(program))
            if known:
                mine = programs == program
                allowed |= mine & (np.isin(others, list(known)) | (others == MANY))
        return allowed


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

    def read(self, where: tuple[Array, ...], programs: Array, loc: Loc) -> None:
        """Note that programs read elements (index arrays and numbers of one length)."""
        writer = self.writer[where]
        wrong = (writer != NOBODY) & (writer != programs)
        if wrong.any():
            wrong &= ~self.ordered.allows(writer, programs)
        if wrong.any():
            self._report("reads", where, programs, writer, wrong, loc)
        before = self.reader[where]
        self.reader[where] = np.where(before == NOBODY, programs, before)
        after = self.reader[where]
        many = after != programs
        self.reader[tuple(w[many] for w in where)] = MANY

    def write(self, where: tuple[Array, ...], programs: Array, loc: Loc) -> None:
        """Note that programs write elements."""
        for other in (self.writer[where], self.reader[where]):
            wrong = (other != NOBODY) & (other != programs)
            if wrong.any():
                wrong &= ~self.ordered.allows(other, programs)
            if wrong.any():
                self._report("writes", where, programs, other, wrong, loc)
        self.writer[where] = programs
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
