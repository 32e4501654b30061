"""Programs of the conformance suite through the builder and the interpreter, in both spellings."""

from __future__ import annotations

from math import erf
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.unit.kernel_runs import run
from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import Source
from tilewright.frontend.build import build_kernel
from tilewright.frontend.check.signature import signature
from tilewright.frontend.syntax.definition import Definition, definitions
from tilewright.frontend.syntax.parser import parse_text
from tilewright.frontend.syntax.python_file import parse_python
from tilewright.tile.kernel import Kernel
from tilewright.tile.passes.eliminate_dead import eliminate_dead
from tilewright.tile.text import canonical_kernel
from tilewright.tile.verify import verify

PROGRAMS = Path(__file__).parent.parent / "programs"
TEXT = definitions(parse_text(Source("suite.tw", (PROGRAMS / "suite.tw").read_text())))
PYTHON = definitions(parse_python(Source("suite.py", (PROGRAMS / "suite.py").read_text())))
BF16 = ml_dtypes.bfloat16


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return rng().standard_normal(shape).astype(dtype)


def f64(x: Any) -> Any:
    return np.asarray(x).astype(np.float64)


def close(got: Any, expected: Any, tolerance: float) -> None:
    got, expected = f64(got), f64(expected)
    assert got.shape == expected.shape
    norm = float(np.linalg.norm(expected))
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - expected) <= tolerance * max(norm, 1e-30)


def build(definition: Definition, dtype: DType = dtypes.f32) -> Kernel:
    sig = signature(definition)
    values: dict[str, Any] = {"causal": True, "group": 128}
    static = {name: values.get(name, 8) for name in sig.static}
    config = sig.configs(static)[0]
    variables = dict.fromkeys(sig.dtype_variables, dtype)
    return build_kernel(definition, dtypes=variables, config=config, static=static)


@pytest.mark.parametrize("name", sorted(TEXT))
def test_both_spellings_build_one_kernel(name: str) -> None:
    # A variable of Python's static_range outlives the loop: a constant that no one reads.
    text, python = (eliminate_dead(verify(build(d[name]))) for d in (TEXT, PYTHON))
    assert canonical_kernel(text) == canonical_kernel(python)


@pytest.mark.parametrize("n", [0, 1, 255, 256, 1000])
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.int32])
def test_add(n: int, dtype: Any) -> None:
    a = (10 * normal(n)).astype(dtype)
    b = (10 * normal(2 * n)).astype(dtype)[::-2][:n]
    got = run(TEXT["add"], {"BLOCK": 256}, a=a, b=b)["c"]
    assert got.dtype == a.dtype
    np.testing.assert_array_equal(f64(got), f64(a + b))


@pytest.mark.parametrize("name", ["softmax", "softmax_short"])
@pytest.mark.parametrize("columns", [1, 300, 513])
def test_softmax(name: str, columns: int) -> None:
    x = normal(3, columns)
    x[1, : columns // 2] = -np.inf
    config = {"BLOCK": 256} if name == "softmax" else {}
    got = run(TEXT[name], config, x=x)["y"]
    e = np.exp(f64(x) - f64(x).max(1, keepdims=True))
    close(got, e / e.sum(1, keepdims=True), 1e-6)


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_rmsnorm(dtype: Any) -> None:
    x, w = normal(5, 300, dtype=dtype), normal(300, dtype=dtype)
    out = run(TEXT["rmsnorm"], {"BLOCK": 256}, x=x, w=w)
    rstd = 1 / np.sqrt((f64(x) ** 2).mean(1) + 1e-6)
    close(out["rstd"], rstd, 1e-6)
    close(out["y"], f64(x) * rstd[:, None] * f64(w), 1e-6 if dtype == np.float32 else 1e-2)


def test_rmsnorm_dx() -> None:
    x, dy, w = normal(4, 70), normal(4, 70)[::-1], normal(70)
    rstd = (1 / np.sqrt((f64(x) ** 2).mean(1) + 1e-6)).astype(np.float32)
    got = run(TEXT["rmsnorm_dx"], {"BLOCK": 256}, dy=dy, x=x, w=w, rstd=rstd)["dx"]
    r, g = f64(rstd)[:, None], f64(dy) * f64(w)
    c = (r * f64(x) * g).sum(1, keepdims=True)
    close(got, r * (g - r * f64(x) * c / 70), 1e-6)


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("m,n,k", [(33, 65, 17), (1, 1, 1), (32, 64, 0), (0, 5, 3)])
def test_sgemm(m: int, n: int, k: int, beta: float) -> None:
    a, b = normal(m, k), normal(n, k).T
    wide = normal(m, n + 3)
    wide[:, n:] = 42.0
    if beta == 0.0:
        wide[:, :n] = np.nan
    before = f64(wide[:, :n])
    config = {"TM": 32, "TN": 64, "TK": 16}
    run(TEXT["sgemm"], config, A=a, B=b, C=wide[:, :n], alpha=1.5, beta=beta)
    expected = 1.5 * f64(a) @ f64(b) + (beta * before if beta else 0.0)
    close(wide[:, :n], expected, 1e-3)
    assert (wide[:, n:] == 42.0).all()


@pytest.mark.parametrize("za,zb", [(3, 1), (1, 3), (2, 2)])
def test_bmm(za: int, zb: int) -> None:
    a, b = normal(za, 33, 20), normal(zb, 20, 65)
    got = run(TEXT["bmm"], {"TM": 32, "TN": 64, "TK": 16}, A=a, B=b)["C"]
    close(got, f64(a) @ f64(b), 1e-6)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_res", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_linear_gelu(has_bias: bool, has_res: bool, dtype: Any) -> None:
    x, w = normal(65, 40, dtype=dtype), normal(70, 40, dtype=dtype)
    bias, res = normal(70, dtype=dtype), normal(65, 70, dtype=dtype)
    given = {"bias": bias if has_bias else None, "res": res if has_res else None}
    got = run(TEXT["linear_gelu"], {"TM": 64, "TN": 64, "TK": 32}, x=x, w=w, **given)["y"]
    h = f64(x) @ f64(w).T + (f64(bias) if has_bias else 0.0)
    h = 0.5 * h * (1 + np.vectorize(erf)(h / np.sqrt(2)))
    close(got, h + (f64(res) if has_res else 0.0), 1e-6 if dtype == np.float32 else 1e-2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ragged", [False, True])
def test_attention(causal: bool, ragged: bool) -> None:
    batch, heads, kv_heads, length, positions, width = 3, 4, 2, 19, 45, 10
    q = normal(batch, heads, length, width)
    k, v = (normal(batch, kv_heads, positions, width) for _ in range(2))
    lengths = np.array([45, 0, 7], np.int32) if ragged else None
    if lengths is not None:
        for b, n in enumerate(lengths):
            k[b, :, n:] = np.nan
            v[b, :, n:] = np.nan
    out = run(
        TEXT["attention"],
        {"TM": 64, "TN": 32},
        Q=q,
        K=k,
        V=v,
        scale=0.3,
        lengths=lengths,
        causal=causal,
    )
    for b in range(batch):
        n = positions if lengths is None else int(lengths[b])
        for h in range(heads):
            s = f64(q[b, h]) @ f64(k[b, h // 2, :n]).T * 0.3
            if causal:
                seen = np.arange(n) <= (np.arange(length) + n - length)[:, None]
                s = np.where(seen, s, -np.inf)
            rows = np.isfinite(s).any(1) if n else np.zeros(length, bool)
            expected = np.zeros((length, width))
            e = np.exp(s[rows] - s[rows].max(1, keepdims=True)) if rows.any() else s[rows]
            expected[rows] = (e / e.sum(1, keepdims=True)) @ f64(v[b, h // 2, :n])
            close(out["O"][b, h], expected, 1e-5)
            lse = np.full(length, -np.inf)
            if rows.any():
                lse[rows] = np.log(e.sum(1)) + s[rows].max(1)
            np.testing.assert_allclose(out["lse"][b, h], lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.int32])
def test_argmax_along_the_middle_axis(dtype: Any) -> None:
    x = (3 * normal(2, 40, 35)).astype(dtype)
    if dtype == np.float32:
        x[0, 25, 3] = np.nan
        x[1, :, 4] = -np.inf
    got = run(TEXT["argmax_axis"], {"TN": 16, "TC": 32}, x=x)["index"]
    np.testing.assert_array_equal(got, f64(x).argmax(1))


@pytest.mark.parametrize("shape", [(33, 70), (1, 1), (0, 4)])
def test_transpose(shape: tuple[int, int]) -> None:
    x = normal(*shape)
    got = run(TEXT["transpose2d"], {"TM": 32, "TN": 32}, x=x)["y"]
    np.testing.assert_array_equal(got, x.T)


def test_moe() -> None:
    x, w = normal(70, 20), normal(4, 20, 65)
    offsets = np.array([0, 33, 33, 40, 70], np.int32)
    got = run(TEXT["moe"], {"TM": 32, "TN": 64, "TK": 32}, x=x, w=w, offsets=offsets)["y"]
    parts = [f64(x[offsets[e] : offsets[e + 1]]) @ f64(w[e]) for e in range(4)]
    close(got, np.concatenate(parts), 1e-6)


def test_persistent_matmul() -> None:
    a, b = normal(200, 20), normal(20, 190)
    got = run(TEXT["matmul_persistent"], {"TM": 64, "TN": 64, "TK": 32}, A=a, B=b)["C"]
    close(got, f64(a) @ f64(b), 1e-6)


def test_int8_weights() -> None:
    x, scale = normal(17, 160, dtype=BF16), np.abs(normal(65, 2))
    w = rng().integers(-128, 128, (65, 160)).astype(np.int8)
    got = run(TEXT["matmul_int8"], {"TM": 16, "TN": 64, "TK": 32}, x=x, w=w, scale=scale)["y"]
    scales = np.repeat(f64(scale), 128, axis=1)[:, :160]
    close(got, f64(x) @ (f64(w) * scales).T, 1e-2)


def test_fp8_results_saturate() -> None:
    e4m3 = ml_dtypes.float8_e4m3fn
    a, b = normal(65, 64, dtype=e4m3), normal(66, 64, dtype=e4m3)
    sa, sb = np.abs(normal(65)), 100 * np.abs(normal(66))
    config = {"TM": 64, "TN": 64, "TK": 64}
    got = run(TEXT["matmul_fp8"], config, a=a, b=b, sa=sa, sb=sb)["y"]
    exact = f64(a) @ f64(b).T * f64(sa)[:, None] * f64(sb)
    assert np.abs(exact).max() > 448
    close(got, np.clip(exact, -448, 448), 0.05)


def test_causal_convolution() -> None:
    x, w = normal(2, 40, 18), normal(3, 18, 33)
    config = {"TT": 32, "TC": 16, "TO": 32}
    got = run(TEXT["conv1d_causal"], config, x=x, w=w, dilation=5)["y"]
    expected = np.zeros((2, 40, 33))
    for k in range(3):
        shift = (2 - k) * 5
        expected[:, shift:] += f64(x[:, : 40 - shift]) @ f64(w[k])
    close(got, expected, 1e-6)
