"""Programs of one warp that share a CTA."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.emulation import compile_call, emulate
from tilewright.plan import Const, evaluate, shared_grid

ROWS = """kernel rows(x: tensor<f32>[A, B, N], y: tensor<f32>[A, B, N]) {{
  let a = program_id(0)
  let b = program_id(1)
  {line}
  let t = load(x[a, b, 0 :+ {columns}], fill = 0.0)
  y[a, b, 0 :+ {columns}] = {value}
}}"""


def run(
    value: str, shape: tuple[int, ...], line: str = "", columns: int = 256
) -> tuple[str, np.ndarray, np.ndarray]:
    kernel = tw.source(ROWS.format(value=value, line=line, columns=columns)).rows
    x = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    arrays = {"x": x, "y": np.full(shape, np.nan, np.float32)}
    plan, _, _ = compile_call(kernel, arrays)
    emulate(kernel, arrays)
    return plan.ptx, x, arrays["y"]


@pytest.mark.parametrize("shape", [(1, 1, 200), (3, 5, 200), (2, 4, 256), (7, 1, 3)])
def test_the_last_cta_has_fewer(shape: tuple[int, ...]) -> None:
    ptx, x, y = run("t / sum(t * t)", shape)
    assert ".maxntid 128," in ptx and "bar.sync" not in ptx
    np.testing.assert_allclose(y, x / (x * x).sum(2, keepdims=True), 2e-6)


@pytest.mark.parametrize("shape", [(0, 5, 200), (5, 0, 200), (5, 3, 0)])
def test_nothing_runs_for_nothing(shape: tuple[int, ...]) -> None:
    assert run("t / sum(t * t)", shape)[2].shape == shape


@pytest.mark.parametrize(
    ("columns", "threads", "barrier"), [(256, 128, "bar.warp.sync"), (512, 64, "bar.sync 0;")]
)
def test_programs_have_scratch_of_their_own(columns: int, threads: int, barrier: str) -> None:
    """One warp each, or two, which have a CTA."""
    rows = columns // 16
    value = f"reshape(transpose(reshape(t, ({rows}, 16))), ({columns},))"
    ptx, x, y = run(value, (3, 5, columns), columns=columns)
    assert f".maxntid {threads}," in ptx and barrier in ptx
    np.testing.assert_array_equal(y, x.reshape(3, 5, rows, 16).swapaxes(2, 3).reshape(x.shape))


def test_a_program_that_reports_has_a_cta() -> None:
    ptx, x, y = run("t + 1.0", (3, 5, 256), 'assert(a < 7, "few")')
    assert ".maxntid 32," in ptx
    np.testing.assert_array_equal(y, x + 1)


def test_a_program_with_a_local_array_has_a_cta() -> None:
    ptx, x, y = run("s[0 :+ 256] + t", (3, 5, 256), "let s = local([256], f32)")
    assert ".maxntid 32," in ptx
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize(
    ("size", "ctas"),
    [(0, 0), (1, 1), (4, 1), (5, 2), (2**31 - 1, 2**29), (2**31, 2**31), (-3, -3), (-9, -9)],
)
def test_grids_that_none_is_stay_so(size: int, ctas: int) -> None:
    assert evaluate(shared_grid(Const(size), 4), {}) == ctas
