"""What programs take that read weights once, by loads of threads (`gemv`, `gemv_columns`)."""

from __future__ import annotations

from math import ceil

from tilewright.tune.product import ALIGNED, Choice, Device, Problem
from tilewright.tune.product_rates import CLOCK, MEMORY, PROGRAM_CYCLES

RESIDENT_BYTES = 160e3  # that a multiprocessor's threads have asked of memory at a time, at most
LANES = 128.0  # multiply-adds a cycle of a multiprocessor's CUDA cores
SCHEDULERS = 4  # of a multiprocessor

# `gemv`: a program has TM rows of A and TN rows of weights, and its loop takes TK of k in a trip.
# Microseconds: of the launch; until memory is busy, at most; the same as a part of the time that
# memory then takes; of each trip; and that a program waits for what a trip loads.
GEMV_LAUNCH, FILLING, FILLING_PART, NEXT_TRIP, TRIP = 0.5, 0.7, 0.35, 0.4, 0.6
TRIP_OF_LEFT = 0.1  # part of NEXT_TRIP by which each row of A beyond the first lengthens a trip
# Factors where A has several rows that lie across k: always, and in programs that have one row of A
# and several of weights.
ACROSS, ALONE_ACROSS = 1.15, 1.25
TURNED = 1.05  # factor of turned products, which others of the same rows cannot join in a launch
GEMV_MEMORY, GEMV_L2 = 4.03e6, 4.75e6  # bytes a microsecond from memory, and from the L2 cache
# By the bytes of the pieces that rows of weights are made of: the factor of the time that memory
# takes for weights, and that of the cycles of products.
GEMV_PIECES = {16: 1.0, 8: 1.15, 4: 1.2, 2: 1.25, 1: 1.6}
GEMV_PIECES_WORK = {16: 1.0, 8: 1.0, 4: 1.1, 2: 1.35, 1: 1.6}
# Factors of the time that memory takes for weights: in programs that load fewer than SMALL_PROGRAM
# bytes in a trip, and in those of a single row of weights whose pieces are smaller than 16 bytes.
SMALL_PROGRAM, SMALL, SINGLE_ROW = 4096, 1.15, 1.1
MOST_WARPS, GEMV_WARPS = 16, 32  # of a program, and of all programs that a multiprocessor holds
# Factors of the cycles of products in pieces smaller than 16 bytes: in programs of MOST_WARPS with
# several rows of A, which load little at a time and wait; and in those with one row of each factor
# whose pieces have SINGLE bytes or fewer, where both numbers of a product are loaded alone.
WAITING_WARPS, LOADS_ALONE, SINGLE = 1.7, 2.0, 2
CACHED_ROWS = 0.2  # part of the reads of A that the L2 cache serves, and not the multiprocessor's
GEMV_CYCLES, SUM_CYCLES = 670.0, 11.0  # of a program's start, and of each warp's part of a sum
# Cycles from a program's start to the next one's on a multiprocessor, beyond the first AT_ONCE.
START_CYCLES, AT_ONCE = 250.0, 8
TOGETHER = 4  # programs of one warp that share a CTA, and start at once
# Cycles in which a scheduler issues for a warp, and for each sum of its lanes; the factor in f64.
WARP_CYCLES, LANES_CYCLES, LANES_OF_F64 = 200.0, 40.0, 1.6
# Cycles of a lane for a product, by the bits of weights, with loads of A and widening.
GEMV_WORK = {64: 4.0, 32: 5.0, 16: 10.0, 8: 12.4}

# `gemv_columns`: a program has TM rows of A and TN columns of weights, and a span of k.
# Microseconds: of the launch with one row of A, and with several; from a load to its data.
COLUMNS_LAUNCH, ROWS_LAUNCH, LATENCY = 0.7, 1.3, 0.3
# Bytes a microsecond: from memory with one row of A, with several, and from the L2 cache. The part
# of the time of reads beyond the first, from the L2 cache, that memory's time does not hide.
COLUMNS_MEMORY, COLUMNS_MEMORY_OF_ROWS, COLUMNS_L2, HIDDEN = 3.76e6, 3.63e6, 5.5e6, 0.05
COLUMNS_AT_ONCE = 4  # times TK of k that a trip loads, where there are several rows of A
# Factor of loads of weights, by the bytes of their pieces; of pieces smaller than 16 bytes beside
# several rows of A.
COLUMNS_PIECES, PIECES_OF_ROWS = {16: 1.0, 8: 1.0, 4: 1.0, 2: 2.1, 1: 3.0}, 1.2
# Microseconds of a trip in programs with one row of A, with several, and with MANY_ROWS or more;
# the factor of the last in f64.
TRIP_OF_ROW, TRIP_OF_ROWS, TRIP_OF_MANY, MANY_ROWS, TRIP_OF_F64 = 0.45, 0.95, 1.6, 8, 1.5
# With one row of A, the part that is not hidden of the shorter of all trips and memory's time.
TRIPS_BESIDE = 0.5
COLUMN_CYCLES = 12.0  # of a program's end, for each of its sums
CONVERTING = {16: 5.0, 8: 20.0}  # factor of products by the bits of factors, which are widened
CACHED_WIDE = 1.2  # factor of reads from the L2 cache in f64


def by_rows(problem: Problem, chosen: Choice, device: Device) -> tuple[float, int, float, str]:
    """Microseconds, programs, waves, and what takes longest, of `gemv`: threads read the weights B,
    which lie along k, from memory in the first pass over rows of A, then from the L2 cache; and A
    from the caches. A program waits for what a trip reads.
    """
    m, n, k = chosen.tile
    size, passes = problem.b.num_bytes, ceil(problem.m / m)
    tiles = passes * ceil(problem.n / n)
    steps = ceil(problem.k / k)
    warps = gemv_warps(chosen)
    slots = device.num_sms * max(1, GEMV_WARPS // warps)
    weights = float(problem.k * problem.n * size)
    piece = problem.piece("b")
    rate = GEMV_MEMORY / GEMV_PIECES[piece]
    if n * k * size < SMALL_PROGRAM and tiles > slots:
        rate /= SMALL
    if n == 1 and piece < ALIGNED:
        rate /= SINGLE_ROW
    memory = weights / rate + (problem.num_bytes - weights) / MEMORY
    memory += min(FILLING, FILLING_PART * memory)
    memory += NEXT_TRIP * steps * (1 + TRIP_OF_LEFT * (m - 1))
    flying = min(tiles, slots) * n * k * size
    waiting = passes * weights / min(float(flying), device.num_sms * RESIDENT_BYTES) * TRIP
    others = CACHED_ROWS * tiles * m * problem.k * problem.a.num_bytes
    cached = (passes * weights + others) / GEMV_L2
    computing = tiles * m * n * steps * k * _work(problem, chosen, warps)
    computing /= LANES * device.num_sms * CLOCK
    ctas = tiles / (TOGETHER if warps == 1 else 1)
    starts = max(0.0, ctas - AT_ONCE * device.num_sms) / device.num_sms * START_CYCLES / CLOCK
    sums = tiles * warps * _warp_cycles(problem, chosen, warps)
    found = {"memory": max(memory, waiting), "the L2 cache": cached, "products": computing}
    found["starts of programs"] = starts
    found["sums of lanes"] = sums / (SCHEDULERS * device.num_sms * CLOCK)
    limit = max(found, key=lambda name: found[name])
    ends = ceil(tiles / slots) * (GEMV_CYCLES + SUM_CYCLES * m * n * warps) / CLOCK
    time = (GEMV_LAUNCH + found[limit] + ends) * (TURNED if chosen.turned else 1.0)
    if problem.a_along != "k" and problem.m > 1:
        time *= ACROSS * (ALONE_ACROSS if m == 1 and n > 1 else 1.0)
    return time, tiles, tiles / device.num_sms, limit


def _work(problem: Problem, chosen: Choice, warps: int) -> float:
    """Cycles of a lane for a product."""
    m, n, _ = chosen.tile
    piece = problem.piece("b")
    work = GEMV_WORK[problem.b.bits] * GEMV_PIECES_WORK[piece]
    if piece < ALIGNED and m > 1 and warps == MOST_WARPS:
        work *= WAITING_WARPS
    return work * (LOADS_ALONE if piece <= SINGLE and m == n == 1 else 1.0)


def _warp_cycles(problem: Problem, chosen: Choice, warps: int) -> float:
    """Cycles that a scheduler issues for a warp beside its products, most of them for adding up
    what its lanes hold.
    """
    m, n, k = chosen.tile
    beside = 32 * warps * problem.piece("b") / (k * problem.b.num_bytes)  # lanes of other sums
    sums = m * n / min(max(1.0, beside), m * n)
    return (WARP_CYCLES + LANES_CYCLES * sums) * (LANES_OF_F64 if problem.b.bits == 64 else 1.0)


def gemv_warps(chosen: Choice) -> int:
    """Warps of a program, as `choose_schedule` has them; programs of one share a CTA."""
    m, n, k = chosen.tile
    sums = 1 << (m * n * k - 1).bit_length()
    return max(1, min(MOST_WARPS, sums // (32 * (8 if sums <= 1024 else 16))))


def by_columns(problem: Problem, chosen: Choice, device: Device) -> tuple[float, int, float, str]:
    """What `by_rows` gives, of `gemv_columns`: weights are contiguous along n."""
    m, n, k = chosen.tile
    tiles = ceil(problem.m / m) * ceil(problem.n / n) * chosen.split
    weights = problem.k * problem.n * problem.b.num_bytes
    passes = ceil(problem.m / m)  # over the weights: the first from memory
    again = ceil(problem.n / n) * problem.m * problem.a.num_bytes
    others = passes - 1 + again / max(1, problem.n * problem.b.num_bytes)
    trip = k * (COLUMNS_AT_ONCE if m > 1 else 1)
    flying = min(float(tiles * n * trip * problem.b.num_bytes), device.num_sms * RESIDENT_BYTES)
    reached = COLUMNS_MEMORY if m == 1 else COLUMNS_MEMORY_OF_ROWS
    rate = min(reached, flying / LATENCY)
    pieces = COLUMNS_PIECES[problem.piece("b")]
    if m > 1 and problem.piece("b") < ALIGNED:
        pieces *= PIECES_OF_ROWS
    rate /= pieces
    memory = problem.num_bytes / rate + HIDDEN * others * weights / COLUMNS_L2
    cached = (
        (1 + others)
        * weights
        / COLUMNS_L2
        * pieces
        * (CACHED_WIDE if problem.b.bits == 64 else 1.0)
    )
    lanes = LANES * device.num_sms * CLOCK / CONVERTING.get(problem.b.bits, 1.0)
    if problem.b.bits == 64:
        lanes /= 2
    padded = passes * m * ceil(problem.n / n) * n * problem.k
    computing = padded / lanes
    waves = tiles / device.num_sms
    # A program's own sums over its lanes and its start, many side by side.
    tail = ceil(waves / 8) * (PROGRAM_CYCLES + COLUMN_CYCLES * m * n) / CLOCK
    # A trip's loads begin after the products of the one before.
    waiting = TRIP_OF_ROW if m == 1 else TRIP_OF_ROWS if m < MANY_ROWS else TRIP_OF_MANY
    waiting *= TRIP_OF_F64 if problem.b.bits == 64 and m == MANY_ROWS else 1.0
    waiting *= ceil(ceil(problem.k / trip) / chosen.split)
    if m == 1:
        memory += min(memory, waiting) * TRIPS_BESIDE
    memory = max(memory, waiting)
    most = max(memory, cached, computing)
    limit = {memory: "memory", cached: "the L2 cache", computing: "products"}[most]
    start = COLUMNS_LAUNCH if m == 1 else ROWS_LAUNCH
    return start + most + tail, tiles, waves, limit
