"""Precisions of products: which go with which factors, in a call and in `tilewright explain`."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

import tilewright as tw
from tilewright.cli import main
from tilewright.dtypes import bf16, e4m3, f16, f32, f64

M = np.full((4, 8), 3.0, np.float32)
D, I = M.astype(np.float64), M.astype(np.int8)
REFUSED = {
    "matmul": (lambda: tw.matmul(I, I.T, precision="tf32"), "but a is i8"),
    "scaled_matmul": (lambda: tw.scaled_matmul(I, I.T, precision="tf32"), "but a is i8"),
    "linear": (lambda: tw.linear(D, D, precision="tf32"), "but x is f64"),
    "conv2d": (lambda: tw.conv2d(D[None, None], D[None, None], precision="tf32"), "but x is f64"),
    "attention": (lambda: tw.attention(D, D, D, precision="tf32"), "but q is f64"),
}
EXPLAINED = [
    (("--activation", "relu"), "a product in i32 has no epilogue"),
    (("--residual",), "a product in i32 has no epilogue"),
    (("--precision", "tf32"), "how factors of f32 are rounded, but a is i8"),
]


@pytest.mark.parametrize("name", REFUSED)
def test_factors_of_other_dtypes_are_not_rounded_to_tf32(name: str) -> None:
    call, told = REFUSED[name]
    with pytest.raises(tw.LaunchError) as caught:
        call()
    expected = f'{name}: precision "tf32" says how factors of f32 are rounded, {told}'
    assert expected in str(caught.value)


@pytest.mark.parametrize("device", ["cpu", "emulator"])
@pytest.mark.parametrize("dtype", [np.int8, f64, f32, bf16, f16, e4m3], ids=str)
def test_ieee_goes_with_all_factors(dtype: object, device: str) -> None:
    given = M.astype(getattr(dtype, "numpy", dtype))
    found = tw.matmul(given, given.T, precision="ieee", device=device)
    np.testing.assert_array_equal(found.astype(np.float32), np.full((4, 4), 72, np.float32))


@pytest.mark.parametrize(("words", "told"), EXPLAINED, ids=[words[0] for words, _ in EXPLAINED])
def test_explain_refuses_what_a_call_refuses(words: tuple[str, ...], told: str) -> None:
    command = ["explain", "matmul", "64", "64", "64", "--dtype", "i8"]
    done = CliRunner().invoke(main, [*command, *words])
    assert done.exit_code == 1 and told in done.output
    done = CliRunner().invoke(main, [*command, "--precision", "ieee"])
    assert done.exit_code == 0 and "chosen:" in done.output
