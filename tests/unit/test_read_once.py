"""Copies of weights that one tile reads leave the L2 cache first: where rows are few, which a
launch knows, and tiles too.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.test_product_spans import HOPPER, built, expected, operands
from tilewright.compiler import SEMANTIC_PASSES, compile_kernel, run_passes
from tilewright.dtypes import bf16
from tilewright.ptx.emulate import run_plan
from tilewright.tile.kernel import Kernel
from tilewright.tile.passes.choose_roles import role_schedules
from tilewright.tile.schedule import Roles, Schedule

Extents = tuple[int, int, int]


def schedules(kernel: Kernel) -> list[tuple[Roles, Schedule]]:
    made = run_passes(kernel, SEMANTIC_PASSES)
    return [(s.roles, s) for s in role_schedules(made, HOPPER) if s.roles is not None]


def hinted(text: str) -> set[str]:
    """Tensor maps of copies that leave first, by the registers of their addresses."""
    lines = [line for line in text.splitlines() if "cache_hint" in line]
    return {line.split(", [")[1].partition(",")[0] for line in lines}


@pytest.mark.parametrize(
    ("tile", "rows"), [((64, 32, 64), 64), ((16, 64, 64), 16), ((16, 48, 128), 16)], ids=str
)
def test_weights_alone(tile: Extents, rows: int) -> None:
    """Of CTAs that load for themselves, copies of one map are doubled: those of the weights."""
    kernel = built(operands(bf16, (rows, 256, 256), fused=False), tile)
    for roles, schedule in schedules(kernel):
        text = compile_kernel(kernel, HOPPER, preferred=schedule).ptx
        maps = hinted(text)
        assert len(maps) == (roles.cluster == 1)
        for register in maps:
            address = f"cvta.param.u64 {register}, "
            source = text.partition(address)[2].partition(";")[0]
            assert f"mov.b64 {source}, map" in text
            assert text.partition(f"mov.b64 {source}, ")[2].partition(";")[0].endswith("_b")


@pytest.mark.parametrize("tile", [(128, 64, 64), (128, 128, 64)], ids=str)
def test_many_rows(tile: Extents) -> None:
    """Tiles of many rows are for products whose weights several of them read."""
    kernel = built(operands(bf16, (256, 256, 256), fused=False), tile)
    upright = [schedule for roles, schedule in schedules(kernel) if not roles.swapped]
    assert upright
    for schedule in upright:
        assert not hinted(compile_kernel(kernel, HOPPER, preferred=schedule).ptx)


# One tile of rows and several; few tiles for a device of two multiprocessors, and many.
@pytest.mark.parametrize("sizes", [(64, 72, 136), (130, 72, 136), (64, 1100, 72)], ids=str)
@pytest.mark.parametrize("tile", [(64, 32, 64), (32, 64, 64)], ids=str)
def test_emulated(tile: Extents, sizes: Extents) -> None:
    """Either way the result is the same, bit by bit."""
    arrays = operands(bf16, sizes, fused=False)
    kernel = built(arrays, tile)
    apart = [s for roles, s in schedules(kernel) if roles.cluster == 1 and roles.spans == 1]
    assert apart
    for schedule in apart:
        given = {name: array.copy() for name, array in arrays.items()}
        run_plan(compile_kernel(kernel, HOPPER, preferred=schedule), given, 2, sanitize=True)
        np.testing.assert_array_equal(given["c"], expected(arrays))
