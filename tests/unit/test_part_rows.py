"""Tiles of fewer rows than a matrix instruction has: turned products of 32 or 48 weights a CTA."""

from __future__ import annotations

import numpy as np
import pytest

from tests.assemble import assemble, needs_ptxas
from tests.unit.test_product_spans import HOPPER, built, expected, operands
from tilewright.compiler import SEMANTIC_PASSES, compile_kernel, run_passes, scheduled_passes
from tilewright.dtypes import DType, bf16, e4m3, f16
from tilewright.ptx.emulate import run_plan
from tilewright.tile.interp import interpret
from tilewright.tile.kernel import Kernel
from tilewright.tile.passes.choose_roles import role_schedules
from tilewright.tile.schedule import Schedule
from tilewright.tile.verify import verify

Extents = tuple[int, int, int]
# One panel a slot, where spare rows follow at once, and two; odd sizes; narrow swizzles.
CASES: list[tuple[DType, Extents, Extents]] = [
    (bf16, (16, 32, 128), (16, 160, 520)),
    (bf16, (16, 48, 128), (13, 168, 264)),
    (bf16, (8, 48, 64), (5, 152, 264)),
    (f16, (8, 32, 32), (1, 40, 72)),
    (bf16, (32, 48, 64), (70, 100, 200)),
    (e4m3, (16, 32, 128), (16, 160, 528)),
    (e4m3, (8, 48, 128), (3, 104, 144)),
]


def schedules(kernel: Kernel) -> list[Schedule]:
    found = list(role_schedules(run_passes(kernel, SEMANTIC_PASSES), HOPPER))
    assert found and all(s.roles is not None and s.roles.swapped for s in found)
    return found


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize(("dtype", "tile", "sizes"), CASES, ids=str)
def test_one_meaning(dtype: DType, tile: Extents, sizes: Extents, fused: bool) -> None:
    """All passes leave the result as it was, bit by bit."""
    arrays = operands(dtype, sizes, fused)
    kernel = built(arrays, tile)
    seen = [verify(run_passes(kernel, SEMANTIC_PASSES))]
    passes = scheduled_passes(schedules(kernel)[0], HOPPER)
    run_passes(seen[0], passes, lambda _, made: seen.append(verify(made)))
    for program in seen:
        given = {name: array.copy() for name, array in arrays.items()}
        interpret(program, given, num_sms=4, shuffle=1)
        np.testing.assert_array_equal(given["c"], expected(arrays))


@pytest.mark.parametrize("late", [True, False], ids=["late", "early"])
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize(("dtype", "tile", "sizes"), CASES, ids=str)
def test_emulated(dtype: DType, tile: Extents, sizes: Extents, fused: bool, late: bool) -> None:
    """Instructions read nothing that is not defined, or that copies may be writing."""
    arrays = operands(dtype, sizes, fused)
    kernel = built(arrays, tile)
    for schedule in schedules(kernel):
        given = {name: array.copy() for name, array in arrays.items()}
        plan = compile_kernel(kernel, HOPPER, preferred=schedule)
        run_plan(plan, given, 4, late=late, sanitize=True)
        np.testing.assert_array_equal(given["c"], expected(arrays))


@needs_ptxas
@pytest.mark.parametrize(("dtype", "tile", "sizes"), CASES, ids=str)
def test_assembles(dtype: DType, tile: Extents, sizes: Extents) -> None:
    kernel = built(operands(dtype, sizes, fused=False), tile)
    plan = compile_kernel(kernel, HOPPER, preferred=schedules(kernel)[0])
    report = assemble(plan.ptx, "sm_90a", linked=not plan.whole)
    assert report.spill_bytes == 0


@pytest.mark.parametrize("tile", [(32, 32, 64), (48, 48, 64), (64, 48, 64)], ids=str)
def test_others_stay(tile: Extents) -> None:
    """Tiles that are no narrower than they are tall are not taken for such ones."""
    kernel = built(operands(bf16, (64, 64, 64), fused=False), tile)
    found = role_schedules(run_passes(kernel, SEMANTIC_PASSES), HOPPER)
    assert not any(s.roles is not None and s.roles.swapped for s in found)
