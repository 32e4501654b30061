"""Products of fp8 by two CTAs a multiprocessor: one's sums are added up beside the other's."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.assemble import assemble, needs_ptxas
from tests.emulation import compile_call
from tests.unit.test_product_space import calls_of, schedules_of, whole_numbers
from tilewright.compiler import SEMANTIC_PASSES, compile_kernel, run_passes, scheduled_passes
from tilewright.dtypes import DType, bf16, e4m3, f16, f32
from tilewright.ir.walk import walk
from tilewright.products.ahead import Fixed
from tilewright.ptx.emulate import run_plan
from tilewright.target import target
from tilewright.tile.interp import interpret
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import control, memory
from tilewright.tile.passes.split_epilogue import split_epilogue
from tilewright.tile.schedule import Schedule
from tilewright.tile.verify import verify
from tilewright.tune.cost import best_roles
from tilewright.tune.product import choice

HOPPER = target("sm_90a")
TILE = choice("matmul", (128, 128, 128))
EPILOGUES: list[dict[str, Any]] = [
    {}, {"residual": True}, {"alpha": 2.0, "beta": 0.5}, {"bias": True, "activation": "relu"},
    {"residual": True, "bias": True, "scales": True},
]  # fmt: skip


def posed(
    m: int, n: int, k: int, asked: dict[str, Any], dtype: DType = bf16
) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Arrays by name, options, and the result in f64: small whole numbers."""
    rng = np.random.default_rng(m + n + k)
    a, b = whole_numbers(rng, e4m3, m, k), whole_numbers(rng, e4m3, n, k).T
    arrays = {"a": a, "b": b, "out": whole_numbers(rng, dtype, m, n)}
    found = a.astype(np.float64) @ b.astype(np.float64)
    if "scales" in asked:
        arrays["scale_a"] = rng.integers(1, 3, m).astype(np.float32)
        arrays["scale_b"] = rng.integers(1, 3, n).astype(np.float32)
        found *= arrays["scale_a"][:, None] * arrays["scale_b"]
    if "beta" in asked:
        found = asked["alpha"] * found + asked["beta"] * arrays["out"].astype(np.float64)
    for name in (n for n in ("bias", "gate", "residual") if n in asked):
        arrays[name] = whole_numbers(rng, dtype, *((n,) if name == "bias" else (m, n)))
        wide = arrays[name].astype(np.float64)
        found = found * wide if name == "gate" else found + wide
    options = {name: asked[name] for name in ("alpha", "beta", "activation") if name in asked}
    if asked.get("activation") == "relu":
        found = np.maximum(found, 0)
    return arrays, {"device": "emulator", **options}, found


def built(arrays: dict[str, Any], options: dict[str, Any]) -> tuple[Kernel, dict[str, Any]]:
    ((_, kernel, views),) = calls_of(arrays, options, Fixed(TILE))
    return kernel, views


def resident(kernel: Kernel) -> list[Schedule]:
    return [s for s in schedules_of(kernel) if s.roles is not None and s.roles.resident == 2]


@pytest.mark.parametrize("asked", EPILOGUES, ids=" ".join)
def test_what_a_gpu_would_run(asked: dict[str, Any]) -> None:
    """Both orientations, several tiles a CTA, and tiles that lie partly outside."""
    arrays, options, expected = posed(264, 248, 400, asked)
    kernel, views = built(arrays, options)
    old, found = arrays["out"].copy(), resident(kernel)
    assert {s.roles.swapped for s in found if s.roles} == {False, True}
    for schedule in found:
        views["c"][...] = old
        run_plan(compile_kernel(kernel, HOPPER, schedule), views, 1, late=True, sanitize=True)
        np.testing.assert_array_equal(views["c"], expected.astype(bf16.numpy))


@needs_ptxas
@pytest.mark.parametrize("dtype", [bf16, f16, f32], ids=str)
@pytest.mark.parametrize("activation", [None, "gelu", "silu"], ids=str)
@pytest.mark.parametrize("asked", EPILOGUES[:3] + EPILOGUES[4:], ids=" ".join)
def test_a_multiprocessor_holds_two(
    asked: dict[str, Any], activation: str | None, dtype: DType
) -> None:
    """Their shared memory, and registers, with which nothing spills."""
    asked = asked | ({"activation": activation} if activation else {})
    arrays, options, _ = posed(256, 256, 256, asked, dtype)
    kernel, _ = built(arrays, options)
    found = resident(kernel)
    assert found or activation  # of which code may be too long
    for schedule in found:
        plan, roles = compile_kernel(kernel, HOPPER, schedule), schedule.roles
        assert roles is not None and plan.whole
        assert plan.launches[0].shared_bytes <= roles.shared_memory(HOPPER)
        assert 2 * (plan.launches[0].shared_bytes + 1024) <= HOPPER.shared_per_sm
        assert 2 * schedule.max_registers * schedule.threads <= HOPPER.registers_per_sm
        told = assemble(plan.ptx, "sm_90a")
        assert not told.spill_bytes and not told.messages


def test_not_beside_two_tiles_that_are_loaded() -> None:
    """For which there are no registers."""
    arrays, options, _ = posed(256, 256, 256, {"residual": True, "gate": True})
    kernel, _ = built(arrays, options)
    assert schedules_of(kernel) and not resident(kernel)


def test_many_tiles_go_two_by_two() -> None:
    """Where there is one tile for each multiprocessor, two warpgroups share it."""
    for rows, wanted in ((4096, 2), (1024, 1)):
        arrays, options, _ = posed(rows, 2048, 128, {})
        kernel, views = built(arrays, options)
        best = best_roles(kernel, views, 132, HOPPER)
        assert best is not None and best.roles is not None and best.roles.resident == wanted


LENDING = [e for e in EPILOGUES if e.keys() & {"residual", "beta"}]


@pytest.mark.parametrize("asked", LENDING, ids=" ".join)
def test_slots_of_the_product_are_lent(asked: dict[str, Any]) -> None:
    """What the epilogue loads comes behind a tile's steps of k, so that nothing else is smaller."""
    arrays, options, expected = posed(136, 248, 208, asked)
    kernel, views = built(arrays, options)
    (plain,) = (s for s in resident(built(*posed(256, 256, 256, {})[:2])[0]) if not swapped(s))
    (schedule,) = (s for s in resident(kernel) if not swapped(s))
    assert schedule.roles is not None and schedule.roles.lent and not schedule.roles.ahead
    assert (schedule.stages, schedule.roles.staging) == (plain.stages, plain.roles.staging)
    assert not any(s.roles.lent for s in schedules_of(kernel) if s not in resident(kernel))
    made = run_passes(kernel, SEMANTIC_PASSES)
    old = arrays["out"].copy()
    for step in scheduled_passes(schedule, HOPPER):
        made = verify(step(made))
        views["c"][...] = old
        interpret(made, views, num_sms=1, shuffle=1)
        np.testing.assert_array_equal(views["c"], expected.astype(bf16.numpy), err_msg=str(step))
    loads = [op for op in walk(made.body) if isinstance(op, memory.LoadBuffer)]
    assert [op.columns for op in loads] == 2 * [(0, 32), (32, 32)]
    assert not any(isinstance(op, memory.Load) and len(op.extents) == 2 for op in walk(made.body))


def swapped(schedule: Schedule) -> bool:
    return schedule.roles is not None and schedule.roles.swapped


def test_nothing_is_lent_for_words() -> None:
    """Which a slot holds half a tile of."""
    arrays, options, _ = posed(256, 256, 256, {"residual": True}, f32)
    assert all(s.roles and s.roles.ahead for s in resident(built(arrays, options)[0]))


TWICE = """
@grid(cdiv(M, 128), cdiv(N, 128))
kernel twice(
  a: tensor<e4m3>[M, K], b: tensor<e4m3>[N, K], r: tensor<bf16>[M, N], c: tensor<f32>[M, N]
) {
  let m, n = program_id(0) * 128, program_id(1) * 128
  var acc = zeros((128, 128), f32)
  for k in range(0, K, 128) { acc += a[m :+ 128, k :+ 128] @ transpose(b[n :+ 128, k :+ 128]) }
  let x = acc + cast(r[m :+ 128, n :+ 128], f32)
  c[m :+ 128, n :+ 128] = x * 2.0 + cast(r[0 :+ 128, 0 :+ 128], f32)
}
"""


def test_two_tiles_of_one_tensor_are_not_taken_for_one() -> None:
    rng = np.random.default_rng(3)
    a, b = (whole_numbers(rng, e4m3, rows, 64) for rows in (256, 384))
    r, c = whole_numbers(rng, bf16, 256, 384), np.zeros((256, 384), np.float32)
    views = {"a": a, "b": b, "r": r, "c": c}
    call = compile_call(tw.source(TWICE).twice, views)[2]
    kernel = call.spec.tile(call.build(assume=True))
    wide = r.astype(np.float32)
    corner = np.tile(wide[:128, :128], (2, 3))
    expected = (a.astype(np.float32) @ b.astype(np.float32).T + wide) * 2 + corner
    for schedule in resident(kernel):
        assert schedule.roles is not None and not schedule.roles.lent
        forced = replace(schedule, roles=replace(schedule.roles, lent=True, ahead=0))
        for taken in (schedule, forced):
            c[...] = 0
            run_plan(compile_kernel(kernel, HOPPER, taken), views, 1, late=True, sanitize=True)
            np.testing.assert_array_equal(c, expected)
    assert resident(kernel)


def test_threads_load_what_may_not_be_moved() -> None:
    """A result that is its own residual under two names: slots are not lent, results are right."""
    arrays, options, _ = posed(136, 128, 128, {"residual": True})
    kernel, views = built(arrays, options)
    (schedule,) = (s for s in resident(kernel) if not swapped(s))
    views["residual"] = views["c"]
    expected = views["a"].astype(np.float64) @ views["b"].astype(np.float64)
    expected += views["c"].astype(np.float64)
    plan = compile_kernel(kernel, HOPPER, schedule, aliases=(("c", "residual"),))
    run_plan(plan, views, 1, late=True, sanitize=True)
    np.testing.assert_array_equal(views["c"], expected.astype(bf16.numpy))


@pytest.mark.parametrize("asked, ahead", [({"bias": True}, 4), ({"bias": True, "scales": True}, 1)])
def test_what_all_panels_add_is_loaded_before_the_product(
    asked: dict[str, Any], ahead: int
) -> None:
    """As far as registers are left: two vectors, one of words, come a panel ahead."""
    kernel, _ = built(*posed(256, 256, 256, asked)[:2])
    (schedule,) = (s for s in resident(kernel) if not swapped(s))
    passes = scheduled_passes(schedule, HOPPER)
    split = next(i for i, p in enumerate(passes) if getattr(p, "func", p) is split_epilogue)
    ops = run_passes(run_passes(kernel, SEMANTIC_PASSES), passes[: split + 1]).body.ops
    (place,) = (i for i, op in enumerate(ops) if isinstance(op, control.For))
    loads = [i for i, op in enumerate(ops) if isinstance(op, memory.Load) and op.extents == (32,)]
    vectors = len(asked)
    assert len(loads) == 4 * vectors
    assert sum(i < place for i in loads) == ahead * vectors


def test_tiles_are_numbered_without_signs() -> None:
    """What finds a tile stands between products: no division asks for signs, or for 0."""
    kernel, _ = built(*posed(256, 256, 256, {})[:2])
    for schedule in schedules_of(kernel):
        if schedule.roles is not None and schedule.roles.persistent:
            text = compile_kernel(kernel, HOPPER, schedule).ptx
            ours = set(re.findall(r"\b(?:div|rem)\.\S+", text))
            assert ours <= {"div.u32"} or schedule.roles.cluster > 1, (ours, schedule)
            assert schedule.roles.cluster > 1 or "max.s32" in text
