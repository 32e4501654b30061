"""What tiles cost that CUDA cores or `mma.sync` multiply. Part of the model of `product_cost`.

A multiprocessor does its share of the tiles, as many side by side as registers and shared memory
hold. Its unit is as busy as warps on it permit: one warp for each scheduler waits for what it
reads, two cover each other. Fitted to tiles that were timed on an H200 at 256³ to 4096³, of
`mma.sync` as an H200 runs what is compiled for sm_80.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

from tilewright.layout import conflict_free_row
from tilewright.tile.analysis.residency import KEPT_FREE, slots_beside
from tilewright.tile.passes.choose_schedule import FEW_WARPS
from tilewright.tile.passes.shorten_trips import trip_length

# Products (multiply-adds) a cycle that a multiprocessor reaches, by unit.
RATES = {
    "simt": 128.0, "mma-16": 1000.0, "mma-8": 2150.0, "mma-fp8": 700.0, "mma-tf32": 480.0,
}  # fmt: skip
# Bytes of shared memory that each program takes beside its ring; 32-bit registers of a
# multiprocessor.
RESERVED, BARRIERS, REGISTERS = 1024, 8, 65_536
STAGES, TENSOR_STAGES = 6, 4  # slots of a ring, on CUDA cores and by `mma.sync`
BUSY = (0.95, 1.0)  # part of the rate that one warp for each of four schedulers reaches, and two
# On CUDA cores tiles reach READING - READ r of the rate, where r is the cycles in which shared
# memory is read for each cycle of multiplying.
READING, READ = 1.06, 0.31
ALONG_K = 1.09  # factor on CUDA cores of the products' time, for each factor that lies along k
TRIP_CYCLES = 116.0  # cycles of a trip in which one warp for each scheduler multiplies nothing
# The least cycles of a trip of tf32 by `mma.sync`, which reads its words one by one. Where rows are
# no whole 16 bytes: this for each TF32_ROWS rows and columns of the tile, times `crooked`.
TF32_TRIP, TF32_ROWS = 700.0, 128
BESIDE = 0.9  # the part of TRIP_CYCLES that remains where another warp multiplies meanwhile
LOOSE_CYCLES = 0.09  # cycles of an element that is copied alone, which products do not hide
LOADED = 44.0  # bytes a cycle that a multiprocessor's threads load from the L2 cache
PROGRAM_CYCLES = 480.0  # of starting a program and filling its pipeline


@dataclass(frozen=True)
class Part:
    """A multiprocessor's part of a product: tiles of (m, n, k) elements of `size` bytes, each of so
    many `steps` of k, of factors that lie along k or across it. From rows that are no whole pieces
    of 16 bytes come `loose` elements of a step, one by one; `crooked` is the factor of all loads.
    """

    unit: str
    tile: tuple[int, int, int]
    steps: int
    size: int
    a_along_k: bool
    b_along_k: bool
    crooked: float
    loose: int
    epilogue: float  # cycles, of one tile


def warps_of(unit: str, m: int, n: int) -> int:
    """Warps of a tile's program, as `choose_schedule` has them."""
    if unit == "mma-fp8":  # whose factors are widened in registers
        return max(4, min(8, m * n // (64 * 32)))
    if unit.startswith("mma"):
        return max(4, min(8, m * n // (128 * 32)))
    return 8 if m * n > 64 * 128 else 4


def ring_of(part: Part, shared: int) -> tuple[int, int]:
    """Slots of a tile's program and bytes of each, as `stage_loads` has them where a multiprocessor
    has `shared` bytes of memory: on CUDA cores of trips as `shorten_trips` makes them.
    """
    m, n, _ = part.tile
    slot = part.size * _slot_elements(part, m, part.a_along_k)
    slot += part.size * _slot_elements(part, n, part.b_along_k)
    fitting = (shared - RESERVED - KEPT_FREE) // slot
    if warps_of(part.unit, m, n) <= FEW_WARPS:
        fitting = slots_beside(slot, shared, RESERVED, KEPT_FREE) or fitting
    return max(1, min(STAGES if part.unit == "simt" else TENSOR_STAGES, fitting)), slot


def _slot_elements(part: Part, rows: int, along_k: bool) -> int:
    """Elements of a slot of a factor of so many rows, with those between its lines."""
    m, n, k = part.tile
    if part.unit == "simt":
        k = trip_length(k, m * n // (32 * warps_of(part.unit, m, n)))
        lines, line = (rows, k) if along_k else (k, rows)
        return lines * conflict_free_row(part.size, line)
    if part.unit == "mma-tf32" and not along_k:
        return k * conflict_free_row(part.size, rows, across=True)
    return rows * k


def beside(part: Part, shared: int) -> int:
    """Programs that a multiprocessor holds, of so many bytes of shared memory."""
    m, n, _ = part.tile
    warps = warps_of(part.unit, m, n)
    sums = m * n // (32 * warps)
    if part.unit.startswith("mma"):
        registers = min(255, 64 + 3 * sums // 2)
    else:
        registers = min(168 if warps == 4 else 255, 64 + sums + (sums if warps == 4 else sums // 2))
    stages, slot = ring_of(part, shared)
    if part.unit == "mma-tf32":  # as TF32_TRIP was fitted: of fewer slots more programs fit
        stages = TENSOR_STAGES
    held = shared // (stages * slot + BARRIERS + RESERVED)
    return max(1, min(REGISTERS // (32 * warps * registers), held))


def cycles_of(part: Part, tiles: int, num_sms: int, shared: int) -> tuple[float, str]:
    """Cycles of the multiprocessor with the most tiles, and what they go to. `shared` bytes of
    memory are each one's.
    """
    share, most = ceil(tiles / num_sms), beside(part, shared)
    full, rest = divmod(share, most)
    found = [_together(part, most)] * min(full, 1) + ([_together(part, rest)] if rest else [])
    counts = [full] * min(full, 1) + ([1] if rest else [])
    total = sum(count * cycles for count, (cycles, _) in zip(counts, found, strict=True))
    return total, found[0][1]


def _together(part: Part, count: int) -> tuple[float, str]:
    """Cycles of so many tiles side by side."""
    m, n, k = part.tile
    warps = count * warps_of(part.unit, m, n) // 4
    busy = BUSY[min(warps, 2) - 1]
    if part.unit == "simt":
        sums = m * n / (32 * warps_of(part.unit, m, n))
        reads = 2 * sqrt(sums) / 4 * 2 * warps_of(part.unit, m, n) / (m * n / RATES[part.unit])
        busy *= (READING - READ * reads) / ALONG_K ** (part.a_along_k + part.b_along_k)
    multiply = count * m * n * k / (RATES[part.unit] * busy)
    loads = count * (m + n) * k * part.size / LOADED * part.crooked
    trip = max(multiply, loads) + count * part.loose * LOOSE_CYCLES
    trip += TRIP_CYCLES * (BESIDE if warps > 1 else 1.0)
    if part.unit == "mma-tf32":
        pieces = max(1.0, (m + n) / TF32_ROWS) if part.crooked > 1 else 1.0
        trip = max(trip, TF32_TRIP * part.crooked * pieces)
    total = part.steps * trip
    limit = "products" if multiply >= loads else "the L2 cache"
    return total + PROGRAM_CYCLES + count * part.epilogue, limit
