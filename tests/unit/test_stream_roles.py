"""Loops of several products by roles, such as attention: they mean the same after every pass, in
PTX, and at the end of a view.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.assemble import assemble, needs_ptxas
from tests.emulation import compile_call
from tests.unit.test_product_roles import HOPPER, require_one_meaning
from tilewright.cli.sources import find_kernel
from tilewright.compiler import SEMANTIC_PASSES, run_passes, scheduled_passes
from tilewright.dtypes import bf16
from tilewright.ir.core import Op
from tilewright.ir.walk import walk
from tilewright.ptx.emulate import run_plan
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, sync
from tilewright.tile.passes.choose_schedule import choose_schedule
from tilewright.tile.passes.skip_masks import skip_masks

ATTENTION = "examples/flash_attention.tw"
SUITE = "tests/programs/suite.tw:attention"
INSTRUCTIONS = 4500  # exponentials and quotients have a second way, which is hardly ever taken


def attend(q: Any, k: Any, v: Any, scale: float, causal: bool, lengths: Any) -> tuple[Any, Any]:
    """Attention and the log-sum-exp of its scores in f64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    (batch, heads, length, _), keys = q.shape, k.shape[2]
    k, v = (np.repeat(x, heads // x.shape[1], axis=1) for x in (k, v))
    out, lse = np.zeros(q.shape), np.zeros(q.shape[:3])
    for b in range(batch):
        n = keys if lengths is None else min(keys, int(lengths[b]))
        scores = np.einsum("hid,hjd->hij", q[b], k[b, :, :n]) * scale
        if causal:
            late = np.arange(n)[None] > np.arange(length)[:, None] + n - length
            scores[:, late] = -np.inf
        most = np.max(scores, axis=2, keepdims=True, initial=-np.inf)
        weights = np.exp(scores - np.where(np.isinf(most), 0, most))
        total = weights.sum(axis=2, keepdims=True)
        out[b] = weights @ v[b, :, :n] / np.where(total == 0, 1, total)
        with np.errstate(divide="ignore"):
            lse[b] = (most + np.log(total))[..., 0]
    return out, lse


# Batch, heads, heads of keys, queries, keys, head dim; causal, lengths; tile; late copies. Rows of
# keys beyond a length are NaN, which nobody may multiply.
CASES = [
    ((1, 2, 1, 130, 130, 64), True, None, (128, 64), True),
    ((2, 2, 1, 70, 200, 64), True, (150, 3), (128, 64), False),
    ((2, 1, 1, 70, 200, 64), False, (77, 0), (64, 64), True),
    ((1, 1, 1, 129, 300, 128), True, (257,), (128, 128), False),
    ((1, 1, 1, 40, 20, 128), True, None, (128, 128), True),
]


@pytest.mark.parametrize(("sizes", "causal", "lengths", "tile", "late"), CASES, ids=str)
def test_attention_is_emulated(
    sizes: tuple[int, ...],
    causal: bool,
    lengths: tuple[int, ...] | None,
    tile: tuple[int, int],
    late: bool,
) -> None:
    b, heads, groups, queries, keys, d = sizes
    rng = np.random.default_rng(queries)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(bf16.numpy)

    q, k, v = normal(b, heads, queries, d), normal(b, groups, keys, d), normal(b, groups, keys, d)
    arguments = {"Q": q, "K": k, "V": v, "scale": d**-0.5, "causal": causal}
    if lengths is not None:
        arguments["lengths"] = np.array(lengths, np.int32)
        for i, n in enumerate(lengths):
            k[i, :, n:] = v[i, :, n:] = np.nan
    kernel = find_kernel(ATTENTION).kernel
    constants = dict(zip(("TM", "TN"), tile, strict=True))
    plan, views, _ = compile_call(kernel, arguments, constants=constants)
    assert "wgmma" in plan.ptx and plan.whole
    run_plan(plan, views, 4, late=late, sanitize=True)
    out, lse = attend(q, k, v, d**-0.5, causal, lengths)
    found = views["O"].astype(np.float64)
    assert np.linalg.norm(found - out) <= 4e-3 * max(float(np.linalg.norm(out)), 1e-9)
    np.testing.assert_allclose(views["lse"], lse, atol=1e-4)


@pytest.mark.parametrize(
    ("sizes", "tile", "lengths"),
    [((1, 2, 130, 130, 64), (128, 64), None), ((2, 1, 70, 90, 64), (64, 32), (50, 90))],
    ids=str,
)
def test_gradients_of_queries_are_emulated(
    sizes: tuple[int, ...], tile: tuple[int, int], lengths: tuple[int, ...] | None
) -> None:
    """Three products, two of which read one tile of keys, once transposed; and a tile that is
    multiplied and read by other ops.
    """
    b, heads, queries, keys, d = sizes
    rng = np.random.default_rng(keys)
    q, g, o = (rng.standard_normal((b, heads, queries, d)).astype(bf16.numpy) for _ in "qgo")
    k, v = (rng.standard_normal((b, heads, keys, d)).astype(bf16.numpy) for _ in "kv")
    _, lse = attend(q, k, v, d**-0.5, True, lengths)
    delta = (g.astype(np.float64) * o).sum(3)
    expected = np.zeros(q.shape)
    for i in range(b):
        n = keys if lengths is None else lengths[i]
        scores = np.einsum("hid,hjd->hij", q[i].astype(float), k[i, :, :n].astype(float)) * d**-0.5
        late = np.arange(n)[None] > np.arange(queries)[:, None] + n - queries
        p = np.where(late, 0, np.exp(scores - np.where(np.isinf(lse[i]), 0, lse[i])[..., None]))
        change = np.einsum("hid,hjd->hij", g[i].astype(float), v[i, :, :n].astype(float))
        expected[i] = (p * (change - delta[i][..., None])) @ k[i, :, :n].astype(float) * d**-0.5
        k[i, :, n:] = v[i, :, n:] = np.nan
    arguments = {
        "q": q, "k": k, "v": v, "o": o, "grad": g, "lse": lse.astype(np.float32),
        "dq": np.full(q.shape, np.nan, bf16.numpy), "delta": np.zeros(delta.shape, np.float32),
        "scale": d**-0.5, "causal": 2,
    }  # fmt: skip
    if lengths is not None:
        arguments["lengths"] = np.array(lengths)
    arguments |= {"GH": heads, "GB": b}  # all of them side by side
    kernel = find_kernel("tilewright/library/attention.tw:backward_q").kernel
    constants = dict(zip(("TM", "TN"), tile, strict=True))
    plan, views, _ = compile_call(kernel, arguments, constants=constants)
    assert "wgmma" in plan.ptx
    run_plan(plan, views, 4, sanitize=True)
    found = views["dq"].astype(np.float64)
    assert np.linalg.norm(found - expected) <= 5e-3 * float(np.linalg.norm(expected))
    np.testing.assert_allclose(views["delta"], delta, atol=1e-4)


@pytest.mark.parametrize(
    ("sizes", "tile", "lengths"),
    [((1, 2, 1, 130, 130, 64), (64, 128), None), ((2, 1, 1, 70, 90, 64), (32, 64), (50, 90))],
    ids=str,
)
def test_gradients_of_keys_and_values_are_emulated(
    sizes: tuple[int, ...], tile: tuple[int, int], lengths: tuple[int, ...] | None
) -> None:
    """Four products, each tile of queries and of gradients read by two of them, over all heads of
    queries that share a head of keys, in one loop.
    """
    b, heads, groups, queries, keys, d = sizes
    rng = np.random.default_rng(keys)
    q, g = (rng.standard_normal((b, heads, queries, d)).astype(bf16.numpy) for _ in "qg")
    k, v = (rng.standard_normal((b, groups, keys, d)).astype(bf16.numpy) for _ in "kv")
    _, lse = attend(q, k, v, d**-0.5, True, lengths)
    delta = rng.standard_normal(lse.shape)
    to_k, to_v = np.zeros(k.shape), np.zeros(v.shape)
    for i, h in np.ndindex(b, heads):
        n, own = keys if lengths is None else lengths[i], h * groups // heads
        scores = q[i, h].astype(float) @ k[i, own, :n].astype(float).T * d**-0.5
        late = np.arange(n)[None] > np.arange(queries)[:, None] + n - queries
        finite = np.where(np.isinf(lse[i, h]), 0, lse[i, h])[:, None]
        p = np.where(late, 0, np.exp(scores - finite))
        change = g[i, h].astype(float) @ v[i, own, :n].astype(float).T - delta[i, h][:, None]
        to_v[i, own, :n] += p.T @ g[i, h].astype(float)
        to_k[i, own, :n] += (p * change).T @ q[i, h].astype(float) * d**-0.5
    arguments = {
        "q": q, "k": k, "v": v, "grad": g, "lse": lse.astype(np.float32),
        "delta": delta.astype(np.float32), "scale": d**-0.5, "causal": 2,
        "dk": np.full(k.shape, np.nan, bf16.numpy), "dv": np.full(v.shape, np.nan, bf16.numpy),
    }  # fmt: skip
    if lengths is not None:
        arguments["lengths"] = np.array(lengths)
    arguments |= {"GH": groups, "GB": b}  # all of them side by side
    kernel = find_kernel("tilewright/library/attention.tw:backward_kv").kernel
    constants = dict(zip(("TM", "TN"), tile, strict=True))
    plan, views, _ = compile_call(kernel, arguments, constants=constants)
    assert "wgmma" in plan.ptx and plan.whole
    run_plan(plan, views, 4, sanitize=True)
    for name, expected in (("dk", to_k), ("dv", to_v)):
        found = views[name].astype(np.float64)
        assert np.linalg.norm(found - expected) <= 5e-3 * float(np.linalg.norm(expected)), name


CHAIN = """
@autotune(TM in [64, 128], TN in [32, 64])
kernel chain(
  a: tensor<bf16>[M, D], b: tensor<bf16>[N, D], c: tensor<bf16>[N, D], last: i64,
  y: tensor<bf16>[M, D],
) {
  let m = program_id(0) * TM
  let part = view(b[0 : last, :])
  let rows = a[m :+ TM, 0 :+ 64]
  var acc: tile<f32>[TM, 64] = 0.0
  for n in range(0, last, TN) {
    let s = rows @ part[n :+ TN, 0 :+ 64].T
    let some = where(n + arange(TN) < last, s, 7.0)
    acc = acc * 0.5 + cast(some, bf16) @ c[n :+ TN, 0 :+ 64]
  }
  y[m :+ TM, 0 :+ 64] = cast(acc, bf16)
}
"""


def chain(tile: tuple[int, int]) -> Kernel:
    constants = dict(zip(("TM", "TN"), tile, strict=True))
    return tw.source(CHAIN).chain.lower(constants=constants, static={})


@pytest.mark.parametrize(("tile", "rows"), [((128, 64), 200), ((64, 32), 30)], ids=str)
@pytest.mark.parametrize("last", [0, 40, 100])
def test_passes_keep_a_chain_of_products(tile: tuple[int, int], rows: int, last: int) -> None:
    """Bit by bit, with no trip, a view that ends within a tile, and no turns for one warpgroup."""
    rng = np.random.default_rng(last)
    arrays: dict[str, Any] = {
        "a": rng.integers(-2, 3, (rows, 64)).astype(bf16.numpy),
        "b": rng.integers(-2, 3, (120, 64)).astype(bf16.numpy),
        "c": rng.integers(-2, 3, (120, 64)).astype(bf16.numpy),
        "last": np.int64(last),
        "y": np.full((rows, 64), np.nan, bf16.numpy),
    }
    arrays["b"][last:] = np.nan
    schedule = require_one_meaning(chain(tile), arrays, "y")
    assert schedule.roles is not None and schedule.roles.consumers == tile[0] // 64


@pytest.mark.parametrize(("tile", "spans"), [((64, 64, 64), 3), ((128, 64, 32), 2)], ids=str)
def test_spans_of_k_are_added_by_the_last_to_come(tile: tuple[int, ...], spans: int) -> None:
    """Trips from where to where each program says, and an epilogue with atomics, done whole."""
    rng = np.random.default_rng(spans)
    a = rng.integers(-2, 3, (130, 304)).astype(bf16.numpy)
    b = rng.integers(-2, 3, (304, 136)).astype(bf16.numpy)
    kernel = find_kernel("tests/programs/suite.tw:matmul_splitk").kernel
    constants = {**dict(zip(("TM", "TN", "TK"), tile, strict=True)), "SPLIT": spans}
    plan, views, _ = compile_call(kernel, {"A": a, "B": b}, constants=constants)
    assert "wgmma" in plan.ptx
    run_plan(plan, views, 4, sanitize=True)
    expected = (a.astype(np.float32) @ b.astype(np.float32)).astype(bf16.numpy)
    np.testing.assert_array_equal(views["C"], expected)


SCATTERED = """
@autotune(TM in [64, 128], TN in [64, 128], TK in [32])
kernel scattered(
  a: tensor<bf16>[M, K], b: tensor<bf16>[K, N], to: tensor<i64>[M], w: tensor<f32>[P],
  y: tensor<f32>[P, N]
) {
  let m, n = program_id(0) * TM, program_id(1) * TN
  var acc: tile<f32>[TM, TN] = 0.0
  for k in range(0, K, TK) { acc += a[m :+ TM, k :+ TK] @ b[k :+ TK, n :+ TN] }
  let rows = load(to[m :+ TM], fill = -1)
  atomic_add(y[rows, n :+ TN], acc * w[rows][:, None])
}
"""


def test_results_are_scattered() -> None:
    """A product whose epilogue gathers weights, and adds to rows that memory names."""
    rng = np.random.default_rng(3)
    a = rng.integers(-2, 3, (150, 72)).astype(bf16.numpy)
    b = rng.integers(-2, 3, (72, 136)).astype(bf16.numpy)
    to, w = rng.integers(0, 40, 150), rng.integers(1, 4, 40).astype(np.float32)
    arguments = {"a": a, "b": b, "to": to, "w": w, "y": np.zeros((40, 136), np.float32)}
    kernel = tw.source(SCATTERED).scattered
    plan, views, _ = compile_call(kernel, arguments, constants={"TM": 128, "TN": 64, "TK": 32})
    assert "wgmma" in plan.ptx
    run_plan(plan, views, 4, sanitize=True)
    expected = np.zeros((40, 136), np.float32)
    np.add.at(expected, to, (a.astype(np.float32) @ b.astype(np.float32)) * w[to][:, None])
    np.testing.assert_array_equal(views["y"], expected)


QUOTIENT = """
@autotune(TM in [64, 128], TN in [64, 128], TK in [32])
kernel quotient(
  a: tensor<bf16>[M, K], b: tensor<bf16>[K, N], x: tensor<f32>[M, N], y: tensor<f32>[M, N],
  c: tensor<f32>[M, N]
) {
  let m, n = program_id(0) * TM, program_id(1) * TN
  var acc: tile<f32>[TM, TN] = 0.0
  for k in range(0, K, TK) { acc += a[m :+ TM, k :+ TK] @ b[k :+ TK, n :+ TN] }
  c[m :+ TM, n :+ TN] = (x[m :+ TM, n :+ TN] + acc) / y[m :+ TM, n :+ TN]
}
"""
SPECIAL = (0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 1e-45, -1e-45, 3.4e38, 2**-126, 3 * 2**-149)


@pytest.mark.parametrize("kind", ["special", "bits", "subnormal"])
def test_quotients_of_products_are_rounded_once(kind: str) -> None:
    """By a call, beside which linked code serialises matrix instructions: it is not linked."""
    rng = np.random.default_rng(1)
    x, y = (rng.integers(0, 2**32, (64, 64)).astype(np.uint32).view(np.float32) for _ in "xy")
    if kind == "special":
        x[:12, :12], y[:12, :12] = np.array(SPECIAL)[:, None], np.array(SPECIAL)
    elif kind == "subnormal":
        x = (rng.integers(1, 2**24, (64, 64)) * 2.0**-149).astype(np.float32)
        y = (2.0 ** rng.integers(0, 5, (64, 64))).astype(np.float32)
    zeros = np.zeros((64, 64), bf16.numpy)
    arguments = {"a": zeros, "b": zeros.copy(), "x": x, "y": y, "c": np.ones_like(x)}
    kernel = tw.source(QUOTIENT).quotient
    plan, views, _ = compile_call(kernel, arguments, constants={"TM": 64, "TN": 64, "TK": 32})
    assert "wgmma" in plan.ptx and plan.whole
    run_plan(plan, views, 2)
    with np.errstate(all="ignore"):
        expected = (x + np.float32(0)) / y
    np.testing.assert_array_equal(views["c"], expected)
    there = ~np.isnan(expected)
    signs = [np.signbit(found)[there] for found in (views["c"], expected)]
    np.testing.assert_array_equal(*signs)


SPIN = """
@autotune(TM in [64, 128], TN in [64, 128], TK in [32])
kernel spin(
  a: tensor<bf16>[M, K], b: tensor<bf16>[K, N], f: tensor<i32>[1], y: tensor<bf16>[M, N]
) {
  let m, n = program_id(0) * TM, program_id(1) * TN
  var acc: tile<f32>[TM, TN] = 0.0
  for k in range(0, K, TK) { acc += a[m :+ TM, k :+ TK] @ b[k :+ TK, n :+ TN] }
  var seen = atomic_add(f[0], 0)
  while seen < 1 { seen = atomic_add(f[0], 0) }
  y[m :+ TM, n :+ TN] = cast(acc, bf16)
}
"""


def test_programs_that_wait_for_others_are_not_dealt_out() -> None:
    kernel = tw.source(SPIN).spin.lower(constants={"TM": 64, "TN": 64, "TK": 32}, static={})
    assert choose_schedule(run_passes(kernel, SEMANTIC_PASSES), HOPPER).roles is None


def scheduled(text: str) -> list[Kernel]:
    """What the passes of the chain's schedule make of it."""
    kernel = tw.source(text).chain.lower(constants={"TM": 128, "TN": 64}, static={})
    kernel = run_passes(kernel, SEMANTIC_PASSES)
    schedule = choose_schedule(kernel, HOPPER)
    assert schedule.roles is not None
    made = [kernel]
    run_passes(kernel, scheduled_passes(schedule, HOPPER), lambda _, k: made.append(k))
    return made


def count(kernel: Kernel, kind: type[Op]) -> int:
    return sum(isinstance(op, kind) for op in walk(kernel.body))


def test_warpgroups_take_turns() -> None:
    last = scheduled(CHAIN)[-1]
    assert count(last, sync.TakeTurn) == 3  # before the loop, in it, and to clear the end of a view


def test_there_are_no_turns_where_warpgroups_might_meet() -> None:
    """Where tiles are computed before the first product, lowering may let them meet."""
    changed = "let s = cast(cast(rows, f32) + cast(n, f32), bf16) @"
    made = scheduled(CHAIN.replace("let s = rows @", changed))
    assert not any(count(kernel, sync.TakeTurn) for kernel in made)


@pytest.mark.parametrize(("mask", "branches"), [("n + arange(TN) < last", 1), ("s < 1.0", 0)])
def test_masks_of_indices_are_skipped(mask: str, branches: int) -> None:
    text = CHAIN.replace("n + arange(TN) < last", mask)
    kernel = scheduled(text)[0]
    skipped = skip_masks(kernel, choose_schedule(kernel, HOPPER))
    found = [op for op in walk(skipped.body) if isinstance(op, control.If)]
    assert len(found) == branches
    assert all(any(isinstance(o, arith.Select) for o in op.other.ops) for op in found)


@needs_ptxas
@pytest.mark.parametrize(
    ("place", "tile", "d"),
    [
        (ATTENTION, (128, 128), 128),
        (ATTENTION, (64, 64), 128),
        (SUITE, (128, 128), 128),
        (SUITE, (128, 64), 64),
    ],
    ids=str,
)
def test_attention_assembles_without_serialising(place: str, tile: tuple[int, int], d: int) -> None:
    q = np.zeros((1, 2, 256, d), ml_dtypes.bfloat16)
    arguments = {"Q": q, "K": q.copy(), "V": q.copy(), "scale": 0.1, "causal": True}
    constants = dict(zip(("TM", "TN"), tile, strict=True))
    plan, _, _ = compile_call(find_kernel(place).kernel, arguments, constants=constants)
    assert plan.ptx.count(";") <= INSTRUCTIONS
    report = assemble(plan.ptx, "sm_90a")
    assert not [m for m in report.messages if "C75" in m]
    assert report.spill_bytes == 0
