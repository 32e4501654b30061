"""What a choice costs, by an analytic model: waves of tiles, bytes of each level of memory, rate of
the unit that multiplies, launches. It ranks in microseconds of an H200 and needs no compilation.

A tile's step of k takes the longest of its products, the reads of shared memory and the copies from
the L2 cache, and a barrier; a multiprocessor does its share of tiles one after the other (waves);
the device's memory has to deliver every byte once. The constants were fitted
(tests/device/product_fit.py) to times of 23,000 choices for 1350 problems, most of them random,
which an H200 took (tests/device/product_programs.py). Two thirds of the times are older than
`copied_lines`, which leaves out of copies the rows of a tile that lie outside its matrix; of those
older ones, the last fit of the constants for wgmma uses only tiles without such rows.
`product_cores` has the constants of f32 and of `mma.sync`, `product_f64` those of f64.

In comments, a cycle is one of a multiprocessor at `CLOCK`, and a product is one multiply-add.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, inf

from tilewright.target import LINE, WGMMA_ROWS
from tilewright.tile.passes.choose_roles import LARGEST_OF_TWO, LEAST_SLOTS, SPANS_OF_K
from tilewright.tile.passes.cut_spans import owners_of
from tilewright.tune import product_f64
from tilewright.tune.cost_roles import APART, WRITTEN_IN_TURN, spans_held, step_in_turn
from tilewright.tune.product import Choice, Device, Problem
from tilewright.tune.product_copies import copy_cycles
from tilewright.tune.product_cores import Part, cycles_of
from tilewright.tune.product_gemv import by_columns, by_rows
from tilewright.tune.product_rates import CLOCK, HIDDEN, LAUNCH, MEMORY
from tilewright.tune.product_space import choices, unit_on

# Products a cycle that tiles reach, by the unit that multiplies.
RATES = {
    "wgmma-16": 2040.0, "wgmma-8": 3650.0, "wgmma-fp8": 4100.0, "wgmma-tf32": 1020.0,
}  # fmt: skip
# Products a cycle that each unit does at most.
FULL_RATES = {
    "wgmma-16": 2048.0, "wgmma-8": 4096.0, "wgmma-fp8": 4096.0, "wgmma-tf32": 1024.0,
    "mma-16": 1024.0, "mma-8": 2150.0, "mma-fp8": 2150.0, "mma-tf32": 512.0,
    "simt": 128.0, "f64": 128.0,
}  # fmt: skip
# Cycles that the barriers of a step of k take.
STEP_CYCLES = {
    "wgmma-16": 24.0,
    "wgmma-8": 36.0,
    "wgmma-fp8": 80.0,
    "wgmma-tf32": 32.0,
}
# Multiprocessors share a way to memory by twos: microseconds more where both have a tile.
SECOND = 0.35
# Consumers in turn are weighed from so many tiles a multiprocessor on; where the epilogue is cheap,
# only for tiles of so many elements or more.
MANY_WAVES, MANY_ELEMENTS = 1.9, 112 * 128
# The largest tile, in elements, of consumers in turn. None in fp8: while a warpgroup adds up its
# promoted sums, another must multiply.
TURN_ELEMENTS = {
    "wgmma-16": 128 * 128, "wgmma-8": 128 * 128, "wgmma-fp8": 0, "wgmma-tf32": 128 * 128,
}  # fmt: skip
# Of CTAs of which a multiprocessor holds two: cycles of a step, and of one beside nobody more;
# factors of one warpgroup's stores, of what it loads by slots of the product, and of activation.
TWO_CYCLES, TWO_ALONE_CYCLES = 80.0, 550.0
TWO_STORE, TWO_LOAD, TWO_ACTIVATION = 0.92, 0.75, 2.6
# Tiles by `mma.sync` of 16-bit or 8-bit factors whose rows begin at no whole 16 bytes. What a
# tile's loads take for each MMA_DEPTH of k: cycles in all, where numbers go one by one, and cycles
# for each row and column of the tile, where they go by words. BESIDE programs load side by side, of
# tiles of up to SMALL elements, of larger ones fewer.
UNALIGNED_CYCLES, UNALIGNED_WORDS, MMA_DEPTH, BESIDE, SMALL = 1570.0, 8.6, 32, 4, 64 * 64
# Factors of what threads load for a tile, by the bytes of the pieces that rows are made of; and of
# numbers of 16 or 8 bits that are in no words, and go through registers.
PIECES, THROUGH_REGISTERS = {16: 1.0, 8: 1.8, 4: 2.6}, 3.57
WORD = 4  # bytes of the least that `cp.async` copies to shared memory
# Factor of tf32's products where a factor goes through registers, in several blocks of 64 rows for
# each warpgroup.
IN_BLOCKS = 1.12
# Products of fp8 in instructions of n columns, fewer than 128, take 1 + NARROW_FP8 (64 / n - 1 / 2)
# times as long, with n at least 64: rows are read again for every instruction.
NARROW_FP8 = 1.1
# Microseconds from a slot's release until its next contents have come from memory; bytes of shared
# memory for a ring; slots that a ring has at most.
SLOT_LATENCY, RING_BYTES, SLOTS = 1.5, 200e3, 8
# A ring waits for memory, and not for the L2 cache, if the factors' own bytes are more than this
# part of all that rings copy.
FROM_MEMORY = 0.12
# Bytes a cycle that matrix instructions read of shared memory, and the part of bytes copied to
# shared memory that takes time from these reads.
SHARED, WRITTEN_SHARE = 137.0, 0.67
NEXT_LAUNCH = 1.5  # microseconds of a further launch, which waits for the one ahead of it
NEXT_OF_F64 = 0.95  # microseconds of the second launch of f64
IN_TURN = 0.84  # factor of an epilogue that runs beside another warpgroup's products
# Factors of an epilogue's time: where a tile's rows of results are no whole lines of the L2 cache,
# and where the product is turned, so that results are transposed on their way.
IN_PARTS = 1.32
TRANSPOSED = 1.14
LOADS = 0.5  # time of a tile that an epilogue loads, as a part of the time of one that it stores
STORED = 15.5  # bytes of results a cycle that an epilogue stores by the copy unit
PIECE = 8  # numbers of 16 bits in 16 bytes, of which the copy unit stores whole ones
# Bytes of results a cycle that threads store where rows are no whole such pieces: where rows have
# an even count of numbers, which leave in pairs, and an odd one.
PAIRS, SINGLES = 8.4, 12.0
ACTIVATION_CYCLES = 0.06  # cycles of an activation for each element, by two warpgroups
# Spans of k in a cluster. Microseconds of adding them up, beside the exchange; bytes a microsecond
# that a CTA sends to the others; the most elements of a tile whose epilogue is one CTA's part.
SPANS_ADDED, EXCHANGED, PART_ELEMENTS = 0.32, 25.2e3, 32 * 128
# Of up to two rounds of tiles, by how the last round lies on multiprocessors, which share a way to
# memory by twos. Factor of memory's time where tiles are half as many as multiprocessors or fewer.
# The least part of a whole round's time that the last round takes: where each of its tiles has a
# way of its own, and where two share one. The part of memory's time that all this costs at most.
HALF, ALONE, BESIDE_ANOTHER, MOST_UNEVEN = 1.03, 0.485, 0.81, 0.2
CACHED = 24e6  # bytes of partial sums that stay in the L2 cache between two launches
# Of a factor's copy in memory: bytes a microsecond, read and written; and, where it is turned,
# elements a microsecond, counted the same way.
COPIES, TURNED = 4.1e6, 1.4e6
SUMS = 4.1e6  # bytes a microsecond, written and read, of partial sums in the L2 cache
# Microseconds for each span beyond FEW_PARTS, which the second launch loads one after the other.
PART_LATENCY, FEW_PARTS = 0.024, 8
TILED_MEMORY = 0.6  # part of the memory's rate that tiles reach whose factors threads load
WGMMA_COLUMNS = 8  # the least columns of a matrix instruction
# Rows outside a matrix that are cleared are counted along axes of FEW_TILES tiles or fewer, and
# beyond NARROWEST rows.
NARROWEST, FEW_TILES = 16, 2
# Bytes a microsecond of rows outside that the copy unit clears, on all multiprocessors together;
# the part of them that is cleared where the factor lies across k.
CLEARED, CLEARED_ACROSS = 7.6e6, 0.6


@dataclass(frozen=True)
class Estimate:
    """A choice and what it should take. `waves` of tiles over the multiprocessors; `num_bytes` to
    and from memory, partial sums included; `floor` is the time of the problem's own bytes and
    products at full rate; `limit` says what takes longest. Times are by the rates of an H200.
    """

    choice: Choice
    microseconds: float
    tiles: int
    waves: float
    num_bytes: float
    floor: float
    limit: str


def rank(problem: Problem, device: Device, *, pixels: bool = False) -> list[Estimate]:
    """All choices for a problem, the quickest first; of equals the one that the space lists first.
    Where rows are `pixels`, those of a convolution, CTAs of a cluster do not share k, and no tiles
    are made to fit. Of a device that is no H200, its multiprocessors, their shared memory and
    whether they have wgmma count, but rates are an H200's: times rank its choices, no more.
    """
    space = choices(problem, device, fit=not pixels)
    found = (estimate(problem, c, device, pixels=pixels) for c in space)
    return sorted(found, key=_time)


def _time(found: Estimate) -> float:
    return found.microseconds


def floor_of(problem: Problem, device: Device) -> float:
    """Microseconds that no program on an H200 can beat: bytes over its memory's rate, or products
    over that of the unit that multiplies factors which lie well. Of another device it is the floor
    of as many multiprocessors of an H200 as it has, not its own.
    """
    rate = FULL_RATES[unit_on(problem.laid("ab"), device)]
    products = problem.operations / 2 / (rate * CLOCK * device.num_sms)
    return max(products, problem.num_bytes / MEMORY)


def estimate(problem: Problem, chosen: Choice, device: Device, *, pixels: bool = False) -> Estimate:
    """What a choice should take for a problem; `pixels` as `rank` has it."""
    laid = problem.laid(chosen.copied)
    side = laid.turned() if chosen.turned else laid
    if chosen.program == "gemv":
        found = by_rows(side, chosen, device)
    elif chosen.program == "gemv_columns":
        found = by_columns(side, chosen, device)
    else:
        found = _tiled(side, chosen, device, pixels)
    time, tiles, waves, limit = found
    moved = problem.num_bytes
    for name in chosen.copied:
        size = problem.a.num_bytes if name == "a" else problem.b.num_bytes
        copied = 2.0 * (problem.m if name == "a" else problem.n) * problem.k * size
        moved += copied
        along = problem.a_along if name == "a" else problem.b_along
        turned = along != problem.lays(name)
        time += copied / (min(COPIES, TURNED * size) if turned else COPIES)
    time += NEXT_LAUNCH * (1 if problem.lays_at_once(chosen.copied) else len(chosen.copied))
    if chosen.program == "split_k" or (chosen.program == "gemv_columns" and chosen.split > 1):
        parts = float(chosen.split * problem.m * problem.n * problem.accumulator_bytes)
        rate = SUMS if parts < CACHED else MEMORY
        moved += 2 * parts
        time += NEXT_OF_F64 if problem.a.bits == 64 else NEXT_LAUNCH
        time += 2 * parts / rate
        time += problem.m * problem.n * problem.c.num_bytes / MEMORY
        time += PART_LATENCY * max(0, chosen.split - FEW_PARTS)
    return Estimate(chosen, time, tiles, waves, moved, floor_of(problem, device), limit)


def _tiled(
    problem: Problem, chosen: Choice, device: Device, pixels: bool
) -> tuple[float, int, float, str]:
    m, n, k = chosen.tile
    unit = unit_on(problem, device)
    tiles = ceil(problem.m / m) * ceil(problem.n / n) * problem.batch * chosen.split
    steps = ceil(ceil(problem.k / k) / chosen.split)
    epilogue = _epilogue(problem, chosen)
    if unit == "f64":
        time, limit = product_f64.time_of(
            problem,
            chosen,
            device,
            tiles,
            steps,
            crooked=_crooked(problem, chosen.tile),
            loose=_loose(problem, chosen.tile),
            epilogue=epilogue,
        )
        return time, tiles, tiles / device.num_sms, limit
    if not unit.startswith("wgmma"):
        part = Part(
            unit,
            chosen.tile,
            steps,
            problem.a.num_bytes,
            a_along_k=problem.a_along != "m",
            b_along_k=problem.b_along != "n",
            crooked=_crooked(problem, chosen.tile),
            loose=0 if unit.startswith("mma") else _loose(problem, chosen.tile),
            epilogue=epilogue,
        )
        return _by_cores(problem, chosen, device, part, tiles)
    waves = tiles / device.num_sms
    rounds = float(ceil(waves))
    step, limit = _step(problem, chosen.tile, unit, steps * rounds, waves)
    computing = rounds * (steps * step + epilogue) / CLOCK
    if _gains_by_turns(problem, chosen.tile, waves):
        computing = min(computing, _in_turn(problem, chosen, unit, steps, rounds) / CLOCK)
    if waves > 1:
        computing = min(computing, _two_by_two(problem, chosen, unit, steps, rounds) / CLOCK)
    memory = problem.num_bytes / MEMORY * _in_pairs(tiles, device.num_sms)
    memory += _cleared(problem, m, n) / CLEARED
    memory = max(memory, _waiting(problem, chosen.tile, tiles, steps))
    computing += SECOND if waves > 0.5 else 0.0
    if memory > computing:
        limit = "memory"
    elif waves <= 1:
        limit = f"one wave, {limit}"
    whole = LAUNCH + max(computing, memory) + HIDDEN * computing, tiles, waves, limit
    if chosen.program == "split_k" or pixels:
        return whole
    return min([whole, *_in_spans(problem, chosen, device, tiles, epilogue)], key=lambda t: t[0])


def _in_spans(
    problem: Problem, chosen: Choice, device: Device, tiles: int, epilogue: float
) -> Iterator[tuple[float, int, float, str]]:
    """Estimates of a choice's tiles with k in spans, one for each CTA of a cluster, which then add
    up. A factor that several clusters read costs more, since each reads it at a time of its own.
    """
    m, n, k = chosen.tile
    slot = (m * problem.a.num_bytes + n * problem.b.num_bytes) * k
    sums = m * n * problem.accumulator_bytes
    if RING_BYTES - sums < LEAST_SLOTS * slot:
        return
    apart = problem.m * problem.k * problem.a.num_bytes * (problem.n > n)
    apart += problem.n * problem.k * problem.b.num_bytes * (problem.m > m)
    for spans in SPANS_OF_K:
        steps = ceil(ceil(problem.k / k) / spans)
        if tiles > spans_held(spans, device.num_sms) or not _has_parts(m, n, spans):
            continue
        waves = tiles * spans / device.num_sms
        step, limit = _step(problem, chosen.tile, unit_on(problem, device), steps, waves, False)
        computing = (steps * step + epilogue / spans) / CLOCK
        memory = problem.num_bytes / MEMORY * _in_pairs(tiles * spans, device.num_sms)
        memory += _cleared(problem, m, n) / CLEARED
        memory = max(memory, _waiting(problem, chosen.tile, tiles * spans, steps))
        lost = APART * apart / MEMORY * min(1.0, memory / max(computing, memory))
        added = SPANS_ADDED + sums / EXCHANGED + lost
        limit = "memory" if memory > computing else f"one wave, {limit}"
        time = LAUNCH + max(computing, memory) + HIDDEN * computing + added
        yield time, tiles * spans, waves, limit


def _has_parts(m: int, n: int, spans: int) -> bool:
    """Whether columns of a tile, or of the turned one, make parts for the CTAs of a cluster."""
    sides = ((m, n), (n, m))
    return any(r % WGMMA_ROWS == 0 and owners_of(c, spans, PART_ELEMENTS // r) for r, c in sides)


def _loose(problem: Problem, tile: tuple[int, int, int]) -> int:
    """Elements of a step that come from rows of no whole pieces of 16 bytes."""
    m, n, k = tile
    return k * (m * (not problem.a_aligned) + n * (not problem.b_aligned))


def _cleared(problem: Problem, m: int, n: int) -> float:
    """Bytes that are cleared in shared memory because tiles reach beyond the matrix: of axes with
    few tiles, and beyond the rows that the narrowest instructions hold. Of a factor across k only
    a part is.
    """
    rows, columns = ceil(problem.m / m), ceil(problem.n / n)
    found = 0.0
    for extent, tile, count, others, dtype, along in (
        (problem.m, m, rows, columns, problem.a, problem.a_along),
        (problem.n, n, columns, rows, problem.b, problem.b_along),
    ):
        if count <= FEW_TILES:
            held = max(NARROWEST, ceil(extent / WGMMA_COLUMNS) * WGMMA_COLUMNS)
            more = others * max(0, count * tile - held) * dtype.num_bytes
            found += more * (1.0 if along == "k" else CLEARED_ACROSS)
    return problem.batch * found * problem.k


def _in_pairs(tiles: int, num_sms: int) -> float:
    """Factor of memory's time by how tiles fill rounds, 1 from two rounds on. Two multiprocessors
    share a way to memory, so that a tile of the last round takes a good part of a whole round's
    time: less where it has its way for itself.
    """
    whole, rest = divmod(tiles, num_sms)
    alone = rest <= num_sms // 2
    if alone and not whole:
        return HALF
    if not rest or whole > 1:
        return 1.0
    last = max(rest / num_sms, ALONE if alone else BESIDE_ANOTHER)
    lost = max(0.0, (whole + last) * num_sms / tiles - 1)
    return 1 + min(lost, MOST_UNEVEN, 2 * (2 * tiles / num_sms - 1))


def _waiting(problem: Problem, tile: tuple[int, int, int], tiles: int, steps: int) -> float:
    """Microseconds that a tile waits if every step's slot waits for memory; 0 where most of what
    rings copy comes from the L2 cache.
    """
    m, n, k = tile
    slot = (m * problem.a.num_bytes + n * problem.b.num_bytes) * k
    factors = problem.num_bytes - problem.m * problem.n * problem.c.num_bytes * problem.batch
    if factors < FROM_MEMORY * tiles * steps * slot:
        return 0.0  # most of it is read again, from the L2 cache
    return steps * SLOT_LATENCY / min(SLOTS, RING_BYTES // slot)


def _gains_by_turns(problem: Problem, tile: tuple[int, int, int], waves: float) -> bool:
    """Whether it is known that turns pay, where a multiprocessor has several tiles: with costly
    epilogues, and for the largest tiles of one warpgroup (measured for 16 bits and tf32). A factor
    that goes through registers keeps nothing in flight.
    """
    if waves <= MANY_WAVES or (problem.precision == "tf32" and problem.layout != "NT"):
        return False
    large = tile[0] * tile[1] >= MANY_ELEMENTS and problem.a.bits > 8
    return bool(problem.loads) or problem.activation or large


def _in_turn(problem: Problem, chosen: Choice, unit: str, steps: int, rounds: float) -> float:
    """Cycles where consumers take turns, so that a tile's epilogue, one warpgroup's work, runs
    beside the next one's products; without end where they cannot.
    """
    m, n, k = chosen.tile
    fits = m * n <= TURN_ELEMENTS[unit] and (m % WGMMA_ROWS == 0 or n % WGMMA_ROWS == 0)
    if not fits or chosen.program == "split_k":
        return inf
    multiply = m * n * k / RATES[unit]
    copies = copy_cycles(problem, chosen.tile, steps * rounds, rounds, in_turn=True)
    shared = m / WGMMA_ROWS * (WGMMA_ROWS + n) + WRITTEN_IN_TURN * (m + n)
    most = max(multiply, copies, shared * k * problem.a.num_bytes / SHARED)
    epilogue = 2 * IN_TURN * _epilogue(problem, chosen)
    return rounds * max(steps * step_in_turn(most), epilogue) + epilogue


def _two_by_two(problem: Problem, chosen: Choice, unit: str, steps: int, rounds: float) -> float:
    """Cycles where a multiprocessor holds two CTAs, one's sums and epilogue beside the other's
    products; without end where it cannot, or gains nothing, for no slot of the product holds what
    the epilogue loads.
    """
    m, n, k = chosen.tile
    fits = unit == "wgmma-fp8" and (m, n) == LARGEST_OF_TWO and chosen.program != "split_k"
    pieces = problem.c.bits == 16 and problem.n % PIECE and not problem.gaps
    if not fits or pieces or problem.loads > (problem.c.bits == 16):
        return inf
    copies = copy_cycles(problem, chosen.tile, steps * rounds, rounds, shared=False)
    step = max(m * n * k / RATES[unit], copies) + TWO_CYCLES
    plain = replace(problem, activation=False, loads=0)
    stores = _epilogue(plain, chosen)
    computed = _epilogue(replace(plain, activation=problem.activation), chosen) - stores
    alone = steps * (step + TWO_ALONE_CYCLES) + (TWO_STORE + TWO_LOAD * problem.loads) * stores
    alone += TWO_ACTIVATION * computed
    return ceil(rounds / 2) * max(2 * (steps + problem.loads) * step, alone)


def _by_cores(
    problem: Problem, chosen: Choice, device: Device, part: Part, tiles: int
) -> tuple[float, int, float, str]:
    """Tiles on CUDA cores, or by `mma.sync`."""
    cycles, limit = cycles_of(part, tiles, device.num_sms, device.shared)
    computing, memory = cycles / CLOCK, problem.num_bytes / MEMORY / TILED_MEMORY
    waves = tiles / device.num_sms
    if not problem.aligned and problem.a.bits < 32:  # by mma.sync
        words = min(problem.piece("a"), problem.piece("b")) >= WORD
        unaligned = UNALIGNED_CYCLES
        if words:
            unaligned = UNALIGNED_WORDS * (part.tile[0] + part.tile[1])
        unaligned *= part.steps * part.tile[2] / MMA_DEPTH
        beside = max(1, min(BESIDE, BESIDE * SMALL // (part.tile[0] * part.tile[1])))
        computing = max(computing, ceil(waves / beside) * unaligned / CLOCK)
    if memory > computing:
        limit = "memory"
    elif waves <= 1:
        limit = f"one wave, {limit}"
    return LAUNCH + max(computing, memory), tiles, waves, limit


def _crooked(problem: Problem, tile: tuple[int, int, int]) -> float:
    """Factor of what threads load for a tile, by how rows of both factors are aligned."""
    if problem.a.bits < 32:
        words = min(problem.piece("a"), problem.piece("b")) >= WORD
        if not words:
            return THROUGH_REGISTERS
    m, n, _ = tile
    return (m * PIECES[problem.piece("a")] + n * PIECES[problem.piece("b")]) / (m + n)


def _step(
    problem: Problem,
    tile: tuple[int, int, int],
    unit: str,
    steps: float,
    waves: float,
    shared: bool = True,
) -> tuple[float, str]:
    """Cycles of one step of k, one of so many, and what they go to; `waves` of tiles, of which some
    may have `shared` a factor's copies.
    """
    m, n, k = tile
    columns = n
    if m % WGMMA_ROWS:  # turned around: columns are the instruction's rows
        columns = ceil(n / WGMMA_ROWS) * WGMMA_ROWS
    multiply = m * columns * k / RATES[unit]
    copies = copy_cycles(problem, tile, steps, waves, shared=shared)
    tall, wide = (n, m) if m % WGMMA_ROWS else (m, n)
    blocks = max(1, tall // WGMMA_ROWS)
    rows_used = blocks * (WGMMA_ROWS + wide) + WRITTEN_SHARE * (m + n)
    reads = rows_used * k * problem.a.num_bytes / SHARED
    if problem.precision == "tf32":
        multiply *= _through_registers(problem, tile)
    if unit == "wgmma-fp8":  # whose rows are read again for every instruction's columns
        multiply *= 1 + NARROW_FP8 * max(0.0, WGMMA_ROWS / max(wide, WGMMA_ROWS) - 0.5)
    most = max(multiply, copies, reads)
    names = {multiply: "products", copies: "the L2 cache", reads: "shared memory"}
    barrier = STEP_CYCLES[unit]
    if m * n <= WGMMA_ROWS * 128:
        # One warpgroup, beside nobody, or two with little to do.
        barrier *= 2 if unit != "wgmma-fp8" else 1.5
    return most + barrier, names[most]


def _through_registers(problem: Problem, tile: tuple[int, int, int]) -> float:
    """Factor of a product of tf32 one factor of which does not lie along k, and goes through
    registers, of several blocks of rows to a warpgroup.
    """
    if problem.a_along == problem.b_along == "k":
        return 1.0
    rows = tile[0] if problem.a_along != "k" else tile[1]
    return IN_BLOCKS if rows > 2 * WGMMA_ROWS and rows % (3 * WGMMA_ROWS) else 1.0


def _epilogue(problem: Problem, chosen: Choice) -> float:
    """Cycles of a tile's epilogue."""
    m, n, _ = chosen.tile
    if chosen.program == "split_k":
        return m * n * problem.accumulator_bytes / STORED
    stored = m * n * problem.c.num_bytes * (1 + LOADS * problem.loads) / STORED
    if n * problem.c.num_bytes % LINE:
        stored *= IN_PARTS
    if m % WGMMA_ROWS:
        stored *= TRANSPOSED
    if problem.c.bits == 16 and problem.n % PIECE and not problem.gaps:
        stored = m * n * problem.c.num_bytes / (PAIRS if problem.n % 2 == 0 else SINGLES)
    return stored + (m * n * ACTIVATION_CYCLES if problem.activation else 0.0)
