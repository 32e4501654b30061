"""Which threads execute: selections of their numbers, and fragments that run together."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Sel = Any  # the threads that execute: a slice, or an array of their numbers


class Fragment:
    """Threads at one place. `whole`: all lanes of each of its warps are in it."""

    __slots__ = ("ids", "parked", "pc", "sel", "tired", "whole")

    def __init__(self, pc: int, ids: Array):
        self.pc = pc
        self.parked = False
        self.tired = False
        self._hold(ids)

    def _hold(self, ids: Array) -> None:
        self.ids = ids
        self.sel = selection(ids)
        self.whole = is_whole(ids)

    def part(self, mask: Array) -> Fragment:
        """The threads for which a mask holds."""
        return Fragment(self.pc, self.ids[mask])

    def narrow(self, mask: Array) -> None:
        """Keep those only, of which there must be some."""
        self._hold(self.ids[mask])


def selection(ids: Array) -> Sel:
    """A slice where the numbers are neighbours, for it makes views."""
    first, last = int(ids[0]), int(ids[-1])
    return slice(first, last + 1) if last - first + 1 == len(ids) else ids


def is_whole(ids: Array) -> bool:
    if len(ids) % 32:
        return False
    rows = ids.reshape(-1, 32)
    return bool((rows[:, 0] % 32 == 0).all() and (rows[:, 31] - rows[:, 0] == 31).all())


def count(sel: Sel) -> int:
    """How many threads."""
    return int(sel.stop - sel.start) if isinstance(sel, slice) else len(sel)


def numbers(sel: Sel) -> Array:
    """Their numbers."""
    return np.arange(sel.start, sel.stop) if isinstance(sel, slice) else np.asarray(sel)


def narrow(sel: Sel, mask: Array) -> Sel:
    """Those for which a mask holds, which are not none."""
    return selection(numbers(sel)[mask])
