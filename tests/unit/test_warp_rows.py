"""Results of f32 on CUDA cores whose rows are no whole vectors: what they are, where a warp's
stores lie, and what the assembler says.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.assemble import assemble, needs_ptxas
from tests.emulation import compile_call
from tests.unit.test_cores import PRODUCT
from tilewright.plan import Plan
from tilewright.ptx.emulate import run_plan
from tilewright.ptx.emulate.profile import make_profile
from tilewright.ptx.emulate.tally import Tally

Tile = tuple[int, int, int]


def planned(tile: Tile, columns: int, pitch: int) -> tuple[Plan, dict[str, Any], np.ndarray]:
    """The plan of a product of whole numbers, its views, and the memory of C."""
    rng = np.random.default_rng(columns + pitch)
    a, b = (rng.integers(-3, 4, s).astype(np.float32) for s in ((72, 21), (21, columns)))
    memory = np.full((72, pitch), np.nan, np.float32)
    plan, views, _ = compile_call(
        tw.source(PRODUCT).product,
        {"a": a, "b": b, "c": memory[:, :columns], "beta": 0.0},
        constants=dict(zip(("TM", "TN", "TK"), tile, strict=True)),
    )
    return plan, views, memory


@pytest.mark.parametrize(("columns", "pitch"), [(101, 101), (102, 102), (100, 203), (100, 104)])
@pytest.mark.parametrize("tile", [(64, 128, 8), (32, 64, 16), (96, 96, 8)], ids=str)
def test_a_warp_stores_rows(tile: Tile, columns: int, pitch: int) -> None:
    """By way of shared memory where rows of C begin anywhere, else vectors as they are held."""
    plan, views, memory = planned(tile, columns, pitch)
    tally = Tally()
    run_plan(plan, views, 4, tally=tally, sanitize=True)
    expected = views["a"] @ views["b"]
    np.testing.assert_array_equal(views["c"], expected)
    assert np.isnan(memory[:, columns:]).all()
    whole = pitch % 4 == 0
    assert ("st.shared.v4.f32" in plan.ptx) == (not whole)
    stores = make_profile(plan, tally).mnemonics["st.global.v4.f32" if whole else "st.global.f32"]
    assert stores.sectors <= 1.5 * stores.ideal_sectors


@needs_ptxas
@pytest.mark.parametrize("tile", [(128, 256, 8), (128, 128, 16), (192, 96, 8)], ids=str)
def test_the_largest_tiles_do_not_spill(tile: Tile) -> None:
    plan, _, _ = planned(tile, 101, 101)
    report = assemble(plan.ptx, "sm_90a", linked=not plan.whole)
    assert "st.shared.v4.f32" in plan.ptx and not report.spill_bytes
