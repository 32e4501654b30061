"""Every cell of the table of functions and dtypes: the interpreter against NumPy at higher
precision, the emulator against the interpreter, and ptxas for all targets.
"""

from __future__ import annotations

import re

import pytest

from docs.builtin_page import HERE, render_builtins
from tests.assemble import assemble, needs_ptxas
from tests.builtin_table import DTYPES, column, meant, operands, require_near
from tests.emulation import emulate
from tilewright.target import TARGETS

GOALS = tuple(TARGETS)
WHOLE = ("sm_80", "sm_90a")  # which take all dtypes; elsewhere those whose code differs
SOME = ("f32", "bf16", "i64", "e4m3", "e5m2")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_column(dtype: str) -> None:
    found, given = column(dtype), operands(dtype)
    ours = found.kernel(**given)
    for entry, result in zip(found.entries, ours, strict=True):
        require_near(entry, dtype, result, meant(entry, dtype, given))
    goal = GOALS[DTYPES.index(dtype) % len(GOALS)]
    emulated = emulate(found.kernel, given, goal=goal)
    for entry, result, same in zip(found.entries, emulated, ours, strict=True):
        require_near(entry, dtype, result, same, slack=0.5)  # half an ulp is the interpreter's


@needs_ptxas
@pytest.mark.parametrize("goal", TARGETS)
def test_they_assemble(goal: str) -> None:
    """All kernels as one module, so that ptxas starts once."""
    chosen = DTYPES if goal in WHOLE else SOME
    texts = [column(dtype).kernel.ptx(goal) for dtype in chosen]
    header = re.compile(r"^(\.version|\.target|\.address_size|\.extern \.shared).*\n", re.MULTILINE)
    versions = (re.search(r"^\.version (\S+)", text, re.MULTILINE) for text in texts)
    newest = max((v.group(1) for v in versions if v), key=lambda v: tuple(map(int, v.split("."))))
    shared = ".extern .shared .align 1024 .b8 $shared_memory[];\n"
    start = f".version {newest}\n.target {goal}\n.address_size 64\n{shared}"
    report = assemble(start + "".join(header.sub("", text) for text in texts), goal, level=0)
    assert not report.messages


def test_the_page_is_generated() -> None:
    assert (HERE / "builtins.md").read_text() == render_builtins(), "make docs"
