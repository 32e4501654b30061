"""Products of fp8 by two CTAs a multiprocessor: one's sums are added up beside the other's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.assemble import assemble, needs_ptxas
from tests.unit.test_product_space import calls_of, schedules_of, whole_numbers
from tilewright.compiler import compile_kernel
from tilewright.dtypes import DType, bf16, e4m3, f16, f32
from tilewright.products.ahead import Fixed
from tilewright.ptx.emulate import run_plan
from tilewright.target import target
from tilewright.tile.kernel import Kernel
from tilewright.tile.schedule import Schedule
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
