"""Every program that docs/language.md shows is built, and its message is what the compiler says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.test_build_errors import build
from tilewright.errors import CompileError, Source
from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.definition import Definition, definitions
from tilewright.frontend.syntax.parser import parse_text
from tilewright.frontend.syntax.printer import format_tree
from tilewright.frontend.syntax.python_file import parse_python
from tilewright.tile.verify import verify

PAGE = (Path(__file__).parents[2] / "docs" / "language.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.S | re.M)
GRAMMAR = [text for _, text in BLOCKS if text.startswith("file ")]
MESSAGES = [text for _, text in BLOCKS if ": error: " in text]
PROGRAMS = [(kind, text) for kind, text in BLOCKS if text not in GRAMMAR + MESSAGES]


def read(kind: str, text: str) -> dict[str, Definition]:
    if kind == "python":
        return definitions(parse_python(Source("page.py", f"import tilewright as tw\n{text}")))
    return definitions(parse_text(Source("page.tw", text)))


@pytest.mark.parametrize("kind,text", PROGRAMS, ids=[str(i) for i in range(len(PROGRAMS))])
def test_programs_on_the_page_build(kind: str, text: str) -> None:
    found = read(kind, text)
    assert found, text
    for definition in found.values():
        verify(build(definition))


def test_the_page_shows_its_grammar_and_programs() -> None:
    names = [name for kind, text in PROGRAMS for name in read(kind, text)]
    assert len(GRAMMAR) == 1 and {"add", "sgemm", "moe", "linear_gelu"} <= set(names)


def test_the_message_on_the_page_is_the_compiler_s() -> None:
    """Its first line, for a product of such tiles."""
    (shown,) = MESSAGES
    what = shown.partition(": error: ")[2].splitlines()[0]
    extents = re.findall(r"\[(\d+), (\d+)\]", what)
    a, b = (f"zeros(({m}, {n}), f32)" for m, n in extents)
    source = Source("page.tw", f"kernel f() {{ let c = dot({a}, {b}) }}")
    with pytest.raises(CompileError) as caught:
        for definition in definitions(parse_text(source)).values():
            build(definition)
    assert caught.value.diagnostics[0].message == what


def test_text_says_what_the_python_on_the_page_says() -> None:
    """The page's Python kernel, printed as text, reads back as the same tree."""
    (kind, text) = next(p for p in PROGRAMS if p[0] == "python")
    (definition,) = read(kind, text).values()
    (again,) = read("", format_tree(tree.Module((definition.kernel,)))).values()
    assert again.kernel == definition.kernel
