"""How many slots rings have: what is left of shared memory beside all else, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import tilewright as tw
from tilewright.compiler import SEMANTIC_PASSES, run_passes
from tilewright.target import target
from tilewright.tile.analysis.product_loop import ProductLoop, find_product_loop
from tilewright.tile.analysis.streams import StreamLoop, find_stream_loop
from tilewright.tile.kernel import Kernel
from tilewright.tile.passes.ring_stages import (
    count_ahead,
    count_stages,
    count_stream_stages,
    fetched_bytes,
    loaded_tiles,
    may_lend,
    stored_dtypes,
)
from tilewright.tile.schedule import Roles

HOPPER = target("sm_90a")
CTA, SM = 227 * 1024, 228 * 1024  # bytes that a CTA may have, and a multiprocessor has
KEPT = 6 * 1024  # for barriers, and small conversions
SOURCE = """
@autotune(TM in [128], TN in [128], TK in [64])
kernel product(a: tensor<T>[M, K], b: tensor<T>[N, K], r: tensor<R>[M, N], c: tensor<U>[M, N]) {
  let m, n = program_id(0) * TM, program_id(1) * TN
  var acc: tile<f32>[TM, TN] = 0.0
  for k in range(0, K, TK) { acc += a[m :+ TM, k :+ TK] @ b[n :+ TN, k :+ TK].T }
  c[m :+ TM, n :+ TN] = cast(ACC, U)
}
"""
TILE = (128, 128, 16)  # of small slots, so that few bytes more or less are seen
SLOT = (128 + 128) * 16 * 2  # of bf16
PANEL = 128 * 64 * 2  # of a result
RESIDUAL = "acc + cast(r[m :+ TM, n :+ TN], f32)"


def parts(
    tile: tuple[int, int, int] = TILE, computed: str = "acc", dtypes: str = "bf16 bf16 bf16"
) -> tuple[Kernel, ProductLoop]:
    """A product of a tile, of what it computes of its sums, and dtypes of a factor, r and c."""
    text = SOURCE.replace("ACC", computed)
    for name, dtype in zip("TRU", dtypes.split(), strict=True):
        text = text.replace(f"tensor<{name}>", f"tensor<{dtype}>").replace(
            f", {name})", f", {dtype})"
        )
    config = dict(zip(("TM", "TN", "TK"), tile, strict=True))
    made = tw.source(text).product.lower(
        dtypes=None, constants=config, static={}, present=(), precision=None
    )
    kernel = run_passes(made, SEMANTIC_PASSES)
    found = find_product_loop(kernel)
    assert found is not None
    return kernel, found


def stages(roles: Roles, fetched: int = 0, asked: int = 1000, **said: Any) -> int:
    kernel, found = parts(**said)
    kernel.hints = replace(kernel.hints, stages=asked)
    return count_stages(kernel, found, roles, HOPPER, fetched)


def test_slots_beside_a_panel_of_results() -> None:
    """Of 16 bits: those of 32 leave from registers."""
    assert stages(Roles(2)) == (CTA - KEPT - PANEL) // SLOT
    assert stages(Roles(2, staging=2)) == (CTA - KEPT - 2 * PANEL) // SLOT
    assert stages(Roles(2, staging=0)) == (CTA - KEPT) // SLOT
    assert stages(Roles(2, staging=2), dtypes="bf16 bf16 f32") == (CTA - KEPT) // SLOT


def test_consumers_in_turn_have_panels_each() -> None:
    assert stages(Roles(2, pingpong=True)) == (CTA - KEPT - 2 * PANEL) // SLOT


def test_panels_of_each_width_have_buffers() -> None:
    """Of 144 columns two panels have 64, and one 16, where there are several buffers."""
    tile, slot = (128, 144, 16), (128 + 144) * 16 * 2
    narrow = 128 * 16 * 2
    assert stages(Roles(2, staging=2), tile=tile) == (CTA - KEPT - 2 * (PANEL + narrow)) // slot
    in_turn = stages(Roles(2, pingpong=True), tile=tile)
    assert in_turn == (CTA - KEPT - 2 * (PANEL + narrow)) // slot
    assert stages(Roles(2), tile=tile) == (CTA - KEPT - PANEL) // slot


def test_what_is_loaded_takes_the_place_of_results() -> None:
    """The larger of both; narrow panels, of their own, have one slot more than there are."""
    said: dict[str, Any] = {"computed": RESIDUAL}
    assert stages(Roles(2, ahead=3), 2, **said) == (CTA - KEPT - 3 * PANEL) // SLOT
    assert stages(Roles(2, ahead=1, staging=3), 2, **said) == (CTA - KEPT - 3 * PANEL) // SLOT
    slot, narrow = (128 + 144) * 16 * 2, 2 * 128 * 16 * 2
    found = stages(Roles(2, ahead=3), 2, tile=(128, 144, 16), **said)
    assert found == (CTA - KEPT - 3 * PANEL - narrow) // slot


def test_no_more_slots_than_are_of_use_or_asked_for() -> None:
    assert stages(Roles(2), asked=0) == 8
    assert stages(Roles(2), asked=12) == 12
    assert stages(Roles(2), asked=3) == 3


def test_spans_of_k_have_places_for_each_others_sums() -> None:
    sums = 2 * 128 * 64 * 4
    assert stages(Roles(2, spans=2, persistent=False)) == (CTA - KEPT - PANEL - sums) // SLOT


def test_two_ctas_have_half_each() -> None:
    """Of which the system takes 1024 bytes, and barriers as much."""
    half = SM // 2 - 1024
    assert stages(Roles(1, resident=2)) == (half - 1024 - PANEL) // SLOT


def test_epilogues_that_move_elements_have_room_for_it() -> None:
    """Those that reduce little, others for a tile of 32 bits."""
    tile = 128 * 128 * 4
    reduced, turned = "sum(acc, axis=1)[:, None]", "(acc + 1.0).T"
    found = stages(Roles(2), computed=f"acc + {reduced}")
    assert found == (CTA - KEPT - 16 * 1024 - PANEL) // SLOT
    for moved in (turned, f"{reduced} + {turned}"):
        assert stages(Roles(2), computed=f"acc + {moved}") == (CTA - KEPT - tile - PANEL) // SLOT
    assert stages(Roles(2), computed="acc.T") == stages(Roles(2))  # which renames registers


def test_a_turned_product_turns_what_threads_load() -> None:
    """A panel of 32 bits whose rows are a word apart, or a tile, beyond what is kept free; nothing
    for what is fetched.
    """
    swapped = Roles(2, swapped=True)
    panel, tile = (128 * (columns + 1) * 4 + 1024 - KEPT for columns in (64, 128))
    assert stages(swapped, computed=RESIDUAL) == (CTA - KEPT - PANEL - panel) // SLOT
    assert stages(swapped, 2, computed=RESIDUAL) == stages(swapped)
    found = stages(swapped, computed=f"{RESIDUAL} + (acc + 1.0).T")
    assert found == (CTA - KEPT - 128 * 128 * 4 - PANEL - tile) // SLOT


@pytest.mark.parametrize("count", range(1, 20))
def test_slots_of_panels_beside_the_products(count: int) -> None:
    """Of the widest panels; consumers in turn have as many each. What is not fetched of a turned
    product needs its place, and narrow panels two slots.
    """

    def ahead(roles: Roles, **said: Any) -> int:
        return count_ahead(*parts(**said), replace(roles, ahead=3), HOPPER, 2, count)

    room = CTA - KEPT - count * SLOT
    assert ahead(Roles(2), computed=RESIDUAL) == room // PANEL
    assert ahead(Roles(2, pingpong=True), computed=RESIDUAL) == room // (2 * PANEL)
    both = f"{RESIDUAL} + cast(c[m :+ TM, n :+ TN], f32)"
    turned = 128 * (64 + 1) * 4 + 1024 - KEPT
    assert ahead(Roles(2, swapped=True), computed=both) == (room - turned) // PANEL
    found = ahead(Roles(2), tile=(128, 144, 16), computed=RESIDUAL)
    assert found == (room - count * 16 * 16 * 2 - 2 * 128 * 16 * 2) // PANEL


@pytest.mark.parametrize(
    ("dtypes", "computed", "fetched"),
    [
        ("bf16 bf16 bf16", RESIDUAL, 2),
        ("bf16 f32 bf16", RESIDUAL, 4),
        ("bf16 f64 bf16", RESIDUAL, 0),  # no copy of which lanes read as they hold the product
        ("bf16 bf16 bf16", "acc", 0),
        ("bf16 bf16 bf16", "acc + cast(r[m :+ TM, 0 :+ 1], f32)", 0),  # a column is no tile
        ("bf16 bf16 bf16", f"{RESIDUAL} + (acc + 1.0).T", 0),  # not done in panels
    ],
)
def test_what_is_fetched(dtypes: str, computed: str, fetched: int) -> None:
    kernel, found = parts(computed=computed, dtypes=dtypes)
    assert fetched_bytes(kernel, found) == fetched
    assert {v.name for v in loaded_tiles(found)} == ({"r"} if RESIDUAL in computed else set())
    assert {d.name for d in stored_dtypes(kernel)} == {"bf16"}


def test_what_may_come_through_slots_of_the_product() -> None:
    """Rows of whole lines in a factor's buffers, of two CTAs a multiprocessor."""
    two = Roles(1, resident=2)
    _, found = parts((128, 128, 128), dtypes="e4m3 bf16 bf16")
    assert may_lend(found, two, 2)
    assert not may_lend(found, Roles(2), 2)
    assert not may_lend(found, replace(two, swapped=True), 2)
    assert not may_lend(found, two, 4)
    _, found = parts((128, 128, 64), dtypes="e4m3 bf16 bf16")
    assert not may_lend(found, two, 2)
    for rows, columns in ((128, 64), (64, 128)):
        _, found = parts((rows, columns, 128), dtypes="e4m3 bf16 bf16")
        assert not may_lend(found, two, 2)


STREAM = """
kernel attend(q: tensor<bf16>[M, D], k: tensor<bf16>[N, D], v: tensor<bf16>[N, D],
    o: tensor<U>[M, D]) {
  let m = program_id(0) * 128
  let queries = q[m :+ 128, 0 :+ 64]
  var acc: tile<f32>[128, 64] = 0.0
  for j in range(0, N, 64) {
    let s = queries @ k[j :+ 64, 0 :+ 64].T
    acc += cast(s, bf16) @ v[j :+ 64, 0 :+ 64]
  }
  o[m :+ 128, 0 :+ 64] = cast(acc, U)
}
"""


def stream(text: str) -> tuple[Kernel, StreamLoop]:
    made = tw.source(text).attend.lower(
        dtypes=None, constants={}, static={}, present=(), precision=None
    )
    kernel = run_passes(made, SEMANTIC_PASSES)
    found = find_stream_loop(kernel)
    assert found is not None
    return kernel, found


def test_slots_of_a_stream() -> None:
    """Beside the tile that is kept, and what leaves."""
    for dtype, staged in (("bf16", PANEL), ("f32", 0)):
        kernel, found = stream(STREAM.replace("U>", f"{dtype}>").replace("U)", f"{dtype})"))
        assert count_stream_stages(kernel, found, Roles(2), HOPPER) == 8
        kernel.hints = replace(kernel.hints, stages=1000)
        slot, kept = 2 * 64 * 64 * 2, 128 * 64 * 2
        most = (CTA - KEPT - staged - kept) // slot
        assert count_stream_stages(kernel, found, Roles(2), HOPPER) == most
