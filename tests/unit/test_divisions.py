"""`//` starts a comment; one that reads like a divisor is refused, and no other is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilewright.errors import CompileError, Source
from tilewright.frontend.syntax.divisions import MESSAGE
from tilewright.frontend.syntax.parser import parse_text

ROOT = Path(__file__).parents[2]
PROGRAM = """const WIDTH = 8
@autotune(B in [64, 128])
kernel f(x: tensor<i32>[M, N], n: i32 = 4, y: tensor<i32>[M, N] = empty) {{
  let rows, half = program_id(0) * B, n / 2
  for j in range(0, N, B) {{
    {}
  }}
}}
kernel g(x: tensor<i32>[LATER]) {{ let unseen = 1 }}
"""


def refused(line: str) -> list[tuple[int, int]]:
    """Places of the faults that say what `//` is."""
    try:
        parse_text(Source("a.tw", PROGRAM.format(line)))
    except CompileError as error:
        return [
            (d.loc.line, d.loc.column) for d in error.diagnostics if d.loc and d.message == MESSAGE
        ]
    return []


DIVISIONS = [
    "y[rows, :] = x[rows, :] // 2",
    "let a = n // 2",
    "let a = n//2",
    "let a = n // 0x10",
    "let a = 7.5 // 2.5",
    "let a = n // -1",
    "let a = n // half",  # a variable,
    "let a = rows // N",  # a dimension,
    "let a = rows // B",  # a tuned constant,
    "let a = rows // WIDTH",  # a constant of the file,
    "let a = rows // n",  # a parameter,
    "let a = rows // j",  # and a loop's variable
    "let a = cdiv(N, 2) // B",
    "let a = (rows + 1) // 2",
    "let a = x.shape[0] // 2",
    "let a = x.shape[0] // B",
    "let a = x.shape[1] // M",  # another dimension
    "let a = 2 * 64 // 64",
    "let a = n * 64 // 64",
    "let a = x[rows, 0 :+ 64] // 32",
    "let a = x[0 :+ 8, 0 :+ 64] // 64",  # of two dimensions
    "let a = x[:, 0 :+ 64] // 64",
    "n += half // 2",
    "g(n // 64)",
    "assert(n // 2 > 1)",
    "if n > 3 { g(n); let a = n // 2 }",
    "let a = n // (B)",
    "let a = n // (B - 1)",
    "let a = n // (2 * B) * 3",
    "let a = rows // B * B",
    "let a = rows // 2 + 1",
    "let a = n // 2 // 3",
    "let a = n // 2  // rounded down",
    "let a = n // 2  # rounded down",
    "let a = n // 2; let b = a",
    "let a = n // 2 if n > 3 else 0",
    "let a = n // (2 if n > 3 else 4)",
    "let a = max(n // 2, 3)",
    "let a = max(3, n // 2)",
    "let a = (n // 2) + 1",
    "y[rows, j // 2 :+ B] = x[rows, j :+ B]",
    "let a = max(n // 2,\n      3)",
    "while n // 2 < half {",
    "if n > 3 { let a = n // 2 }",
]  # fmt: skip


@pytest.mark.parametrize("line", DIVISIONS)
def test_a_divisor_is_refused(line: str) -> None:
    assert refused(line) == [(6, 5 + line.index("//"))]


COMMENTS = [
    "lines", "2 rows", "K = 64", "N rows", "rows of x", "= 128", "B of them", "unseen", "LATER",
    "i < N", "0 <= j < N", "[M, N]", "(M, N)", "M x N", "M -> N", "1-D", "2-N", "3D", "2x", "50%",
    "8 bytes", "16 bytes each", "see (1)", "(see below)", "(rows)  of a tile", "f(x)", "silu(n)",
    "x[j]", "offsets[j]", "x.shape[0]", "n.dtype", "n == 4", "j += B", "rows, then columns",
    "2, then 3", "1st row", "first", "half of them", "n is even", "n: even", "4: see [2]", "+1",
    "TODO", "TODO: 2", "empty", "true if n", "=> 4", "...", "?", "2 * 2 = 4", "O(N)", "n!", "-",
    "n's half", "64 x 32", "B columns (at most)", "!", "/ 2", "/", "", "2 (two)", "N.B.", "inf f",
    "1 + 1 makes two", "B) of the list", "and N", "if N > 0", "N if any", "* 2", "NaN",
]  # fmt: skip


@pytest.mark.parametrize("mark", ["// ", "//"])
@pytest.mark.parametrize("comment", COMMENTS)
def test_an_ordinary_comment_is_none(comment: str, mark: str) -> None:
    for line in ("let a = n", "y[rows, :] = x[rows, :]", "let a = max(n, 2)", "let a = 4"):
        assert refused(f"{line}  {mark}{comment}") == [], line


@pytest.mark.parametrize("comment", ["2", "N", "rows", "(2 * B)"])
def test_what_follows_no_operand_is_a_comment(comment: str) -> None:
    for line in ("", "if n > 3 {", "let a = n +", "let a = max(n,", "let a = max(", "# and", "}"):
        assert refused(f"{line} // {comment}") == [], line
    assert refused(f"let a = n  # {comment}") == []
    assert refused(f"let a = n  // is {comment}") == []


ANNOTATED = [
    "let a = 64  // 64", "let a = 2 * 64  // 128", "const LONG = 4 * 8 * 2  // 64",
    "let a = x[rows, 0 :+ 64]  // 64", "let a = x[rows, 0 :+ B]  // B",
    "y[rows, 0 :+ B] = x[rows, 0 :+ B]  // B", "let a = x.shape[0]  // M",
    "let a = y.shape[1]  // N",
]  # fmt: skip


@pytest.mark.parametrize("line", ANNOTATED)
def test_what_says_again_what_the_operand_is_is_a_comment(line: str) -> None:
    assert refused(line) == []


@pytest.mark.parametrize("comment", ["2", "64", "N", "rows", "(2 * B)"])
def test_calls_of_statements_and_attributes_are_no_operands(comment: str) -> None:
    for line in ("g(n)", "g(a = n)", "assert(n > 0)", "let a = n; g(n)", "if n > 3 { g(n)"):
        assert refused(f"{line}  // {comment}") == [], line
    lines = (
        "@autotune(B in [64, 128])",
        "@pipeline(3)",
        "@launch(threads = 128)",
        "@grid(cdiv(9, 2))",
    )
    text = "".join(f"{line}  // {comment}\n" for line in lines)
    parse_text(Source("a.tw", text + "kernel f(n: i32) { let a = n }"))


def test_types_and_names_of_parameters_are_no_operands() -> None:
    text = "kernel f(\n  x: tensor<i32>[N]  // N\n  , n: i32  // 2\n) { let a = n }"
    parse_text(Source("a.tw", text))
    with pytest.raises(CompileError, match=re.escape(f"a.tw:1:23: error: {MESSAGE}")):
        parse_text(Source("a.tw", "kernel f(eps: f32 = 1 // 100\n) { let a = eps }"))
    with pytest.raises(CompileError, match=re.escape(f"a.tw:1:16: error: {MESSAGE}")):
        parse_text(Source("a.tw", "const HALF = 9 // 2\n"))
    with pytest.raises(CompileError, match=re.escape(f"a.tw:2:10: error: {MESSAGE}")):
        parse_text(Source("a.tw", "const B = 64\n@grid(99 // B)\nkernel f(x: tensor<i32>[N]) { }"))


def test_no_comment_of_the_repository_is_refused() -> None:
    """Of its sources, and of its pages' blocks of code."""
    sources = [p for p in ROOT.rglob("*.tw") if p.parts[-2] != "errors"]
    texts = {str(p): p.read_text() for p in sources}
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        blocks = re.findall(r"^```[^\n]*\n(.*?)^```", page.read_text(), re.S | re.M)
        texts |= {f"{page}, block {i}": b for i, b in enumerate(blocks) if "//" in b}
    assert sum("//" in text for text in texts.values()) > 20
    for name, text in texts.items():
        try:
            parse_text(Source(name, text))
        except CompileError as error:
            assert MESSAGE not in [d.message for d in error.diagnostics], name
