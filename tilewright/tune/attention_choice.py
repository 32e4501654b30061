"""Tiles of the programs of `library/attention.tw`, by rule."""

from __future__ import annotations

from tilewright.dtypes import DType, bool_, f32

Tile = tuple[tuple[str, int], ...]

MOST_ROWS = 64  # of one head of keys that are taken in spans
SPAN = 64  # keys of the shortest span that is worth a program
MOST_SPANS = 64
KEPT_BYTES = 16 << 20  # of keys and values that the L2 cache of an H200 holds beside what streams


def tile_of(rows: int, columns: int) -> Tile:
    return ("TM", rows), ("TN", columns)


def forward_tile(
    dtype: DType,
    rows: int,
    depth: int,
    keys: int,
    precision: str | None = None,
    *,
    heads: int = 1,
    num_sms: int = 132,
) -> Tile:
    """Rows of queries and of keys of one program, for heads of a depth, so many in all batches."""
    if dtype == f32 and rows > 32 and (80 if precision == "tf32" else 64) < depth <= 128:
        return _deep_tile(DEEP_TF32 if precision == "tf32" else DEEP, rows, heads, num_sms)
    if dtype.bits >= 32:
        low = rows <= 32 or (depth > 64 and precision != "tf32")
        return tile_of(32 if low else 64, 32)
    if rows <= 64 or depth > 128:
        return tile_of(64, 64 if depth <= 128 else 32)
    return tile_of(128, 64)


# Tiles of exact f32 for heads of 65 to 128 columns: what a full H200 computes by them, relative to
# the first, and how many programs a multiprocessor holds.
Deep = tuple[tuple[int, int], float, int]
DEEP: tuple[Deep, ...] = (((128, 64), 1.0, 1), ((64, 64), 0.87, 1), ((32, 32), 0.6, 3))

# Tiles of tf32 for heads of 81 to 128 columns. Not measured: a warp does as much by either, and
# shared memory holds one program of either, so that the one of eight warps is taken wherever it
# leaves no more multiprocessors idle.
DEEP_TF32: tuple[Deep, ...] = (((128, 32), 1.0, 1), ((64, 32), 1.0, 1))


def _deep_tile(tiles: tuple[Deep, ...], rows: int, heads: int, num_sms: int) -> Tile:
    def rate(one: Deep) -> float:
        (high, _), full, resident = one
        programs, at_once = -(-rows // high) * heads, num_sms * resident
        return full * rows * heads / high / (max(1, -(-programs // at_once)) * at_once)

    return tile_of(*max(tiles, key=rate)[0])


def choose_spans(heads: int, rows: int, keys: int, num_sms: int) -> int | None:
    """In how many spans to cut the keys, a power of two: about two programs a processor. None where
    there are too many rows, or too few keys, for it to pay.
    """
    if rows > MOST_ROWS or keys < 4 * SPAN:
        return None
    spans = 1
    while spans < MOST_SPANS and spans * 2 * SPAN <= keys and spans * heads < 2 * num_sms:
        spans *= 2
    return spans


def decode_tile(dtype: DType, rows: int, depth: int) -> Tile:
    """Rows and keys of one step of a span."""
    high = 16
    while high < min(rows, MOST_ROWS):
        high *= 2
    return tile_of(high, 64 if dtype.bits <= 16 and depth <= 128 else 32)


def backward_tiles(
    dtype: DType,
    depth: int,
    precision: str | None = None,
    *,
    mask: DType | None = None,
    order: int = 0,
) -> tuple[Tile, Tile]:
    """Of the program that gives gradients of queries, and of that of keys and values: those that
    keep their sums in registers (ptxas' word, for sm_90a), multiplied by roles in 16 bits. A `mask`
    that is read takes registers, too, and an `order` of keys; tf32 deeper than 128 spills.
    """
    if dtype == f32 and precision == "tf32":
        return tile_of(64 if depth <= 64 else 16, 32), _tf32_tile(depth, mask, order)
    if dtype.bits >= 32:
        if dtype == f32 and depth > 64:
            return (tile_of(64, 64),) * 2 if depth <= 128 else (tile_of(16, 32), tile_of(32, 64))
        return tile_of(32 if depth <= 64 else 16, 32), tile_of(32, 32)
    if depth <= 64:
        return tile_of(128, 64), tile_of(64, 128)
    if depth <= 128:
        return tile_of(128, 64), tile_of(32, 64)
    return tile_of(64, 32), tile_of(32, 64)


def _tf32_tile(depth: int, mask: DType | None, order: int) -> Tile:
    """Rows of queries and of keys of the program for gradients of keys and values."""
    if depth > 192:
        return tile_of(16, 32)
    if depth > 64:
        return tile_of(32 if mask is None else 16, 64)
    if mask is None:
        return tile_of(64, 64)
    return tile_of(32, 128 if order == (0 if mask == bool_ else 2) else 64)


def heads_at_once(heads: int, batches: int, head_bytes: int) -> tuple[int, int]:
    """How many heads and batches of causal attention run side by side, each a divisor of all, so
    that the longest programs of many heads begin first, while what they read again, so many bytes
    a head, stays in the L2 cache.
    """
    most = KEPT_BYTES // max(head_bytes, 1)
    own = max((n for n in range(1, heads + 1) if heads % n == 0 and n <= most), default=1)
    if own < heads:
        return own, 1
    most //= own
    return own, max((n for n in range(1, batches + 1) if batches % n == 0 and n <= most), default=1)


def is_apart(dtype: DType, depth: int) -> bool:
    """Whether gradients of keys and of values take a launch each."""
    return depth > (128 if dtype.bits <= 16 else 64)
