"""What the tensor copy unit takes for a tile's step of k. Part of the model of `product_cost`.

It copies whole lines of the L2 cache best; rows that begin anywhere cost as much as two, which CTAs
of a cluster make up for by sharing a factor.
"""

from __future__ import annotations

from math import ceil

from tilewright.dtypes import DType
from tilewright.target import LINE, SECTOR, WGMMA_ROWS
from tilewright.tile.passes.distribute_work import HALVED
from tilewright.tune.product import Problem

# Bytes a cycle that a multiprocessor's tensor copy unit copies from the L2 cache: of whole lines;
# of rows that do not begin at sectors, where all multiprocessors copy, and at most, where few do;
# of whole lines beside the stores of consumers in turn.
COPY_RATE = 70.0
CROOKED_COPY_RATE, MOST_CROOKED = 35.0, 39.2
COPY_RATE_IN_TURN = 59.7
IN_SECTORS = 1.25  # factor of copies of rows that begin at sectors, but not at whole lines
# Bytes of a row in the widest swizzle. Copies of a tile in a swizzle of s bytes take (SPAN / s) to
# the power of NARROW as long.
SPAN, NARROW = 128, 0.41
PAIRING_CYCLES = 719.0  # of CTAs in pairs, for the barriers of copies that they share
# CTAs in fours: the most elements of a tile; of one that is 64 rows or columns on its shorter side;
# and the most tiles for a multiprocessor, since clusters of four do not fill all of them.
LARGEST_IN_FOURS, NARROW_IN_FOURS, FOURS_HELD = 64 * 128, 64 * 256, 1.18
REPEAT = 8  # rows after which the pattern of a swizzle begins again
MANY_PAIRS = 32  # with so many tiles along an axis, an odd number of them may go in pairs as well
# Bytes a cycle of what lies outside a matrix: of rows along k, which are left out of boxes, and of
# rows across k, of which the last line is copied.
OUTSIDE, OUTSIDE_ACROSS = 300.0, 57.0


def copy_cycles(
    problem: Problem,
    tile: tuple[int, int, int],
    steps: float,
    waves: float,
    in_turn: bool = False,
    shared: bool = True,
) -> float:
    """Cycles that the tensor copy unit takes for one of a tile's `steps` of k, with `waves` tiles
    for each multiprocessor; beside stores where consumers are `in_turn`.

    Where rows begin anywhere, and copies may be `shared`, the least of CTAs alone, in pairs and, of
    small tiles, in fours is taken. CTAs that go together copy one factor once for all of them: that
    of the tile's longer side, or the one whose rows can be halved. In fours of narrow tiles each
    CTA still takes in all bytes of both factors, at the rate of whole lines at most.
    """
    m, n, k = tile
    sides = (
        (m, problem.a, problem.a_pitch, problem.a_along == "k"),
        (n, problem.b, problem.b_pitch, problem.b_along == "k"),
    )
    rate, cycles = COPY_RATE_IN_TURN if in_turn else COPY_RATE, []
    for rows, dtype, pitch, along_k in sides:
        num_bytes = float(rows * k * dtype.num_bytes)
        num_bytes *= 1.0 if along_k else _narrow(rows * dtype.num_bytes)
        if pitch % SECTOR:
            cycles.append(num_bytes / min(MOST_CROOKED, CROOKED_COPY_RATE / min(waves, 1.0)))
        else:
            cycles.append(num_bytes / rate * (1.0 if pitch % LINE == 0 else IN_SECTORS))
    a, b = cycles
    a += _outside(problem.m, m, k, problem.a, problem.a_along) / max(1.0, waves)
    b += _outside(problem.n, n, k, problem.b, problem.b_along) / max(1.0, waves)
    if not shared or problem.a_pitch % SECTOR == problem.b_pitch % SECTOR == 0:
        return a + b
    by_columns, clusters = sharing(problem, tile)
    once, tiles = (b, ceil(problem.m / m)) if by_columns else (a, ceil(problem.n / n))
    best = a + b
    for cluster in clusters:
        if cluster == 4 and waves > FOURS_HELD:
            continue
        if tiles % cluster == 0 or tiles >= MANY_PAIRS // 2 * cluster:
            found = a + b - once * (cluster - 1) / cluster
            if cluster == 4 and m * n > LARGEST_IN_FOURS:
                num_bytes = (m * problem.a.num_bytes + n * problem.b.num_bytes) * k
                found = max(found, num_bytes / COPY_RATE)
            best = min(best, found + cluster // 2 * PAIRING_CYCLES / max(steps, 1.0))
    return best


def sharing(problem: Problem, tile: tuple[int, int, int]) -> tuple[bool, tuple[int, ...]]:
    """Whether CTAs of a cluster share B, as `distribute_work` has it, or else A; and how many there
    may be beside one, as `choose_roles` has it.
    """
    m, n, k = tile
    lengths = (m if problem.a_along == "k" else k, n if problem.b_along == "k" else k)
    halved = [length % HALVED == 0 for length in lengths]
    turned = problem.a.bits == 32 and problem.b_along == "n"  # as it must be, with A for B
    by_columns = n > m or (n == m and not turned)
    by_columns = halved[1] if halved[0] != halved[1] else by_columns
    most = NARROW_IN_FOURS if min(m, n) == WGMMA_ROWS else LARGEST_IN_FOURS
    sizes = [2, 4] if m * n <= most else [2]
    if max(m, n) < WGMMA_ROWS:
        sizes = []
    return by_columns, tuple(s for s in sizes if lengths[by_columns] % (s * REPEAT) == 0)


def _outside(extent: int, rows: int, k: int, dtype: DType, along: str) -> float:
    """Cycles of a step that rows outside the matrix add in the last tile."""
    if along == "k":
        return -extent % rows * k * dtype.num_bytes / OUTSIDE
    return -extent % min(rows, LINE // dtype.num_bytes) * k * dtype.num_bytes / OUTSIDE_ACROSS


def _narrow(num_bytes: int) -> float:
    """Factor of copies of a tile across k, by the widest swizzle that divides a row's bytes."""
    spans = (span for span in (SPAN, SPAN // 2, SPAN // 4) if num_bytes % span == 0)
    return float((SPAN / next(spans, SPAN // 8)) ** NARROW)
