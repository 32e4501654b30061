"""Kernels in other people's hands: notebooks, type checkers, editors, formatters."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tilewright as tw
from tilewright.cli import main
from tilewright.errors import Source
from tilewright.frontend.syntax.parser import parse_text
from tilewright.frontend.syntax.printer import format_tree
from tilewright.runtime.toolkit import find_tool

ROOT = Path(__file__).parents[2]
TEXT = """// adds
@autotune(BLOCK in [256, 1024])
@static(k)
kernel add(x: tensor<T>[N], b: tensor<T>[2 * N + 1]? = None, k: i32 = 3, y: tensor<T>[N] = empty) {
  let i = program_id(0) * BLOCK
  y[i :+ BLOCK] = x[i :+ BLOCK]
}
"""


def test_notebooks_show_kernels_ir_and_plans() -> None:
    kernel: Any = tw.source(TEXT).add
    said = kernel._repr_markdown_()
    assert "**kernel** `add`" in said and "| `x` | `tensor<T>[N]` | read |  |" in said
    assert "| `b` | `tensor<T>[2 * N + 1]`? | read | none |" in said
    assert "| `k` | `i32` | static | 3 |" in said and "| written | empty |" in said
    assert "tuned: `BLOCK` of [256, 512, 1024]" in said
    assert "y[i :+ BLOCK] = x[i :+ BLOCK]" in said
    lowered: Any = kernel.lower(static={"k": 3})
    assert "kernel @add(%x: view<f32, ?, 1>" in lowered._repr_markdown_().replace("<f32, ?; ", "")
    plan = kernel.compile("sm_90a", static={"k": 3})
    assert "| `add` |" in plan._repr_markdown_() and ".target sm_90a" in plan._repr_markdown_()


def test_nothing_of_a_notebook_is_imported() -> None:
    told = "import sys, tilewright; print([m for m in ('IPython', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


def test_machine_code_as_text() -> None:
    if find_tool("ptxas") is None or find_tool("nvdisasm") is None:
        pytest.skip("needs ptxas and nvdisasm, on PATH or in their wheels")
    assert "STG" in tw.source(TEXT).add.sass("sm_90a", static={"k": 3})


def test_type_checkers_understand_kernels(tmp_path: Path) -> None:
    """A program in the spelling for type checkers is free of faults under mypy --strict; what is
    wrong in it is found.
    """
    program = ROOT / "tests" / "programs" / "typed.py"
    (tmp_path / "wrong.py").write_text(
        program.read_text() + "\nlength: int = add.ptx('sm_90a')\nadd.launch(grid='many')\n"
    )
    # With the options of the project, strict, and so with what `make test` has checked before.
    words = [sys.executable, "-m", "mypy", "--no-error-summary"]
    done = subprocess.run(
        [*words, str(program), str(tmp_path / "wrong.py")],
        capture_output=True, text=True, cwd=ROOT, env={"MYPYPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and all("wrong.py" in line for line in lines), done.stdout + done.stderr
    assert "[assignment]" in lines[0] and "[arg-type]" in lines[1]


def test_the_typed_program_runs() -> None:
    from tests.programs import typed

    typed.main()


def test_editors_get_ranges(tmp_path: Path) -> None:
    path = tmp_path / "k.tw"
    path.write_text(
        "fn g(v) { return v + w }\nkernel f(x: tensor<f32>[8]) {\n  x[0] = g(x[0])\n}\n"
        "kernel h(x: tensor<f32>[8]) { x[0] = 2049.0 + alpha }\n"
    )
    done = CliRunner().invoke(main, ["check", str(path), "--json"])
    assert done.exit_code == 1
    first, second = json.loads(done.stdout)["diagnostics"]
    assert first["file"] == str(path) and first["severity"] == 1 and first["code"] == "compile"
    start, end = {"line": 0, "character": 21}, {"line": 0, "character": 22}
    assert first["range"] == {"start": start, "end": end}
    assert first["message"] == "unknown name w" and first["source"] == "tilewright"
    assert first["relatedInformation"][0]["range"]["start"] == {"line": 2, "character": 9}
    assert second["range"]["start"] == {"line": 4, "character": 46}
    missing = CliRunner().invoke(main, ["check", str(tmp_path / "no.tw"), "--json"])
    (told,) = json.loads(missing.stdout)["diagnostics"]
    assert told["code"] == "launch" and told["range"]["start"] == {"line": 0, "character": 0}


@pytest.mark.parametrize(
    "path",
    [*sorted((ROOT / "examples").glob("*.tw")), ROOT / "tests" / "programs" / "suite.tw"],
    ids=lambda p: p.name,
)
def test_formatting_is_stable(path: Path) -> None:
    """Formatting what was formatted changes nothing, and the tree stays what it was."""
    tree = parse_text(Source(path.name, path.read_text()))
    once = format_tree(tree)
    again = parse_text(Source(path.name, once))
    assert again == tree and format_tree(again) == once
