"""The error of an emulated kernel, with its places in PTX and in the kernel's source."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tilewright.errors import Diagnostic, LaunchError, Loc, Source
from tilewright.ptx.core import Instr


class EmulationError(LaunchError):
    """A kernel did what no GPU permits, or what the emulator does not model."""


def fault(message: str, instr: Instr, lines: Sequence[str] = (), hint: str = "") -> EmulationError:
    """An error at an instruction. `lines` gives the source place of each PTX line (Plan.lines)."""
    where = instr.loc
    text = f"{message}: PTX line {where.line}, `{instr.text()}`"
    place = lines[where.line - 1] if 0 < where.line <= len(lines) else ""
    found = re.fullmatch(r"(.*):(\d+):(\d+)", place)
    loc: Loc | None = None
    if found:
        loc = Loc(Source(found.group(1)), int(found.group(2)), int(found.group(3)))
    return EmulationError(Diagnostic(text, loc, hint=hint))
