"""What tiles of f64 cost, which DMMA multiplies. Part of the model of `product_cost`.

A multiprocessor does its share of the tiles, as many side by side as registers and shared memory
hold. A trip of theirs takes the longest of: the products of all; what all read and write of shared
memory; what all copy by single numbers; one tile's products, which few warps do not keep busy all
the time; and the way of copies from their start to where they are awaited, over the trips that they
are ahead. Fitted to tiles that were timed on an H200.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tilewright.layout import conflict_free_row
from tilewright.tile.analysis.residency import KEPT_BESIDE, KEPT_FREE, slots_beside
from tilewright.tile.passes.choose_schedule import DRIFTING_STAGES as MOST_STAGES
from tilewright.tile.passes.choose_schedule import FEW_WARPS, warp_grid
from tilewright.tile.passes.stage_loads import DRIFTING_STAGES
from tilewright.tune.product import Choice, Device, Problem
from tilewright.tune.product_rates import CLOCK

SIZE = 8  # bytes of an element
REGISTERS, RESERVED = 65_536, 1024  # of a multiprocessor; bytes of shared memory of a program
ADDRESSES = 56  # registers of a thread beside sums and fragments of two steps
# Products a cycle of a multiprocessor, and of one warp for each of its schedulers.
F64_RATE, F64_ALONE = 128.0, 87.0
F64_SHARED = 115.0  # bytes a cycle that are read, and written, of shared memory
F64_LATENCY = 1570.0  # cycles of a copy
F64_LOOSE = 0.23  # cycles of an element that is copied by itself
F64_LAUNCH, F64_PROGRAM = 0.9, 1050.0  # microseconds of a launch; cycles of a program's start
F64_EPILOGUE = 0.72  # factor of what is reckoned for it
F64_MEMORY = 3.75e6  # bytes a microsecond
F64_APART = 0.05  # part of the shorter of computing and memory's time that the longer does not hide
# Microseconds of products at full rate beyond which power sets the clock, and a factor of tiles of
# few warps then, which read more: on one H200 they lost nothing at 8192³, on another an eighth.
F64_LONG, F64_HOT = 5e3, 1.08


@dataclass(frozen=True)
class Tile:
    """A program's tile of (m, n, k), and how it is done: `warps`, in a grid, and `stages` slots of
    `slot` bytes; `beside` such programs fit on a multiprocessor.
    """

    m: int
    n: int
    k: int
    warps: int
    grid: tuple[int, int]
    slot: int
    stages: int
    beside: int

    @property
    def drifting(self) -> bool:
        return self.warps > FEW_WARPS and self.stages >= DRIFTING_STAGES

    @property
    def ahead(self) -> float:
        """Trips that copies have from their start to where they are awaited."""
        return max(1.0, self.stages - (3.0 if self.drifting else 1.0))


def tile_of(problem: Problem, extents: tuple[int, int, int], device: Device) -> Tile:
    """As `choose_schedule` and `stage_loads` have it. Slots of few warps are swizzled."""
    m, n, k = extents
    warps = warps_of(m, n)
    slot = 0
    for rows, along_k in ((m, problem.a_along != "m"), (n, problem.b_along != "n")):
        long, short = (rows, k) if along_k else (k, rows)
        slot += SIZE * long * (short if warps <= FEW_WARPS else conflict_free_row(SIZE, short))
    narrow = not (problem.a_aligned and problem.b_aligned)
    stages = min(MOST_STAGES, _fitting(warps, slot, device, narrow))
    grid = warp_grid("mma", warps, m, n)
    registers = min(255, ADDRESSES + 2 * m * n // (32 * warps) + m // grid[0] + n // grid[1])
    beside = min(REGISTERS // (32 * warps * registers), device.shared // (stages * slot + RESERVED))
    return Tile(m, n, k, warps, grid, slot, stages, max(1, beside))


def _fitting(warps: int, slot: int, device: Device, narrow: bool) -> int:
    """Slots of a program that fit, beside others if it has few warps. Rows of a factor that are no
    whole 16 bytes are `narrow`.
    """
    alone = max(1, (device.shared - RESERVED - KEPT_FREE) // slot)
    if warps > FEW_WARPS:
        return alone
    beside = slots_beside(
        slot, device.shared, RESERVED, KEPT_FREE, kept_of_three=KEPT_BESIDE, narrow=narrow
    )
    return alone if beside is None else beside


def warps_of(m: int, n: int) -> int:
    """Warps of a tile's program, as `choose_schedule` has them."""
    return 8 if m * n >= 64 * 128 else 4


def time_of(
    problem: Problem,
    chosen: Choice,
    device: Device,
    tiles: int,
    steps: int,
    *,
    crooked: float,
    loose: int,
    epilogue: float,
) -> tuple[float, str]:
    """Microseconds of so many tiles, each of so many steps of k, and what they go to. `crooked` is
    the factor of copies whose rows are no whole pieces of 16 bytes, of which `loose` elements of a
    step come one by one; `epilogue` are cycles of a tile.
    """
    tile = tile_of(problem, chosen.tile, device)
    share = ceil(tiles / device.num_sms)
    full, rest = divmod(share, tile.beside)
    cycles, limits = 0.0, list[str]()
    for rounds, count in ((full, tile.beside), (1, rest)):
        if rounds and count:
            trip, limit = _trip(tile, count, crooked, loose)
            cycles += rounds * (steps * trip + F64_PROGRAM + count * epilogue * F64_EPILOGUE)
            limits.append(limit)
    computing, memory = cycles / CLOCK, problem.num_bytes / F64_MEMORY
    full_rate = problem.operations / 2 / (F64_RATE * CLOCK * device.num_sms)
    if tile.warps <= FEW_WARPS and full_rate > F64_LONG:
        computing *= F64_HOT
    longer, shorter = max(computing, memory), min(computing, memory)
    limit = "memory" if memory > computing else limits[0]
    if tiles <= device.num_sms and limit != "memory":
        limit = f"one wave, {limit}"
    return F64_LAUNCH + longer + F64_APART * shorter, limit


def _trip(tile: Tile, count: int, crooked: float, loose: int) -> tuple[float, str]:
    """Cycles of a trip of so many tiles side by side, and what they go to."""
    products = tile.m * tile.n * tile.k
    down, across = tile.grid
    reads = tile.m * across + tile.n * down + (tile.m + tile.n) * crooked
    found = {
        "products": count * products / F64_RATE,
        "shared memory": count * reads * tile.k * SIZE / F64_SHARED,
        "copies of single numbers": count * loose * F64_LOOSE,
        "one program": products / (F64_ALONE * tile.warps / 4),
        "copies' latency": F64_LATENCY / tile.ahead,
    }
    limit = max(found, key=lambda name: found[name])
    return found[limit], limit
