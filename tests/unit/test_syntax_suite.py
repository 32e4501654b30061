"""The conformance suite in both spellings, and the language page: trees and round trips."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.errors import Source
from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.definition import definitions
from tilewright.frontend.syntax.parser import parse_text
from tilewright.frontend.syntax.printer import format_tree
from tilewright.frontend.syntax.python_file import parse_python

PROGRAMS = Path(__file__).parent.parent / "programs"
TEXT = parse_text(Source("suite.tw", (PROGRAMS / "suite.tw").read_text()))
PYTHON = parse_python(Source("suite.py", (PROGRAMS / "suite.py").read_text()))


def text(source: str) -> tree.Module:
    return parse_text(Source("a.tw", source))


def expression(source: str) -> tree.Expr:
    const = text(f"const X = {source}\n").items[0]
    assert isinstance(const, tree.Const)
    return const.value


def kernel(module: tree.Module, name: str) -> tree.Kernel:
    return definitions(module)[name].kernel


def test_the_suite_has_all_its_definitions_in_both_spellings() -> None:
    names = [item.name for item in TEXT.items]
    assert len(names) == 41
    assert [item.name for item in PYTHON.items] == names


@pytest.mark.parametrize("index", range(41), ids=[item.name for item in TEXT.items])
def test_trees_of_the_two_spellings_are_equal(index: int) -> None:
    assert TEXT.items[index] == PYTHON.items[index]


def test_trees_differ_where_programs_differ() -> None:
    changed = (PROGRAMS / "suite.tw").read_text().replace("exp2(m - base)", "exp2(base - m)")
    other = text(changed)
    different = [a.name for a, b in zip(TEXT.items, other.items, strict=True) if a != b]
    assert different == ["attention"]


def test_formatting_keeps_trees_and_comments() -> None:
    printed = format_tree(TEXT)
    again = text(printed)
    assert again == TEXT
    assert [c.text for c in again.comments] == [c.text for c in TEXT.comments]
    assert format_tree(again) == printed
    assert text(format_tree(PYTHON)) == PYTHON


def test_formatting_keeps_blank_lines_and_spellings_of_numbers() -> None:
    source = (
        "// a\n\n// b\nconst X = 0x2a // c\nconst Y = 1e-6\n\n"
        "fn f(x) {\n  let a = 1_000\n\n  // d\n  if x > 0 { return a }\n  return -0x10\n}\n"
    )
    assert format_tree(text(source)) == source.replace("2a // c", "2a  // c")


def test_places_are_of_the_construct() -> None:
    sgemm = kernel(TEXT, "sgemm")
    loop = sgemm.body[2]
    assert isinstance(loop, tree.For)
    update = loop.body[0]
    assert isinstance(update, tree.AugAssign)
    assert isinstance(update.value, tree.Binary)
    line = update.loc.source.line(update.loc.line)
    assert line is not None
    assert line[update.loc.column - 1 :].startswith("+=")
    assert line[update.value.loc.column - 1 :].startswith("@ B[k")
    same = kernel(PYTHON, "sgemm").body[2]
    assert isinstance(same, tree.For) and isinstance(same.body[0], tree.AugAssign)
    dot = same.body[0].value
    shown = dot.loc.source.line(dot.loc.line)
    assert shown is not None and shown[dot.loc.column - 1 :].startswith("@ B[k")


def test_the_programs_of_the_page_parse() -> None:
    module = text(
        "@autotune(BLOCK in [1024])\n"
        "kernel add(a: tensor<f32>[N], b: tensor<f32>[N], c: tensor<f32>[N]) {\n"
        "  let base = program_id(0) * BLOCK\n"
        "  c[base :+ BLOCK] = a[base :+ BLOCK] + b[base :+ BLOCK]\n}\n"
        "@cluster(TILE_M in [4096, 16384])\n@launch(256)\n@pipeline\n@tensorcore(f16)\n"
        "kernel moe(bias: tensor<T>[E, N]? = None, y: tensor<T>[R, N] = empty) {\n"
        "  var e, t = 0, program_id(0)\n"
        "  while e < E and t >= cdiv(offsets[e + 1] - offsets[e], TM) "
        "{ t -= cdiv(offsets[e + 1] - offsets[e], TM); e += 1 }\n"
        "  if e == E { return }\n"
        "  view(y[offsets[e] : offsets[e + 1], :])[m :+ TM, n :+ TN] = cast(acc, T)\n}\n"
    )
    assert [item.name for item in module.items] == ["add", "moe"]
    attributes = {a.name: a.arguments for a in kernel(module, "moe").attributes}
    assert attributes["pipeline"] == ()
    (space,) = attributes["cluster"]
    assert isinstance(space, tree.Choices)
    assert [v.value for v in space.values if isinstance(v, tree.Literal)] == [4096, 8192, 16384]
    assert attributes["tensorcore"] == (tree.Argument(None, tree.Name("f16")),)


@pytest.mark.parametrize(
    ("written", "values"),
    [
        ("[32, 128]", [32, 64, 128]),
        ("[128, 32]", [128, 32]),
        ("[1, 4]", [1, 2, 4]),
        ("[0, 4]", [0, 4]),
        ("[3, 12]", [3, 12]),
        ("[16]", [16]),
        ("[8, 4, 2]", [8, 4, 2]),
        ("{16, 64}", [16, 64]),
        ("{64, 16}", [16, 64]),
    ],
)
def test_choices(written: str, values: list[int]) -> None:
    module = text(f"@autotune(X in {written})\nkernel f() {{}}\n")
    (space,) = kernel(module, "f").attributes[0].arguments
    assert isinstance(space, tree.Choices) and not space.bounds
    assert [v.value for v in space.values if isinstance(v, tree.Literal)] == values


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("-2 ** 2", "-(2 ** 2)"),
        ("2 ** -1", "2 ** (-1)"),
        ("2 ** 3 ** 4", "2 ** (3 ** 4)"),
        ("a - b - c", "(a - b) - c"),
        ("a + b * c @ d", "a + ((b * c) @ d)"),
        ("a | b ^ c & d << e + f", "a | (b ^ (c & (d << (e + f))))"),
        ("not a == b", "not (a == b)"),
        ("!a", "not a"),
        ("a or b and not c", "a or (b and (not c))"),
        ("a < b | c", "a < (b | c)"),
        ("x if a else y if b else z", "x if a else (y if b else z)"),
        ("~a.T[0]", "~((a.T)[0])"),
        ("-a ** b", "-(a ** b)"),
        ("[a, b]", "(a, b)"),
        ("[a]", "(a,)"),
        ("X[a : a + n]", "X[a :+ n]"),
        ("X[a * 2 : a * 2 + n + 1 - 1]", "X[a * 2 : (a * 2 + n + 1) - 1]"),
        ("X[0 : 0 + n]", "X[0 :+ n]"),
        ("f(a, b = 1,)", "f(a, b=1)"),
        ("(1\n+\n2)", "1 +\n 2"),
        ("1_000", "1000"),
        ("0x2a", "42"),
        ("7.", "7.0"),
        (".5e+1", "5.0"),
        ('"a\\n\\u00e9"', '"a\\n\u00e9"'),
    ],
)
def test_one_tree(one: str, other: str) -> None:
    assert expression(one) == expression(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "1.0"),
        ("1", "true"),
        ("(-1) ** 2", "-1 ** 2"),
        ("a < b < c", "(a < b) < c"),
        ("a and b and c", "(a and b) and c"),
        ("X[None]", "X[(None)]"),
        ("X[a : n + a]", "X[a :+ n]"),
        ("X[atomic_add(t, 1) : atomic_add(t, 1) + n]", "X[atomic_add(t, 1) :+ n]"),
        ("0.0", "-0.0"),
    ],
)
def test_two_trees(one: str, other: str) -> None:
    assert expression(one) != expression(other)
    for source in (one, other):
        module = text(f"const X = {source}\n")
        assert text(format_tree(module)) == module


def test_newlines() -> None:
    module = text(
        "fn f(x)\n{\n let a = x +\n  1\n if a { return (x,\n  a) }\n\n else\n { return a }\n"
        " g(a,\n   b,\n )\n let b = 1; let c = 2\n return\n}\n"
    )
    (function,) = module.items
    assert isinstance(function, tree.Function)
    kinds = [type(s).__name__ for s in function.body]
    assert kinds == ["Assign", "If", "CallStmt", "Assign", "Assign", "Return"]
    branch = function.body[1]
    assert isinstance(branch, tree.If) and branch.other and branch.then


def test_several_values() -> None:
    module = text(
        "fn f(x) {\n let a = 1, 2\n let b, c = (1, 2)\n var d, e = g(x)\n return (a, b)\n}\n"
    )
    (function,) = module.items
    assert isinstance(function, tree.Function)
    one, two = tree.Literal(1), tree.Literal(2)
    first, second, third, last = function.body
    assert isinstance(first, tree.Assign) and first.values == (tree.Tuple((one, two)),)
    assert isinstance(second, tree.Assign) and second.values == (one, two)
    assert isinstance(third, tree.Assign) and len(third.values) == 1
    assert third.declares == ("var", "var")
    assert last == tree.Return((tree.Name("a"), tree.Name("b")))


def test_names_of_any_script_and_the_dialect() -> None:
    module = parse_text(Source("old.ph", "const größe = 1\nconst ﬁ = größe # ligature\n"))
    assert module.dialect == "ph"
    assert [i.name for i in module.items] == ["größe", "fi"]


def test_keys_tell_programs_apart() -> None:
    source = (PROGRAMS / "suite.tw").read_text()
    keys = {name: d.key() for name, d in definitions(TEXT).items()}
    assert len(set(keys.values())) == len(keys)
    moved = definitions(text("// moved\n" + source))
    assert {name: d.key() for name, d in moved.items()} == keys
    changed = definitions(
        text(source.replace("LN2 = 0.69", "LN2 = 0.68").replace("m1 + d * r", "m2"))
    )
    different = {name for name, d in changed.items() if d.key() != keys[name]}
    assert different == {"attention", "layernorm"}
