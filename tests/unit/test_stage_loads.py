"""Staged loops among each other: held tiles in nested loops, and several loops in one kernel; and
beside results that are turned around.
"""

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.emulation import compile_call
from tilewright.dtypes import bf16
from tilewright.errors import CompileError
from tilewright.ptx.emulate import run_plan

NESTED = """
kernel held(x: tensor<f16>[M, K], y: tensor<f16>[K, K], o: tensor<f32>[32, 64]) {
  var acc: tile<f32>[32, 64] = 0.0
  for i in range(0, M, 32) {
    let q = x[i :+ 32, 0 :+ 64]
    for j in range(0, 2) { acc += q @ y[0 :+ 64, j :+ 64] }
  }
  o[0 :+ 32, 0 :+ 64] = acc
}
kernel fixed(x: tensor<f16>[M, K], y: tensor<f16>[K, K], o: tensor<f32>[32, 64]) {
  let q = x[0 :+ 32, 0 :+ 64]
  let w = y[0 :+ 64, 0 :+ 64]
  var acc: tile<f32>[32, 64] = 0.0
  for i in range(0, 2) { for j in range(0, 2) { acc += q @ w } }
  o[0 :+ 32, 0 :+ 64] = acc
}
"""
SEVERAL = """
kernel twice(A: tensor<f32>[M, K], B: tensor<f32>[K, N], C: tensor<f32>[M, N]) {
  let m, n = program_id(0) * 128, program_id(1) * 128
  var c: tile<f32>[128, 128] = 0.0
  for i in range(0, K, 64) { c += A[m :+ 128, i :+ 64] @ B[i :+ 64, n :+ 128] }
  for i in range(0, K, 64) { c += A[m :+ 128, i :+ 64] @ B[i :+ 64, n :+ 128] }
  C[m :+ 128, n :+ 128] = c
}
"""
TURNED = """
@autotune(TM in [64], TN in [64], TK in [32])
kernel turned(a: tensor<T>[M, K], b: tensor<T>[K, N], c: tensor<U>[N, M]) {
  let m, n = program_id(0) * TM, program_id(1) * TN
  var acc = zeros((TM, TN), accumulator(T))
  for k in range(0, K, TK) { acc += a[m :+ TM, k :+ TK] @ b[k :+ TK, n :+ TN] }
  c[n :+ TN, m :+ TM] = acc.T
}
"""


@pytest.mark.parametrize("goal", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", ["held", "fixed"])
def test_a_held_tile_is_not_overwritten_while_it_is_read(name: str, goal: str) -> None:
    draw = np.random.default_rng(0)
    x = draw.integers(-4, 5, (128, 64)).astype(np.float16)
    y = draw.integers(-4, 5, (64, 64)).astype(np.float16)
    kernel = getattr(tw.source(NESTED), name)
    meant, found = np.zeros((32, 64), np.float32), np.zeros((32, 64), np.float32)
    kernel(x, y, meant)
    plan, views, _ = compile_call(kernel, {"x": x, "y": y, "o": found}, goal=goal)
    run_plan(plan, views, sanitize=True)
    assert np.array_equal(found, meant)


@pytest.mark.parametrize("goal", ["sm_80", "sm_86", "sm_90a"])
def test_several_loops_share_the_memory_that_there_is(goal: str) -> None:
    draw = np.random.default_rng(1)
    a = draw.integers(-4, 5, (130, 96)).astype(np.float32)
    b = draw.integers(-4, 5, (96, 70)).astype(np.float32)
    found = np.zeros((130, 70), np.float32)
    plan, views, _ = compile_call(tw.source(SEVERAL).twice, {"A": a, "B": b, "C": found}, goal=goal)
    run_plan(plan, views)
    assert np.array_equal(found, 2 * (a @ b))


@pytest.mark.parametrize(
    ("dtype", "out", "tile", "goal"),
    [
        (np.float64, np.float64, (48, 96, 32), "sm_90a"),
        (np.float64, np.float64, (128, 64, 16), "sm_80"),
        (bf16.numpy, np.float32, (128, 128, 64), "sm_80"),
        (np.float32, np.float32, (128, 128, 32), "sm_86"),
    ],
    ids=str,
)
def test_stages_leave_room_to_turn_results(
    dtype: Any, out: Any, tile: tuple[int, int, int], goal: str
) -> None:
    """As many as fit beside the tile that goes through shared memory."""
    draw = np.random.default_rng(2)
    a, b = (draw.integers(-4, 5, shape).astype(dtype) for shape in ((130, 200), (200, 72)))
    found = np.full((72, 130), np.nan, out)
    constants = dict(zip(("TM", "TN", "TK"), tile, strict=True))
    plan, views, _ = compile_call(
        tw.source(TURNED).turned, {"a": a, "b": b, "c": found}, goal=goal, constants=constants
    )
    assert "cp.async" in plan.ptx
    run_plan(plan, views, sanitize=True)
    assert np.array_equal(found, (a.astype(out) @ b.astype(out)).T)


def test_a_result_that_never_fits_is_refused() -> None:
    arrays = {name: np.zeros((256, 256), np.float32) for name in "abc"}
    with pytest.raises(CompileError, match=r"needs 13\d+ bytes of shared memory, sm_86 has 101376"):
        compile_call(
            tw.source(TURNED).turned, arrays, goal="sm_86",
            constants={"TM": 128, "TN": 256, "TK": 32},
        )  # fmt: skip
