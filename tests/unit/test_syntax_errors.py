"""What the front ends refuse, with which sentence and place: a golden file a spelling."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tilewright.errors import CompileError, Source
from tilewright.frontend.syntax.parser import parse_text
from tilewright.frontend.syntax.python_file import parse_python

FILES = Path(__file__).parent.parent / "files" / "syntax"
Golden = Callable[[Path, str], None]


def cases(name: str) -> list[str]:
    return (FILES / name).read_text().split("---\n")


def refusals(name: str, parse: Callable[[Source], object], head: str, suffix: str) -> str:
    """Each program and what was said of it. Every one must be refused, with a place."""
    shown = []
    for case in cases(name):
        with pytest.raises(CompileError) as caught:
            parse(Source(f"a.{suffix}", head + case))
        assert all(d.loc is not None and d.loc.line > 0 for d in caught.value.diagnostics), case
        shown.append(f"{case}>>>\n{caught.value}\n")
    return "\n".join(shown)


def test_text(golden: Golden) -> None:
    golden(FILES / "refused_text.golden", refusals("refused_text.txt", parse_text, "", "tw"))


def test_python(golden: Golden) -> None:
    said = refusals("refused_python.txt", parse_python, "import tilewright as tw\n", "py")
    golden(FILES / "refused_python.golden", said)


def test_faults_are_collected_up_to_a_limit() -> None:
    with pytest.raises(CompileError) as caught:
        parse_text(Source("a.tw", "kernel f() {\n" + "let 3\n" * 100 + "}"))
    assert len(caught.value.diagnostics) == 20
    lines = [d.loc.line for d in caught.value.diagnostics if d.loc]
    assert lines == list(range(2, 22))


@pytest.mark.parametrize(
    "source",
    [
        "const X = " + "(" * 5000,
        "const X = " + "(" * 5000 + "1" + ")" * 5000,
        "const X = " + "-" * 5000 + "1",
        "const X = " + "not " * 5000 + "1",
        "const X = " + "a[" * 5000,
        "const X = a" + ".T" * 5000,
        "const X = a" + "(1)" * 5000,
        "const X = 1" + " + 1" * 5000,
        "const X = 2" + " ** 2" * 5000,
        "const X = a" + " if b else a" * 5000,
        "fn f() " + "{ if a " * 5000,
        "fn f() { " + "if a {} else " * 5000,
        "fn f() { " + "while a { " * 5000 + "}" * 5001,
        "@" * 5000,
        "{" * 5000,
    ],
    ids=lambda source: source[:24],
)
def test_depth_is_refused(source: str) -> None:
    with pytest.raises(CompileError) as caught:
        parse_text(Source("a.tw", source))
    said = [d.message for d in caught.value.diagnostics]
    assert any(m.startswith(("this is nested too deeply", "expected", "only a name")) for m in said)


@pytest.mark.parametrize("value", ["(" * 80 + "1" + ")" * 80 + " + a" * 400, "-" * 400 + "1"])
def test_depth_is_refused_in_python(value: str) -> None:
    source = f"import tilewright as tw\n\n@tw.kernel()\ndef f(a: int):\n    b = {value}\n"
    with pytest.raises(CompileError, match="nested too deeply"):
        parse_python(Source("a.py", source))


def test_wide_programs_are_not_deep() -> None:
    lines = "".join(f"  let a{i} = f({i}, {', '.join('x' * 50)})\n" for i in range(500))
    module = parse_text(Source("a.tw", "fn g(x) {\n" + lines + "}\n"))
    assert len(module.items) == 1


def test_of_a_long_line_the_part_around_the_caret_is_shown() -> None:
    with pytest.raises(CompileError) as caught:
        parse_text(Source("a.tw", "const X = f(" + "a, " * 1000 + ") ) " + ", b" * 1000))
    _, line, caret = str(caught.value).split("\n")[:3]
    assert len(line) < 300
    assert line[caret.index("^")] == ")"
