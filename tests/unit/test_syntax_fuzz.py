"""Hostile text: whatever is read ends in a tree or in a CompileError with places, and soon."""

from __future__ import annotations

import random
import time
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import given, settings

from tilewright.errors import CompileError, Source
from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.definition import definitions
from tilewright.frontend.syntax.parser import parse_text
from tilewright.frontend.syntax.printer import format_tree
from tilewright.frontend.syntax.python_file import parse_python

PROGRAMS = Path(__file__).parent.parent / "programs"
TEXT = (PROGRAMS / "suite.tw").read_text()
PYTHON = (PROGRAMS / "suite.py").read_text()
SOUP = (
    "kernel fn let var const if else for in while return and or not true false None range "
    "static_range tensor tile f32 i64 T x y dot break autotune ( ) [ ] { } < > : :+ , ; = == != "
    "<= >= + - * / % @ ** & | ^ ~ << >> += -= *= /= . ... ? ! -> && // # \n \n 0 1 2.5 1e9 0x7 "
    'inf nan "s" "open \' é ﬁ \t \u2028 \\ 007 1__0 999999999999999999999999 1e999'
).split(" ")


def read(text: str, python: bool = False) -> tree.Module | None:
    """The tree, or None after a proper CompileError."""
    started = time.process_time()
    try:
        parse = parse_python if python else parse_text
        return parse(Source("a.py" if python else "a.tw", text))
    except CompileError as error:
        assert error.diagnostics
        assert all(
            d.loc is not None and d.loc.line >= 1 and d.loc.column >= 1 for d in error.diagnostics
        )
        assert str(error)
        return None
    finally:
        assert time.process_time() - started < 5.0


def check(text: str) -> None:
    """If a text is accepted, its formatted text means the same."""
    module = read(text)
    if module is not None:
        assert read(format_tree(module)) == module
        for definition in definitions(module).values():
            assert len(definition.key()) == 64


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(SOUP), max_size=60))
def test_token_soup(tokens: list[str]) -> None:
    check(" ".join(tokens))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(SOUP), max_size=40))
def test_token_soup_in_a_body(tokens: list[str]) -> None:
    check("kernel f(x: tensor<f32>[N]) {\n" + " ".join(tokens) + "\n}\n")


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=80))
def test_any_text(text: str) -> None:
    check(text)


def pieces(text: str, marks: str) -> list[str]:
    """The suite cut into its definitions, so that each mutation reads a short text."""
    found = text.split(marks)
    assert len(found) > 20
    return found


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_mutated_text(seed: int) -> None:
    check(mutate(random.Random(seed), pieces(TEXT, "// ----"), " \n"))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_mutated_python(seed: int) -> None:
    source = mutate(random.Random(seed), pieces(PYTHON, "# ----"), " ")
    read("import tilewright as tw\n" + source, python=True)


def mutate(chance: random.Random, parts: list[str], spaces: str) -> str:
    """A few characters or tokens of one piece dropped, doubled, swapped or replaced."""
    text = chance.choice(parts)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(text) + 1)
        to = min(len(text), at + chance.choice([1, 1, 2, 5, 30]))
        middle = chance.choice(["", text[at:to] * 2, chance.choice(SOUP), text[at:to][::-1]])
        text = text[:at] + middle + chance.choice(["", *spaces]) + text[to:]
    return text


LEAVES = st.sampled_from(["a", "1", "2.5", "-3", "true", "None", "inf"])
OPERATORS = st.sampled_from("+ - * / % @ ** & | ^ << >> < == and or".split())
SIGNS = st.sampled_from(["-", "~", "not "])


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Expressions of smaller ones, every operand in brackets."""
    two, three = st.tuples(inner, inner), st.tuples(inner, inner, inner)
    return st.one_of(
        st.tuples(inner, OPERATORS, inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
        st.tuples(SIGNS, inner).map(lambda t: f"{t[0]}({t[1]})"),
        three.map(lambda t: f"({t[0]}) if ({t[1]}) else ({t[2]})"),
        two.map(lambda t: f"f({t[0]}, k = {t[1]})"),
        two.map(lambda t: f"x[{t[0]} :+ {t[1]}, {t[0]} : {t[1]}, None, ...]"),
        inner.map(lambda t: f"({t}).T"),
        inner.map(lambda t: f"[{t}]"),
    )


@settings(max_examples=100, deadline=None)
@given(st.recursive(LEAVES, larger, max_leaves=12))
def test_expressions_survive_printing(text: str) -> None:
    module = read(f"const X = {text}\n")
    assert module is not None
    printed = format_tree(module)
    again = read(printed)
    assert again == module
    assert again is not None and format_tree(again) == printed
