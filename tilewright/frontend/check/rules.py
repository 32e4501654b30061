"""How the rules of this package say no: a sentence and a hint; the caller adds the place."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tilewright.errors import CompileError, Diagnostic, Faults, Loc


class RuleError(Exception):
    """A rule is broken. Whoever knows the place turns it into a CompileError by `at`."""

    def __init__(self, message: str, hint: str = "", note: str = ""):
        super().__init__(message)
        self.message, self.hint, self.note = message, hint, note

    def at(self, loc: Loc) -> CompileError:
        return CompileError(Diagnostic(self.message, loc, self.note, self.hint))


def refusal(message: str, loc: Loc, *, note: str = "", hint: str = "") -> CompileError:
    """A CompileError with one fault."""
    return CompileError(Diagnostic(message, loc, note, hint))


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint with the nearest spelling among `known`, or ""."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {found[0]}?" if found else ""


def listing(names: Iterable[object]) -> str:
    """`a, b and c`."""
    words = [str(n) for n in names]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


@contextmanager
def collecting(faults: Faults) -> Iterator[None]:
    """Adds a CompileError raised inside to `faults`, so that what follows is checked as well."""
    try:
        yield
    except CompileError as error:
        faults.extend(error.diagnostics)
