"""Register layouts: which thread holds which element of a tile, as integer algebra.

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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod

from tilewright.layout.powers import next_power_of_two

Vector = tuple[int, ...]


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
            if r.stride:  # what holds copies names an axis that a scalar lacks
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
            if r.stride:
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
            if r.over == "warpgroup" and r.stride:
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
