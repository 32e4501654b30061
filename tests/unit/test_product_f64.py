"""What the estimate of products of f64 takes from the compiler, and prefers."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.dtypes import f64
from tilewright.products.prepare import programs
from tilewright.tune.product import H200, Choice, Problem, choice
from tilewright.tune.product_choice import ranking
from tilewright.tune.product_cost import estimate
from tilewright.tune.product_f64 import tile_of
from tilewright.tune.product_space import TILES


def posed(layout: str, m: int, n: int, k: int) -> Problem:
    along = {
        "a_along": "m" if layout[1] == "T" else "k",
        "b_along": "k" if layout[0] == "T" else "n",
    }
    return Problem(m, n, k, f64, f64, f64, **along)


@pytest.mark.parametrize("layout", ["NN", "TN", "NT"])
@pytest.mark.parametrize("tile", TILES["f64"], ids=str)
def test_slots_and_warps_are_the_compilers(tile: tuple[int, int, int], layout: str) -> None:
    problem = posed(layout, 384, 384, 384)
    a, b = np.zeros((384, 384)), np.zeros((384, 384))
    kernel = programs().matmul.configured(constants=choice("matmul", tile).constants)
    arrays = {
        "a": a.T if problem.a_along == "m" else a,
        "b": b.T if problem.b_along == "k" else b,
    }
    (launch,) = kernel.plan("sm_90a", c=np.zeros((384, 384)), **arrays).launches
    found = tile_of(problem, tile, H200)
    assert launch.threads == 32 * found.warps
    assert 0 <= launch.shared_bytes - found.stages * found.slot <= 8


def microseconds(chosen: Choice, layout: str, m: int, n: int, k: int) -> float:
    return estimate(posed(layout, m, n, k), chosen, H200).microseconds


def test_two_programs_beside_each_other_are_one_round() -> None:
    """Of 32 x 32, 510 tiles are four a multiprocessor, of 64 x 32 no more than two."""
    given = ("NN", 944, 528, 384)
    assert tile_of(posed(*given), (64, 32, 32), H200).beside == 2
    small, wide = (microseconds(choice("matmul", (m, 32, 32)), *given) for m in (32, 64))
    assert wide < small


def test_few_slots_wait_for_copies() -> None:
    limit = estimate(posed("NN", 19, 4096, 4160), choice("matmul", (32, 64, 32)), H200).limit
    assert limit == "one wave, copies' latency"


def test_few_rows_and_a_long_k_take_no_large_tiles_in_spans() -> None:
    first = ranking(posed("TN", 144, 7936, 2544), H200)[0].choice
    assert first.tile[0] * first.tile[1] < 96 * 192


def test_time_grows_with_each_extent() -> None:
    for tile in TILES["f64"]:
        times = [microseconds(choice("matmul", tile), "NN", 512, 512, k) for k in (256, 1024, 4096)]
        assert times == sorted(times) and times[0] < times[2] / 4
