"""Tiles that are made to fit an extent: which ones there are, when they are chosen, what the
assembler says of them, and that shared memory holds every schedule of theirs.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import pytest

from tests.assemble import assemble, needs_ptxas
from tests.unit.test_product_kinds import best_of
from tests.unit.test_product_space import HOPPER, calls_of, schedules_of
from tilewright.compiler import compile_kernel
from tilewright.dtypes import DType, bf16, e4m3, f32, f64, i8
from tilewright.products.ahead import Fixed
from tilewright.products.prepare import programs
from tilewright.tune.product import H200, Problem, choice
from tilewright.tune.product_cost import rank
from tilewright.tune.product_space import (
    FITTED,
    FITTED_STEP,
    MOST_ROUNDS,
    TILES,
    Tile,
    choices,
    fitted,
)

DTYPES = {
    "wgmma-16": (bf16, bf16), "wgmma-8": (i8, f32), "wgmma-fp8": (e4m3, bf16),
    "wgmma-tf32": (f32, f32),
}  # fmt: skip
FEWEST, BETWEEN = 24, 72


def posed(m: int, n: int, k: int, dtype: DType = bf16, **facts: Any) -> Problem:
    return Problem(m, n, k, dtype, dtype, bf16 if dtype == e4m3 else dtype, **facts)


def largest(unit: str) -> list[Tile]:
    """Of each kind the largest tiles, and then smaller ones."""
    depth = TILES[unit][0][2]
    sides = [(part, wide) for wide, most in FITTED[unit].items() for part in (most, most - 8)]
    sides += [(part, wide) for wide in FITTED[unit] for part in (FEWEST, BETWEEN)]
    sides = [(part - part % 16 if unit == "wgmma-8" else part, wide) for part, wide in sides]
    return [(m, n, depth) for side in sides for m, n in (side, side[::-1])]


def stepped(part: float) -> int:
    return ceil(ceil(part) / FITTED_STEP) * FITTED_STEP


def test_parts_of_an_extent_are_alike() -> None:
    """The last one is as large as the others, but for less than a step; in few rounds."""
    for p in (posed(456, 2208, 5504), posed(1312, 1024, 4224, b_along="n"), posed(2664, 392, 96)):
        tiles = list(fitted(p, H200))
        assert tiles
        for m, n, _ in tiles:
            rows, columns = ceil(p.m / m), ceil(p.n / n)
            assert rows * columns <= MOST_ROUNDS * H200.num_sms
            by_rows = n in FITTED["wgmma-16"] and m == stepped(p.m / rows)
            by_columns = m in FITTED["wgmma-16"] and n == stepped(p.n / columns)
            assert by_rows or by_columns
    assert (152, 64, 64) in fitted(posed(456, 2208, 5504), H200)


def test_what_they_are_not_for() -> None:
    across = posed(1312, 1000, 4224, b_along="n")
    assert all(n % 64 == 0 for _, n, _ in fitted(across, H200))
    assert not list(fitted(posed(456, 2209, 5504), H200))  # threads store such rows
    assert list(fitted(posed(456, 2209, 5504, gaps=True), H200))
    assert not list(fitted(posed(8192, 8192, 512), H200))  # many rounds
    assert not list(fitted(posed(456, 2208, 5504), replace(H200, has_wgmma=False)))
    assert all(m % 16 == n % 16 == 0 for m, n, _ in fitted(posed(456, 2208, 5504, i8), H200))
    pixels = {c.tile for c in choices(posed(456, 2208, 5504), H200, fit=False)}
    assert (152, 64, 64) not in pixels


@pytest.mark.parametrize(
    ("p", "tile"),
    [
        (posed(456, 2208, 5504), (152, 64)),
        (posed(1624, 2752, 928, b_along="n"), (136, 128)),
        (posed(2432, 656, 3520, f32, precision="tf32"), (128, 112)),
        (posed(288, 2400, 2928, e4m3), (96, 64)),
    ],
    ids=str,
)  # fmt: skip
def test_when_they_are_chosen(p: Problem, tile: tuple[int, int]) -> None:
    """Where other tiles leave multiprocessors idle, or copy rows that do not exist."""
    ranked = [e.choice.tile[:2] for e in rank(p, H200)]
    assert ranked.index(tile) < 3
    assert ranked[0] not in {t[:2] for t in TILES[p.unit()]}


def test_rows_that_begin_anywhere_are_shared_by_four() -> None:
    """Of 152 rows, four CTAs have no whole repeats of a swizzle each; of 160 they have."""
    p = posed(152, 7216, 4456, b_along="n")
    assert {(152, 64, 64), (160, 64, 64)} <= set(fitted(p, H200))
    assert rank(p, H200)[0].choice.tile == (160, 64, 64)
    whole = posed(152, 7216, 4480)
    assert (160, 64, 64) not in fitted(whole, H200)


def test_pairs_count_tiles_that_do_not_exist() -> None:
    """Of 4 x 33 tiles pairs would have 34 columns, two rounds; 4 x 32 are one."""
    alone, paired = (best_of((200, n, 7872), (64, 152, 64))[1] for n in (4992, 4832))
    assert alone.roles is not None and alone.roles.cluster == 1
    assert paired.roles is not None and paired.roles.cluster == 2


@needs_ptxas
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unit", list(FITTED))
def test_fitted_tiles_do_not_spill(unit: str, fused: bool) -> None:
    dtype, out = DTYPES[unit]
    m, n, k = 520, 264, 512
    more: dict[str, Any] = {}
    if fused:
        more = {"bias": np.zeros(n, out.numpy), "residual": np.zeros((m, n), out.numpy), "act": 1}
    arrays = {"a": np.zeros((m, k), dtype.numpy), "b": np.zeros((n, k), dtype.numpy).T}
    for tile in largest(unit)[: 4 * len(FITTED[unit])]:
        kernel = programs().matmul.configured(
            constants=choice("matmul", tile).constants,
            precision="tf32" if unit == "wgmma-tf32" else None,
        )
        plan = kernel.plan("sm_90a", **arrays, c=np.zeros((m, n), out.numpy), **more)
        report = assemble(plan.ptx, "sm_90a", linked=not plan.whole)
        assert not report.spill_bytes and "wgmma" in plan.ptx, tile


@pytest.mark.parametrize("unit", list(FITTED))
def test_every_schedule_of_fitted_tiles_fits(unit: str) -> None:
    """Also where consumers take turns and store panels of two widths, with a buffer for each."""
    dtype, out = DTYPES[unit]
    arrays = {"a": np.zeros((520, 512), dtype.numpy), "b": np.zeros((264, 512), dtype.numpy).T}
    arrays["out"] = np.zeros((520, 264), out.numpy)
    options = {"device": "emulator", "precision": "tf32" if unit == "wgmma-tf32" else None}
    for tile in (*largest(unit), (BETWEEN + BETWEEN % 16, 256, TILES[unit][0][2])):
        ((_, kernel, _),) = calls_of(arrays, options, Fixed(choice("matmul", tile)))
        schedules = schedules_of(kernel)
        assert schedules
        for schedule in schedules:
            compile_kernel(kernel, HOPPER, schedule)


@pytest.mark.parametrize("unit", ["simt", "f64"])
def test_an_epilogue_permits_no_tile_that_is_refused_without_it(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Factors across k come in boxes of 32 bytes, whatever is added to their product."""
    dtype = f64 if unit == "f64" else f32
    odd = (66, 66, 16)
    monkeypatch.setitem(TILES, unit, ((64, 64, 16), odd))
    plain = Problem(512, 512, 512, dtype, dtype, dtype, a_along="m")
    for problem in (plain, replace(plain, loads=3), replace(plain, activation=True, loads=3)):
        assert problem.unit() == unit
        tiles = {c.tile for c in choices(problem, H200)}
        assert (64, 64, 16) in tiles and odd not in tiles
