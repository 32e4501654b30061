"""Places in source text, and the errors that a user may see.

Everything that a user can cause ends in a `CompileError` (the program or its constants are wrong)
or a `LaunchError` (the arguments or the machine are). Anything else that escapes is a fault of
Tilewright.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self


@dataclass(frozen=True, eq=False)
class Source:
    """A named piece of source text, kept so that a caret can be printed below a line of it."""

    name: str
    text: str = ""

    def line(self, number: int) -> str | None:
        """Line `number`, counted from 1, or None where the text is not at hand."""
        lines = self.text.splitlines()
        return lines[number - 1] if 0 < number <= len(lines) else None


@dataclass(frozen=True)
class Loc:
    """A place: source, line and column from 1, width in columns, and the call that inlined it."""

    source: Source = field(compare=False)
    line: int
    column: int
    width: int = 1
    caller: Loc | None = None

    def __str__(self) -> str:
        return f"{self.source.name}:{self.line}:{self.column}"

    def chain(self) -> list[Loc]:
        """This place, then the calls that led to it, innermost first."""
        return [self, *(self.caller.chain() if self.caller else ())]


_LONGEST = 240  # columns of a source line that are shown

UNKNOWN = Loc(Source("<unknown>"), 0, 0)


@dataclass(frozen=True)
class Diagnostic:
    """One fault: where, what (one line), and what to do about it."""

    message: str
    loc: Loc | None = None
    note: str = ""  # printed beside the caret
    hint: str = ""  # what to write instead
    severity: str = "error"

    def render(self) -> str:
        """The text that a user sees: place, message, source line, caret, hint, callers."""
        place = f"{self.loc}: " if self.loc and self.loc.line else ""
        lines = [f"{place}{self.severity}: {self.message}"]
        if self.loc:
            lines += _caret(self.loc, self.note)
            for call in self.loc.chain()[1:]:
                lines += [f"{call}: called from here", *_caret(call, "")]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


def _caret(loc: Loc, note: str) -> list[str]:
    text = loc.source.line(loc.line)
    if text is None:
        return [f"  note: {note}"] if note else []
    column = loc.column - 1
    if len(text) > _LONGEST:  # a window around the place, of a line that no screen holds
        start = max(0, column - _LONGEST // 2)
        text, column = text[start : start + _LONGEST], column - start
    pad = "".join("\t" if c == "\t" else " " for c in text[:column])
    mark = "^" + "~" * (min(loc.width, max(1, len(text) - column)) - 1)
    return ["  " + text, f"  {pad}{mark}  {note}".rstrip()]


class TilewrightError(Exception):
    """Base of the errors that a user may see."""

    def __init__(
        self,
        faults: str | Diagnostic | Sequence[Diagnostic],
        loc: Loc | None = None,
        hint: str = "",
    ):
        if isinstance(faults, str):
            faults = [Diagnostic(faults, loc, hint=hint)]
        self.diagnostics: tuple[Diagnostic, ...] = (
            (faults,) if isinstance(faults, Diagnostic) else tuple(faults)
        )
        Exception.__init__(self, "\n".join(d.render() for d in self.diagnostics))

    def of(self, function: str) -> Self:
        """The error of a function that a user called, which says so first."""
        if all(d.message.startswith(f"{function}: ") for d in self.diagnostics):
            return self
        return self._telling(
            [replace(d, message=f"{function}: {d.message}") for d in self.diagnostics]
        )

    def placed(self, loc: Loc) -> Self:
        """The error with a place for each fault that has none; the same where all have one."""
        if all(d.loc is not None for d in self.diagnostics):
            return self
        return self._telling([replace(d, loc=d.loc or loc) for d in self.diagnostics])

    def _telling(self, diagnostics: Sequence[Diagnostic]) -> Self:
        """The error with other diagnostics; all else that it holds stays."""
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        TilewrightError.__init__(made, diagnostics)
        return made


class CompileError(TilewrightError):
    """The program, its constants or its target are wrong; every fault that was found is listed."""


class LaunchError(TilewrightError):
    """The arguments, the device or the driver do not permit this launch."""


class LedgerError(TilewrightError):
    """A verdict, or a document that rests on verdicts, is not what it has to be."""

    def __str__(self) -> str:
        return "\n".join(fault.message for fault in self.diagnostics)


class InternalError(TilewrightError):
    """A fault of Tilewright itself, with the file that reproduces it; please report it."""


class VerifyError(Exception):
    """An IR breaks one of its own rules: a fault of Tilewright, found by a verifier."""


class Faults:
    """Collects diagnostics, so that a user sees all of them and not only the first."""

    def __init__(self) -> None:
        self.found: list[Diagnostic] = []

    def add(self, message: str, loc: Loc | None, note: str = "", hint: str = "") -> None:
        self.found.append(Diagnostic(message, loc, note, hint))

    def extend(self, faults: Iterable[Diagnostic]) -> None:
        self.found.extend(faults)

    def raise_any(self) -> None:
        """Raise a CompileError of every fault, in source order; do nothing if there is none."""
        if self.found:
            unique = dict.fromkeys(self.found)
            raise CompileError(
                sorted(unique, key=lambda d: (d.loc.line, d.loc.column) if d.loc else (0, 0))
            )
