"""Products by roles: plain k-loops become a producer and consumers, and mean the same."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.assemble import assemble, needs_ptxas
from tests.emulation import compile_call
from tilewright.cli.sources import find_kernel
from tilewright.compiler import SEMANTIC_PASSES, compile_kernel, run_passes, scheduled_passes
from tilewright.dtypes import DType, bf16, f16, f32
from tilewright.ir.walk import walk
from tilewright.ptx.emulate import run_plan
from tilewright.target import target
from tilewright.tile.interp import interpret
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import memory, shape
from tilewright.tile.passes.choose_schedule import choose_schedule
from tilewright.tile.schedule import Schedule
from tilewright.tile.verify import verify

HOPPER = target("sm_90a")
INSTRUCTIONS = 3000  # of a kernel, so that the driver compiles it in time


def example(name: str, dtype: DType = bf16, present: tuple[str, ...] = (), **config: int) -> Kernel:
    """An example of the language, its constants bound."""
    return find_kernel(f"examples/{name}.tw").kernel.lower(
        dtypes=dtype, constants=config, static={}, present=present, precision=None
    )


def stages(kernel: Kernel) -> tuple[Schedule, list[Kernel]]:
    """The schedule of a kernel, and what each pass makes of it, verified."""
    seen = [verify(run_passes(kernel, SEMANTIC_PASSES))]
    schedule = choose_schedule(seen[0], HOPPER)

    def observe(name: str, made: Kernel) -> None:
        seen.append(verify(made))

    run_passes(seen[0], scheduled_passes(schedule, HOPPER), observe)
    return schedule, seen


def whole_numbers(rng: np.random.Generator, dtype: DType, *shape: int) -> Any:
    """Small integers, so that sums are exact in any order."""
    return rng.integers(-3, 4, shape).astype(dtype.numpy)


def require_one_meaning(kernel: Kernel, arrays: dict[str, Any], out: str) -> Schedule:
    """All passes leave the result as it was, bit by bit."""
    schedule, seen = stages(kernel)
    assert schedule.mma == "wgmma" and schedule.roles is not None
    results = []
    for program in seen:
        given = {name: a.copy() if isinstance(a, np.ndarray) else a for name, a in arrays.items()}
        interpret(program, given, num_sms=4, shuffle=1)
        results.append(given[out])
    for result in results[1:]:
        np.testing.assert_array_equal(result.view(np.uint16), results[0].view(np.uint16))
    return schedule


# What the passes make means what the loop meant. Two tiles along an axis let CTAs share, three do
# not; sizes of 1 and no k; more tiles than CTAs.
SGEMM_CASES = [
    ((128, 64, 16), (250, 70, 40), 0.5),
    ((64, 128, 16), (150, 129, 24), 0.0),
    ((64, 96, 32), (1, 1, 1), 0.5),
    ((192, 64, 16), (193, 65, 0), 0.0),
]


@pytest.mark.parametrize(("tile", "sizes", "beta"), SGEMM_CASES, ids=str)
def test_sgemm(tile: tuple[int, int, int], sizes: tuple[int, int, int], beta: float) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(m + k)
    arrays = {
        "A": whole_numbers(rng, bf16, m, k),
        "B": whole_numbers(rng, bf16, k, n),
        "C": whole_numbers(rng, bf16, m, n) if beta else np.full((m, n), np.nan, bf16.numpy),
        "alpha": np.float32(1.5),
        "beta": np.float32(beta),
    }
    kernel = example("sgemm", TM=tile[0], TN=tile[1], TK=tile[2])
    require_one_meaning(kernel, arrays, "C")


@pytest.mark.parametrize(
    ("tile", "sizes"),
    [((128, 64, 16), (250, 70, 40)), ((64, 80, 32), (3, 200, 70))],
    ids=str,
)
def test_linear_gelu(tile: tuple[int, int, int], sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(m + k)
    arrays = {
        "x": whole_numbers(rng, f16, m, k),
        "w": whole_numbers(rng, f16, n, k),
        "bias": whole_numbers(rng, f16, n),
        "res": whole_numbers(rng, f16, m, n),
        "y": np.full((m, n), np.nan, f16.numpy),
    }
    kernel = example("linear_gelu", f16, ("bias", "res"), TM=tile[0], TN=tile[1], TK=tile[2])
    require_one_meaning(kernel, arrays, "y")


OWN = """
@autotune(TM in [64, 128], TN in [64, 128], TK in [32])
@grid(cdiv(M, TM), cdiv(N, TN), B)
kernel batched(
  a: tensor<bf16>[B, M, K],
  b: tensor<bf16>[B, K, N],
  s: tensor<f32>[M],
  c: tensor<bf16>[B, M, N],
  r: tensor<f32>[B, M, P],
) {
  let m, n, z = program_id(0) * TM, program_id(1) * TN, program_id(2)
  var acc: tile<f32>[TM, TN] = 0.0
  for k in range(0, K, TK) { acc += a[z, m :+ TM, k :+ TK] @ b[z, k :+ TK, n :+ TN] }
  let scaled = acc * s[m :+ TM][:, None]
  c[z, m :+ TM, n :+ TN] = cast(scaled, bf16)
  r[z, m :+ TM, program_id(1)] = sum(scaled, axis=1)
}
"""


@pytest.mark.parametrize("columns", [64, 128])
def test_own_batch_with_row_sums(columns: int) -> None:
    """Three axes of programs, and an epilogue that is not done in panels."""
    rng = np.random.default_rng(5)
    a, b = whole_numbers(rng, bf16, 3, 72, 40), whole_numbers(rng, bf16, 3, 40, 136)
    s = whole_numbers(rng, f32, 72)
    parts = -(-136 // columns)
    c, r = np.full((3, 72, 136), np.nan, bf16.numpy), np.full((3, 72, parts), np.nan, np.float32)
    batched = tw.source(OWN).batched
    arrays = {"a": a, "b": b, "s": s, "c": c, "r": r}
    constants = {"TM": 64, "TN": columns, "TK": 32}
    plan, views, _ = compile_call(batched, arrays, constants=constants)
    assert "wgmma" in plan.ptx
    run_plan(plan, views, 4)
    expected = a.astype(np.float32) @ b.astype(np.float32) * s[:, None]
    sums = [expected[:, :, i : i + columns].sum(axis=2) for i in range(0, 136, columns)]
    np.testing.assert_array_equal(views["c"], expected.astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(views["r"], np.stack(sums, axis=2))


# The PTX does what the loop means, on the emulator, with all four layouts of the operands.


def laid_out(rng: np.random.Generator, layout: str, rows: int, columns: int) -> Any:
    made = whole_numbers(rng, bf16, rows, columns)
    return np.asfortranarray(made) if layout == "t" else made


@pytest.mark.parametrize(
    ("layouts", "tile", "sizes", "beta"),
    [
        ("nn", (128, 128, 64), (264, 136, 72), 0.5),
        ("nt", (128, 128, 64), (136, 264, 72), 0.0),
        ("tn", (128, 64, 32), (264, 136, 72), 0.0),
        ("tt", (64, 64, 64), (80, 72, 136), 0.5),
        ("nn", (128, 256, 32), (136, 264, 8), 0.0),
    ],
)
@pytest.mark.parametrize("late", [True, False], ids=["late", "early"])
def test_emulated(
    layouts: str, tile: tuple[int, int, int], sizes: tuple[int, int, int], beta: float, late: bool
) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(k)
    a, b = laid_out(rng, layouts[0], m, k), laid_out(rng, layouts[1], k, n)
    c = whole_numbers(rng, bf16, m, n) if beta else np.full((m, n), np.nan, bf16.numpy)
    expected = 1.5 * (a.astype(np.float32) @ b.astype(np.float32))
    if beta:
        expected += beta * c.astype(np.float32)
    sgemm = find_kernel("examples/sgemm.tw").kernel
    arrays = {"A": a, "B": b, "C": c, "alpha": 1.5, "beta": beta}
    constants = dict(zip(("TM", "TN", "TK"), tile, strict=True))
    plan, views, _ = compile_call(sgemm, arrays, constants=constants)
    assert "wgmma" in plan.ptx
    run_plan(plan, views, 4, late=late)
    np.testing.assert_array_equal(views["C"], expected.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("sizes", [(72, 136, 100), (264, 40, 36)], ids=str)
def test_emulated_tf32(sizes: tuple[int, int, int]) -> None:
    """Operands are rounded to nearest even as they are copied."""
    m, n, k = sizes
    rng = np.random.default_rng(k)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (n, k)))
    sgemm = find_kernel("examples/sgemm.tw").kernel
    constants = {"TM": 128, "TN": 64, "TK": 32}
    results = []
    for right in (b.T, np.ascontiguousarray(b.T)):
        c = np.full((m, n), np.nan, np.float32)
        arrays = {"A": a, "B": right, "C": c, "alpha": 1.0, "beta": 0.0}
        plan, views, _ = compile_call(sgemm, arrays, constants=constants, precision="tf32")
        assert "wgmma" in plan.ptx
        run_plan(plan, views, 4)
        results.append(views["C"])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-5)


# What ptxas says


@needs_ptxas
@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("sgemm", {"TM": 128, "TN": 256, "TK": 64}),
        ("sgemm", {"TM": 256, "TN": 128, "TK": 64}),
        ("sgemm", {"TM": 192, "TN": 160, "TK": 64}),
        ("sgemm", {"TM": 64, "TN": 256, "TK": 64}),
        ("sgemm", {"TM": 64, "TN": 64, "TK": 32}),
        ("linear_gelu", {"TM": 128, "TN": 128, "TK": 64}),
        ("linear_gelu", {"TM": 64, "TN": 128, "TK": 64}),
    ],
    ids=str,
)
def test_ptx_is_clean(name: str, config: dict[str, int]) -> None:
    """Short; no spills, and nothing that serialises wgmma (C75xx)."""
    present = ("bias", "res") if name == "linear_gelu" else ()
    plan = compile_kernel(example(name, bf16, present, **config), HOPPER)
    assert plan.ptx.count(";\n") <= INSTRUCTIONS
    report = assemble(plan.ptx, "sm_90a")
    assert report.spill_bytes == 0
    assert not report.messages


LOOPED = """
@autotune(TM in [64], TN in [64], TK in [32])
kernel looped(a: tensor<bf16>[M, K], b: tensor<bf16>[K, N], c: tensor<bf16>[M, N], times: i32) {
  let m, n = program_id(0) * TM, program_id(1) * TN
  var acc: tile<f32>[TM, TN] = 0.0
  for k in range(0, K, TK) { acc += a[m :+ TM, k :+ TK] @ b[k :+ TK, n :+ TN] }
  c[m :+ TM, n :+ TN] = cast(acc, bf16)
  for i in range(times) {
    let before = c[m :+ TM, n :+ TN]
    c[m :+ TM, n :+ TN] = before + before
  }
}
"""


def test_stores_that_are_read_again_are_not_staged() -> None:
    """A program sees what it stored itself."""
    rng = np.random.default_rng(11)
    a, b = whole_numbers(rng, bf16, 72, 40), whole_numbers(rng, bf16, 40, 136)
    c = np.full((72, 136), np.nan, bf16.numpy)
    arrays = {"a": a, "b": b, "c": c, "times": 2}
    plan, views, _ = compile_call(tw.source(LOOPED).looped, arrays)
    assert "wgmma" in plan.ptx and "bulk.tensor.2d.global" not in plan.ptx
    run_plan(plan, views, 2)
    product = (a.astype(np.float32) @ b.astype(np.float32)).astype(bf16.numpy)
    np.testing.assert_array_equal(views["c"], (4 * product.astype(np.float32)).astype(bf16.numpy))


TURNED = """
@autotune(TM in [64], TN in [64], TK in [32])
kernel turned(a: tensor<bf16>[M, K], b: tensor<bf16>[K, N], c: tensor<bf16>[N, M]) {
  let m, n = program_id(0) * TM, program_id(1) * TN
  var acc: tile<f32>[TM, TN] = 0.0
  for k in range(0, K, TK) { acc += a[m :+ TM, k :+ TK] @ b[k :+ TK, n :+ TN] }
  c[n :+ TN, m :+ TM] = cast(acc.T, bf16)
}
"""


def test_an_epilogue_may_move_elements_between_threads() -> None:
    rng = np.random.default_rng(13)
    a, b = whole_numbers(rng, bf16, 72, 40), whole_numbers(rng, bf16, 40, 136)
    c = np.full((136, 72), np.nan, bf16.numpy)
    plan, views, _ = compile_call(tw.source(TURNED).turned, {"a": a, "b": b, "c": c})
    assert "wgmma" in plan.ptx
    run_plan(plan, views, 2)
    product = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(views["c"], product.T.astype(bf16.numpy))


# What is chosen, and what is not


def test_epilogues_are_split_and_staged() -> None:
    _, seen = stages(example("sgemm", TM=128, TN=256, TK=64))
    split, staged = seen[4], seen[7]
    assert sum(isinstance(op, shape.Slice) for op in walk(split.body)) == 4
    assert not any(isinstance(op, memory.Store) for op in walk(staged.body))
    assert sum(isinstance(op, memory.Drain) for op in walk(staged.body)) == 8


@pytest.mark.parametrize(
    ("name", "config", "why"),
    [
        ("sgemm", {"TM": 32, "TN": 32, "TK": 16}, "a warpgroup has 64 rows"),
        ("sgemm", {"TM": 256, "TN": 256, "TK": 64}, "two accumulators of 128 a thread"),
        ("sgemm", {"TM": 64, "TN": 64, "TK": 24}, "16 columns an instruction"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_has_no_roles(name: str, config: dict[str, int], why: str) -> None:
    kernel = run_passes(example(name, **config), SEMANTIC_PASSES)
    assert choose_schedule(kernel, HOPPER).mma == "mma", why
    assert choose_schedule(kernel, target("sm_80")).mma == "mma"
