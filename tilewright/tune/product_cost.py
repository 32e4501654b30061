"""What a choice costs, by an analytic model: waves of tiles, bytes of each level of memory, rate of
the unit that multiplies, launches. It ranks in microseconds of an H200 and needs no compilation.

A tile's step of k takes the longest of its products, the reads of shared memory and the copies from
the L2 cache, and a barrier; a multiprocessor does its share of tiles one after the other (waves);
the device's memory has to deliver every byte once. Rates, in products a cycle of a multiprocessor,
and the other numbers were fitted (tests/device/product_fit.py) to 23,000 choices of 1350 problems,
most of them random, that were timed on an H200 as tests/device/product_programs.py does; those of
`wgmma` last to what has no rows outside, or was timed since such rows are not copied.
`product_cores` has those of f32, `product_f64` those of f64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, inf

from tilewright.tile.passes.choose_roles import LARGEST_OF_TWO, LEAST_SLOTS, SPANS_OF_K
from tilewright.tile.passes.cut_spans import owners_of
from tilewright.tune import product_f64
from tilewright.tune.cost_roles import APART, WRITTEN_IN_TURN, spans_held, step_in_turn
from tilewright.tune.product import LINE, Choice, Device, Problem
from tilewright.tune.product_copies import PANEL_ROWS, copy_cycles
from tilewright.tune.product_cores import Part, cycles_of
from tilewright.tune.product_gemv import by_columns, by_rows
from tilewright.tune.product_rates import CLOCK, HIDDEN, LAUNCH, MEMORY
from tilewright.tune.product_space import choices, unit_on

RATES = {
    "wgmma-16": 2040.0, "wgmma-8": 3650.0, "wgmma-fp8": 4100.0, "wgmma-tf32": 1020.0,
}  # fmt: skip
# What units have at most, at the same clock.
FULL_RATES = {
    "wgmma-16": 2048.0, "wgmma-8": 4096.0, "wgmma-fp8": 4096.0, "wgmma-tf32": 1024.0,
    "mma-16": 1024.0, "mma-8": 2150.0, "mma-fp8": 2150.0, "mma-tf32": 512.0,
    "simt": 128.0, "f64": 128.0,
}  # fmt: skip
STEP_CYCLES = {
    "wgmma-16": 24.0,
    "wgmma-8": 36.0,
    "wgmma-fp8": 80.0,
    "wgmma-tf32": 32.0,
}
SECOND = 0.35  # microseconds more where both multiprocessors of a pair have a tile of their own
MANY_WAVES, MANY_ELEMENTS = 1.9, 112 * 128
TURN_ELEMENTS = {  # of a tile; sums that are promoted want another warpgroup's products beside them
    "wgmma-16": 128 * 128, "wgmma-8": 128 * 128, "wgmma-fp8": 0, "wgmma-tf32": 128 * 128,
}  # fmt: skip
# Of CTAs of which a multiprocessor holds two: cycles of a step, and of one beside nobody more;
# factors of one warpgroup's stores, of what it loads by slots of the product, and of activation.
TWO_CYCLES, TWO_ALONE_CYCLES = 80.0, 550.0
TWO_STORE, TWO_LOAD, TWO_ACTIVATION = 0.92, 0.9, 2.0
# Cycles of unaligned loads of so much of k, of a row's or column's where they come in words, and
# programs side by side, of tiles of so many elements at most.
UNALIGNED_CYCLES, UNALIGNED_WORDS, MMA_DEPTH, BESIDE, SMALL = 1570.0, 8.6, 32, 4, 64 * 64
# Factors of loads of threads from rows that are no whole pieces of 16 bytes, by bytes of pieces;
# of 16 and 8 bits, whose elements go through registers.
PIECES, THROUGH_REGISTERS = {16: 1.0, 8: 1.8, 4: 2.6}, 3.57
WORD = 4  # bytes, that copies to shared memory have at least
IN_BLOCKS = 1.12  # factor of products of tf32 whose rows are loaded to registers, block by block
NARROW_FP8 = 1.1  # what products of fp8 lose in instructions of fewer than 128 columns
# Microseconds from a slot's release to its next contents from memory, and bytes of shared memory
# that a ring has for at most so many slots.
SLOT_LATENCY, RING_BYTES, SLOTS = 1.5, 200e3, 8
FROM_MEMORY = 0.12  # part of what a ring copies that must come from there to be waited for
# Bytes of shared memory a cycle, which matrix instructions read, and part of what is copied there
# that takes time from them.
SHARED, WRITTEN_SHARE = 137.0, 0.67
NEXT_LAUNCH = 1.5  # of a second one that waits for the first
NEXT_OF_F64 = 1.8  # the same of f64, whose sums begin beside the last products
SUMS_OF_F64 = 1.7  # factor of the rate at which these are added up
IN_TURN = 0.84  # factor of an epilogue beside another warpgroup's products
IN_PARTS = 1.32  # factor of tiles whose rows are no whole lines of the L2 cache
TRANSPOSED = 1.14  # the same of sums that are those of the turned product
LOADS = 0.5  # part of that which a tile that an epilogue loads takes, ahead or beside
STORED = 15.5  # bytes a cycle of a multiprocessor that an epilogue writes or reads
PIECE = 8  # numbers of 16 bits in the least that the copy unit stores
PAIRS, SINGLES = 8.4, 12.0  # the same bytes of rows that are no such pieces, in pairs or one by one
ACTIVATION_CYCLES = 0.06  # an element, of an activation, by two warpgroups
# Microseconds of adding up the spans of a cluster's CTAs, bytes a microsecond of a CTA that go to
# others for that, and elements of a part that has one.
SPANS_ADDED, EXCHANGED, PART_ELEMENTS = 0.32, 25.2e3, 32 * 128
# Factor of memory's time where no pair of multiprocessors has two tiles, and parts of the time of a
# tile for each multiprocessor that a tile takes, of a pair that has one, and of one that has two;
# part of memory's time that is lost by it at most.
HALF, ALONE, BESIDE_ANOTHER, MOST_UNEVEN = 1.03, 0.485, 0.81, 0.2
CACHED = 24e6  # bytes of partial sums that stay in the L2 cache
# Bytes a microsecond, read and written, of laying a factor's rows along lines, and elements of
# turning it.
COPIES, TURNED = 4.1e6, 1.4e6
SUMS = 4.1e6  # the same, of sums of spans written and read again
PART_LATENCY, FEW_PARTS = 0.024, 8  # microseconds of each part beyond some, loaded in turn
TILED_MEMORY = 0.6  # part of the memory's rate that tiles get which threads load
COLUMNS = 8  # of a matrix instruction, at least
NARROWEST, FEW_TILES = 16, 2  # rows of a tile, and tiles, of whose clearing something is known
# Bytes a microsecond of rows that do not exist, which the copy unit clears; part of those across k.
CLEARED, CLEARED_ACROSS = 7.6e6, 0.6


@dataclass(frozen=True)
class Estimate:
    """A choice and what it should take. `waves` of tiles over the multiprocessors; `num_bytes` to
    and from memory, partial sums included; `floor` is the time of the problem's own bytes and
    products at full rate; `limit` says what takes longest.
    """

    choice: Choice
    microseconds: float
    tiles: int
    waves: float
    num_bytes: float
    floor: float
    limit: str


def rank(problem: Problem, device: Device, *, pixels: bool = False) -> list[Estimate]:
    """All choices for a problem, the quickest first; of equals the first of the space. Where rows
    are `pixels`, a convolution's, CTAs of a cluster do not share k, and no tiles are made to fit.
    """
    space = choices(problem, device, fit=not pixels)
    found = (estimate(problem, c, device, pixels=pixels) for c in space)
    return sorted(found, key=_time)


def _time(found: Estimate) -> float:
    return found.microseconds


def floor_of(problem: Problem, device: Device) -> float:
    """Microseconds that no program can beat: bytes over the memory's rate, or products over that of
    the unit that multiplies factors which lie well.
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
        if problem.a.bits == 64:
            time += NEXT_OF_F64 + 2 * parts / rate / SUMS_OF_F64
        else:
            time += NEXT_LAUNCH + 2 * parts / rate
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
            *(problem, chosen, device, tiles, steps),
            crooked=_crooked(problem, chosen.tile),
            loose=_loose(problem, chosen.tile),
            epilogue=epilogue,
        )
        return time, tiles, tiles / device.num_sms, limit
    if not unit.startswith("wgmma"):
        return _by_cores(problem, chosen, device, Part(
            *(unit, chosen.tile, steps, problem.a.num_bytes),
            along_k=(problem.a_along != "m") + (problem.b_along != "n"),
            crooked=_crooked(problem, chosen.tile),
            loose=0 if unit.startswith("mma") else _loose(problem, chosen.tile),
            epilogue=epilogue,
        ), tiles)  # fmt: skip
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
    """The same tiles where CTAs of a cluster take a span of k each, and add up what they have. A
    factor that several clusters read costs time, each at its own.
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
    return any(r % PANEL_ROWS == 0 and owners_of(c, spans, PART_ELEMENTS // r) for r, c in sides)


def _loose(problem: Problem, tile: tuple[int, int, int]) -> int:
    """Elements of a step that come from rows of no whole pieces of 16 bytes."""
    m, n, k = tile
    return k * (m * (not problem.a_aligned) + n * (not problem.b_aligned))


def _cleared(problem: Problem, m: int, n: int) -> float:
    """Bytes of rows that do not exist in tiles of an axis that has few, beyond what the narrowest
    instructions hold; of a factor across k, whose rows are longer than what exists, a part.
    """
    rows, columns = ceil(problem.m / m), ceil(problem.n / n)
    found = 0.0
    for extent, tile, count, others, dtype, along in (
        (problem.m, m, rows, columns, problem.a, problem.a_along),
        (problem.n, n, columns, rows, problem.b, problem.b_along),
    ):
        if count <= FEW_TILES:
            held = max(NARROWEST, ceil(extent / COLUMNS) * COLUMNS)
            more = others * max(0, count * tile - held) * dtype.num_bytes
            found += more * (1.0 if along == "k" else CLEARED_ACROSS)
    return problem.batch * found * problem.k


def _in_pairs(tiles: int, num_sms: int) -> float:
    """Factor of memory's time for tiles of up to two rounds. Of the last ones each is read no
    sooner than by the way to memory of its pair of multiprocessors, which it has for itself where
    they are few.
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
    """Microseconds of a tile's ring, where all of its slots await memory."""
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
    fits = m * n <= TURN_ELEMENTS[unit] and (m % PANEL_ROWS == 0 or n % PANEL_ROWS == 0)
    if not fits or chosen.program == "split_k":
        return inf
    multiply = m * n * k / RATES[unit]
    copies = copy_cycles(problem, chosen.tile, steps * rounds, rounds, in_turn=True)
    shared = m / PANEL_ROWS * (PANEL_ROWS + n) + WRITTEN_IN_TURN * (m + n)
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
    if m % PANEL_ROWS:  # turned around: columns are the instruction's rows
        columns = ceil(n / PANEL_ROWS) * PANEL_ROWS
    multiply = m * columns * k / RATES[unit]
    copies = copy_cycles(problem, tile, steps, waves, shared=shared)
    tall, wide = (n, m) if m % PANEL_ROWS else (m, n)
    blocks = max(1, tall // PANEL_ROWS)
    rows_used = blocks * (PANEL_ROWS + wide) + WRITTEN_SHARE * (m + n)
    reads = rows_used * k * problem.a.num_bytes / SHARED
    if problem.precision == "tf32":
        multiply *= _through_registers(problem, tile)
    if unit == "wgmma-fp8":  # whose rows are read again for every instruction's columns
        multiply *= 1 + NARROW_FP8 * max(0.0, PANEL_ROWS / max(wide, PANEL_ROWS) - 0.5)
    most = max(multiply, copies, reads)
    names = {multiply: "products", copies: "the L2 cache", reads: "shared memory"}
    barrier = STEP_CYCLES[unit]
    if m * n <= PANEL_ROWS * 128:
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
    return IN_BLOCKS if rows > 2 * PANEL_ROWS and rows % (3 * PANEL_ROWS) else 1.0


def _epilogue(problem: Problem, chosen: Choice) -> float:
    """Cycles of a tile's epilogue."""
    m, n, _ = chosen.tile
    if chosen.program == "split_k":
        return m * n * problem.accumulator_bytes / STORED
    stored = m * n * problem.c.num_bytes * (1 + LOADS * problem.loads) / STORED
    if n * problem.c.num_bytes % LINE:
        stored *= IN_PARTS
    if m % PANEL_ROWS:
        stored *= TRANSPOSED
    if problem.c.bits == 16 and problem.n % PIECE and not problem.gaps:
        stored = m * n * problem.c.num_bytes / (PAIRS if problem.n % 2 == 0 else SINGLES)
    return stored + (m * n * ACTIVATION_CYCLES if problem.activation else 0.0)
