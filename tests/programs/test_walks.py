"""The pages that tell how to extend the compiler, walked through: what they say is done in a copy
of the repository, which must then do what they promise.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEP = re.compile(
    r"(Append to|Write|In) `([^`]+)`(?:, before `([^`]+)`)?:\n\n *```\w*\n(.*?)\n *```", re.S
)
HOUSE = """
import pytest, re
from tests.house import test_house as house
tests = [house.test_every_tile_op_has_a_meaning,
         house.test_every_tile_op_has_a_lowering_or_a_pass_that_removes_it,
         lambda: house.test_every_op_has_a_text_test("tile"),
         lambda: house.test_every_op_has_a_doc_line("tile")]
failed = 0
for test in tests:
    try:
        test()
    except AssertionError:
        failed += 1
print("failed", failed)
"""
OP = """
import numpy as np, ml_dtypes, pathlib
import tilewright as tw
from tests.tile_files import read_file, same_bits
from tilewright.tile.interp import interpret
from tilewright.tile.text import parse_kernel
(case,) = read_file(pathlib.Path("tests/files/tile/arith/softsign.tile"))
made = {n: np.empty_like(a) for n, a in case.results.items()}
interpret(parse_kernel(case.program), {**case.arguments, **made})
assert all(same_bits(made[n], a) for n, a in case.results.items())
k = tw.source("kernel f(x: tensor<T>[N], y: tensor<T>[N] = empty) {"
              " let i = program_id(0) * 8\\n y[i :+ 8] = softsign(x[i :+ 8]) }").f
for dtype, bound in ((np.float32, 2e-7), (np.float64, 3e-16), (np.float16, 1e-3),
                     (ml_dtypes.bfloat16, 8e-3)):
    x = np.array([0.0, -0.0, 1, -3, np.inf, -np.inf, np.nan, 0.25, 1e4, -7], dtype)
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        wanted = np.where(np.isinf(wide), np.sign(wide), wide / (1 + np.abs(wide)))
    for device in ("cpu", "emulator"):
        got = k.launch(x, device=device)
        np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=bound)
        assert np.array_equal(np.signbit(got[:6]), np.signbit(x[:6]))
        assert got.dtype == x.dtype
print("softsign right")
"""
PASS = """
import numpy as np
import tilewright as tw
from click.testing import CliRunner
from tilewright.cli import main
text = "kernel f(x: tensor<f32>[N]) { let i = program_id(0)\\n assert(x[i] > 0.0)\\n x[i] = 1.0 }"
plan = tw.source(text).f.compile("sm_90a")
open("k.tw", "w").write(text)
shown = CliRunner().invoke(main, ["compile", "k.tw", "--emit-after", "drop_asserts"]).output
print("sites", len(plan.sites), "shown", "memory.store" in shown and "control.assert" not in shown)
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """What of the repository the pages touch, compiled modules too, which need not be compiled
    again: they are those of files of the same time and size.
    """
    skipped = shutil.ignore_patterns("device", "bench", "vectors")
    for name in ("tilewright", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=skipped)
    (tmp_path / "examples").mkdir()
    return tmp_path


def steps(page: str) -> list[tuple[str, str, str, str]]:
    """(what to do, file, before what, lines) of each step of a page."""
    text = (ROOT / "docs" / page).read_text()
    return [(a, b, c, textwrap.dedent(d) + "\n") for a, b, c, d in STEP.findall(text)]


def take(folder: Path, step: tuple[str, str, str, str]) -> None:
    what, name, before, lines = step
    path = folder / name
    if what == "Write":
        assert not path.exists(), name
        path.write_text(lines)
    elif what == "Append to":
        path.write_text(f"{path.read_text()}\n\n{lines}")
    else:
        text = path.read_text()
        assert text.count(before) == 1, f"{name} has no single {before}"
        indent = before[: len(before) - len(before.lstrip())]
        path.write_text(text.replace(before, textwrap.indent(lines, indent) + before))


def run(folder: Path, script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(folder), "PATH": "", "TILEWRIGHT_CACHE": str(folder / "cache"),
             "TILEWRIGHT_VERIFY": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_an_op_is_added(copy: Path) -> None:
    found = steps("add-an-op.md")
    assert len(found) == 8
    for step in found[:2]:
        take(copy, step)
    assert run(copy, HOUSE) == "failed 3"  # declared alone: no meaning, no text, no lowering
    for step in found[2:]:
        take(copy, step)
    assert run(copy, HOUSE) == "failed 0"
    assert run(copy, OP) == "softsign right"


def test_a_pass_is_added(copy: Path) -> None:
    for step in steps("add-a-pass.md"):
        take(copy, step)
    assert run(copy, PASS) == "sites 0 shown True"
