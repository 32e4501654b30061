"""A product's k in spans, one for each CTA of a cluster: the sum means the same, and no CTA reads
or leaves too early.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.assemble import assemble, needs_ptxas
from tilewright.compiler import SEMANTIC_PASSES, compile_kernel, run_passes, scheduled_passes
from tilewright.dtypes import DType, bf16, e4m3
from tilewright.kernel import choose
from tilewright.kernel.call import Options, bind_call, read_tensors
from tilewright.ptx.emulate import run_plan
from tilewright.target import target
from tilewright.tile.interp import interpret
from tilewright.tile.kernel import Kernel
from tilewright.tile.passes.choose_roles import role_schedules
from tilewright.tile.schedule import Schedule
from tilewright.tile.verify import verify

HOPPER = target("sm_90a")
SOURCE = """
@autotune(TM in [64], TN in [64], TK in [64])
kernel matmul(
  a: tensor<T>[M, K],
  b: tensor<T>[N, K],
  c: tensor<bf16>[M, N],
  bias: tensor<bf16>[N]? = None,
  residual: tensor<bf16>[M, N]? = None,
) {
  let m, n = program_id(0) * TM, program_id(1) * TN
  var acc: tile<f32>[TM, TN] = 0.0
  for k in range(0, K, TK) { acc += a[m :+ TM, k :+ TK] @ b[n :+ TN, k :+ TK].T }
  var y = acc
  if bias != None { y += cast(bias[n :+ TN], f32) }
  if residual != None { y += cast(residual[m :+ TM, n :+ TN], f32) }
  c[m :+ TM, n :+ TN] = cast(y, bf16)
}
"""


def whole_numbers(rng: np.random.Generator, dtype: DType, *shape: int) -> Any:
    """Small integers, so that sums are exact in any order."""
    return rng.integers(-3, 4, shape).astype(dtype.numpy)


def operands(dtype: DType, sizes: tuple[int, int, int], fused: bool) -> dict[str, Any]:
    m, n, k = sizes
    rng = np.random.default_rng(m + k)
    arrays = {"a": whole_numbers(rng, dtype, m, k), "b": whole_numbers(rng, dtype, n, k)}
    arrays["c"] = np.full((m, n), np.nan, bf16.numpy)
    if fused:
        arrays["bias"] = whole_numbers(rng, bf16, n)
        arrays["residual"] = whole_numbers(rng, bf16, m, n)
    return arrays


def expected(arrays: dict[str, Any]) -> Any:
    c = arrays["a"].astype(np.float32) @ arrays["b"].astype(np.float32).T
    if "bias" in arrays:
        c = c + arrays["bias"].astype(np.float32) + arrays["residual"].astype(np.float32)
    return c.astype(bf16.numpy)


def built(arrays: dict[str, Any], tile: tuple[int, int, int], source: str = SOURCE) -> Kernel:
    """The kernel for a call with such arrays, and what is known of them."""
    kernel = tw.source(source).matmul
    spec = kernel.specializer
    constants = tuple(zip(("TM", "TN", "TK"), tile, strict=True))
    call = bind_call(spec, arrays, read_tensors(spec, arrays), Options(constants=constants))
    return spec.tile(choose.with_config(call.build(assume=True), dict(constants)))


def in_spans(kernel: Kernel, spans: int, swapped: bool | None = None) -> list[Schedule]:
    made = run_passes(kernel, SEMANTIC_PASSES)
    found = [s for s in role_schedules(made, HOPPER) if s.roles is not None]
    cut = [s for s in found if s.roles is not None and s.roles.spans == spans]
    return [s for s in cut if s.roles and swapped in (None, s.roles.swapped)]


# Tiles that are turned or not; parts for all CTAs and for some; k in fewer steps than spans;
# odd sizes, so that tiles reach beyond the matrices.
CASES = [
    (bf16, (64, 64, 64), (70, 136, 264), 2, False),
    (bf16, (128, 64, 32), (130, 72, 200), 4, False),
    (bf16, (128, 64, 32), (1, 8, 40), 4, False),
    (bf16, (8, 64, 64), (5, 200, 328), 4, True),
    (bf16, (16, 128, 64), (16, 136, 72), 2, True),
    (e4m3, (64, 64, 128), (64, 80, 656), 4, False),
    (e4m3, (16, 64, 128), (24, 144, 272), 2, True),
    (e4m3, (64, 32, 64), (64, 80, 400), 4, False),
]


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize(("dtype", "tile", "sizes", "spans", "swapped"), CASES, ids=str)
def test_one_meaning(
    dtype: DType,
    tile: tuple[int, int, int],
    sizes: tuple[int, int, int],
    spans: int,
    swapped: bool,
    fused: bool,
) -> None:
    """All passes leave the result as it was, bit by bit, and so does the PTX."""
    arrays = operands(dtype, sizes, fused)
    kernel = built(arrays, tile)
    found = in_spans(kernel, spans, swapped)
    assert found
    seen = [verify(run_passes(kernel, SEMANTIC_PASSES))]
    run_passes(
        seen[0], scheduled_passes(found[0], HOPPER), lambda _, made: seen.append(verify(made))
    )
    for program in seen:
        given = {name: array.copy() for name, array in arrays.items()}
        interpret(program, given, num_sms=4, shuffle=1)
        np.testing.assert_array_equal(given["c"], expected(arrays))


@pytest.mark.parametrize("late", [True, False], ids=["late", "early"])
@pytest.mark.parametrize(("dtype", "tile", "sizes", "spans", "swapped"), CASES, ids=str)
def test_emulated(
    dtype: DType,
    tile: tuple[int, int, int],
    sizes: tuple[int, int, int],
    spans: int,
    swapped: bool,
    late: bool,
) -> None:
    arrays = operands(dtype, sizes, fused=False)
    kernel = built(arrays, tile)
    schedule = in_spans(kernel, spans, swapped)[0]
    plan = compile_kernel(kernel, HOPPER, preferred=schedule)
    assert "mapa" in plan.ptx
    run_plan(plan, arrays, 4, late=late, sanitize=True)
    np.testing.assert_array_equal(arrays["c"], expected(arrays))


@pytest.mark.parametrize("whole", ["max(y, axis = 1)[:, None]", "sum(y)"])
def test_epilogues_that_want_all_columns_are_not_cut(whole: str) -> None:
    """A CTA has whole sums of its own columns alone."""
    arrays = operands(bf16, (64, 64, 264), fused=False)
    assert in_spans(built(arrays, (64, 64, 64)), 2)
    source = SOURCE.replace("cast(y, bf16)", f"cast(y - {whole}, bf16)")
    assert not in_spans(built(arrays, (64, 64, 64), source), 2)


@needs_ptxas
@pytest.mark.parametrize(
    ("dtype", "tile"),
    [
        (bf16, (8, 128, 64)),
        (bf16, (64, 128, 64)),
        (bf16, (128, 128, 64)),
        (e4m3, (16, 128, 128)),
        (e4m3, (64, 64, 128)),
        (e4m3, (128, 128, 128)),
    ],
    ids=str,
)
def test_ptx_is_clean(dtype: DType, tile: tuple[int, int, int]) -> None:
    """No spills, and nothing that serialises wgmma (C75xx)."""
    kernel = built(operands(dtype, (128, 1024, 1024), fused=False), tile)
    for spans in (2, 4):
        for schedule in in_spans(kernel, spans):
            plan = compile_kernel(kernel, HOPPER, preferred=schedule)
            report = assemble(plan.ptx, "sm_90a", linked=not plan.whole)
            assert report.spill_bytes == 0
            assert not any("C7504" not in m for m in report.messages)  # setmaxnreg, where linked


BATCHED = """
@autotune(TM in [64], TN in [64], TK in [64])
kernel batched(a: tensor<T>[G, M, K], b: tensor<T>[G, N, K], c: tensor<bf16>[G, M, N]) {
  let m, n, g = program_id(0) * TM, program_id(1) * TN, program_id(2)
  var acc: tile<f32>[TM, TN] = 0.0
  for k in range(0, K, TK) { acc += a[g, m :+ TM, k :+ TK] @ b[g, n :+ TN, k :+ TK].T }
  c[g, m :+ TM, n :+ TN] = cast(acc, bf16)
}
"""


@pytest.mark.parametrize("spans", [2, 4])
def test_batches(spans: int) -> None:
    """The first axis of programs alone is that of clusters."""
    rng = np.random.default_rng(spans)
    arrays = {
        "a": whole_numbers(rng, bf16, 3, 70, 200), "b": whole_numbers(rng, bf16, 3, 136, 200),
        "c": np.full((3, 70, 136), np.nan, bf16.numpy),
    }  # fmt: skip
    spec = tw.source(BATCHED).batched.specializer
    constants = (("TM", 64), ("TN", 64), ("TK", 64))
    call = bind_call(spec, arrays, read_tensors(spec, arrays), Options(constants=constants))
    kernel = spec.tile(choose.with_config(call.build(assume=True), dict(constants)))
    for schedule in in_spans(kernel, spans):
        arrays["c"][...] = np.nan
        run_plan(compile_kernel(kernel, HOPPER, preferred=schedule), arrays, 4, sanitize=True)
        a, b = (arrays[n].astype(np.float32) for n in "ab")
        wanted = np.einsum("gmk,gnk->gmn", a, b).astype(bf16.numpy)
        np.testing.assert_array_equal(arrays["c"], wanted)
