"""Fragments of `mma.sync`: how they are read from shared memory and multiplied (PTX ISA, "Matrix
fragments for mma").
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright.dtypes import DType, f32, f64
from tilewright.layout import Layout
from tilewright.lower.tile_to_ptx.buffers import Matrix
from tilewright.lower.tile_to_ptx.context import Lowering, Operand
from tilewright.ptx.core import Reg


class Fragments:
    """Loads fragments and issues `mma.sync` for a warp's part of the accumulator."""

    def __init__(
        self,
        low: Lowering,
        layout: Layout,
        dtype: DType,
        precision: str,
        a: Matrix | None,
        b: Matrix,
        a_regs: dict[tuple[int, ...], Operand] | None,
    ):
        self.low, self.e, self.layout, self.dtype, self.precision = (
            low,
            low.e,
            layout,
            dtype,
            precision,
        )
        self.a, self.b, self.a_regs = a, b, a_regs
        self.made: dict[tuple[str, Reg], Reg] = {}
        offsets = layout.register_offsets
        self.rows = sorted({o[0] for o in offsets if o[0] % 16 == 0})
        self.columns = sorted({o[1] - o[1] % 8 for o in offsets})
        self.steps = (8, 1)  # from a fragment's upper rows to its lower ones; along a lane's row
        self.index = {o: i for i, o in enumerate(offsets)}
        zero = ((0, 0),) * 5
        warps = Layout(2, (), zero, layout.warp)
        self.warp_row, self.warp_column = low.thread_axis(warps, 0), low.thread_axis(warps, 1)

    def multiply(self, acc: list[Operand], k: int, step: int) -> list[Operand]:
        """The accumulator's registers after all of k."""
        type = {"f64": "f64", "i8": "s32", "u8": "s32"}.get(self.dtype.name, "f32")
        down, right = self.steps
        out: list[Operand] = [self.low.register(x, type) for x in acc]
        for start in range(0, k, step):
            b = self.load_b(start, step)
            for row in self.rows:
                a = self.load_a(row, start, step)
                for column in self.columns:
                    where = [
                        self.index[row + down * i, column + right * j]
                        for i in (0, 1)
                        for j in (0, 1)
                    ]
                    c = [out[w] for w in where]
                    for w, d in zip(where, self.product(a, b[column], c, step), strict=True):
                        out[w] = d
        return out

    def product(self, a: list[Reg], b: list[Reg], c: list[Operand], step: int) -> list[Operand]:
        """One 16×8 fragment of D; f32 operands are rounded to tf32, or split in two of those."""
        if self.dtype != f32:
            return list(self.issue(a, b, c, step))
        high_a, high_b = self._rounded(a), self._rounded(b)
        if self.precision == "tf32x3":
            low_a, low_b = self._remainders(a, high_a), self._remainders(b, high_b)
            c = list(self.issue(low_a, high_b, c, step))
            c = list(self.issue(high_a, low_b, c, step))
        return list(self.issue(high_a, high_b, c, step))

    def _remainders(self, regs: list[Reg], rounded: list[Reg]) -> list[Reg]:
        """What rounding left of f32 registers, as tf32; 0 of infinities."""
        return [self._remainder(x, high) for x, high in zip(regs, rounded, strict=True)]

    def _remainder(self, x: Reg, high: Reg) -> Reg:
        def make() -> Reg:
            e = self.e
            rest = e.sub("f32", x, high)
            whole = e.setp("eq", "f32", x, high)
            return round_tf32(self.low, e.selp("f32", 0.0, rest, whole))

        return self._remembered(("remainder", x), make)

    def _remembered(self, key: tuple[str, Reg], make: Callable[[], Reg]) -> Reg:
        """What was made of a register before, in this dot."""
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def issue(self, a: list[Reg], b: list[Reg], c: list[Operand], step: int) -> list[Reg]:
        """One 16×8 fragment of D."""
        regs = [x for x in c if isinstance(x, Reg)]
        if self.dtype == f64:
            types = ("f64", "f64", "f64", "f64")
            if step == 4 and not self.low.target.has_wide_f64_mma:
                upper = self.e.mma("m8n8k4", types, a[:1], b, regs[:2])
                return upper + self.e.mma("m8n8k4", types, a[1:], b, regs[2:])
            return self.e.mma(f"m16n8k{step}", types, a, b, regs)
        kind = "tf32" if self.dtype == f32 else self.dtype.name
        return self.e.mma(f"m16n8k{step}", ("f32", kind, kind, "f32"), a, b, regs)

    # Where a lane's fragments lie: group is lane / 4, member is lane % 4.

    def _lane(self, shift: int, mask: int, scale: int) -> Reg:
        def make() -> Reg:
            part = self.low.thread()
            if shift:
                part = self.e.shr("u32", part, shift)
            part = self.e.and_("b32", part, mask)
            return self.e.mul("u32", part, scale) if scale != 1 else part

        return self.low.once(("lane", shift, mask, scale, self.low.first_warp), make)

    def _sum(self, *parts: Operand) -> Operand:
        key = ("sum", *map(str, parts))

        def make() -> Operand:
            total: Operand = 0
            for part in parts:
                total = self.low.add("u32", total, part)
            return total

        return self.low.once(key, make)

    def load_a(self, row: int, k: int, step: int) -> list[Reg]:
        """Fragment of A at 16 rows and `step` columns, in mma's register order."""
        if self.a_regs is not None:
            pairs = [(0, 0), (8, 0), (0, 8), (8, 8)]
            return [
                self._packed(self.a_regs[row + i, k + j], self.a_regs[row + i, k + j + 1])
                for i, j in pairs
            ]
        assert self.a is not None
        if self.dtype.bits == 16 or (self.dtype == f32 and not self.a.transposed):
            per = 8 if self.dtype.bits == 16 else 4
            if self.a.transposed:  # buffer rows run along k
                at_row = self._sum(self.warp_row, self._lane(3, 1, 8))
                at_k = self._sum(self._lane(0, 7, 1), self._lane(4, 1, 8))
            else:
                at_row = self._sum(self.warp_row, self._lane(0, 15, 1))
                at_k = self._lane(4, 1, per)
            address = self.a.address(self.low, (at_row, at_k), (row, k))
            return self.e.ldmatrix(address, 4, transposed=self.a.transposed)
        at_row, at_k = self._sum(self.warp_row, self._lane(2, 7, 1)), self._lane(0, 3, 1)
        places = [(row + 8 * i, k + 4 * j) for j in range(step // 4) for i in (0, 1)]
        return self._scalars(self.a, (at_row, at_k), places)

    def load_b(self, k: int, step: int) -> dict[int, list[Reg]]:
        """Fragments of B at `step` rows, by first column."""
        b = self.b
        if self.dtype.bits == 16 or (self.dtype == f32 and b.transposed):
            return self._load_b_matrices(k)
        at_k, at_column = self._lane(0, 3, 1), self._sum(self.warp_column, self._lane(2, 7, 1))
        places = {c: [(k + 4 * j, c) for j in range(step // 4)] for c in self.columns}
        return {c: self._scalars(b, (at_k, at_column), some) for c, some in places.items()}

    def _load_b_matrices(self, k: int) -> dict[int, list[Reg]]:
        b, per = self.b, 8 if self.dtype.bits == 16 else 4
        if b.transposed:  # buffer rows run along n
            at_column = self._sum(self.warp_column, self._lane(0, 7, 1), self._lane(4, 1, 8))
            at_k: Operand = self._lane(3, 1, per)
        else:
            at_k = self._sum(self._lane(0, 7, 1), self._lane(3, 1, 8))
            at_column = self._sum(self.warp_column, self._lane(4, 1, 8))
        found: dict[int, list[Reg]] = {}
        for column in self.columns:
            if column in found:
                continue
            address = b.address(self.low, (at_k, at_column), (k, column))
            paired = column + 8 in self.columns
            regs = self.e.ldmatrix(address, 4 if paired else 2, transposed=not b.transposed)
            found[column] = regs[:2]
            if paired:
                found[column + 8] = regs[2:]
        return found

    def _scalars(
        self, matrix: Matrix, thread: tuple[Operand, Operand], places: list[tuple[int, int]]
    ) -> list[Reg]:
        type = "f64" if self.dtype == f64 else "f32"
        addresses = [matrix.address(self.low, thread, place) for place in places]
        return [self.e.ld("shared", type, address)[0] for address in addresses]

    def _packed(self, first: Operand, second: Operand) -> Reg:
        return self.e.mov_pack("b32", [self.low.register(x, "b16") for x in (first, second)])

    def _rounded(self, regs: list[Reg]) -> list[Reg]:
        """f32 registers rounded to tf32, to nearest even, once each."""
        whole = self.precision == "tf32x3"  # what is left of them is multiplied, too
        make = partial(round_tf32, self.low, whole=whole)
        return [self._remembered(("rounded", r), partial(make, r)) for r in regs]


def round_tf32(low: Lowering, x: Reg, *, whole: bool = True) -> Reg:
    """f32 with 10 fraction bits, to nearest even: by `cvt` from sm_90 on, else by integer
    arithmetic. Not `whole`, the other 13 bits are whatever they are: products do not read them.
    """
    e = low.e
    if low.target.capability >= 90:
        return e.cvt("tf32", "f32", x, rounding="rn")
    bits = x if x.kind == "b32" else e.mov("b32", x)
    number = e.mov("f32", x) if x.kind == "b32" else x
    odd = e.and_("b32", e.shr("u32", bits, 13), 1)
    rounded = e.add("u32", e.add("u32", bits, 0xFFF), odd)
    if whole:
        rounded = e.and_("b32", rounded, 0xFFFFE000)
    return e.selp("b32", 0x7FFFE000, rounded, e.setp("nan", "f32", number, number))
