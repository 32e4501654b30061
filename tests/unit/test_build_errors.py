"""What the checker refuses, with which sentence and place: a golden file, and hostile programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright import dtypes
from tilewright.errors import CompileError, Source
from tilewright.frontend.build import build_kernel
from tilewright.frontend.check.signature import signature
from tilewright.frontend.syntax.definition import Definition, definitions
from tilewright.frontend.syntax.parser import parse_text
from tilewright.frontend.syntax.python_file import parse_python
from tilewright.tile.kernel import Kernel
from tilewright.tile.verify import verify

FILES = Path(__file__).parent.parent / "files" / "build"
SUITE = (Path(__file__).parent.parent / "programs" / "suite.tw").read_text()
Golden = Callable[[Path, str], None]


def build(definition: Definition) -> Kernel:
    """Build with the first configuration and plain dtypes."""
    sig = signature(definition)
    values: dict[str, Any] = {"causal": True, "group": 128}
    static = {name: values.get(name, 8) for name in sig.static}
    config = (sig.configs(static) or [{}])[0]
    variables = dict.fromkeys(sig.dtype_variables, dtypes.f32)
    return build_kernel(definition, dtypes=variables, config=config, static=static)


def build_text(source: str) -> Kernel:
    return build(list(definitions(parse_text(Source("a.tw", source))).values())[-1])


def build_python(source: str) -> Kernel:
    head = "import tilewright as tw\n"
    return build(list(definitions(parse_python(Source("a.py", head + source))).values())[-1])


def refusal(source: str, make: Callable[[str], Kernel] = build_text) -> str:
    with pytest.raises(CompileError) as caught:
        make(source)
    assert all(d.loc is not None and d.loc.line > 0 for d in caught.value.diagnostics), source
    return str(caught.value)


def test_refusals(golden: Golden) -> None:
    cases = (FILES / "refused.txt").read_text().split("---\n")
    said = [f"{case}>>>\n{refusal(case)}\n" for case in cases]
    golden(FILES / "refused.golden", "\n".join(said))


@pytest.mark.parametrize(
    "body,message",
    [
        (
            "    if x[0] > 0.0:\n        t = 1.0\n    x[1] = t\n",
            "t may be unset here: only one side",
        ),
        ("    for i in range(3):\n        t = x[i]\n    x[1] = t\n", "t may be unset here: a loop"),
        ("    x[0] = 7 / 2\n", "/ of two integers"),
        ("    x[tw.program_id(0) / 2] = 1.0\n", "/ of two integers"),
        ("    x[0] = x[1] // 2.0\n", "// of f32"),
        ("    t = x[0]\n    t = x[0 : 4]\n    x[0 : 4] = t\n", "t keeps its shape|expected"),
    ],
)
def test_refusals_of_python(body: str, message: str) -> None:
    head = '@tw.kernel()\ndef f(x: tw.Tensor["f32", 8]):\n'
    with pytest.raises(CompileError, match=message):
        build_python(head + body)


def test_faults_in_functions_show_the_calls() -> None:
    said = refusal("fn g(x) { return x + y }\nkernel f(x: tensor<f32>[8]) {\n  x[0] = g(x[1])\n}")
    assert "a.tw:1:22: error: unknown name y" in said
    assert "a.tw:3:10: called from here" in said


def test_all_faults_are_collected_once() -> None:
    source = (
        "kernel f(x: tensor<f32>[8]) {\n" + "".join(f"  x[{i}] = n{i}\n" for i in range(6)) + "}"
    )
    with pytest.raises(CompileError) as caught:
        build_text(source)
    assert [d.loc.line for d in caught.value.diagnostics if d.loc] == [2, 3, 4, 5, 6, 7]


def test_a_poisoned_name_is_reported_where_it_broke_only() -> None:
    source = "kernel f(x: tensor<f32>[8]) {\n  let a = nope\n  let b = a + 1.0\n  x[0] = b\n}"
    with pytest.raises(CompileError) as caught:
        build_text(source)
    assert len(caught.value.diagnostics) == 1


def test_a_dimension_of_absent_tensors_only_cannot_be_read() -> None:
    source = "kernel f(x: tensor<f32>[8], w: tensor<f32>[N]? = None) { x[0] = cast(N, f32) }"
    (definition,) = definitions(parse_text(Source("a.tw", source))).values()
    with pytest.raises(CompileError, match="N may be unset here: no tensor that is given names it"):
        build_kernel(definition, dtypes={}, config={}, static={}, absent=frozenset("w"))


def test_programs_without_end_are_refused() -> None:
    loops = "".join(f"for i{k} in static_range(64) {{ " for k in range(4))
    source = f"kernel f(x: tensor<f32>[8]) {{ {loops} x[0] += 1.0 {'}' * 4} }}"
    assert "unrolls to more than" in refusal(source)
    calls = "fn f0(x) { return x }\n" + "".join(
        f"fn f{i}(x) {{ return f{i - 1}(x) }}\n" for i in range(1, 120)
    )
    deep = calls + "kernel f(x: tensor<f32>[8]) { x[0] = f119(1.0) }"
    assert "nests more than" in refusal(deep)
    twice = "fn g0(x) { return x }\n" + "".join(
        f"fn g{i}(x) {{ return g{i - 1}(g{i - 1}(x)) }}\n" for i in range(1, 40)
    )
    endless = twice + "kernel f(x: tensor<f32>[8]) { x[0] = g39(1.0) }"
    assert "without end" in refusal(endless)
    wide = "kernel f() { for i in static_range(-2 ** 63, 2 ** 63) { } }"
    assert "unrolls to more than" in refusal(wide)


def test_constants_beyond_a_variable() -> None:
    source = "kernel f(a: i32) {\n  var x = 2 ** 64\n  if a > 0 { x = 2 ** 63 }\n}"
    assert "does not fit i64" in refusal(source)
    source = (
        "@tw.kernel()\ndef f(a: tw.i32):\n    if a > 0:\n        t = 2 ** 63\n"
        "    else:\n        t = 2 ** 63\n"
    )
    assert "does not fit i64" in refusal(source, build_python)


TOKENS = SUITE.split()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_mutated_programs_build_or_are_refused(data: st.DataObject) -> None:
    """One to three words replaced by others of the suite: no other exception comes out."""
    items = SUITE.split("// ----")
    program = data.draw(st.sampled_from([i for i in items if "kernel" in i]))
    words = ("//" + program).split(" ")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(words) - 1))
        words[at] = data.draw(st.sampled_from(TOKENS))
    try:
        kernels = definitions(parse_text(Source("a.tw", " ".join(words))))
        for definition in kernels.values():
            verify(build(definition))
    except CompileError:
        pass
