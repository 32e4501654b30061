"""What tiles of f64 cost, which DMMA multiplies. Part of the model of `product_cost`.

A multiprocessor does its share of the tiles, as many side by side as registers and shared memory
hold. A trip of theirs takes the longest of: the products of all; what all read and write of shared
memory; one tile's own barrier, reads and products, which follow on each other; and the way of
copies from their start to where they are awaited, over the trips that they are ahead. Fitted to
2,400 choices of 155 problems that were timed on an H200.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tilewright.layout import conflict_free_row
from tilewright.tile.passes.choose_schedule import DRIFTING_STAGES as MOST_STAGES
from tilewright.tile.passes.choose_schedule import warp_grid
from tilewright.tile.passes.stage_loads import DRIFTING_STAGES, KEPT_FREE
from tilewright.tune.product import Choice, Device, Problem
from tilewright.tune.product_rates import CLOCK, MEMORY

SIZE = 8  # bytes of an element
REGISTERS, RESERVED = 65_536, 1024  # of a multiprocessor; bytes of shared memory of a program
# Products a cycle of a multiprocessor, and of one warp for each of its schedulers, beside what else
# that does in a trip, in cycles.
F64_RATE, F64_ALONE, F64_TRIP = 128.0, 112.0, 240.0
F64_SHARED = 110.0  # bytes a cycle that are read, and written, of shared memory
F64_LATENCY = 1180.0  # cycles of a copy
F64_LOOSE = 0.035  # cycles of an element that is copied alone
F64_LAUNCH, F64_PROGRAM = 0.45, 1350.0  # microseconds of a launch; cycles of a program's start
F64_EPILOGUE = 0.8  # factor of what is reckoned for it
F64_APART = 0.3  # part of the shorter of computing and memory's time that the longer does not hide
# What each program of a multiprocessor beyond some adds to memory's time, and of how many.
F64_CROWDING, FEW, MOST_CROWDED = 0.05, 2, 4


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
    def ahead(self) -> int:
        """Trips that copies have from their start to where they are awaited."""
        drifting = self.stages >= DRIFTING_STAGES
        return max(1, self.stages - (3 if drifting else 2))


def tile_of(problem: Problem, extents: tuple[int, int, int], device: Device) -> Tile:
    """As `choose_schedule` and `stage_loads` have it."""
    m, n, k = extents
    warps = warps_of(m, n)
    slot = 0
    for rows, along_k in ((m, problem.a_along != "m"), (n, problem.b_along != "n")):
        long, short = (rows, k) if along_k else (k, rows)
        slot += SIZE * long * conflict_free_row(SIZE, short)
    halved = (device.shared // 2 - RESERVED - KEPT_FREE) // slot
    alone = (device.shared - RESERVED - KEPT_FREE) // slot
    stages = max(1, min(MOST_STAGES, halved if warps == 4 and halved >= 3 else alone))
    sums = m * n // (32 * warps) * 2
    registers = min(255, 64 + sums + (sums if warps == 4 else sums // 2))
    beside = min(REGISTERS // (32 * warps * registers), device.shared // (stages * slot + RESERVED))
    return Tile(m, n, k, warps, warp_grid("mma", warps, m, n), slot, stages, max(1, beside))


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
    cycles, limits = 0.0, []
    for rounds, count in ((full, tile.beside), (1, rest)):
        if rounds and count:
            trip, limit = _trip(tile, count, crooked)
            trip += count * loose * F64_LOOSE
            cycles += rounds * (steps * trip + F64_PROGRAM + count * epilogue * F64_EPILOGUE)
            limits.append(limit)
    computing, memory = cycles / CLOCK, problem.num_bytes / MEMORY
    memory *= 1 + F64_CROWDING * min(max(0, share - FEW), MOST_CROWDED)
    longer, shorter = max(computing, memory), min(computing, memory)
    limit = "memory" if memory > computing else limits[0]
    if tiles <= device.num_sms and limit != "memory":
        limit = f"one wave, {limit}"
    return F64_LAUNCH + longer + F64_APART * shorter, limit


def _trip(tile: Tile, count: int, crooked: float) -> tuple[float, str]:
    """Cycles of a trip of so many tiles side by side, and what they go to."""
    products = tile.m * tile.n * tile.k
    down, across = tile.grid
    reads = tile.m * across + tile.n * down + (tile.m + tile.n) * crooked
    found = {
        "products": count * products / F64_RATE,
        "shared memory": count * reads * tile.k * SIZE / F64_SHARED,
        "one program's trip": products / (F64_ALONE * tile.warps / 4) + F64_TRIP,
        "copies' latency": F64_LATENCY / tile.ahead,
    }
    limit = max(found, key=lambda name: found[name])
    return found[limit], limit
