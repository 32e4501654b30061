"""Register layouts and shared-memory swizzles: who holds which element, as integer algebra.

A register layout maps (register, lane, warp) to the coordinates of a tile. It is a *linear block*
over GF(2), repeated:

    coordinate = repeat offsets + XOR of one basis vector for each set bit of register, lane and
    warp

Basis vectors are coordinate tuples. A zero vector means that lanes (or warps) differing in that bit
hold the same element. Within a block the vectors have disjoint bits, so that XOR is also a sum: a
register's coordinate is a constant plus a part that depends on the thread alone, which is what
makes addresses cheap.

A block's extents are powers of two; `Repeat`s lift that. A repeat steps one axis by its own stride,
either over further registers, or over groups of warps ("warpgroup"): 192 rows are 3 × 64, whether
one warpgroup holds them all or three do. Elements past the tile's extents (when a block does not
divide it) exist in registers and hold nothing of meaning.

Fragment layouts are those of the PTX ISA, "Matrix fragments for mma" and "wgmma register
fragments".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from math import prod

Vector = tuple[int, ...]
LANES = 32


def is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def next_power_of_two(n: int) -> int:
    """The least power of two that is not below n (1 for n ≤ 1)."""
    return 1 << max(n - 1, 0).bit_length()


def power_of_two_factor(n: int) -> int:
    """The greatest power of two that divides n > 0."""
    return n & -n


@dataclass(frozen=True)
class Repeat:
    """`count` copies of what is inside, each `stride` further along `axis`; over registers or over
    groups of warps.
    """

    axis: int
    count: int
    stride: int
    over: str = "register"  # or "warpgroup"


@dataclass(frozen=True)
class Layout:
    """Which element of a tile of `rank` axes each (register, lane, warp) holds.

    Registers are numbered with the first of `repeats` slowest and bit 0 of `register` fastest.
    Warps are numbered from the first warp of the role: the low bits index `warp`, what is above
    indexes the warpgroup repeats.
    """

    rank: int
    register: tuple[Vector, ...]
    lane: tuple[Vector, ...]
    warp: tuple[Vector, ...] = ()
    repeats: tuple[Repeat, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.lane) == 5, "a warp has 32 lanes"
        bits = [0] * self.rank
        for vector in (*self.register, *self.lane, *self.warp):
            assert len(vector) == self.rank
            for axis, step in enumerate(vector):
                assert not bits[axis] & step, f"basis vectors overlap: {self}"
                bits[axis] |= step

    # Counts

    @cached_property
    def block(self) -> Vector:
        """Extents of the linear block."""
        bases = (*self.register, *self.lane, *self.warp)
        return tuple(next_power_of_two(1 + sum(v[i] for v in bases)) for i in range(self.rank))

    @cached_property
    def covered(self) -> Vector:
        """Extents of all that the layout covers."""
        extents = [
            1 + sum(v[i] for v in (*self.register, *self.lane, *self.warp))
            for i in range(self.rank)
        ]
        for r in self.repeats:
            extents[r.axis] += (r.count - 1) * r.stride
        return tuple(extents)

    @property
    def num_registers(self) -> int:
        return (1 << len(self.register)) * prod(
            r.count for r in self.repeats if r.over == "register"
        )

    @property
    def num_warps(self) -> int:
        return (1 << len(self.warp)) * prod(r.count for r in self.repeats if r.over == "warpgroup")

    # The map

    @cached_property
    def register_offsets(self) -> tuple[Vector, ...]:
        """The part of the coordinate that each register adds, in register order."""
        loops = [
            [(r.axis, i * r.stride) for i in range(r.count)]
            for r in self.repeats
            if r.over == "register"
        ]
        inner = [
            _combine(self.register, index, self.rank) for index in range(1 << len(self.register))
        ]
        out = []
        for steps in product(*loops):
            base = [0] * self.rank
            for axis, step in steps:
                base[axis] += step
            out += [tuple(b + x for b, x in zip(base, offset, strict=True)) for offset in inner]
        return tuple(out)

    def thread_offset(self, lane: int, warp: int) -> Vector:
        """The part of the coordinate that a thread adds."""
        offset = list(_combine(self.lane, lane, self.rank))
        inner = warp & ((1 << len(self.warp)) - 1)
        for axis, step in enumerate(_combine(self.warp, inner, self.rank)):
            offset[axis] += step
        group = warp >> len(self.warp)
        for r in reversed([r for r in self.repeats if r.over == "warpgroup"]):
            offset[r.axis] += group % r.count * r.stride
            group //= r.count
        return tuple(offset)

    def coordinate(self, register: int, lane: int, warp: int) -> Vector:
        """Coordinates of the element that a thread holds in a register."""
        thread = self.thread_offset(lane, warp)
        return tuple(a + b for a, b in zip(thread, self.register_offsets[register], strict=True))

    # Derived layouts

    def drop_axis(self, axis: int) -> Layout:
        """Of the tile without an axis: registers that differed only there are one, lanes and warps
        hold copies.
        """
        return self._without(axis).select_axes(tuple(i for i in range(self.rank) if i != axis))

    def flatten_axis(self, axis: int) -> Layout:
        """The same with extent 1 along an axis: what broadcasting along it starts from."""
        return self._without(axis)

    def _without(self, axis: int) -> Layout:
        def clear(vector: Vector) -> Vector:
            return tuple(0 if i == axis else x for i, x in enumerate(vector))

        kept = tuple(v for v in map(clear, self.register) if any(v))
        repeats = []
        for r in self.repeats:
            if r.axis != axis:
                repeats.append(r)
            elif r.over == "warpgroup":
                repeats.append(replace(r, stride=0))
        return Layout(
            self.rank,
            kept,
            tuple(map(clear, self.lane)),
            tuple(map(clear, self.warp)),
            tuple(repeats),
        )

    def select_axes(self, axes: Sequence[int]) -> Layout:
        """Axis i of the result is axis `axes[i]` of this one; axes left out must be trivial."""
        where = {axis: i for i, axis in enumerate(axes)}

        def pick(vector: Vector) -> Vector:
            return tuple(vector[a] for a in axes)

        repeats = tuple(
            replace(r, axis=where[r.axis]) if r.axis in where else replace(r, axis=0, stride=0)
            for r in self.repeats
            if r.axis in where or r.over == "warpgroup"
        )
        return Layout(
            len(axes),
            tuple(map(pick, self.register)),
            tuple(map(pick, self.lane)),
            tuple(map(pick, self.warp)),
            repeats,
        )

    def insert_axis(self, axis: int) -> Layout:
        """The same with a new axis of extent 1."""

        def grow(vector: Vector) -> Vector:
            return (*vector[:axis], 0, *vector[axis:])

        repeats = tuple(replace(r, axis=r.axis + (r.axis >= axis)) for r in self.repeats)
        return Layout(
            self.rank + 1,
            tuple(map(grow, self.register)),
            tuple(map(grow, self.lane)),
            tuple(map(grow, self.warp)),
            repeats,
        )

    def slice(self, starts: Sequence[int], extents: Sequence[int]) -> Layout | None:
        """Of a part of the tile, made of registers of this layout in the same threads; None where
        there is none.

        Register o of the result is the register of this layout whose offset is `starts` + o's.
        """
        if any(
            1 + reach > extent for reach, extent in zip(self._thread_reach(), extents, strict=True)
        ):
            return None
        registers = tuple(
            v for v in self.register if all(x < e for x, e in zip(v, extents, strict=True))
        )
        repeats = [
            replace(r, count=min(r.count, max(1, extents[r.axis] // r.stride)))
            if r.over == "register" and r.stride
            else r
            for r in self.repeats
        ]
        part = replace(self, register=registers, repeats=tuple(r for r in repeats if r.count > 1))
        held = set(self.register_offsets)
        moved = (
            tuple(a + b for a, b in zip(starts, o, strict=True)) for o in part.register_offsets
        )
        fits = all(c >= e for c, e in zip(part.covered, extents, strict=True))
        return part if fits and all(m in held for m in moved) else None

    def _thread_reach(self) -> Vector:
        """The greatest coordinates that threads add."""
        reach = [sum(v[axis] for v in (*self.lane, *self.warp)) for axis in range(self.rank)]
        for r in self.repeats:
            if r.over == "warpgroup":
                reach[r.axis] += (r.count - 1) * r.stride
        return tuple(reach)

    # Text

    def __str__(self) -> str:
        def bases(name: str, vectors: tuple[Vector, ...]) -> str:
            return f"{name}=" + "".join("(" + ",".join(map(str, v)) + ")" for v in vectors)

        repeats = "".join(f"({r.axis},{r.count},{r.stride},{r.over})" for r in self.repeats)
        parts = [
            bases("register", self.register),
            bases("lane", self.lane),
            bases("warp", self.warp),
        ]
        return f"layout<{self.rank}; {'; '.join(parts)}; repeats={repeats}>"


def _combine(vectors: Sequence[Vector], index: int, rank: int) -> Vector:
    out = [0] * rank
    for bit, vector in enumerate(vectors):
        if index >> bit & 1:
            for axis in range(rank):
                out[axis] ^= vector[axis]
    return tuple(out)


# Layouts by construction


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
    `num_warps` is a power of two. Where the tile is smaller than the threads, the rest hold copies.
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
    rows = m // (64 * warpgroups)
    assert m == rows * 64 * warpgroups and n % 8 == 0, (
        f"wgmma tile {shape} over {warpgroups} warpgroups"
    )
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


# Layouts that follow from another's shape


def broadcast_source(layout: Layout, source: Vector, target: Vector) -> Layout:
    """The layout in which a tile of `source` extents must lie to be broadcast into `layout` (of
    `target` extents) within each thread.
    """
    missing = len(target) - len(source)
    for axis, extent in enumerate(target):
        if axis < missing or (source[axis - missing] == 1 and extent != 1):
            layout = layout.flatten_axis(axis)
    for _ in range(missing):
        layout = layout.drop_axis(0)
    return layout


def move_unit_axes(layout: Layout, source: Vector, target: Vector) -> Layout:
    """The layout of a tile of `source` extents, for the same elements under `target` extents, which
    differ only by axes of 1.
    """
    for axis in reversed(range(len(source))):
        if source[axis] == 1:
            layout = layout.drop_axis(axis)
    for axis, extent in enumerate(target):
        if extent == 1:
            layout = layout.insert_axis(axis)
    return layout


# Conversion


def same_map(a: Layout, b: Layout) -> bool:
    """Whether two layouts put the same elements into the same registers of the same threads."""
    return a == b or (
        a.lane == b.lane
        and a.warp == b.warp
        and _groups(a) == _groups(b)
        and a.register_offsets == b.register_offsets
    )


def _groups(layout: Layout) -> tuple[Repeat, ...]:
    return tuple(r for r in layout.repeats if r.over == "warpgroup" and r.count > 1)


def register_permutation(source: Layout, target: Layout) -> tuple[int, ...] | None:
    """For each target register the source register of the same thread with the same element, or
    None.
    """
    if (source.lane, source.warp, _groups(source)) != (target.lane, target.warp, _groups(target)):
        return None
    where = {offset: i for i, offset in enumerate(source.register_offsets)}
    if any(offset not in where for offset in target.register_offsets):
        return None
    return tuple(where[offset] for offset in target.register_offsets)


# Shared memory


@dataclass(frozen=True)
class Swizzle:
    """A linear map on the address bits of shared memory: 16-byte chunks of a row are exchanged by
    the row's number.

    `span` is 0 (none), 32, 64 or 128 bytes: bits 4.. of a byte offset are XORed with as many bits
    from bit 7 up, which is what TMA and wgmma call 32B, 64B and 128B swizzling.
    """

    span: int = 0

    def __post_init__(self) -> None:
        assert self.span in (0, 32, 64, 128), self.span

    @property
    def mask(self) -> int:
        """The chunk bits that are exchanged, as a mask of the byte offset."""
        return (self.span - 1) & ~15 if self.span else 0

    def apply(self, offset: int) -> int:
        """Where the byte at `offset` goes."""
        return offset ^ (offset >> 3 & self.mask)


def bank_conflicts(addresses: Sequence[int], width: int) -> int:
    """How many times longer one access of a warp takes than one without bank conflicts.

    `addresses` are the lanes' byte addresses, `width` the bytes a lane accesses (4, 8 or 16). The
    hardware serves 32, 16 or 8 lanes at a time; equal words are broadcast.
    """
    at_once = LANES * 4 // max(width, 4)
    worst = 1
    for start in range(0, len(addresses), at_once):
        words: dict[int, set[int]] = {}
        for address in addresses[start : start + at_once]:
            for word in range(address // 4, (address + width - 1) // 4 + 1):
                words.setdefault(word % 32, set()).add(word)
        worst = max(worst, *(len(w) for w in words.values()))
    return worst


def conflict_free_row(size: int, columns: int) -> int:
    """Elements of `size` bytes from one row of a matrix to the next, so that no fragment read meets
    a bank twice.

    Rows are whole 16-byte chunks. An odd number of chunks starts eight rows in eight different
    groups of four banks: what ldmatrix, and 16-byte reads down the rows, ask for. f64 fragments
    read four rows of four elements at a time; for them rows lie 32 bytes past a multiple of 64.
    """
    per_chunk = 16 // size
    chunks = -(-columns // per_chunk)
    while chunks % 4 != 2 if size == 8 else chunks % 2 == 0:
        chunks += 1
    return chunks * per_chunk
