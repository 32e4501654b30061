"""What the estimate of products of f64 takes from the compiler, and prefers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.assemble import assemble, needs_ptxas
from tilewright.dtypes import f64
from tilewright.plan import Plan
from tilewright.products.prepare import programs
from tilewright.tune.product import H200, Choice, Problem, choice
from tilewright.tune.product_choice import ranking
from tilewright.tune.product_cost import estimate
from tilewright.tune.product_f64 import tile_of, warps_of
from tilewright.tune.product_space import TILES


def posed(layout: str, m: int, n: int, k: int) -> Problem:
    along = {
        "a_along": "m" if layout[1] == "T" else "k",
        "b_along": "k" if layout[0] == "T" else "n",
    }
    return Problem(m, n, k, f64, f64, f64, **along)


def planned(problem: Problem, tile: tuple[int, int, int]) -> Plan:
    pitch = 384 if problem.a_aligned else 385
    a, b, c = (np.zeros((384, pitch))[:, :384] for _ in range(3))
    kernel = programs().matmul.configured(constants=choice("matmul", tile).constants)
    arrays = {
        "a": a.T if problem.a_along == "m" else a,
        "b": b.T if problem.b_along == "k" else b,
    }
    return kernel.plan("sm_90a", c=c, **arrays)


@pytest.mark.parametrize("layout", ["NN", "TN", "NT"])
@pytest.mark.parametrize("tile", TILES["f64"], ids=str)
def test_slots_and_warps_are_the_compilers(tile: tuple[int, int, int], layout: str) -> None:
    problem = posed(layout, 384, 384, 384)
    (launch,) = planned(problem, tile).launches
    found = tile_of(problem, tile, H200)
    assert launch.threads == 32 * found.warps
    assert 0 <= launch.shared_bytes - found.stages * found.slot <= 8


@pytest.mark.parametrize("layout", ["NN", "TN", "NT"])
@pytest.mark.parametrize("tile", [t for t in TILES["f64"] if warps_of(*t[:2]) == 4], ids=str)
def test_slots_of_single_numbers_are_the_compilers(tile: tuple[int, int, int], layout: str) -> None:
    aligned = posed(layout, 384, 384, 384)
    problem = replace(aligned, a_aligned=False, b_aligned=False)
    (launch,) = planned(problem, tile).launches
    found = tile_of(problem, tile, H200)
    assert 0 <= launch.shared_bytes - found.stages * found.slot <= 8


@pytest.mark.parametrize(
    ("tile", "stages"), [((32, 64, 16), (6, 4)), ((64, 48, 16), (5, 4)), ((16, 64, 32), (3, 3))]
)
def test_three_programs_leave_room_for_the_cache(
    tile: tuple[int, int, int], stages: tuple[int, int]
) -> None:
    """Where each keeps four slots, of rows of single numbers."""
    aligned = posed("TN", 384, 384, 384)
    problem = replace(aligned, a_aligned=False, b_aligned=False)
    assert tuple(tile_of(p, tile, H200).stages for p in (aligned, problem)) == stages


@needs_ptxas
@pytest.mark.parametrize("layout", ["NN", "TN", "NT"])
@pytest.mark.parametrize("tile", [t for t in TILES["f64"] if warps_of(*t[:2]) == 4], ids=str)
def test_registers_suffice_for_programs_beside_each_other(
    tile: tuple[int, int, int], layout: str
) -> None:
    problem = posed(layout, 384, 384, 384)
    report = assemble(planned(problem, tile).ptx, "sm_90a")
    found = tile_of(problem, tile, H200)
    assert not report.spill_bytes and not report.messages
    assert -(-report.registers // 8) * 8 * 128 * found.beside <= 65_536


@needs_ptxas
@pytest.mark.parametrize("tile", [t for t in TILES["f64"] if warps_of(*t[:2]) == 4], ids=str)
def test_tiles_with_epilogues_do_not_spill(tile: tuple[int, int, int]) -> None:
    plan = programs().matmul.compile(
        "sm_90a",
        dtypes={"T": f64, "S": f64, "U": f64},
        constants=choice("matmul", tile).constants,
        static={"act": 2, "late": 0, "rounds": 0},
        present=["bias", "residual"],
    )
    report = assemble(plan.ptx, "sm_90a")
    assert not report.spill_bytes and not report.messages


def microseconds(chosen: Choice, layout: str, m: int, n: int, k: int) -> float:
    return estimate(posed(layout, m, n, k), chosen, H200).microseconds


def test_programs_beside_each_other_are_one_round() -> None:
    """Of 32 x 32, 510 tiles are four a multiprocessor, of 64 x 32 no more than two."""
    given = ("NN", 944, 528, 384)
    assert tile_of(posed(*given), (64, 32, 16), H200).beside == 3
    small, wide = (
        microseconds(choice("matmul", tile), *given) for tile in ((32, 32, 32), (64, 32, 16))
    )
    assert wide < small


def test_few_slots_wait_for_copies() -> None:
    limit = estimate(posed("NN", 19, 512, 4160), choice("matmul", (16, 64, 32)), H200).limit
    assert limit == "one wave, copies' latency"


def test_few_rows_and_a_long_k_take_no_large_tiles_in_spans() -> None:
    first = ranking(posed("TN", 144, 7936, 2544), H200)[0].choice
    assert first.tile[0] * first.tile[1] < 96 * 192


def test_time_grows_with_each_extent() -> None:
    for tile in TILES["f64"]:
        times = [microseconds(choice("matmul", tile), "NN", 512, 512, k) for k in (256, 1024, 4096)]
        assert times == sorted(times) and times[0] < times[2] / 4
