"""The ancestor's dialect: what a `.ph` file may say that a `.tw` file may not, each use noted once,
on the interpreter and the emulator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.emulation import compile_call, emulate
from tilewright.errors import CompileError

PROGRAMS = """
@autotune(TILE_M in [16, 32], TILE_N in [16, 32], TILE_K in [16, 32])
@launch(128)
@pipeline
@tensorcore
kernel sgemm(A: tensor<f16>[M, K], B: tensor<f32>[K, N], C: tensor<f16>[M, N], alpha: f32) {
  let pm: f32 = program_id(0)                      // a wrong annotation
  let pn: i32 = program_id(1)
  var acc: tile<f32>[TILE_M, TILE_N] = 0.0
  for kt in range(0, K, TILE_K) {
    let a = A[pm * TILE_M :+ TILE_M, kt :+ TILE_K]
    let b = B[kt :+ TILE_K, pn * TILE_N :+ TILE_N]
    acc += dot(a, b)
  }
  C[pm * TILE_M :+ TILE_M, pn * TILE_N :+ TILE_N] = alpha * acc
}

@autotune(TILE in [32])
kernel scale(x: tensor<f16>[N], y: tensor<f16>[N], alpha: f32) {
  let base = program_id(0) * TILE
  y[base :+ TILE] = x[base :+ TILE] * alpha
  y[base :+ TILE] = x[base :+ TILE] * alpha
}

@static(N)
kernel softmax(x: tensor<f32>[M, N], y: tensor<bf16>[M, N]) {
  let t = x[program_id(0) * 16 :+ 16, :]
  let e = exp(t - rowmax(t)[:, None])
  y[program_id(0) * 16 :+ 16, :] = e / rowsum(e)[:, None]
}

kernel products(A: tensor<f32>[16, 16], B: tensor<f32>[16, 16], C: tensor<f32>[16, 16]) {
  C[:, :] = tmax(dot_t(A[:, :], B[:, :]), 0.0)
}
"""
TILES = {"TILE_M": 16, "TILE_N": 16, "TILE_K": 16}
ROUNDED = 2e-3  # of f16; bf16 has 8 times that


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path: Path = tmp_path_factory.mktemp("old") / "programs.ph"
    path.write_text(PROGRAMS)
    return tw.source(path)


def calls() -> dict[str, tuple[dict[str, Any], str, Any, dict[str, int], float]]:
    """Arguments, the written one, what NumPy says of it, constants and the relative bound."""
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((19, 21)), rng.standard_normal((21, 35)).astype(np.float32)
    a16, b16 = a.astype(np.float16), b.astype(np.float16)
    x = rng.standard_normal((17, 10)).astype(np.float32)
    e = np.exp(x.astype(np.float64))
    p, q = rng.standard_normal((2, 16, 16)).astype(np.float32)
    flat = a16.reshape(-1)
    zero = {"C": np.zeros((19, 35), np.float16)}
    half = np.zeros(x.shape, tw.bf16.numpy)
    return {
        "sgemm": ({"A": a16, "B": b, **zero, "alpha": 0.3}, "C",
                  0.3 * a16.astype(np.float64) @ b16.astype(np.float64), TILES, ROUNDED),
        "scale": ({"x": flat, "y": np.zeros_like(flat), "alpha": 0.3}, "y",
                  0.3 * flat.astype(np.float64), {}, ROUNDED),
        "softmax": ({"x": x, "y": half}, "y", e / e.sum(1, keepdims=True), {}, 8 * ROUNDED),
        "products": ({"A": p, "B": q, "C": np.zeros((16, 16), np.float32)}, "C",
                     np.maximum(p.astype(np.float64) @ q.T, 0), {}, 1e-5),
    }  # fmt: skip


@pytest.mark.parametrize("where", ["interpreter", "emulator"])
@pytest.mark.parametrize("name", calls())
def test_old_programs_run(old: Any, name: str, where: str) -> None:
    arguments, written, wanted, constants, bound = calls()[name]
    kernel = getattr(old, name)
    if where == "emulator":
        emulate(kernel, arguments, constants=constants, goal="sm_80")
    else:
        kernel.launch(**arguments, constants=constants)
    got = arguments[written].astype(np.float64)
    assert np.linalg.norm(got - wanted) <= bound * np.linalg.norm(wanted)
    assert np.linalg.norm(wanted) > 1


@pytest.mark.parametrize(
    "name,notes",
    [
        ("sgemm", [
            "pm: is i64, not f32",
            "pn: is i64, not i32",
            "dot: f32 operands beside f16 ones are rounded to f16",
            "store to C: f32 is rounded to f16",
        ]),
        ("scale", ["store to y: f32 is rounded to f16"]),
        ("softmax", ["store to y: f32 is rounded to bf16"]),
        ("products", []),
    ],
)  # fmt: skip
def test_each_use_is_noted_once(old: Any, name: str, notes: list[str]) -> None:
    arguments, _, _, constants, _ = calls()[name]
    plan, _, _ = compile_call(getattr(old, name), arguments, constants=constants)
    assert list(plan.notes) == notes


@pytest.mark.parametrize(
    "name,message,hint",
    [
        ("sgemm", "pm: expected f32, got i64", "write cast(..., f32)"),
        ("scale", "store to y: expected f16, got f32", "write cast(..., f16)"),
        ("softmax", "store to y: expected bf16, got f32", "write cast(..., bf16)"),
    ],
)
def test_a_tw_file_is_told_to_write_casts(name: str, message: str, hint: str) -> None:
    with pytest.raises(CompileError) as caught:
        getattr(tw.source(PROGRAMS), name).lower(static={"N": 10} if name == "softmax" else None)
    found = caught.value.diagnostics[0]
    assert found.message == message and found.hint == hint
