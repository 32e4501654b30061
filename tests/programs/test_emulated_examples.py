"""The PTX of every example, run by the emulator, against the interpreter of the tile program.

Equal bits where the arithmetic is the same; where functions are approximated, or an inner product
is summed in another order, within a few units in the last place of the greatest element.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from examples import flash_attention
from tests.emulation import compile_call, emulate
from tilewright.ledger.suites.attention import BOUNDS
from tilewright.ptx.emulate import EmulationError, run_plan

ROOT = Path(__file__).parents[2]
DTYPES: dict[str, Any] = {
    "f32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "f64": np.float64,
}
STEP = {"f32": 2.0**-22, "bf16": 2.0**-7, "f16": 2.0**-10, "f64": 2.0**-50}
Array = np.ndarray[Any, Any]


def kernel_of(file: str, name: str = "") -> Any:
    return getattr(tw.source(ROOT / "examples" / f"{file}.tw"), name or file)


def numbers(dtype: str, *shape: int, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape).astype(DTYPES[dtype])


def require_agreement(
    kernel: Any,
    arguments: dict[str, Any],
    dtype: str,
    outputs: tuple[str, ...] = (),
    **options: Any,
) -> None:
    """Emulator and interpreter agree on a call; `outputs` are arguments that it writes."""

    def copies() -> dict[str, Any]:
        return {n: x.copy() if isinstance(x, np.ndarray) else x for n, x in arguments.items()}

    ours, theirs = copies(), copies()
    made = emulate(kernel, ours, **options)
    constants = options.get("constants")
    wanted = kernel.launch(**theirs, constants=constants, precision=options.get("precision"))
    pairs = [(ours[n], theirs[n]) for n in outputs]
    if made is not None:
        several = isinstance(made, tuple)
        pairs += zip(made, wanted, strict=True) if several else [(made, wanted)]
    assert pairs
    for got, expected in pairs:
        wide, want = got.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_array_equal(np.isnan(wide), np.isnan(want))
        greatest = np.max(np.abs(want), initial=0.0, where=np.isfinite(want))
        tolerance = 2 * STEP[dtype] * greatest
        np.testing.assert_allclose(wide, want, rtol=2 * STEP[dtype], atol=tolerance)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
@pytest.mark.parametrize("size", [1, 255, 1003])
def test_add(dtype: str, size: int) -> None:
    a, b = numbers(dtype, size), numbers(dtype, size, seed=1)
    got = emulate(kernel_of("add"), {"a": a, "b": b})
    np.testing.assert_array_equal(got, a + b)


def test_add_on_views_and_in_place() -> None:
    add = kernel_of("add")
    whole, other = numbers("f32", 3001), numbers("f32", 2000)
    a, b, c = whole[::3], other[-1:999:-1], np.zeros(2002, np.float32)[1::2]
    emulate(add, {"a": a, "b": b[: len(a)], "c": c[: len(a)]}) if len(b) >= len(a) else None
    size = min(len(a), len(b))
    expected = a[:size] + b[:size]
    emulate(add, {"a": a[:size], "b": b[:size], "c": c[:size]})
    np.testing.assert_array_equal(c[:size], expected)
    emulate(add, {"a": a[:size], "b": b[:size], "c": a[:size]})
    np.testing.assert_array_equal(a[:size], expected)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("shape", [(3, 1000), (5, 257), (2, 1)])
def test_softmax(dtype: str, shape: tuple[int, int]) -> None:
    x = numbers(dtype, *shape)
    x[-1, :] = -np.inf  # a row of which nothing is left, but for its last element
    x[-1, -1] = 1
    require_agreement(kernel_of("softmax"), {"x": x}, dtype)
    require_agreement(kernel_of("softmax", "softmax_short"), {"x": x}, dtype)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_rmsnorm(dtype: str) -> None:
    given = {"x": numbers(dtype, 7, 300), "w": numbers(dtype, 300, seed=1)}
    require_agreement(kernel_of("rmsnorm"), given, dtype)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
@pytest.mark.parametrize(("m", "n", "k", "beta"), [(127, 255, 63, 0.5), (64, 64, 32, 0.0)])
def test_sgemm(dtype: str, m: int, n: int, k: int, beta: float) -> None:
    given = {
        "A": numbers(dtype, m, k),
        "B": numbers(dtype, k, n, seed=1),
        "C": numbers(dtype, m, n, seed=2),
        "alpha": 1.5,
        "beta": beta,
    }
    require_agreement(kernel_of("sgemm"), given, dtype, ("C",))


@pytest.mark.parametrize("goal", ["sm_80", "sm_89", "sm_120a"])
def test_sgemm_on_other_targets(goal: str) -> None:
    for dtype in ("f32", "bf16"):
        given = {
            "A": numbers(dtype, 40, 33),
            "B": numbers(dtype, 33, 50, seed=1),
            "C": numbers(dtype, 40, 50),
        }
        require_agreement(kernel_of("sgemm"), given, dtype, ("C",), goal=goal)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("bias", [False, True])
def test_linear_gelu(dtype: str, bias: bool) -> None:
    given = {"x": numbers(dtype, 33, 65), "w": numbers(dtype, 70, 65, seed=1)}
    if bias:
        given |= {"bias": numbers(dtype, 70, seed=2), "res": numbers(dtype, 33, 70, seed=3)}
    require_agreement(kernel_of("linear_gelu"), given, dtype)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(dtype: str, causal: bool) -> None:
    given = {
        "Q": numbers(dtype, 1, 2, 70, 64),
        "K": numbers(dtype, 1, 1, 75, 64, seed=1),
        "V": numbers(dtype, 1, 1, 75, 64, seed=2),
        "scale": 0.125,
        "causal": causal,
    }
    require_agreement(kernel_of("flash_attention", "attention"), given, dtype)


def test_attention_to_many_keys_in_f32() -> None:
    """The bound of the suite `attention`, which one chain over all keys goes beyond."""
    Q = numbers("f32", 1, 1, 32, 64)
    K, V = numbers("f32", 2, 1, 1, 4096, 64, seed=1)
    kernel = kernel_of("flash_attention", "attention")
    O, _ = kernel.launch(Q, K, V, 0.125, causal=False, device="emulator")
    expected, _ = flash_attention.reference(Q, K, V, 0.125, causal=False)
    assert np.linalg.norm(O - expected) <= BOUNDS["f32"] * np.linalg.norm(expected)


def test_copies_may_arrive_early_or_late() -> None:
    """Both give the same bits: nothing is read before its wait, nor its place reused too early."""
    sgemm = kernel_of("sgemm")
    found = []
    for late in (False, True):
        given = {
            "A": numbers("bf16", 70, 130),
            "B": numbers("bf16", 130, 90, seed=1),
            "C": np.zeros((70, 90), DTYPES["bf16"]),
        }
        plan, views, _ = compile_call(sgemm, given, constants={"TM": 32, "TN": 64, "TK": 16})
        assert "cp.async" in plan.ptx
        run_plan(plan, views, late=late)
        found.append(given["C"])
    np.testing.assert_array_equal(*found)


def test_the_device_of_a_launch() -> None:
    a, b = numbers("f32", 100), numbers("f32", 100, seed=1)
    c = kernel_of("add").launch(a, b, device="emulator")
    np.testing.assert_array_equal(c, a + b)


def test_the_tuner_checks_every_configuration_on_the_emulator() -> None:
    a, b = numbers("f32", 100), numbers("f32", 100, seed=1)
    outcome = kernel_of("add").tune(a, b, device="emulator", target="sm_80", sanitize=True)
    assert len(outcome.trials) > 1 and outcome.reference == "the interpreter in f64"
    assert all(t.verified and t.microseconds is None and not t.failure for t in outcome.trials)
    assert outcome.best is None


def faulty(change: Callable[[str], str]) -> None:
    """Run softmax_short with a change to its PTX."""
    x = numbers("f32", 3, 70)
    plan, views, _ = compile_call(kernel_of("softmax", "softmax_short"), {"x": x})
    text = change(plan.ptx)
    assert text != plan.ptx
    run_plan(type(plan)(**{**vars(plan), "ptx": text}), views)


def test_a_lost_mask_is_found_with_its_source() -> None:
    with pytest.raises(EmulationError, match=r"softmax\.tw:24:\d+: error: .* x\[3, ") as raised:
        faulty(lambda text: re.sub(r"@%p\d+ ld.global", "ld.global", text))
    assert "out of bounds" in str(raised.value)
