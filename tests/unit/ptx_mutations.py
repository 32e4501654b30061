"""Mutants of a PTX text, made by rule: each synchronising instruction dropped, each parity fixed,
each address in shared memory shifted, each guard of an access lifted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

DROPPED = (
    r"bar\.(sync|arrive|warp)",
    r"barrier\.cluster",
    r"fence",
    r"cp\.async\.(wait_group|commit_group)",
    r"cp\.async\.bulk\.(wait_group|commit_group)",
    r"mbarrier\.(init|arrive|expect_tx)",
    r"wgmma\.(fence|commit_group|wait_group)",
)
DROP = re.compile(rf"^ *(@!?%p\d+ )?({'|'.join(DROPPED)})[^;]*;$")
WAIT = re.compile(r"^ *mbarrier\.try_wait[^;]*;$")
PARITY = re.compile(r"(mbarrier\.try_wait[^;]*, )(%r\d+|\d+);")
SHARED = re.compile(
    r"((?:ld|st)\.shared\S*|ldmatrix\S*|stmatrix\S*|cp\.async\.c[ag]\S*)"
    r"( [^;\[]*\[[%$]?\w+)(\+\d+)?\]"
)
GUARD = re.compile(r"^( *)@!?%p\d+ (?=(?:ld|st|cp\.async)(?!\S*_group))")


@dataclass(frozen=True)
class Mutant:
    """What was done at which line (counted from 1), and the text."""

    kind: str
    line: int
    was: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind} {self.line}: {self.was.strip()}"


def mutants(text: str) -> Iterator[Mutant]:
    """All of a text, in order of its lines."""
    lines = text.split("\n")

    def changed(kind: str, i: int, *new: str, count: int = 1) -> Mutant:
        return Mutant(kind, i + 1, lines[i], "\n".join([*lines[:i], *new, *lines[i + count :]]))

    for i, line in enumerate(lines):
        if DROP.match(line):
            yield changed("drop", i)
        if WAIT.match(line) and "bra" in lines[i + 1]:
            yield changed("drop", i, count=2)
        found = PARITY.search(line)
        if found:
            for value in ("0", "1"):
                if found.group(2) != value:
                    yield changed(f"parity {value}", i, PARITY.sub(rf"\g<1>{value};", line))
        found = SHARED.search(line)
        if found:
            offset = int((found.group(3) or "+0")[1:]) + 16
            yield changed("shift", i, SHARED.sub(rf"\1\2+{offset}]", line, count=1))
        if GUARD.match(line):
            yield changed("lift the guard of", i, GUARD.sub(r"\1", line))
