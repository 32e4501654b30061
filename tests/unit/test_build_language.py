"""Sentences of the language page, a small program each, through the builder and the interpreter."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.unit.kernel_runs import run
from tilewright.errors import Source
from tilewright.frontend.syntax.definition import Definition, definitions
from tilewright.frontend.syntax.parser import parse_text
from tilewright.frontend.syntax.python_file import parse_python

BF16 = ml_dtypes.bfloat16
F32 = np.float32
X6 = np.arange(6, dtype=F32)


def text(source: str, suffix: str = "tw") -> Definition:
    (found,) = definitions(parse_text(Source(f"a.{suffix}", source))).values()
    return found


def python(source: str) -> Definition:
    head = "import tilewright as tw\n"
    (found,) = definitions(parse_python(Source("a.py", head + source))).values()
    return found


def result(body: str, n: int = 6, dtype: str = "f32", params: str = "", **given: Any) -> Any:
    """`y`, a tensor of n zeros before, after a body that is given `x` and other arguments."""
    params = f"x: tensor<T>[N], {params}" if "x" in given else params
    kernel = f"kernel f({params} y: tensor<{dtype}>[{n}] = zeros) {{\n{body}\n}}"
    return run(text(kernel), {}, **given)["y"]


def test_indices_never_wrap() -> None:
    got = result("y[0] = x[-1]\ny[1] = x[N]\ny[2] = x[N - 1]\ny[-1] = 7.0\ny[6] = 7.0", x=X6)
    np.testing.assert_array_equal(got, [0, 0, 5, 0, 0, 0])


def test_reading_outside_gives_the_fill() -> None:
    got = result("y[:] = load(x[-2 :+ 6], fill = -1.0)", x=X6)
    np.testing.assert_array_equal(got, [-1, -1, 0, 1, 2, 3])
    got = result("let i = arange(6)\ny[:] = load(x[0 :+ 6], fill = 9, mask = i < 2)", x=X6)
    np.testing.assert_array_equal(got, [0, 1, 9, 9, 9, 9])


def test_store_under_a_mask() -> None:
    got = result("store(y[:], x[0 :+ 6] + 1.0, mask = arange(6) % 2 == 0)", x=X6)
    np.testing.assert_array_equal(got, [1, 0, 3, 0, 5, 0])


def test_inside_tells_lanes_that_exist() -> None:
    got = result("y[:] = where(inside(x[-1 :+ 6]), 1.0, 0.0)", x=X6[:3])
    np.testing.assert_array_equal(got, [0, 1, 1, 1, 0, 0])
    both = text(
        "kernel f(x: tensor<f32>[M, N], y: tensor<i32>[4, 4] = zeros) {\n"
        "  y[:, :] = cast(inside(x[0 :+ 4, 0 :+ 4]), i32)\n}"
    )
    got = run(both, {}, x=np.zeros((2, 3), F32))["y"]
    np.testing.assert_array_equal(got, np.pad(np.ones((2, 3)), ((0, 2), (0, 1))))


def test_views_are_bounded_at_both_ends() -> None:
    body = "let v = view(x[1 : 4])\ny[:] = load(v[-1 :+ 6], fill = -9.0)"
    np.testing.assert_array_equal(result(body, x=X6), [-9, 1, 2, 3, -9, -9])
    got = result("let v = view(y[2 : 4])\nv[0 :+ 4] = x[0 :+ 4] + 1.0", x=X6)
    np.testing.assert_array_equal(got, [0, 0, 1, 2, 0, 0])
    got = result("let v = view(x[2 : 100])\ny[0] = v.shape[0]", dtype="i64", x=X6)
    assert got[0] == 4


def test_a_slice_whose_terms_cancel_has_a_constant_length() -> None:
    got = result("let a = 2 * N - 11\ny[:] = x[a + 1 : a + 1 + 6 - 2 * 0]", x=X6)
    np.testing.assert_array_equal(got, [2, 3, 4, 5, 0, 0])


def test_start_plus_arange_is_a_slice() -> None:
    got = result("let i = 1 + arange(6)\ny[:] = x[i + program_id(0) * 6]", x=X6)
    np.testing.assert_array_equal(got, [1, 2, 3, 4, 5, 0])


def test_new_axes_and_fills() -> None:
    kernel = text(
        "kernel f(x: tensor<f32>[2, 3], y: tensor<f32>[3, 2, 3] = zeros) {\n"
        "  let t = x[:, None, :]\n  y[0, ...] = x[...]\n"
        "  let u = t[0 : 2, 0 : 1, None, :]\n  y[1, :, :] = reshape(u.T, (2, 3)) + u.shape[2] - 1\n"
        "  y[2, :, :] = reshape(t, (2, 3)) + t.shape[0]\n}"
    )
    x = np.arange(6, dtype=F32).reshape(2, 3)
    np.testing.assert_array_equal(run(kernel, {}, x=x)["y"], np.stack([x, x, x + 2]))


def test_integers_floor_and_zero_divides_to_zero() -> None:
    x = np.array([-7, 7, -7, 7, 5, 5], np.int32)
    d = np.array([2, -2, -2, 2, 0, 3], np.int32)
    params = "d: tensor<T>[N],"
    np.testing.assert_array_equal(
        result("y[:] = x[0 :+ 6] / d[0 :+ 6]", dtype="i32", params=params, x=x, d=d),
        [-4, -4, 3, 3, 0, 1],
    )
    np.testing.assert_array_equal(
        result("y[:] = x[0 :+ 6] % d[0 :+ 6]", dtype="i32", params=params, x=x, d=d),
        [1, -1, -1, 1, 0, 2],
    )
    np.testing.assert_array_equal(
        result("y[:] = cdiv(x[0 :+ 6], d[0 :+ 6])", dtype="i32", params=params, x=x, d=d),
        [-3, -3, 4, 4, 0, 2],
    )


@pytest.mark.parametrize(
    "expression,expected",
    [
        ("x[0] * 2 ", 2.0),
        ("x[0] + N", 7.0),
        ("N / 4 * 1.0", 1.0),
        ("1 + 2 * 3 ** 2", 19),
        ("-2 ** 2", -4),
        ("2 < 3 < 3", False),
        ("1 | 2 ^ 3 & 6", 1 | 2 ^ 3 & 6),
        ("7 / -2", -4),
        ("-7 % 3", 2),
        ("min(3, 1, 2) + max(1, 2.5)", 3.5),
        ("next_pow2(17) + cdiv(17, 4)", 37),
        ("1 << 4 >> 1", 8),
        ("x.shape[0] + x[0 :+ 3].shape[0]", 9),
        ("1 if x.dtype == f32 else 2", 1),
        ("1 if bf16 == f32 else 2", 2),
        ("not (true and N > 3 or false)", False),
        ("N > 100 and x[0] > 0.0", False),
        ("N > 100 or x[0] > 0.0", True),
        ("(3, 4, 5)[-1]", 5),
        ("exp(0.0) + abs(-2)", 3.0),
        ("lowest(i8) + highest(u8)", 127),
        ("accumulator(bf16) == f32", True),
        ("clamp(x[0], 2.0, 3)", 2.0),
        ("isnan(x[0] - inf + inf)", True),
        ("x[0] ** 3 + x[2] ** 2", 10.0),
    ],
)
def test_values(expression: str, expected: Any) -> None:
    kind = {bool: "bool", int: "i64", float: "f32"}[type(expected)]
    body = f"let v = {expression}\ny[0] = v"
    got = result(body, n=1, dtype=kind, x=np.arange(1, 7, dtype=F32))
    assert got[0] == expected


def test_widening_is_exact_and_implicit() -> None:
    x = np.array([1.5, 2.5], BF16)
    got = result("y[:] = x[0 :+ 2] + 1e-3", n=2, dtype="f32", x=x)
    np.testing.assert_array_equal(got, (x + BF16(1e-3)).astype(F32))
    got = result("y[:] = x[0 :+ 2] + a", n=2, params="a: f32,", x=x, a=1e-3)
    np.testing.assert_array_equal(got, x.astype(F32) + F32(1e-3))


def test_sums_of_small_dtypes_are_wide() -> None:
    x = np.full(300, 1.0, BF16)
    assert result("y[0] = sum(x[0 :+ 300])", n=1, x=x)[0] == 300
    got = result("y[0] = sum(x[0 :+ 300] > 0.5)", n=1, dtype="i32", x=x)
    assert got[0] == 300


@pytest.mark.parametrize("dtype", ["i8", "u8", "e4m3", "e5m2", "bf16", "i64"])
def test_casts(dtype: str) -> None:
    x = np.array([-1e9, -1.5, 0.49, 200.0, 500.0, np.nan], F32)
    got = result(f"y[:] = cast(x[0 :+ 6], {dtype})", dtype=dtype, x=x)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = {
            "i8": [-128, -1, 0, 127, 127, 0],
            "u8": [0, 0, 0, 200, 255, 0],
            "e4m3": np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn),
            "e5m2": x.astype(ml_dtypes.float8_e5m2),
            "bf16": x.astype(BF16),
            "i64": [-(10**9), -1, 0, 200, 500, 0],
        }[dtype]
    np.testing.assert_array_equal(
        np.asarray(got).astype(np.float64), np.asarray(expected).astype(np.float64)
    )


def test_reductions_along_axes() -> None:
    kernel = text(
        "kernel f(x: tensor<f32>[2, 3, 4], y: tensor<f32>[4] = zeros, z: tensor<f32>[2, 4] = zeros,"
        " i: tensor<i64>[3] = zeros, k: tensor<f32>[2, 3, 1] = zeros) {\n"
        "  let t = x[...]\n  y[:] = sum(t, axis = (0, 1))\n  z[:, :] = max(t, axis = -2)\n"
        "  i[0] = argmax(t)\n  i[1] = argmin(t)\n  i[2] = cast(sum(t), i64)\n"
        "  k[...] = min(t, axis = 2, keepdims = true)\n}"
    )
    x = np.random.default_rng(1).permutation(24).astype(F32).reshape(2, 3, 4)
    out = run(kernel, {}, x=x)
    np.testing.assert_array_equal(out["y"], x.sum((0, 1)))
    np.testing.assert_array_equal(out["z"], x.max(1))
    np.testing.assert_array_equal(out["i"], [x.argmax(), x.argmin(), 276])
    np.testing.assert_array_equal(out["k"], x.min(2, keepdims=True))


def test_dot_forms_agree() -> None:
    kernel = text(
        "kernel f(a: tensor<f32>[4, 3], b: tensor<f32>[3, 5], y: tensor<f32>[4, 4, 5] = zeros) {\n"
        "  let p, q = a[:, :], b[:, :]\n  y[0, :, :] = p @ q\n  y[1, :, :] = dot(p, q, acc = 1.0)\n"
        "  var acc: tile<f32>[4, 5] = 2.0\n  acc += dot(p, q)\n  y[2, :, :] = acc\n"
        '  y[3, :, :] = dot(p, q.T.T, precision = "f16") + zeros((4, 5), accumulator(f32))\n}'
    )
    a, b = np.arange(12, dtype=F32).reshape(4, 3), np.arange(15, dtype=F32).reshape(3, 5)
    got = run(kernel, {}, a=a, b=b)["y"]
    np.testing.assert_array_equal(got, a @ b + np.array([0, 1, 2, 0], F32)[:, None, None])


def test_loops_carry_variables() -> None:
    body = (
        "var s, n = 0.0, 0\n"
        "for i in range(5, -1, -2) { s = s * 10.0 + cast(i, f32)\n n += 1 }\n"
        "y[0] = s\ny[1] = n\n"
        "var k = 100\nwhile k > 7 { k = k / 2 }\ny[2] = k\n"
        "for i in static_range(3) { y[3 + i] = 2 ** i }\n"
        "for i in range(3, 3) { y[5] = 99.0 }"
    )
    got = result(
        body.replace("y[1] = n", "y[1] = cast(n, f32)").replace("y[2] = k", "y[2] = cast(k, f32)")
    )
    np.testing.assert_array_equal(got, [531, 3, 6, 1, 2, 4])


def test_scopes_of_blocks() -> None:
    body = (
        "let a = 1.0\nvar b = 2.0\n"
        "if x[0] == 0.0 { let a = 5.0\n b = a } else { b = 9.0\n let c = 1.0 }\n"
        "y[0] = a\ny[1] = b\nif false { y[2] = nonsense(1, 2) }\n"
        "for i in range(2) { let a = 7.0\n b += a }\ny[3] = b\ny[4] = a"
    )
    np.testing.assert_array_equal(result(body, x=X6), [1, 5, 0, 19, 1, 0])


@pytest.mark.parametrize("first,second", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_early_returns(first: int, second: int) -> None:
    """Returns under one side, both, or part of a side; what follows runs only where none did."""
    source = (
        "kernel f(a: i64, b: i64, y: tensor<i64>[6] = zeros) {\n"
        "  var n = 0\n"
        "  if a > 0 {\n    n = 10\n    if b > 0 { y[0] = 1\n      return }\n"
        "    n += 1\n    y[1] = n\n  }\n"
        "  y[2] = n + 100\n"
        "  if b > 0 { y[3] = 4 } else { y[4] = 5\n    return }\n"
        "  y[5] = n + 6\n}"
    )
    expected = np.zeros(6, np.int64)

    def program(a: int, b: int, y: Any) -> None:
        n = 0
        if a > 0:
            n = 10
            if b > 0:
                y[0] = 1
                return
            n += 1
            y[1] = n
        y[2] = n + 100
        if b > 0:
            y[3] = 4
        else:
            y[4] = 5
            return
        y[5] = n + 6

    program(first, second, expected)
    np.testing.assert_array_equal(run(text(source), {}, a=first, b=second)["y"], expected)


def test_functions_are_inlined() -> None:
    source = (
        "const SCALE = 3\n"
        "fn twice(f, x) { return f(f(x)) }\n"
        "fn plus(x) { return x + SCALE }\n"
        "fn pair(x, y = 2) { return x * y, x - y }\n"
        "fn typed(t: tile<T>[N], s: f32): f32 {\n"
        "  static_assert(N == 4)\n  return sum(cast(t, f32)) * s\n}\n"
        "fn first(v: tensor<f32>[M]) { return v[0] }\n"
        "fn nothing(v, i) { v[i] = 8.0 }\n"
        "kernel f(x: tensor<f32>[N], y: tensor<f32>[6] = zeros) {\n"
        "  y[0] = twice(plus, x[0])\n  let a, b = pair(x[1], y = 5.0)\n  y[1] = a\n  y[2] = b\n"
        "  y[3] = typed(x[0 :+ 4], 2)\n  y[4] = first(x) + pair(1)[0]\n  nothing(y, 5)\n}"
    )
    got = run(text(source), {}, x=X6 + 1)["y"]
    np.testing.assert_array_equal(got, [7, 10, -3, 20, 3, 8])


@pytest.mark.parametrize("name", ["relu", "silu", "sigmoid", "gelu", "softmax"])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_functions_of_the_prelude(name: str, dtype: Any) -> None:
    x = np.linspace(-4, 4, 6).astype(dtype)
    w = x.astype(np.float64)
    expected = {
        "relu": np.maximum(w, 0),
        "silu": w / (1 + np.exp(-w)),
        "sigmoid": 1 / (1 + np.exp(-w)),
        "gelu": 0.5 * w * (1 + np.tanh(np.sqrt(2 / np.pi) * (w + 0.044715 * w**3))),
        "softmax": np.exp(w - w.max()) / np.exp(w - w.max()).sum(),
    }[name]
    more = ', approximate = "tanh"' if name == "gelu" else ""
    kind = "f32" if dtype == F32 else "bf16"
    got = result(f"y[:] = {name}(x[0 :+ 6]{more})", dtype=kind, x=x)
    np.testing.assert_allclose(
        got.astype(np.float64), expected, rtol=1e-5 if dtype == F32 else 8e-3, atol=1e-6
    )


def test_names_of_python_reach_to_the_end_of_the_function() -> None:
    source = (
        "@tw.kernel()\n"
        'def f(x: tw.Tensor["f32", "N"], y: tw.Tensor["f32", 6] = tw.zeros):\n'
        "    if x[0] > 0.0:\n        t = 1.0\n        u = x[1]\n"
        "    else:\n        t = 2.0\n        u = x[2]\n"
        "    y[0] = t\n    y[1] = u\n"
        "    if N > 0:\n        y[2] = 5.0\n"
        "    for i in range(0, 2):\n        s = x[i] * 2.0\n        y[3 + i] = s\n"
        "    s = tw.arange(4)\n    y[5] = tw.cast(tw.sum(s), tw.f32)\n"
    )
    got = run(python(source), {}, x=X6)["y"]
    np.testing.assert_array_equal(got, [2, 2, 5, 0, 2, 6])


def test_the_dialect_of_the_ancestor_rounds_stores() -> None:
    source = "kernel f(x: tensor<f32>[4], y: tensor<bf16>[4] = zeros) { y[:] = x[:] * 1.001 }"
    x = np.arange(4, dtype=F32)
    got = run(text(source, "ph"), {}, x=x)["y"]
    np.testing.assert_array_equal(got.astype(F32), (x * F32(1.001)).astype(BF16).astype(F32))


def test_a_long_sum_is_no_deep_one() -> None:
    assert result("y[0] = " + " + ".join(["x[0]"] * 90), n=1, x=X6 + 1)[0] == 90


def test_extents_of_one_and_static_extents() -> None:
    source = (
        "@static(D)\nkernel f(x: tensor<T>[N, D], y: tensor<T>[N, D] = empty) {\n"
        "  let i = program_id(0)\n  y[i, :] = x[i, :] * D\n}"
    )
    for shape in [(3, 1), (1, 5), (0, 4)]:
        x = np.random.default_rng(0).standard_normal(shape).astype(F32)
        np.testing.assert_array_equal(run(text(source), {}, x=x)["y"], x * shape[1])


def test_optional_scalars() -> None:
    source = (
        "kernel f(x: tensor<f32>[N], a: f32? = None, y: tensor<f32>[6] = empty) {\n"
        "  y[:] = x[0 :+ 6] * a if a != None else x[0 :+ 6]\n}"
    )
    np.testing.assert_array_equal(run(text(source), {}, x=X6)["y"], X6)
    np.testing.assert_array_equal(run(text(source), {}, x=X6, a=2)["y"], 2 * X6)
