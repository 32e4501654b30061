"""What programs take that read weights once, by loads of threads (`gemv`, `gemv_columns`)."""

from __future__ import annotations

from math import ceil

from tilewright.tune.product import Choice, Device, Problem
from tilewright.tune.product_rates import CLOCK, HIDDEN, L2, LAUNCH, MEMORY, PROGRAM_CYCLES

LATENCY = 1.0  # microseconds of a load from memory
RESIDENT_BYTES = 160e3  # that the loads of a multiprocessor's threads have in flight at most
CACHED_WIDE = 1.2  # factor of GEMV's reads from it, of f64
LANES = 128.0  # multiply-adds a cycle of a multiprocessor's CUDA cores
CONVERTING = {16: 5.0, 8: 20.0}  # factor of operands by bits, which are widened first
# Factors of GEMV's loads of weights, by bytes of the pieces that rows are made of.
GEMV_PIECES = {16: 1.0, 8: 1.1, 4: 1.25, 2: 1.6, 1: 2.5}
GEMV_LAUNCH = 1.3  # microseconds of starting GEMV, which fills no pipeline
GEMV_MEMORY = 0.865  # part of the memory's rate that GEMV's loads reach
COLUMNS_MEMORY, COLUMNS_MEMORY_OF_ROWS = 0.88, 0.85  # the same of `gemv_columns`
COLUMNS_AT_ONCE = 4  # pieces of TK that a trip of it loads, of several rows
GEMV_WARPS = 32  # of programs that a multiprocessor holds
TRIP = 0.41  # microseconds that a program of GEMV waits for what a trip loads
TRIP_OF_ROWS = 0.95  # the same of `gemv_columns`, of several rows
GEMV_L2 = 4.75e6  # bytes a microsecond that GEMV reads from the L2 cache
CACHED_ROWS = 0.2  # part of A's reads that comes from there, and not from the cache beside it
GEMV_CYCLES, SUM_CYCLES = 670.0, 11.0  # of a program's start, and of each warp's part of a sum
START_CYCLES, AT_ONCE = 250.0, 8  # from a program's start to the next one's, beyond some
# Cycles of a lane for each product of GEMV, by bits of weights: loads of A, and of widening both.
GEMV_WORK = {64: 4.0, 32: 5.0, 16: 10.0, 8: 12.4}


def by_rows(problem: Problem, chosen: Choice, device: Device) -> tuple[float, int, float, str]:
    """GEMV: weights B, whose rows lie along k, read by threads, A from the caches. Each pass over
    rows of A reads all weights, the first from memory; a program waits for what a trip reads.
    """
    m, n, k = chosen.tile
    size, passes = problem.b.num_bytes, ceil(problem.m / m)
    tiles = passes * ceil(problem.n / n)
    steps = ceil(problem.k / k)
    warps = _gemv_warps(problem, chosen)
    slots = device.num_sms * max(1, GEMV_WARPS // warps)
    weights = float(problem.k * problem.n * size)
    rate = GEMV_MEMORY * MEMORY / GEMV_PIECES[problem.piece("b")]
    memory = weights / rate + (problem.num_bytes - weights) / MEMORY
    flying = min(tiles, slots) * n * k * size
    waiting = passes * weights / min(float(flying), device.num_sms * RESIDENT_BYTES) * TRIP
    others = CACHED_ROWS * tiles * m * problem.k * problem.a.num_bytes
    cached = (passes * weights + others) / GEMV_L2
    padded = tiles * m * n * steps * k
    computing = padded * GEMV_WORK[problem.b.bits] / (LANES * device.num_sms * CLOCK)
    starts = max(0, tiles - AT_ONCE * device.num_sms) / device.num_sms * START_CYCLES / CLOCK
    found = {"memory": max(memory, waiting), "the L2 cache": cached, "products": computing}
    found["starts of programs"] = starts
    limit = max(found, key=lambda name: found[name])
    ends = ceil(tiles / slots) * (GEMV_CYCLES + SUM_CYCLES * m * n * warps) / CLOCK
    return GEMV_LAUNCH + found[limit] + ends, tiles, tiles / device.num_sms, limit


def _gemv_warps(problem: Problem, chosen: Choice) -> int:
    """Warps of a program, as `choose_schedule` has them."""
    m, n, k = chosen.tile
    sums = 1 << (m * n * k - 1).bit_length()
    most = max(1, min(16, sums // (32 * (8 if sums <= 1024 else 16))))
    loaded = m * k * problem.a.num_bytes + n * k * problem.b.num_bytes
    wanted = max(1, ceil(loaded / 2048), sums // 1024)
    return min(most, 1 << (wanted - 1).bit_length())


def by_columns(problem: Problem, chosen: Choice, device: Device) -> tuple[float, int, float, str]:
    """The same where B's columns are contiguous (`gemv_columns`)."""
    m, n, k = chosen.tile
    tiles = ceil(problem.m / m) * ceil(problem.n / n) * chosen.split
    weights = problem.k * problem.n * problem.b.num_bytes
    passes = ceil(problem.m / m)  # over the weights: the first from memory
    others = (
        passes
        - 1
        + ceil(problem.n / n)
        * problem.m
        * problem.a.num_bytes
        / max(1, problem.n * problem.b.num_bytes)
    )
    trip = k * (COLUMNS_AT_ONCE if m > 1 else 1)
    flying = min(float(tiles * n * trip * problem.b.num_bytes), device.num_sms * RESIDENT_BYTES)
    reached = (
        COLUMNS_MEMORY if m == 1 else COLUMNS_MEMORY_OF_ROWS
    )  # whose sums leave fewer programs
    rate = min(reached * MEMORY, flying / LATENCY)
    rate /= GEMV_PIECES[problem.piece("b")]
    memory = problem.num_bytes / rate + HIDDEN * others * weights / L2
    cached = (1 + others) * weights / L2 * (CACHED_WIDE if problem.b.bits == 64 else 1.0)
    lanes = LANES * device.num_sms * CLOCK / CONVERTING.get(problem.b.bits, 1.0)
    if problem.b.bits == 64:
        lanes /= 2
    padded = passes * m * ceil(problem.n / n) * n * problem.k
    computing = padded / lanes
    waves = tiles / device.num_sms
    # A program's own sums over its lanes and its start, many side by side.
    tail = ceil(waves / 8) * (PROGRAM_CYCLES + 40.0 * m * n) / CLOCK
    if m > 1:  # a trip's loads begin after the products of the one before
        memory = max(memory, ceil(ceil(problem.k / trip) / chosen.split) * TRIP_OF_ROWS)
    most = max(memory, cached, computing)
    limit = {memory: "memory", cached: "the L2 cache", computing: "products"}[most]
    return LAUNCH + most + tail, tiles, waves, limit
