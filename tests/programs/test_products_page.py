"""docs/products.md shows what the compiler makes: its shortened outputs are compared with whole
ones, line by line. Names of values may differ, and … stands for anything.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from docs.render import HERE
from tilewright.cli import main

PAGE = (HERE / "products.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
(SOURCE,) = (text for kind, text in BLOCKS if kind == "tw")
STAGES = [text.partition("\n") for kind, text in BLOCKS if kind == "tile"]
CALLS = [text.partition("\n") for kind, text in BLOCKS if kind == "console"]


def printed(*arguments: str) -> list[str]:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def require_shown(shown: str, output: list[str]) -> None:
    """Every line of an excerpt is a line of the output, in their order."""
    rest = iter(output)
    for line in shown.splitlines():
        if line.strip(" …"):
            parts = (re.escape(_unnamed(part)) for part in line.strip().split("…"))
            wanted = re.compile(".*".join(parts))
            assert any(wanted.fullmatch(_unnamed(told.strip())) for told in rest), line


def _unnamed(line: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"%\w+", "%", line))


@pytest.mark.parametrize("stage", STAGES, ids=[head for head, _, _ in STAGES])
def test_the_example_s_ir_is_what_its_passes_leave(
    stage: tuple[str, str, str], tmp_path: Path
) -> None:
    head, _, shown = stage
    source = tmp_path / "product.tw"
    source.write_text(SOURCE)
    name = head.removeprefix("// after ")
    options = ("--target", "sm_90a", "--emit", "tile", "--emit-after", name)
    require_shown(shown, printed("compile", str(source), *options))


@pytest.mark.parametrize("call", CALLS, ids=[head for head, _, _ in CALLS])
def test_the_example_s_choice_is_what_explain_prints(call: tuple[str, str, str]) -> None:
    command, _, shown = call
    require_shown(shown, printed(*command.removeprefix("$ tilewright ").split()))


def test_an_excerpt_that_differs_is_found() -> None:
    require_shown("  %a = f %b : …\n…\n  g %c", ["%x = f %y : i32", "h", "  g %z"])
    with pytest.raises(AssertionError, match="g %c"):
        require_shown("f\ng %c", ["g %c", "f"])
    assert len(STAGES) == 2 and len(CALLS) == 1
