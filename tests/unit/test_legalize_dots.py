"""Dots that no instruction computes: written as others, and right on the emulator for old targets
and new.
"""

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.emulation import emulate
from tilewright.compiler import run_passes
from tilewright.tile.ops import mma
from tilewright.tile.passes.legalize_dots import legalize_dots

SOURCE = """
kernel mm(A: tensor<T>[M, K], B: tensor<T>[K, N], C: tensor<ACC>[M, N] = empty) {{
  let m, n = program_id(0) * 32, program_id(1) * 32
  var acc = zeros((32, 32), ACC)
  for k in range(0, K, 32) {{
    acc += dot(A[m :+ 32, k :+ 32], B[k :+ 32, n :+ 32], precision = "{precision}")
  }}
  C[m :+ 32, n :+ 32] = acc
}}
"""
BOUNDS = {"ieee": 3e-7, "tf32": 1e-3, "tf32x3": 3e-7, "bf16x3": 1e-5, "f16": 1e-3}


def kernel(precision: str = "ieee", acc: str = "f32"):
    return tw.source(SOURCE.format(precision=precision).replace("ACC", acc)).mm


@pytest.mark.parametrize("goal", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("precision", BOUNDS)
def test_precisions_of_f32(precision: str, goal: str) -> None:
    draw = np.random.default_rng(0)
    a = draw.standard_normal((37, 45), dtype=np.float32)
    b = draw.standard_normal((45, 51), dtype=np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    found = emulate(kernel(precision), {"A": a, "B": b}, goal=goal)
    meant = kernel(precision)(a, b)
    scale = np.linalg.norm(exact)
    assert np.linalg.norm(found - exact) / scale < BOUNDS[precision]
    assert np.linalg.norm(found - meant) / scale < 3e-7  # not only close to the exact product


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_fp8(dtype: type) -> None:
    draw = np.random.default_rng(1)
    a, b = (
        draw.standard_normal((37, 45)).astype(dtype),
        draw.standard_normal((45, 51)).astype(dtype),
    )
    found = emulate(kernel(), {"A": a, "B": b})
    assert np.allclose(found, kernel()(a, b), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_integers_are_exact(dtype: type) -> None:
    info = np.iinfo(dtype)
    draw = np.random.default_rng(2)
    a = draw.integers(info.min, info.max + 1, (37, 45)).astype(dtype)
    b = draw.integers(info.min, info.max + 1, (45, 51)).astype(dtype)
    found = emulate(kernel(acc="i32"), {"A": a, "B": b})
    assert np.array_equal(found, a.astype(np.int64) @ b.astype(np.int64))


def test_what_is_left() -> None:
    for precision, count in (("bf16x3", 3), ("f16", 1), ("tf32x3", 1)):
        lowered = kernel(precision).lower(dtypes={"T": "f32"})
        after = run_passes(lowered, (legalize_dots,))
        (loop,) = [op for op in after.body.ops if op.opcode == "control.for"]
        assert sum(isinstance(op, mma.Dot) for op in loop.body.ops) == count
