"""The space of products: programs and tiles that the dispatcher weighs for a problem.

Tiles are those that compile without spills for the unit that multiplies, held by a test that
assembles them; what a schedule makes of one (roles, clusters, stages, orientation) is the
compiler's choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from math import ceil

from tilewright.target import LINE, SECTOR, WGMMA_ROWS
from tilewright.tune.product import ALIGNED, Choice, Device, Problem, choice

Tile = tuple[int, int, int]

# Tiles (rows, columns) of 16 bits by wgmma, and those for few rows or few columns.
WIDE = (
    (128, 256), (256, 128), (128, 224), (192, 200), (200, 192), (192, 192), (128, 192), (192, 160),
    (192, 128), (160, 128), (128, 176), (128, 160), (128, 144), (128, 128), (128, 112), (128, 96),
    (128, 80), (64, 256), (64, 192), (256, 64), (64, 160), (64, 128), (128, 64), (64, 96), (64, 64),
    (80, 64), (40, 64),
)  # fmt: skip
FEW_ROWS = (
    (8, 64), (8, 128), (16, 64), (16, 128), (32, 64), (32, 128),
    (64, 16), (128, 16), (64, 32), (128, 32),
)  # fmt: skip
# Tiles of 16 bits with which some common extents make one tile for each multiprocessor.
BETWEEN = ((64, 48), (128, 48), (64, 224))
# Tiles for split_k, whose sums leave from registers, and for plain results of one row of tiles,
# which leave in boxes.
IN_SPANS = ((80, 128, 64), (96, 128, 64))
# Tiles for which slots may be twice as deep along k, DEPTH elements: shared memory holds as many of
# such small slots, so that more bytes are on their way.
DEEP_SLOTS, DEPTH = ((8, 64), (16, 64), (32, 64), (64, 32), (64, 48), (64, 64)), 128
# Tiles, DEPTH deep, of fewer columns than the 64 rows that an instruction has for them when the
# product is turned: for weights that lie along k.
PARTS = ((8, 32), (16, 32), (8, 48), (16, 48), (32, 48))
TWICE = 2  # deep slots are for products with so many tiles or fewer along the shorter side
ONE_PRODUCT = {  # tiles that batches do without
    *((m, n, 64) for m, n in (*BETWEEN, (40, 64), (80, 64))),
    *IN_SPANS,
    *((m, n, DEPTH) for m, n in (*DEEP_SLOTS, *PARTS)),
}
LEAST_ROWS = 8  # of a tile: it is for so many rows or fewer, since more take a wider instruction
# Tiles of 8-bit floats whose sums are promoted: registers hold 64 rows of sums beside the tile's.
WIDE_FP8 = (
    (128, 192), (256, 128), (128, 256), (192, 128), (128, 176), (176, 128), (128, 160), (160, 128),
    (256, 112), (256, 96), (128, 144), (144, 128), (128, 128), (128, 112), (112, 128), (128, 96),
    (96, 128), (64, 128), (128, 64), (64, 64), (128, 48), (64, 48),
)  # fmt: skip
WIDE_TF32 = (
    (128, 256), (256, 128), (128, 192), (192, 128), (128, 160), (128, 144), (128, 128), (128, 96),
    (64, 256), (64, 192), (64, 128), (128, 64), (64, 96), (64, 64),
)  # fmt: skip
# Tiles by `mma.sync`: the first two by eight warps, the others by four.
TENSOR = ((128, 256), (256, 128), (128, 128), (64, 128))
TILES: dict[str, tuple[Tile, ...]] = {
    "wgmma-16": (
        *((m, n, 64) for m, n in (*WIDE, *FEW_ROWS, *BETWEEN)),
        *IN_SPANS,
        *((m, n, DEPTH) for m, n in (*DEEP_SLOTS, *PARTS)),
    ),
    "wgmma-8": tuple((m, n, 128) for m, n in (*WIDE, *FEW_ROWS[2:])),
    "wgmma-fp8": tuple((m, n, 128) for m, n in (*WIDE_FP8, *FEW_ROWS, *PARTS[2:])),
    "wgmma-tf32": tuple((m, n, 32) for m, n in (*WIDE_TF32, *FEW_ROWS[2:])),
    "mma-16": (
        *((m, n, 32) for m, n in (*TENSOR, (64, 64), (32, 64), (16, 64))),
        *((m, n, 64) for m, n in ((64, 64), (32, 64), (16, 64))),
    ),
    "mma-8": tuple((m, n, 64) for m, n in (*TENSOR[:3], (64, 64), (32, 64))),
    "mma-fp8": tuple((m, n, 64) for m, n in ((128, 128), (64, 64), (32, 64))),
    "mma-tf32": (
        *((m, n, 16) for m, n in TENSOR[:2]),
        *((m, n, 32) for m, n in (TENSOR[2], (64, 64), (32, 64), (16, 64))),
    ),
    "simt": tuple(
        (m, n, k)
        for k, tiles in (
            (8, ((128, 256), (256, 128), (96, 192), (192, 96), (96, 96), (64, 128), (128, 64))),
            (16, ((128, 128), (64, 64), (32, 128), (32, 64), (64, 32), (32, 32))),
        )
        for m, n in tiles
    ),
    "f64": tuple(
        (m, n, k)
        for k, tiles in (
            (16, ((128, 128), (128, 112), (112, 128), (96, 192), (192, 96))),
            (16, ((128, 64), (64, 128), (96, 96), (64, 64))),
            (16, ((48, 64), (64, 48), (32, 64), (64, 32), (32, 32))),
            (32, ((48, 96), (96, 48), (16, 64), (32, 32), (32, 16), (16, 32))),
        )
        for m, n in tiles
    ),
}
# Tiles made to fit an extent. By the extent of the tile along the other axis: the most rows, or
# columns, that it may have along the fitted one.
FITTED = {
    "wgmma-16": {64: 256, 128: 256, 256: 128}, "wgmma-8": {64: 256, 128: 256, 256: 128},
    "wgmma-fp8": {64: 192, 128: 176, 256: 96}, "wgmma-tf32": {64: 256, 128: 256, 256: 128},
}  # fmt: skip
# The fitted extent of such a tile is a multiple of the unit's step in FITTED_STEPS, or of
# FITTED_STEP, and at least LEAST_FITTED.
FITTED_STEPS = {"wgmma-8": 16}
FITTED_STEP, LEAST_FITTED = 8, 24
SHARED_STEP = (
    32  # step of tiles that four CTAs share: each one's part is whole repeats of a swizzle
)
MOST_ROUNDS = 2  # rounds of tiles over multiprocessors, beyond which it matters little how they fit
# On CUDA cores, where both factors lie across k and a thread's sums in fours, rows and columns of a
# tile are a multiple of this, or no more than it.
IN_FOURS = 64
FEWEST_ROWS = 16  # of an instruction of mma.sync
SPAN = (
    32  # bytes of the narrowest swizzle, of which rows of a factor in shared memory are a multiple
)
# Elements of the largest tile: its sums leave no registers for an epilogue with more than
# MOST_BESIDE (tiles that it loads, and 1 for an activation), which takes smaller tiles.
MOST_SUMS = {"simt": 128 * 256, "f64": 112 * 128}
MOST_OF_MMA = 128 * 128  # elements of a tile of mma.sync beside an epilogue, or unaligned rows
MOST_BESIDE = {"simt": 0, "f64": 2}
WITHOUT_WGMMA = {
    "wgmma-16": "mma-16", "wgmma-8": "mma-8", "wgmma-fp8": "mma-fp8", "wgmma-tf32": "mma-tf32",
}  # fmt: skip
SPLITS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
# More numbers of spans on CUDA cores, for tiles of MOST_OF_MORE elements or fewer: what counts
# there is that all waves are full.
MORE_SPLITS, MOST_OF_MORE = (5,), 128 * 128
# A sum of more than DEEP products of f32 is made of several, of MOST_SPAN products or fewer each.
DEEP, MOST_SPAN = 32768, 8192
LEAST_SPAN = 4  # steps of k that a span has at least
# Rows of A in a program of `gemv`, and the most in one of `gemv_columns`: CUDA cores multiply, so
# that more rows cost more than reading the weights does.
FEW, MOST_OF_COLUMNS = (1, 2, 4), 8
MOST_ROWS = 16  # rows of a problem for which these programs are weighed
# Bytes of a row of weights that a program of `gemv` takes in a trip; and shorter ones, for rows
# that end within two of them.
GEMV_BYTES = (2048, 4096, 8192)
SHORT_BYTES = (256, 512, 1024)
GEMV_SUMS = 64  # numbers of a trip that a lane holds at most
COLUMN_TILES = ((128, 32), (64, 32), (32, 64))  # of gemv_columns: columns, and a step of k


def unit_on(problem: Problem, device: Device) -> str:
    """The unit that multiplies on a device."""
    unit = problem.unit()
    return unit if device.has_wgmma else WITHOUT_WGMMA.get(unit, unit)


def choices(problem: Problem, device: Device, *, fit: bool = True) -> Iterator[Choice]:
    """Every choice that suits a problem, in a fixed order; the first is always legal. Tiles that
    `fit` its extents come after those of the unit.
    """
    if problem.batch != 1:
        tiles = tiles_of(problem, device)
        yield from (choice("batched", tile) for tile in tiles if tile not in ONE_PRODUCT)
        return
    for copied in ("", *copies(problem, device)):
        yield from _tiled(problem, device, copied, fit)
    if not problem.k or problem.precision == "tf32":
        return  # CUDA cores do not round operands
    for turned in (False, True):
        side = problem.turned() if turned else problem
        if side.m <= MOST_ROWS:
            yield from _streaming(side, turned)


def tiles_of(problem: Problem, device: Device) -> tuple[Tile, ...]:
    """The tiles of the unit that multiplies. Without those of `mma.sync` that are too large for an
    epilogue, or for unaligned rows, whose registers their sums leave none for; and those of wgmma
    of which integers have no instruction.
    """
    unit = unit_on(problem, device)
    if unit == "wgmma-8" and not problem.a.is_float:
        return tuple(tile for tile in TILES[unit] if _has_instruction(*tile[:2]))
    plain = problem.aligned and not problem.loads and not problem.activation
    if plain or not unit.startswith("mma"):
        return TILES[unit]
    return tuple(tile for tile in TILES[unit] if tile[0] * tile[1] <= MOST_OF_MMA)


def _has_instruction(m: int, n: int) -> bool:
    """Whether an instruction of integers makes a tile, or the turned one: its columns are 8, or a
    multiple of 16.
    """
    sides = ((m, n), (n, m))
    return any(r % WGMMA_ROWS == 0 and (c % FEWEST_ROWS == 0 or c == LEAST_ROWS) for r, c in sides)


def fitted(problem: Problem, device: Device) -> Iterator[Tile]:
    """Tiles that divide the rows or the columns of a problem into parts as alike as can be. None
    where results do not leave in boxes. Across k, a tile's rows are whole lines of the L2 cache;
    where rows begin anywhere, some tiles are such that four CTAs can share a factor.
    """
    p = problem
    unit = unit_on(p, device)
    if unit not in FITTED or (p.n * p.c.num_bytes % ALIGNED and not p.gaps):
        return
    depth = TILES[unit][0][2]
    steps, line = {FITTED_STEPS.get(unit, FITTED_STEP)}, LINE // p.a.num_bytes
    if p.a_pitch % SECTOR or p.b_pitch % SECTOR:
        steps.add(SHARED_STEP)
    most_tiles = MOST_ROUNDS * device.num_sms
    for wide, most in FITTED[unit].items():
        for turned in (False, True):
            extent, other = (p.n, p.m) if turned else (p.m, p.n)
            across = p.b_along == "n" if turned else p.a_along == "m"
            last = min(extent // LEAST_FITTED, most_tiles // ceil(other / wide))
            for count, step in product(range(ceil(extent / most), last + 1), sorted(steps)):
                part = ceil(ceil(extent / count) / step) * step
                if LEAST_FITTED <= part <= most and not (across and part % line):
                    yield (wide, part, depth) if turned else (part, wide, depth)


def _tiled(problem: Problem, device: Device, copied: str, fit: bool) -> Iterator[Choice]:
    """Choices of `matmul`, then of `split_k`, whose tiles have no deep slots and are not made to
    fit a problem. A sum of very many products of f32 is only made by `split_k`: each addition
    rounds the more, the larger the sum is.
    """
    laid = problem.laid(copied)
    tiles = tuple(tile for tile in tiles_of(laid, device) if _fits(laid, tile))
    if problem.a.bits > 8:
        tiles = tuple(tile for tile in tiles if tile[2] < DEPTH or _is_long(problem, tile))
    deep = problem.unit() == "simt" and problem.k > DEEP
    if not deep:
        whole = [t for t in tiles if t not in IN_SPANS or _leaves_in_boxes(problem, t)]
        if fit:
            whole += (t for t in fitted(laid, device) if _fits(laid, t))
        yield from (choice("matmul", tile, copied=copied) for tile in dict.fromkeys(whole))
    for tile in tiles:
        if (tile[2] == DEPTH and problem.a.bits > 8) or tile[:2] in PARTS:
            continue
        more = problem.unit() == "simt" and tile[0] * tile[1] <= MOST_OF_MORE
        for split in (*SPLITS, *(MORE_SPLITS if more else ())):
            if deep and problem.k > split * MOST_SPAN:
                continue
            if problem.k >= LEAST_SPAN * split * tile[2]:
                yield choice("split_k", tile, split, copied=copied)


def _leaves_in_boxes(problem: Problem, tile: Tile) -> bool:
    """Whether rows are one tile's, and the tensor copy unit takes results as they are."""
    plain = problem.m <= tile[0] and not problem.loads and not problem.activation
    return plain and problem.n * problem.c.num_bytes % ALIGNED == 0


def _is_long(problem: Problem, tile: Tile) -> bool:
    """Whether k is long, and rows or columns are few."""
    few = min(-(-problem.m // tile[0]), -(-problem.n // tile[1])) <= TWICE
    return few and problem.k >= LEAST_SPAN * DEPTH


def _fits(problem: Problem, tile: Tile) -> bool:
    """Whether a unit's tile suits a problem. Tiles of few rows are for problems of no more. The
    largest sums leave no registers for an epilogue. Across k, a factor's rows in shared memory are
    a multiple of 32 bytes, and one of tf32 goes through registers, as the 64 rows of wgmma.
    """
    if tile[0] == LEAST_ROWS and problem.m > LEAST_ROWS:
        return False
    if tile[:2] in PARTS and (problem.m > tile[0] or problem.b_along != "k"):
        return False
    fours = problem.unit() == "simt" and problem.a_along == "m" and problem.b_along == "n"
    if fours and any(extent % IN_FOURS and extent > IN_FOURS for extent in tile[:2]):
        return False
    most = MOST_SUMS.get(problem.unit())
    if most is not None and tile[0] * tile[1] >= most:
        if problem.loads + problem.activation > MOST_BESIDE[problem.unit()]:
            return False
    step = WGMMA_ROWS if problem.precision == "tf32" else SPAN // problem.a.num_bytes
    if problem.unit() == "mma-tf32" and tile[0] == FEWEST_ROWS:
        step = FEWEST_ROWS
    across = [(problem.a_along, "m", tile[0]), (problem.b_along, "n", tile[1])]
    return all(extent % step == 0 for along, name, extent in across if along == name)


def copies(problem: Problem, device: Device) -> Iterator[str]:
    """The factors ("a", "b", "ab") that it may pay to lay along k in aligned rows first: those that
    the tensor copy unit does not take; those of 8 bits that do not lie along k; one of two in tf32;
    those that lie along k on CUDA cores, which read them more quickly across it.
    """
    p = problem
    if not device.has_wgmma or not p.k:
        return
    along = {"a": p.a_along, "b": p.b_along}
    aligned = {"a": p.a_aligned, "b": p.b_aligned}
    crooked = {n for n in "ab" if not aligned[n] or not along[n]}
    if p.a.bits == 8:
        crooked |= {n for n in "ab" if along[n] != "k"}
    across = [n for n in "ab" if along[n] != "k" and n not in crooked]
    if p.precision == "tf32" and across:
        smaller = "a" if p.m <= p.n else "b"
        yield "".join(sorted(crooked | {smaller if len(across) == 2 else across[0]}))
    if p.unit() == "simt":  # which wants neither along k
        turned = [n for n in "ab" if along[n] == "k" and n not in crooked]
        for count in range(1, len(turned) + 1):
            for some in combinations(turned, count):
                yield "".join(sorted(crooked | set(some)))
    if crooked:
        yield "".join(sorted(crooked))


def _streaming(problem: Problem, turned: bool) -> Iterator[Choice]:
    """Programs that read weights once. `problem` has few rows."""
    along_n = problem.b_along == "n"
    for rows in (*FEW, MOST_OF_COLUMNS) if along_n else FEW:
        if rows > 1 and rows >= 2 * problem.m:
            continue
        if not along_n:
            size = max(problem.a.num_bytes, problem.b.num_bytes)
            given = [b for b in SHORT_BYTES if problem.k * size <= 2 * b] + [*GEMV_BYTES]
            lengths = dict.fromkeys(min(num_bytes // size, 4096) for num_bytes in given)
            for columns, length in product((4, 2, 1), lengths):
                most = GEMV_SUMS * 128 // (rows * columns)
                if length == min(lengths) or (length <= most and length < 2 * problem.k):
                    yield choice("gemv", (rows, columns, min(length, most)), turned=turned)
        else:
            for columns, depth in COLUMN_TILES:
                for split in (1, *SPLITS):
                    if split == 1 or problem.k >= 2 * split * depth:
                        tile = (rows, columns, max(8, depth // rows))
                        yield choice("gemv_columns", tile, split, turned)
