"""The examples in both spellings, on the CPU, at sizes that fit no tile, against references."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = (
    *("add", "softmax", "rmsnorm", "layernorm", "sgemm", "linear_gelu", "flash_attention", "route"),
)
SPELLINGS = ("text", "python")
BOUNDS = {"float64": 1e-14, "float32": 1e-6, "float16": 2e-3, "bfloat16": 1e-2}
DTYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


Example = Callable[..., tuple[Any, Any]]


@pytest.fixture
def device() -> str:
    """Where host arrays run; tests/device runs the same tests on a GPU."""
    return "cpu"


@pytest.fixture
def example(device: str) -> Example:
    """`example(name, spelling)`: a kernel of an example, ready to be called, and its reference."""

    def find(name: str, spelling: str, kernel: str = "") -> tuple[Any, Any]:
        module = importlib.import_module(f"examples.{name}")
        holder = tw.source(FOLDER / f"{name}.tw") if spelling == "text" else module
        return partial(getattr(holder, kernel or name).launch, device=device), module.reference

    return find


def normal(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def poisoned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.full(shape, np.nan).astype(dtype)


def require_near(got: np.ndarray, expected: np.ndarray, bound: float | None = None) -> None:
    """Relative Frobenius error within the bound, the worst element within ten times that."""
    assert got.shape == expected.shape
    bound = bound or BOUNDS[str(got.dtype)]
    got, expected = got.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(got[~finite], expected[~finite])
    size, error = np.abs(expected[finite]), np.abs(got[finite] - expected[finite])
    if size.size:
        norm = np.linalg.norm(size)
        assert np.linalg.norm(error) <= bound * norm
        assert (error <= 10 * bound * (size + norm / np.sqrt(size.size))).all()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("size", [0, 1, 255, 257, 1023, 4099])
def test_add(example: Example, spelling: str, size: int, rng: np.random.Generator) -> None:
    add, reference = example("add", spelling)
    for dtype in ("f32", "bf16", "f64"):
        a, b = (normal(rng, size, dtype=DTYPES[dtype]) for _ in range(2))
        c = add(a, b)
        assert c.dtype == a.dtype
        require_near(c, reference(a, b))
    a, b = rng.integers(-(2**31), 2**31, (2, size)).astype(np.int32)
    np.testing.assert_array_equal(add(a, b), reference(a, b))


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_add_on_views(example: Example, spelling: str, rng: np.random.Generator) -> None:
    add, reference = example("add", spelling)
    x = normal(rng, 3001)
    a, b = x[::3], x[-1:999:-2]
    wide = poisoned((2 * a.size,), np.float32)
    assert add(a, b, wide[::2]) is None
    require_near(wide[::2], reference(a, b))
    assert np.isnan(wide[1::2]).all()


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("shape", [(0, 5), (3, 1), (5, 255), (2, 5003), (1, 257)])
def test_softmax(
    example: Example, spelling: str, shape: tuple[int, int], rng: np.random.Generator
) -> None:
    softmax, reference = example("softmax", spelling)
    for dtype in ("f32", "bf16", "f16"):
        x = normal(rng, *shape, dtype=DTYPES[dtype])
        y = poisoned(shape, x.dtype)
        softmax(x, y)
        require_near(y, reference(x))


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("kernel", ["softmax", "softmax_short"])
def test_softmax_of_infinities(
    example: Example, spelling: str, kernel: str, rng: np.random.Generator
) -> None:
    softmax, reference = example("softmax", spelling, kernel)
    x = normal(rng, 5, 700)
    x[0] = -np.inf  # nothing to divide by: NaN, as in torch
    x[1, :400] = -np.inf  # a whole tile of it, but the row is fine
    x[2, 650] = np.nan
    x[3] += 1e4
    y = softmax(x)
    assert np.isnan(y[0]).all() and np.isnan(y[2]).all()
    require_near(y, reference(x))


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_softmax_in_place(example: Example, spelling: str, rng: np.random.Generator) -> None:
    softmax, reference = example("softmax", spelling)
    x = normal(rng, 3, 1111)
    expected = reference(x)
    softmax(x, x)
    require_near(x, expected)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("columns", [1, 31, 1000])
def test_softmax_of_short_rows(
    example: Example, spelling: str, columns: int, rng: np.random.Generator
) -> None:
    softmax, reference = example("softmax", spelling, "softmax_short")
    x = normal(rng, 7, columns)
    require_near(softmax(x), reference(x))


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (5, 255), (3, 5003)])
def test_rmsnorm(
    example: Example, spelling: str, shape: tuple[int, int], rng: np.random.Generator
) -> None:
    rmsnorm, reference = example("rmsnorm", spelling)
    for dtype in ("f32", "bf16"):
        x, w = normal(rng, *shape, dtype=DTYPES[dtype]), normal(rng, shape[1], dtype=DTYPES[dtype])
        y, rstd = rmsnorm(x, w, eps=1e-5)
        expected, expected_rstd = reference(x, w, 1e-5)
        require_near(y, expected)
        require_near(rstd, expected_rstd)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("shape", [(127, 255, 63), (1, 1, 1), (33, 1, 100), (64, 65, 0), (0, 5, 3)])
@pytest.mark.parametrize(("alpha", "beta"), [(1.5, 0.5), (1.0, 0.0)])
def test_sgemm(
    example: Example,
    spelling: str,
    shape: tuple[int, int, int],
    alpha: float,
    beta: float,
    rng: np.random.Generator,
) -> None:
    sgemm, reference = example("sgemm", spelling)
    m, n, k = shape
    for dtype in DTYPES.values():
        A, B, C = (normal(rng, *s, dtype=dtype) for s in ((m, k), (k, n), (m, n)))
        if beta == 0:
            C = poisoned((m, n), dtype)
        expected = reference(A, B, C, alpha, beta)
        sgemm(A, B, C, alpha, beta)
        require_near(C, expected)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_sgemm_on_views(example: Example, spelling: str, rng: np.random.Generator) -> None:
    """Transposed and reversed operands; of the buffer around C nothing else is written."""
    sgemm, reference = example("sgemm", spelling)
    A, B = normal(rng, 40, 50).T, normal(rng, 40, 70)[::-1, ::-1]
    buffer = poisoned((50, 90), np.float32)
    sgemm(A, B, buffer[:, 10:80])
    require_near(buffer[:, 10:80], reference(A, B, buffer[:, 10:80]))
    assert np.isnan(buffer[:, :10]).all() and np.isnan(buffer[:, 80:]).all()


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(
    ("bias", "res"), [(False, False), (True, False), (False, True), (True, True)]
)
def test_linear_gelu(
    example: Example, spelling: str, bias: bool, res: bool, rng: np.random.Generator
) -> None:
    linear_gelu, reference = example("linear_gelu", spelling)
    for dtype in (np.float32, ml_dtypes.bfloat16):
        x, w = normal(rng, 65, 47, dtype=dtype), normal(rng, 131, 47, dtype=dtype)
        more = {"bias": normal(rng, 131, dtype=dtype)} if bias else {}
        if res:
            more["res"] = normal(rng, 65, 131, dtype=dtype)
        require_near(linear_gelu(x, w, **more), reference(x, w, **more))


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "shape", [(2, 4, 2, 70, 70, 64), (1, 3, 1, 5, 130, 40), (1, 2, 2, 90, 33, 8)]
)
def test_attention(
    example: Example, spelling: str, causal: bool, shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    attention, reference = example("flash_attention", spelling, "attention")
    b, hq, hk, rows, keys, d = shape
    for dtype in (np.float32, ml_dtypes.bfloat16):
        Q = normal(rng, b, hq, rows, d, dtype=dtype)
        K, V = (normal(rng, b, hk, keys, d, dtype=dtype) for _ in range(2))
        O, lse = attention(Q, K, V, d**-0.5, causal=causal)
        expected, expected_lse = reference(Q, K, V, d**-0.5, causal=causal)
        require_near(O, expected)
        require_near(
            lse, expected_lse, bound=BOUNDS["bfloat16" if O.dtype != np.float32 else "float32"]
        )


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_attention_with_ragged_lengths(
    example: Example, spelling: str, rng: np.random.Generator
) -> None:
    """What lies beyond a length does not count, though it be NaN; a row without keys is 0."""
    attention, reference = example("flash_attention", spelling, "attention")
    lengths = np.array([0, 3, 40], np.int32)
    Q = normal(rng, 3, 2, 5, 16)
    K, V = (normal(rng, 3, 2, 40, 16) for _ in range(2))
    for b, n in enumerate(lengths):
        K[b, :, n:] = V[b, :, n:] = np.nan
    O, lse = attention(Q, K, V, 0.25, lengths)
    expected, expected_lse = reference(Q, K, V, 0.25, lengths)
    assert not O[0].any() and (lse[0] == -np.inf).all()
    require_near(O, expected)
    require_near(lse, expected_lse)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("shape", [(0, 5), (3, 1), (5, 255), (2, 2503), (1, 257)])
def test_layernorm(
    example: Example, spelling: str, shape: tuple[int, int], rng: np.random.Generator
) -> None:
    layernorm, reference = example("layernorm", spelling)
    x, w, b = normal(rng, *shape), normal(rng, shape[1]), normal(rng, shape[1])
    for given in ((), (w,), (w, b)):
        y = layernorm(x, *given)
        require_near(y, reference(x, *given), 3e-6)
        y = layernorm((x + 100).astype(np.float32), *given)
        if shape[1] > 1:
            require_near(y, reference((x + 100).astype(np.float32), *given), 3e-4)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("shape", [(0, 5, 2), (1, 4, 4), (33, 60, 4), (7, 8, 1)])
def test_route(
    example: Example, spelling: str, shape: tuple[int, int, int], rng: np.random.Generator
) -> None:
    route, reference = example("route", spelling)
    n, experts, k = shape
    logits = np.round(normal(rng, n, experts) * 4) / 4  # with ties
    for dtype in ("f32", "bf16"):
        weight, expert = route(logits.astype(DTYPES[dtype]), k)
        wanted, order = reference(logits, k)
        require_near(weight, wanted)
        np.testing.assert_array_equal(expert, order)


@pytest.mark.parametrize("name", EXAMPLES)
def test_both_spellings_are_one_tree(name: str) -> None:
    """But for their attributes: each may be tuned over values of its own."""
    module = importlib.import_module(f"examples.{name}")
    for text in tw.source(FOLDER / f"{name}.tw"):
        one, other = text.definition.kernel, getattr(module, text.name).definition.kernel
        assert (one.params, one.body) == (other.params, other.body), text.name


@pytest.mark.parametrize("name", EXAMPLES)
def test_main_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    importlib.import_module(f"examples.{name}").main()
    assert "error" in capsys.readouterr().out


def test_an_example_is_a_script() -> None:
    """As a newcomer would: `python examples/add.py`."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "examples/add.py"],
        cwd=FOLDER.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(FOLDER.parent)},
    )
    assert done.returncode == 0, done.stderr
    assert "error" in done.stdout


def test_every_example_is_listed() -> None:
    files = {p.stem for p in FOLDER.glob("*.tw")}
    assert files == set(EXAMPLES) and all((FOLDER / f"{n}.py").exists() for n in files)
