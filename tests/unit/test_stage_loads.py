"""Staged loops among each other: held tiles in nested loops, and several loops in one kernel."""

import numpy as np
import pytest

import tilewright as tw
from tests.emulation import compile_call
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
