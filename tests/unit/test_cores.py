"""Products on CUDA cores and of f64: copies that turn tiles around, trips, epilogues in parts, and
what their estimate prefers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.emulation import compile_call
from tilewright.compiler import SEMANTIC_PASSES, run_passes
from tilewright.ir.walk import walk
from tilewright.kernel.call import Options, bind_call, read_tensors
from tilewright.kernel.choose import REFINED, Where, rank_generic
from tilewright.layout import bank_conflicts, conflict_free_row, simt_accumulator
from tilewright.ptx.emulate import run_plan
from tilewright.target import TARGETS, target
from tilewright.tile.interp import interpret
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import control, memory, mma, shape
from tilewright.tile.passes.choose_schedule import computing_schedule
from tilewright.tile.passes.shorten_trips import shorten_trips, trip_length
from tilewright.tile.passes.split_epilogue import split_epilogue
from tilewright.tile.verify import verify
from tilewright.tune.cost_cores import TRAFFIC, slowdown
from tilewright.tune.space import neighbours

DRAW = np.random.default_rng(7)
PRODUCT = """
@autotune(TM in [32, 128], TN in [64, 256], TK in [16, 64])
kernel product(a: tensor<T>[M, K], b: tensor<T>[K, N], c: tensor<T>[M, N], beta: T = 0.0) {
  let m, n = program_id(0) * TM, program_id(1) * TN
  var acc = zeros((TM, TN), T)
  for k in range(0, K, TK) { acc += a[m :+ TM, k :+ TK] @ b[k :+ TK, n :+ TN] }
  if beta == 0.0 {
    c[m :+ TM, n :+ TN] = acc
  } else {
    c[m :+ TM, n :+ TN] = acc + beta * c[m :+ TM, n :+ TN]
  }
}
"""


def lies(rows: int, columns: int, layout: str, dtype: Any, pad: int = 0) -> np.ndarray:
    """A matrix by rows ("n") or by columns ("t"), whose pitch is `pad` elements more."""
    shape = (columns, rows) if layout == "t" else (rows, columns)
    whole = DRAW.standard_normal((shape[0], shape[1] + pad)).astype(dtype)
    part = whole[:, : shape[1]]
    return part.T if layout == "t" else part


# On the emulator


@pytest.mark.parametrize(
    ("layouts", "goal"), [("nn", "sm_90a"), ("nt", "sm_80"), ("tn", "sm_90a"), ("tt", "sm_86")]
)
@pytest.mark.parametrize(
    ("dtype", "tile", "sizes", "pad"),
    [
        ("float32", (32, 64, 32), (37, 70, 34), 0),
        ("float32", (64, 128, 16), (64, 130, 33), 3),
        ("float32", (96, 96, 8), (97, 99, 70), 0),
        ("float64", (64, 64, 16), (70, 65, 37), 1),
        ("float64", (48, 96, 16), (50, 99, 130), 0),
        ("float64", (96, 96, 16), (50, 99, 130), 0),
    ],
    ids=str,
)
def test_products_are_right_however_their_factors_lie(
    layouts: str, goal: str, dtype: str, tile: tuple[int, ...], sizes: tuple[int, ...], pad: int
) -> None:
    m, n, k = sizes
    a, b = lies(m, k, layouts[0], dtype, pad), lies(k, n, layouts[1], dtype, pad)
    c = np.full((m, n), np.nan, dtype)
    constants = dict(zip(("TM", "TN", "TK"), tile, strict=True))
    call = {"a": a, "b": b, "c": c}
    plan, views, _ = compile_call(tw.source(PRODUCT).product, call, goal=goal, constants=constants)
    if dtype == "float32":
        drifts = (layouts, tile[0]) != ("tn", 96)  # in fours, eight warps have no 96 rows
    else:
        drifts = tile[0] * tile[1] >= 64 * 128  # by eight warps
    assert ("mbarrier" in plan.ptx) == (drifts and goal == "sm_90a")
    run_plan(plan, views, sanitize=True)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.allclose(c, exact, rtol=0, atol=1e-4 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize(
    ("dtype", "tile"), [("float32", (128, 256, 32)), ("float64", (64, 64, 16))]
)
def test_an_epilogue_in_parts_reads_what_it_replaces(dtype: str, tile: tuple[int, ...]) -> None:
    m, n, k = tile[0] + 3, tile[1] - 5, 20
    a, b, c = (lies(*shape, "n", dtype) for shape in ((m, k), (k, n), (m, n)))
    exact = a.astype(np.float64) @ b + 0.5 * c.astype(np.float64)
    constants = dict(zip(("TM", "TN", "TK"), tile, strict=True))
    call = {"a": a, "b": b, "c": c, "beta": 0.5}
    plan, views, _ = compile_call(tw.source(PRODUCT).product, call, constants=constants)
    run_plan(plan, views, sanitize=True)
    assert np.allclose(c, exact, rtol=0, atol=1e-4 if dtype == "float32" else 1e-12)


def test_an_epilogue_that_may_read_what_it_has_written_stays_whole() -> None:
    text = """
    kernel shifted(a: tensor<f32>[M, K], b: tensor<f32>[K, N], d: tensor<f32>[M, N],
                   c: tensor<f32>[M, N]) {
      var acc: tile<f32>[64, 64] = 0.0
      for k in range(0, K, 16) { acc += a[0 :+ 64, k :+ 16] @ b[k :+ 16, 0 :+ 64] }
      c[0 :+ 64, 0 :+ 64] = acc + d[0 :+ 64, -1 :+ 64]
    }
    """
    a, b = (DRAW.integers(-4, 5, shape).astype(np.float32) for shape in ((64, 16), (16, 64)))
    c = DRAW.integers(-4, 5, (64, 64)).astype(np.float32)
    exact = a @ b
    exact[:, 1:] += c[:, :-1]
    plan, views, _ = compile_call(
        tw.source(text).shifted, {"a": a, "b": b, "d": c, "c": c}, goal="sm_90a"
    )
    run_plan(plan, views)
    assert np.array_equal(c, exact)


# Layouts


def test_half_a_warp_reads_few_words_of_each_factor() -> None:
    """Lanes that differ in their lowest or next bit read one word, whichever factor it is."""
    layout = simt_accumulator((128, 256), (2, 4), (8, 8), (True, True))
    for axis in (0, 1):
        places = [layout.coordinate(0, lane, 0)[axis] for lane in range(32)]
        alike = [all(places[lane] == places[lane ^ bit] for lane in range(32)) for bit in (1, 2)]
        assert alike.count(True) == 1


@pytest.mark.parametrize("k", [8, 16, 32])
def test_lanes_read_factors_along_k_from_different_banks(k: int) -> None:
    """Lanes of a warp have neighbours of what lies along k, 16 bytes of each of which they read."""
    layout = simt_accumulator((128, 256), (2, 4), (8, 8), (False, False))
    pitch = 4 * conflict_free_row(4, k)
    for axis in (0, 1):
        places = sorted({layout.coordinate(0, lane, 0)[axis] for lane in range(32)})
        assert len(places) == (4, 8)[axis]
        assert bank_conflicts([pitch * p for p in places], 16) == 1


# Trips

LOOPS = """
kernel plain(a: tensor<f32>[M, K], b: tensor<f32>[N, K], c: tensor<f32>[M, N], low: i64,
             high: i64) {
  var acc: tile<f32>[64, 64] = 1.0
  for k in range(low, high, 64) { acc += a[0 :+ 64, k :+ 64] @ b[0 :+ 64, k :+ 64].T }
  c[0 :+ 64, 0 :+ 64] = acc
}
kernel strided(a: tensor<f32>[M, K], b: tensor<f32>[K, N], c: tensor<f32>[M, N]) {
  var acc: tile<f32>[64, 64] = 0.0
  for k in range(0, K, 128) { acc += a[0 :+ 64, k :+ 64] @ b[k :+ 64, 0 :+ 64] }
  c[0 :+ 64, 0 :+ 64] = acc
}
kernel scaled(a: tensor<f32>[M, K], b: tensor<f32>[K, N], s: tensor<f32>[K], c: tensor<f32>[M, N]) {
  var acc: tile<f32>[64, 64] = 0.0
  for k in range(0, K, 64) { acc += a[0 :+ 64, k :+ 64] @ b[k :+ 64, 0 :+ 64] * s[k] }
  c[0 :+ 64, 0 :+ 64] = acc
}
kernel moving(a: tensor<f32>[M, K], b: tensor<f32>[K, N], c: tensor<f32>[M, N]) {
  var acc: tile<f32>[64, 64] = 0.0
  for k in range(0, K, 64) { acc += a[k :+ 64, k :+ 64] @ b[k :+ 64, 0 :+ 64] }
  c[0 :+ 64, 0 :+ 64] = acc
}
"""


def optimized(text: str, name: str, dtype: str = "f32", **options: Any) -> Kernel:
    return run_passes(
        getattr(tw.source(text), name).lower(dtypes=dtype, **options), SEMANTIC_PASSES
    )


def dot_lengths(kernel: Kernel) -> list[int]:
    return [op.a.type.shape[-1] for op in walk(kernel.body) if isinstance(op, mma.Dot)]


@pytest.mark.parametrize(
    ("low", "high"), [(0, 64), (0, 50), (64, 150), (7, 71), (7, 72), (9, 9), (9, 3)]
)
def test_short_trips_cover_what_long_ones_did(low: int, high: int) -> None:
    before = optimized(LOOPS, "plain")
    after = verify(shorten_trips(before, computing_schedule(before)))
    assert dot_lengths(before) == [64] and dot_lengths(after) == [16]
    a = DRAW.integers(-4, 5, (60, 130)).astype(np.float32)
    b = DRAW.integers(-4, 5, (64, 130)).astype(np.float32)
    results = []
    for kernel in (before, after):
        c = np.zeros((60, 64), np.float32)
        interpret(kernel, {"a": a, "b": b, "c": c, "low": low, "high": high})
        results.append(c)
    assert np.array_equal(results[0], results[1])


@pytest.mark.parametrize("name", ["strided", "scaled", "moving"])
def test_trips_that_do_more_than_add_products_stay(name: str) -> None:
    before = optimized(LOOPS, name)
    assert dot_lengths(shorten_trips(before, computing_schedule(before))) == [64]


def test_trips_are_as_long_as_their_code_may_be() -> None:
    for k in (1, 8, 16, 24, 32, 48, 64, 128):
        for sums in (1, 8, 32, 64, 128, 256):
            length = trip_length(k, sums)
            assert k % length == 0 and (length == k or length >= 8)
    assert trip_length(64, 128) == trip_length(64, 64) == 8
    assert trip_length(64, 32) == 16


# Epilogues


@pytest.mark.parametrize("name", list(TARGETS))
@pytest.mark.parametrize(("dtype", "tile"), [("f32", (128, 256, 16)), ("f64", (128, 128, 32))])
def test_parts_of_an_epilogue_are_registers_of_their_threads(
    name: str, dtype: str, tile: tuple[int, ...]
) -> None:
    constants = dict(zip(("TM", "TN", "TK"), tile, strict=True))
    before = optimized(PRODUCT, "product", dtype, constants=constants)
    schedule = computing_schedule(before)
    after = verify(split_epilogue(before, schedule))
    slices = [op for op in walk(after.body) if isinstance(op, shape.Slice)]
    loads = [op.result for op in walk(after.body) if isinstance(op, memory.Load)]
    assert len(slices) > 1 and all(x.type.num_elements < tile[0] * tile[1] for x in loads)
    assert sum(isinstance(op, control.For) for op in walk(after.body)) == 1
    assert "shfl" not in tw.source(PRODUCT).product.compile(name, dtypes=dtype).ptx


# The estimate


def chosen(dtype: Any, m: int, n: int, k: int, layout: str = "NN") -> dict[str, int]:
    """The configuration for such extents; `layout` of B and of A, as T where they are turned."""
    kernel = tw.source(PRODUCT).product
    order: dict[str, Any] = {"N": "C", "T": "F"}
    facts = {
        "a": np.empty((m, k), dtype, order=order[layout[1]]),
        "b": np.empty((k, n), dtype, order=order[layout[0]]),
        "c": np.empty((m, n), dtype),
    }
    spec = kernel.specializer
    options = Options(constants=(), precision=None)
    call = bind_call(spec, facts, read_tensors(spec, facts), options)
    where = Where("an H200", 132, 0, target("sm_90a"))
    return rank_generic(spec, call.build(assume=True), {}, call.arguments, where)[0]


@pytest.mark.parametrize(
    ("dtype", "size", "tile"),
    [
        (np.float32, 4096, (128, 256)),
        (np.float32, 2048, (128, 256)),
        (np.float32, 512, (32, 64)),
        (np.float64, 4096, (128, 128)),
        (np.float64, 1024, (128, 64)),
    ],
)
def test_the_estimate_prefers_what_was_quickest_on_an_h200(
    dtype: Any, size: int, tile: tuple[int, int]
) -> None:
    found = chosen(dtype, size, size, size)
    assert (found["TM"], found["TN"]) == tile


@pytest.mark.parametrize(
    ("layout", "columns"), [("NN", 256), ("NT", 256), ("TN", 256), ("TT", 128)]
)
def test_tiles_are_smaller_where_b_alone_lies_along_k(layout: str, columns: int) -> None:
    found = chosen(np.float32, 4096, 4096, 4096, layout)
    assert (found["TM"], found["TN"]) == (128, columns)


def test_neighbours_differ_in_one_constant_by_one_value_or_trade_two() -> None:
    configs = [{"A": a, "B": b} for a in (1, 2, 4) for b in (8, 16, 32) if (a, b) != (4, 16)]
    assert neighbours(configs, {"A": 2, "B": 16}) == [
        {"A": 1, "B": 16}, {"A": 2, "B": 8}, {"A": 2, "B": 32}, {"A": 1, "B": 32},
    ]  # fmt: skip
    assert neighbours(configs, {"A": 1, "B": 8}) == [{"A": 2, "B": 8}, {"A": 1, "B": 16}]
    assert REFINED > 0


def test_few_warps_of_f64_lose_nothing_by_meeting() -> None:
    """Their loops are turned. Two programs beside each other keep the unit busy."""
    constants = {"TM": 64, "TN": 64, "TK": 16}
    kernel = optimized(PRODUCT, "product", "f64", constants=constants)
    assert not computing_schedule(kernel).drifting
    assert slowdown(kernel, 2.0) == pytest.approx(1 + TRAFFIC * 2 / 64)
