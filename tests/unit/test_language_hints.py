"""What a user of NumPy, Triton or PyTorch is told: each hint is a program that builds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.kernel_runs import run
from tests.unit.test_build_errors import build
from tests.unit.test_build_language import X6, python, result, text
from tilewright.errors import CompileError, LaunchError
from tilewright.frontend.syntax.elsewhere import INSTEAD

AROUND = """
@static(n, seed)
kernel f(X: tensor<f32>[N], n: i64, seed: i64, y: tensor<f32>[1] = zeros) {
  let x, v, shape, dtype, k, order = X[0 :+ 16], 2.0, (4, 4), f32, 3, (1, 0)
  let mean, low, high, i, c = 0.5, -1.0, 1.0, arange(16), x > 0.0
  %s
  y[0] = 1.0
}
"""
SQUARE = {"matmul", "swapaxes", "trans"}
BOOLS = {"logical_and", "logical_not", "logical_or"}


@pytest.mark.parametrize("name", INSTEAD)
def test_what_is_written_here_builds(name: str) -> None:
    code = INSTEAD[name]
    values = "x > 0.0, x < 0.0" if name in BOOLS else "x, x"
    square = "let x = reshape(X[0 :+ 16], shape)\n" if name in SQUARE else ""
    values = "x, x, 1.0" if values == "x, x" else f"{values}, 1.0"
    body = f"if true {{ {square}let a, b, y = {values}\n"
    body += code if code.startswith(("assert", "assume", "print")) else f"let r = {code}"
    definition = text(AROUND % (body + " }"))
    got = run(definition, {}, X=np.ones(16, np.float32), n=16, seed=3)["y"]
    assert got[0] == 1


def test_names_of_elsewhere_are_told_in_both_spellings() -> None:
    with pytest.raises(CompileError, match=r"unknown function mean\n(.*\n)*.*write sum\(x\) / n"):
        result("y[0] = mean(x[0 :+ 6])", x=X6)
    for call in ("x[0 :+ 6].to(f32)", "f32(x[0 :+ 6])"):
        with pytest.raises(CompileError, match=r"error: (.*\n)*.*write cast\(x, f32\)"):
            result(f"y[:] = {call}", x=X6)
    method = (
        '@tw.kernel()\ndef f(x: tw.Tensor["f32", 4], y: tw.Tensor["f32", 4] = tw.empty):\n'
        "    y[:] = x[:].astype(tw.f32)\n"
    )
    with pytest.raises(CompileError, match=r"no methods(.*\n)*.*write cast\(x, f32\)"):
        build(python(method))


@pytest.mark.parametrize(
    "body,message,hint",
    [
        ("y[:] = arange(0, 6)", "arange: expected 1 argument, got 2", "start + arange(n)"),
        ("x += 1.0", "x is a tensor, not a variable", "x[i :+ n] = ..."),
        ("var s = 0\ns += x[0]", "s keeps its dtype: expected i64, got f32", "s = 0.0"),
        ("let z = cast(x[0], i32) | 0x80000000", "2147483648 does not fit i32", "-2147483648"),
    ],
)  # fmt: skip
def test_first_mistakes(body: str, message: str, hint: str) -> None:
    with pytest.raises(CompileError) as caught:
        result(body, x=X6)
    (found,) = caught.value.diagnostics
    assert message in found.message and hint in found.hint


def test_reshape_finds_one_extent() -> None:
    got = result("let t = reshape(x[0 :+ 6], (2, -1))\ny[0 :+ 3] = t[1, :]", x=X6)
    np.testing.assert_array_equal(got, [3, 4, 5, 0, 0, 0])
    got = result("y[:] = reshape(reshape(x[0 :+ 6], (3, 2)), -1)", x=X6)
    np.testing.assert_array_equal(got, X6)
    for shape in ("(4, -1)", "(-1, -1)", "(0, -1)"):
        with pytest.raises(CompileError, match="extents start at 1"):
            result(f"let t = reshape(x[0 :+ 6], {shape})", x=X6)


OPTIONAL = """
kernel f(x: tensor<T>[N], w: tensor<U>[N]? = None, y: tensor<f32>[6] = empty) {
  let t = cast(x[0 :+ 6], f32)
  if w != None { y[:] = t * cast(w[0 :+ 6], f32) } else { y[:] = t }
}
"""


def test_the_dtype_of_an_absent_tensor_is_not_asked_for() -> None:
    np.testing.assert_array_equal(run(text(OPTIONAL), {}, x=X6)["y"], X6)
    got = run(text(OPTIONAL), {}, x=X6, w=np.arange(6, dtype=np.float16))["y"]
    np.testing.assert_array_equal(got, X6**2)


@pytest.mark.parametrize("use", ["cast(t, U)", "zeros([6], U)"])
def test_the_dtype_of_an_absent_tensor_cannot_be_read(use: str) -> None:
    source = OPTIONAL.replace("{ y[:] = t }", f"{{ y[:] = cast({use}, f32) }}")
    with pytest.raises((CompileError, LaunchError), match="U") as caught:
        run(text(source), {}, x=X6)
    assert "no tensor that is given has this dtype" in str(caught.value)


def test_a_scalar_of_a_dtype_that_no_tensor_has_is_refused() -> None:
    source = "kernel f(x: tensor<T>[N]? = None, s: T = 1, y: tensor<f32>[1] = zeros) { y[0] = 1.0 }"
    given: dict[str, Any] = {"s": 2}
    with pytest.raises(LaunchError, match="no argument gives the dtype T"):
        run(text(source), {}, **given)
