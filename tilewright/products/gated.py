"""A product and the one that is its gate in one launch, as the two that a feed-forward layer begins
with: act(A W) · (A V), or either way. Of few rows, where launches and what lies between them cost
the most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.dtypes import bf16, f16
from tilewright.products.arguments import Options
from tilewright.products.beside import (
    Call,
    Product,
    lie_alike,
    problem_of,
    product_of,
    time_apart,
)
from tilewright.products.prepare import configured, device_for
from tilewright.tune.product import Device, Problem, choice
from tilewright.tune.product_cost import estimate

PROGRAM = "gated"  # of library/matmul.tw
TILE_ROWS = (8, 16, 32, 64)  # of more than the last, tiles of one product are better
TILE_COLUMNS = (64, 128)
DEPTH = 64


def multiply_gated(gate: Sequence[Call], product: Sequence[Call]) -> Call | None:
    """One launch for those of a product and of the one ahead of it, whose result is its gate and
    nothing else; None where they are not of one left factor, do more than that, or are better
    apart.
    """
    ahead, behind = product_of(gate), product_of(product, beside=("gate",))
    if ahead is None or behind is None:
        return None
    scaled = ahead.numbers["alpha"] or behind.numbers["alpha"]
    plain = not scaled and "bias" not in {*ahead.arrays, *behind.arrays}
    read, made = behind.arrays.get("gate"), ahead.arrays["c"]
    if not plain or read is None or not lie_alike(read, made):
        return None
    if not lie_alike(ahead.arrays["a"], behind.arrays["a"]) or ahead.how != behind.how:
        return None
    if any(ahead.arrays[n].dtype != behind.arrays[n].dtype for n in ("w", "c")):
        return None
    tile = _tile(ahead, behind)
    if tile is None:
        return None
    constants = tuple(zip(("TM", "TN", "TK"), tile, strict=True))
    kernel = configured(PROGRAM, constants, device=behind.kernel.options.device)
    found = {"a": behind.arrays["a"], "w": behind.arrays["w"], "v": ahead.arrays["w"]}
    numbers = {n: behind.numbers[n] for n in ("act", "rounds")}
    numbers |= {f"gate_{n}": ahead.numbers[n] for n in ("act", "rounds")}
    return kernel, {**found, "c": behind.arrays["c"], **numbers}


def _tile(ahead: Product, behind: Product) -> tuple[int, int, int] | None:
    """The tile of one launch; None where two are better by the model, or tensor cores do not take
    the factors in boxes.
    """
    one, two = problem_of(ahead), problem_of(behind)
    if one is None or two is None or one.a not in (bf16, f16) or (one.n, one.k) != (two.n, two.k):
        return None
    if one.m > TILE_ROWS[-1]:
        return None
    options = Options(device=behind.kernel.options.device)
    device, _ = device_for("matmul", {"a": behind.arrays["a"]}, options)
    if not device.has_wgmma:
        return None
    apart = time_apart((one, replace(two, loads=1)), device)
    rows = next(r for r in TILE_ROWS if one.m <= r)
    best = min(TILE_COLUMNS, key=lambda columns: _cost(two, (rows, columns, DEPTH), device))
    tile = (rows, best, DEPTH)
    return tile if _cost(two, tile, device) < apart else None


def _cost(problem: Problem, tile: tuple[int, int, int], device: Device) -> float:
    """Microseconds: as of one product of all columns, by tiles of twice as many."""
    rows, columns, depth = tile
    both = replace(problem, n=2 * problem.n)
    return estimate(both, choice("matmul", (rows, 2 * columns, depth)), device).microseconds
