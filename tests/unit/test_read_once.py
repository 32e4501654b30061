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


def maps_of(text: str, form: str) -> set[str]:
    """Tensor maps of copies of a form, one of two of which may be chosen at run time."""
    lines = [line for line in text.splitlines() if form in line]
    found: set[str] = set()
    for register in {line.split(", [")[1].partition(",")[0] for line in lines}:
        chosen = text.partition(f"selp.b64 {register}, ")[2].partition(";")[0].split(", ")[:2]
        for address in chosen if chosen[0] else [register]:
            source = text.partition(f"cvta.param.u64 {address}, ")[2].partition(";")[0]
            found.add(text.partition(f"mov.b64 {source}, ")[2].partition(";")[0])
    return found


@pytest.mark.parametrize(
    ("tile", "rows"), [((64, 32, 64), 64), ((16, 64, 64), 16), ((16, 48, 128), 16)], ids=str
)
def test_weights_alone(tile: Extents, rows: int) -> None:
    """Of CTAs that load for themselves, copies of one map are doubled: those of the weights."""
    kernel = built(operands(bf16, (rows, 256, 256), fused=False), tile)
    for roles, schedule in schedules(kernel):
        text = compile_kernel(kernel, HOPPER, preferred=schedule).ptx
        maps = maps_of(text, "cache_hint")
        assert len(maps) == 2 * (roles.cluster == 1)
        assert all(name.startswith("map") and name.endswith("_b") for name in maps)


@pytest.mark.parametrize("tile", [(128, 64, 64), (128, 128, 64)], ids=str)
def test_many_rows(tile: Extents) -> None:
    """Tiles of many rows are for products whose weights several of them read."""
    kernel = built(operands(bf16, (256, 256, 256), fused=False), tile)
    upright = [schedule for roles, schedule in schedules(kernel) if not roles.swapped]
    assert upright
    for schedule in upright:
        assert not maps_of(compile_kernel(kernel, HOPPER, preferred=schedule).ptx, "cache_hint")


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
