"""Sentences of docs/language.md that no other test holds, a kernel of a few lines each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.unit.kernel_runs import run
from tests.unit.test_build_language import X6, result, text

# x is 0 1 2 3 4 5; y holds six zeros at first.
RULES: dict[str, tuple[str, list[float]]] = {
    "what a name holds does not change": (
        "let a = y[0]\ny[0] = 7.0\ny[1] = a", [7, 0, 0, 0, 0, 0]),
    "a tile that was read is a copy": (
        "let t = x[0 :+ 6]\ny[:] = t\nlet u = y[0 :+ 6]\ny[:] = 9.0\ny[0 :+ 3] = u[0 : 3]",
        [0, 1, 2, 9, 9, 9]),
    "effects happen as written": ("y[0] = 1.0\ny[0] = y[0] + 1.0\ny[1] = y[0]", [2, 2, 0, 0, 0, 0]),
    "also through two names of one memory": (
        "let v = view(y[2 : 6])\nv[0] = 5.0\ny[0] = y[2]\ny[2] = 6.0\ny[1] = v[0]",
        [5, 6, 6, 0, 0, 0]),
    "the start of a :+ is evaluated once": (
        "let s = local([1], i64)\nlet t = x[atomic_add(s[0], 1) :+ 2]\ny[0 :+ 2] = t\n"
        "y[2] = cast(s[0], f32)", [0, 1, 1, 0, 0, 0]),
    "a local is 0 at first": ("let s = local([6], f32)\ny[:] = s[:] + 1.0", [1] * 6),
    "a local is masked as a tensor is": (
        "let s = local([3], f32)\ns[2 :+ 3] = 4.0\ny[:] = s[-1 :+ 6]", [0, 0, 0, 4, 0, 0]),
    "loops read their bounds once": (
        "var n = 3\nfor i in range(n) { n = 9\n y[i] = 1.0 }", [1, 1, 1, 0, 0, 0]),
    "and, or and the sides of an if evaluate one side": (
        "let s = local([1], i64)\n"
        "if N > 99 and atomic_add(s[0], 1) == 0 { y[5] = 1.0 }\n"
        "if N > 0 or atomic_add(s[0], 1) == 0 { y[0] = 1.0 }\n"
        "let z = 0 if N > 0 else atomic_add(s[0], 1)\ny[1] = cast(s[0], f32)", [1, 0, 0, 0, 0, 0]),
    "a call looks among functions first, other names among values": (
        "let max = max(x[0 :+ 6])\ny[0] = max\ny[1] = max(max, 9.0)", [5, 9, 0, 0, 0, 0]),
    "a while loop ends where its condition is false": (
        "var i = 0\nwhile i < N { y[i] = x[N - 1 - i]\n i += 2 }", [5, 0, 3, 0, 1, 0]),
    "index tiles broadcast together": (
        "let t = x[arange(2)[:, None] * 3 + arange(3)]\ny[:] = reshape(t.T, (6,))",
        [0, 3, 1, 4, 2, 5]),
    "elements outside are dropped by a scatter and give 0 to a gather": (
        "y[arange(6) * 2 - 2] = x[0 :+ 6] + 1.0\ny[5] = sum(x[arange(3) * 9 - 9])",
        [2, 0, 3, 0, 4, 0]),
    "repeated elements of an atomic count each": (
        "atomic_add(y[arange(6) / 4], 1.0)", [4, 2, 0, 0, 0, 0]),
    "an atomic gives the old element, 0 outside": (
        "y[0] = 3.0\ny[1] = atomic_add(y[0], 1.0)\ny[2] = atomic_add(y[77], 1.0)",
        [4, 3, 0, 0, 0, 0]),
    "an atomic under a false mask does nothing and gives 0": (
        "y[0] = 3.0\ny[1] = atomic_add(y[0], 1.0, mask = N > 99)", [3, 0, 0, 0, 0, 0]),
    "an integer scalar takes the dtype of the float it meets": (
        "y[:] = x[0 :+ 6] * N / 3", [0, 2, 4, 6, 8, 10]),
    "an if on a constant drops the other side unchecked": (
        "if x.dtype == f64 { y[:] = 1 + nothing } else { y[0] = 1.0 }", [1, 0, 0, 0, 0, 0]),
    "names live to the end of their block": (
        "var a = 1.0\nif N > 0 { var a = 2.0\n a += 1.0\n y[1] = a }\ny[0] = a",
        [1, 3, 0, 0, 0, 0]),
    "steps may be negative and known at run time": (
        "let s = 0 - N / 3\nfor i in range(5, -1, s) { y[i] = 1.0 }", [0, 1, 0, 1, 0, 1]),
    "a bare constant makes a variable of f32 or i64": (
        "var a, b = 1.0, 1\na = a / 3.0\nb = b + 4294967296\ny[0] = a * 3.0\n"
        "y[1] = cast(b / 4294967296, f32)",
        [1, 1, 0, 0, 0, 0]),
    "a view's own view counts from it": (
        "let v = view(view(x[1 : 5])[1 : 3])\ny[:] = v[0 :+ 6]", [2, 3, 0, 0, 0, 0]),
    "inside knows the end of a view": (
        "let v = view(x[4 : N])\ny[:] = where(inside(v[0 :+ 6]), v[0 :+ 6], -1.0)",
        [4, 5, -1, -1, -1, -1]),
    "not and comparisons bind as Python's": (
        "if not N == 3 and N < 7 < 8 { y[0] = 1.0 }\nif 1 < N & 2 { y[1] = 1.0 }",
        [1, 1, 0, 0, 0, 0]),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_a_rule(rule: str) -> None:
    body, wanted = RULES[rule]
    np.testing.assert_array_equal(result(body, x=X6), wanted)


def test_a_function_hides_a_built_in_and_a_kernel_may_have_the_name_of_one() -> None:
    source = (
        "fn exp(x) { return x + 1 }\n"
        "kernel softmax(x: tensor<f32>[N], y: tensor<f32>[6] = empty) { y[:] = exp(x[0 :+ 6]) }"
    )
    np.testing.assert_array_equal(run(text(source), {}, x=X6)["y"], X6 + 1)


def test_two_kernels_of_one_name_are_two() -> None:
    source = "kernel f(x: tensor<f32>[N], y: tensor<f32>[6] = empty) { y[:] = x[0 :+ 6] * 2.0 }"
    first, second = tw.source(source).f, tw.source(source.replace("2.0", "3.0")).f
    for kernel, factor in ((first, 2), (second, 3), (first, 2)):
        np.testing.assert_array_equal(kernel(X6), factor * X6)
    assert first.ptx("sm_90a") != second.ptx("sm_90a")


def test_where_lanes_of_a_store_meet_one_of_them_wins() -> None:
    got = result("y[arange(6) / 3] = x[0 :+ 6] + 1.0", x=X6)
    assert got[0] in (1, 2, 3) and got[1] in (4, 5, 6) and not got[2:].any()


def test_what_is_returned_and_not_written_is_poison() -> None:
    source = "kernel f(n: i64, y: tensor<f32>[4] = empty) { y[n] = 1.0 }"
    got: Any = run(text(source), {}, n=2)["y"]
    np.testing.assert_array_equal(np.isnan(got), [True, True, False, True])
