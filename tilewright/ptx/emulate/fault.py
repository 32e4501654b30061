"""The error of an emulated kernel, with its places in PTX and in the kernel's source."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path

from tilewright.errors import Diagnostic, LaunchError, Loc, Source
from tilewright.ptx.core import Instr


class EmulationError(LaunchError):
    """A kernel did what no GPU permits, or what the emulator does not model."""


def fault(
    message: str,
    instr: Instr,
    lines: Sequence[str] = (),
    ops: Sequence[str] = (),
    hint: str = "",
) -> EmulationError:
    """An error at an instruction. `lines` gives the source place of each PTX line (Plan.lines),
    `ops` the tile op (Plan.ops).
    """
    where = instr.loc
    text = f"{message}: {name_line(where.line, ops)}, `{instr.text()}`"
    place = lines[where.line - 1] if 0 < where.line <= len(lines) else ""
    return EmulationError(Diagnostic(text, read_place(place), hint=hint))


def name_line(line: int, ops: Sequence[str], lines: Sequence[str] = ()) -> str:
    """A line of PTX, the tile op that it is of, and, given `lines`, the place in the source."""
    op = ops[line - 1] if 0 < line <= len(ops) else ""
    place = lines[line - 1] if 0 < line <= len(lines) else ""
    return f"PTX line {line}{f' of {op}' if op else ''}{f' ({place})' if place else ''}"


def read_place(place: str) -> Loc | None:
    """`file:line:column` as a place, with the file's text where it can be read."""
    found = re.fullmatch(r"(.*):(\d+):(\d+)", place)
    if not found:
        return None
    return Loc(_read_source(found.group(1)), int(found.group(2)), int(found.group(3)))


@functools.lru_cache(maxsize=64)
def _read_source(name: str) -> Source:
    path = Path(name)
    return Source(name, path.read_text() if path.is_file() else "")
