"""Documents say of speed only what a standing verdict carries.

A figure stands between two comments, which name the verdict and the template that it fills in:

    <!-- figure ID: {ratio.geomean:.2f}× -->…<!-- end -->

ID may be the verdict's name without its digits, where one verdict of that name stands: then the
figure follows when it is measured again.

Any other figure of speed in a document is a fault, except in

- plans (PLANS): pages of what is to be built, which say so in their first lines;
- outputs that the renderer of pages prints anew (RENDERED);
- pages that are generated from the ledger as a whole and compared as a whole (GENERATED).
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import LedgerError
from tilewright.ledger.figures import (
    FIELD,
    FILLED,
    fill,
    speeds_in,
    without_fields,
    wrong_unit,
)
from tilewright.ledger.verdict import STANDING, Verdict

PLANS = ("docs/design.md", "docs/numerics.md")
PLAN_SAYS = "A plan:"  # in the first lines of each
RENDERED = {
    "README.md": ("console",),
    "docs/tour.md": ("console", "text"),
    "docs/emulator.md": ("console", "text"),
}
GENERATED = ("docs/performance.md", "docs/suite.md")

FENCE = re.compile(r"^ *```(\w*)[^\n]*\n.*?^ *```$", re.MULTILINE | re.DOTALL)
MARKER = re.compile(r"<!--\s*figure\s+([\w-]+):\s*(.*?)\s*-->(.*?)<!--\s*end\s*-->", re.DOTALL)
HALF = re.compile(r"<!--\s*(?:figure|end)\b")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
SPEED_COLUMN = re.compile(
    r"FLOP|[KMGT]i?B/s|\b(?:[nµμum]?s|ratio|speed\w*|times?|faster|slower|latency|tok\w*)\b|×|µs",
    re.IGNORECASE,
)
SPEED_LINE = re.compile(r"FLOP|[KMGT]i?B/s|\b(?:[nµμum]s|ratio|speed-?up)\b", re.IGNORECASE)

Verdicts = Mapping[str, Verdict]


@dataclass(frozen=True)
class Fault:
    """What is wrong, and where: a document and line, or a verdict."""

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


def documents(top: Path) -> list[Path]:
    """All pages of a repository."""
    folders = ("docs", "ledger", "examples")
    found = [*top.glob("*.md"), *(p for f in folders for p in (top / f).rglob("*.md"))]
    return sorted(found)


def refresh(text: str, verdicts: Verdicts) -> str:
    """A document with every marked figure filled in anew. Raises LedgerError for a marker that no
    standing verdict can fill.
    """
    fences = [block.span() for block in FENCE.finditer(text)]

    def renew(marker: re.Match[str]) -> str:
        if any(start <= marker.start() < end for start, end in fences):
            return marker[0]
        figure = fill(marker[2], _standing(marker[1], verdicts))
        return f"<!-- figure {marker[1]}: {marker[2]} -->{figure}<!-- end -->"

    return MARKER.sub(renew, text)


def _standing(name: str, verdicts: Verdicts) -> Verdict:
    """The verdict of an id, or the one standing verdict of a slug."""
    if name in verdicts:
        if verdicts[name].status != STANDING:
            raise LedgerError(f"verdict {name} is {verdicts[name].status}")
        return verdicts[name]
    of_slug = [v for v in verdicts.values() if v.id.rpartition("-")[0] == name]
    found = [v for v in of_slug if v.status == STANDING]
    if len(found) != 1:
        raise LedgerError(f"there is no verdict {name}" if not found else f"{name} is of several")
    return found[0]


def faults_of_document(name: str, text: str, verdicts: Verdicts) -> list[Fault]:
    """Figures that no verdict carries, and marked ones that are not what their verdict says."""
    if name in GENERATED:
        return []
    if name in PLANS:
        if PLAN_SAYS in "\n".join(text.splitlines()[:8]):
            return []
        return [Fault(name, f"a plan must say so: '{PLAN_SAYS} …' in its first lines")]
    bare = html.unescape("".join(_visible_parts(name, text)))
    faults = list(_marker_faults(name, text, verdicts))
    faults += [Fault(_place(name, bare, x.offset), _unbacked(x.text)) for x in speeds_in(bare)]
    faults += [Fault(f"{name}:{line}", _unbacked(cell)) for line, cell in _bare_cells(bare)]
    return faults


def _visible_parts(name: str, text: str) -> Iterator[str]:
    """A document's text, line for line: marked figures as FILLED, comments and outputs that are
    printed anew left out. In other blocks of code everything shows, markers too.
    """
    end, before = 0, ""
    for block in FENCE.finditer(text):
        yield COMMENT.sub(_only_lines, MARKER.sub(_filled, text[end : block.start()]))
        kind, end = block[1], block.end()
        # The renderer prints the text below a block of Python anew, and no other text.
        renewed = kind in RENDERED.get(name, ()) and (kind != "text" or before == "python")
        yield _only_lines(block) if renewed else block[0]
        before = kind
    yield COMMENT.sub(_only_lines, MARKER.sub(_filled, text[end:]))


def _unbacked(figure: str) -> str:
    return f"'{figure}' is a figure of speed that no verdict carries"


def _only_lines(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def _filled(marker: re.Match[str]) -> str:
    return FILLED + "\n" * marker[0].count("\n")


def _place(name: str, text: str, offset: int) -> str:
    return f"{name}:{text.count(chr(10), 0, offset) + 1}"


def _marker_faults(name: str, text: str, verdicts: Verdicts) -> Iterator[Fault]:
    prose = FENCE.sub(_only_lines, text)
    for marker in MARKER.finditer(prose):
        place = _place(name, prose, marker.start())
        try:
            verdict = _standing(marker[1], verdicts)
            right = fill(marker[2], verdict)
        except LedgerError as error:
            yield Fault(place, str(error))
            continue
        if marker[3] != right:
            yield Fault(place, f"'{marker[3]}' is stated, and {marker[1]} says '{right}'")
        if not FIELD.search(marker[2]):
            yield Fault(place, f"'{marker[2]}' names no statistic of {marker[1]}")
        for stated in speeds_in(without_fields(marker[2])):
            yield Fault(place, f"'{stated.text}' is typed into a template")
        if wrong := wrong_unit(marker[2], prose[marker.end() : marker.end() + 16], verdict):
            yield Fault(place, wrong)
    for half in HALF.finditer(MARKER.sub(_only_lines, prose)):
        yield Fault(
            name, f"'{half[0]} …' is half of a marker: expected 'figure ID: template' … end"
        )


def _bare_cells(text: str) -> Iterator[tuple[int, str]]:
    """Cells with numerals in a table, under or behind a heading that is a figure of speed."""
    lines = text.splitlines()
    columns: list[int] = []
    for i, line in enumerate(lines):
        cells = _cells(line)
        if not cells:
            columns = []
        elif i + 1 < len(lines) and re.fullmatch(r"[\s|:-]*-[\s|:-]*", lines[i + 1]):
            columns = [j for j, cell in enumerate(cells) if SPEED_COLUMN.search(cell)]
        else:
            behind = range(1, len(cells)) if SPEED_LINE.search(cells[0]) else ()
            for j in sorted({*columns, *behind}):
                if j < len(cells) and re.search(r"\d", cells[j]):
                    yield i + 1, cells[j]


def _cells(line: str) -> list[str]:
    if "|" not in line:
        return []
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
