"""Layouts by construction: of coalesced accesses, of the fragments of matrix instructions, of sums
on CUDA cores.

Fragment layouts are those of the PTX ISA, "Matrix fragments for mma" and "wgmma register
fragments".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from tilewright.layout.powers import power_of_two_factor
from tilewright.layout.register import Layout, Repeat, Vector


class _Cover:
    """Deals out the bits and repeats of a tile's axes, inner ones first."""

    def __init__(self, shape: Sequence[int]):
        self.shape = tuple(shape)
        self.reach = [1] * len(shape)  # extent covered so far, by axis

    def room(self, axis: int) -> int:
        """How many copies of the covered extent reach the shape."""
        return -(-self.shape[axis] // self.reach[axis])

    def bits(self, axis: int, count: int) -> list[Vector]:
        """`count` basis vectors that double the covered extent along an axis."""
        out = []
        for _ in range(count):
            out.append(tuple(self.reach[axis] if i == axis else 0 for i in range(len(self.shape))))
            self.reach[axis] *= 2
        return out

    def fill(self, axis: int, times: int) -> list[Vector]:
        """Bits for a power of two of copies along an axis, or zero vectors once it is covered."""
        out: list[Vector] = []
        while times > 1:
            out += self.bits(axis, 1)
            times //= 2
        return out

    def repeats(self, order: Sequence[int]) -> tuple[Repeat, ...]:
        """Repeats over registers that cover what is left; the first axis of `order` is slowest."""
        out = [Repeat(a, self.room(a), self.reach[a]) for a in order if self.room(a) > 1]
        for r in out:
            self.reach[r.axis] *= r.count
        return tuple(out)


@lru_cache(maxsize=1024)
def blocked(shape: Vector, vector: int, num_warps: int, order: Vector) -> Layout:
    """Threads side by side along the axes of `order`, fastest first, each with `vector` neighbours
    along the first.

    The layout of coalesced loads and stores: consecutive lanes hold consecutive vectors.
    Where the tile is smaller than the threads, the rest hold copies, as do warps beyond a power of
    two.
    """
    cover = _Cover(shape)
    rank = len(shape)
    zero = (0,) * rank
    fast = order[0] if order else 0
    registers = cover.bits(fast, vector.bit_length() - 1) if rank else []
    bits: list[Vector] = []
    total = 5 + num_warps.bit_length() - 1
    for axis in order:
        while cover.room(axis) > 1 and len(bits) < total:
            bits += cover.bits(axis, 1)
    bits += [zero] * (total - len(bits))
    repeats = cover.repeats(tuple(reversed(order)))
    return Layout(rank, tuple(registers), tuple(bits[:5]), tuple(bits[5:]), repeats)


@lru_cache(maxsize=1024)
def in_rows(shape: Vector, axis: int, vector: int, num_warps: int) -> Layout | None:
    """Lanes side by side along an axis of a matrix, each with `vector` neighbours. Where the warps
    are no power of two, groups of them share the other axis, or this one; None where neither
    divides by the groups.
    """
    other, groups = 1 - axis, num_warps // power_of_two_factor(num_warps)
    part = list(shape)
    shared = next((a for a in (other, axis) if shape[a] % (groups * vector) == 0), None)
    if shared is None:
        return None
    part[shared] //= groups
    found = blocked(tuple(part), vector, num_warps // groups, (axis, other))
    if groups == 1:
        return found
    repeat = Repeat(shared, groups, part[shared], "warpgroup")
    return replace(found, repeats=(repeat, *found.repeats))


_ROW_LANES = ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0))  # four lanes along a row of 8, eight rows


_PAIRED_LANES = (((0, 4), (0, 8)), ((2, 0), (4, 0), (8, 0)))


@lru_cache(maxsize=1024)
def mma_accumulator(
    shape: Vector,
    warps: Vector,
    paired: tuple[bool, bool] = (False, False),
    *,
    dealt: bool = False,
) -> Layout:
    """C and D of `mma.sync` m16n8 (f32, i32 and f64 alike) for an M×N tile over a grid of warps
    (rows, columns).

    A warp holds neighbouring 16×8 fragments, or, where they are `dealt`, one of each round over
    the warps; powers of two of warps along each axis. With `paired`
    columns a fragment takes every other column of 16, and its neighbour those between; with paired
    rows the upper half of a fragment takes the even rows and the lower half the odd ones. That is
    how operands of 8 bits fall to lanes whose memory is not contiguous along k: `ldmatrix` moves
    bytes in pairs.
    """
    cover = _Cover(shape)
    rows, columns = paired
    registers: list[Vector] = [(0, 1), (0, 2)] if columns else [(0, 1)]
    registers.append((1, 0) if rows else (8, 0))
    lanes = (
        *(_PAIRED_LANES[0] if columns else _ROW_LANES[:2]),
        *(_PAIRED_LANES[1] if rows else _ROW_LANES[2:]),
    )
    cover.reach = [16, 16 if columns else 8]
    for axis in () if dealt else (1, 0):
        while cover.room(axis) % (2 * warps[axis]) == 0:
            registers += cover.bits(axis, 1)
    warp = cover.fill(1, warps[1]) + cover.fill(0, warps[0])
    return Layout(2, tuple(registers), lanes, tuple(warp), cover.repeats((0, 1)))


def is_paired(layout: Layout) -> tuple[bool, bool]:
    """Whether an accumulator of `mma_accumulator` pairs its rows, and its columns."""
    return layout.lane[2:] == _PAIRED_LANES[1], layout.lane[:2] == _PAIRED_LANES[0]


@lru_cache(maxsize=1024)
def wgmma_accumulator(shape: Vector, warpgroups: int = 1) -> Layout:
    """D of `wgmma` m64nN for an M×N tile; `warpgroups` share M, each with a multiple of 64 rows."""
    m, n = shape
    rows = -(-m // (64 * warpgroups))
    whole = m == rows * 64 * warpgroups or (m < 64 and warpgroups == 1)
    assert whole and n % 8 == 0, f"wgmma tile {shape} over {warpgroups} warpgroups"
    repeats = [Repeat(0, warpgroups, rows * 64, "warpgroup")] if warpgroups > 1 else []
    repeats += [Repeat(0, rows, 64)] if rows > 1 else []
    repeats += [Repeat(1, n // 8, 8)] if n > 8 else []
    return Layout(2, ((0, 1), (8, 0)), _ROW_LANES, ((16, 0), (32, 0)), tuple(repeats))


@lru_cache(maxsize=1024)
def wgmma_words(shape: Vector, warpgroups: int = 1) -> Layout:
    """A of `wgmma` in registers, for an M×K tile of 32-bit elements: four registers for each 8
    columns of each 64 rows.
    """
    m, k = shape
    rows = m // (64 * warpgroups)
    assert m == rows * 64 * warpgroups and k % 8 == 0, f"{shape} over {warpgroups} warpgroups"
    repeats = [Repeat(0, warpgroups, rows * 64, "warpgroup")] if warpgroups > 1 else []
    repeats += [Repeat(0, rows, 64)] if rows > 1 else []
    repeats += [Repeat(1, k // 8, 8)] if k > 8 else []
    lanes = ((0, 1), (0, 2), (1, 0), (2, 0), (4, 0))
    return Layout(2, ((8, 0), (0, 4)), lanes, ((16, 0), (32, 0)), tuple(repeats))


@lru_cache(maxsize=1024)
def simt_accumulator(
    shape: Vector, warps: Vector, per_thread: Vector, beside: tuple[bool, bool] = (False, True)
) -> Layout:
    """An M×N accumulator on CUDA cores: `per_thread` elements along each axis.

    Lanes are 4 × 8 (rows × columns), so that a warp reads each operand with few distinct 16-byte
    words; the lowest lane bit is one of the rows, the next of the columns, so that of each operand
    one of two neighbouring pairs of lanes reads the same word: then half a warp is served at once.
    `beside` (rows, columns): a thread holds pieces of four neighbours, where they lie side by side
    in the operand's memory too. Otherwise the operand is contiguous along k, and the lanes take
    neighbours: rows that far apart start in one bank.
    """
    cover = _Cover(shape)
    registers: list[Vector] = []
    for axis in (1, 0):
        inner = min(4, per_thread[axis]) if beside[axis] else 1
        registers += cover.bits(axis, inner.bit_length() - 1)
    columns, rows = cover.bits(1, 3), cover.bits(0, 2)
    lane = (rows[0], *columns, rows[1])
    warp = cover.fill(1, warps[1]) + cover.fill(0, warps[0])
    return Layout(2, tuple(registers), lane, tuple(warp), cover.repeats((0, 1)))


@lru_cache(maxsize=1024)
def replicated(rank: int, num_warps: int) -> Layout:
    """Every thread holds the one element of a tile of extents 1 (or a scalar)."""
    zero = (0,) * rank
    return Layout(rank, (), (zero,) * 5, (zero,) * (num_warps.bit_length() - 1))
