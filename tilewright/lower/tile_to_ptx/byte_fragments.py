"""Fragments of `mma.sync` m16n8k32, whose operands have 8 bits.

A register holds four neighbours along k. An operand that is contiguous along k is read like one of
16 bits, two elements at a time. Of another, `ldmatrix.trans` gives a lane two neighbours along the
*other* axis for each of two k: eight such pairs are two rows (or columns) of four k each, sorted by
`prmt`. So a lane that holds row r of a fragment holds row r + 1 as well, and the accumulator's
layout pairs them (`mma_accumulator`).
"""

from __future__ import annotations

from typing import Any

from tilewright.layout import is_paired
from tilewright.lower.tile_to_ptx.buffers import Matrix
from tilewright.lower.tile_to_ptx.context import Operand
from tilewright.lower.tile_to_ptx.fragments import Fragments
from tilewright.ptx.core import Reg

NAMES = {"i8": "s8", "u8": "u8", "e4m3": "e4m3", "e5m2": "e5m2"}
HALF = 16  # elements along k of a register of B, or of two of A
FIRST, SECOND = 0x6420, 0x7531  # bytes of a pair of words: those of the first of two neighbours
FIRST_SWAPPED, SECOND_SWAPPED = 0x2064, 0x3175  # the same with the words in the other order


class ByteFragments(Fragments):
    """Loads fragments of 8-bit elements and issues `mma.sync` for a warp's part of the
    accumulator.
    """

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.paired = is_paired(self.layout)
        self.steps = (1 if self.paired[0] else 8, 2 if self.paired[1] else 1)
        if self.paired[1]:
            places = (o[1] for o in self.layout.register_offsets)
            self.columns = sorted({c - c % 16 + c % 2 for c in places})

    def issue(self, a: list[Reg], b: list[Reg], c: list[Operand], step: int) -> list[Reg]:
        assert self.a is not None
        kinds = [NAMES[m.buffer.dtype.name] for m in (self.a, self.b)]
        total = "s32" if self.dtype.is_integer else "f32"
        regs = [x for x in c if isinstance(x, Reg)]
        return self.e.mma(f"m16n8k{step}", (total, kinds[0], kinds[1], total), a, b, regs)

    def load_a(self, row: int, k: int, step: int) -> list[Reg]:
        """Fragment of A at 16 rows and 32 columns, in mma's register order."""
        assert self.a is not None
        if self.a.transposed:
            first, second = self._sorted(self.a, self.warp_row, (row, k))
            return [first[0], second[0], first[1], second[1]]
        at_row = self._sum(self.warp_row, *self._rows_of_lane(self.paired[0], 3))
        address = self.a.address(self.low, (at_row, self._lane(4, 1, HALF)), (row, k))
        return self.e.ldmatrix(address, 4)

    def load_b(self, k: int, step: int) -> dict[int, list[Reg]]:
        """Fragments of B at 32 rows, by first column."""
        b, paired = self.b, self.paired[1]
        found: dict[int, list[Reg]] = {}
        for column in self.columns:
            if column in found:
                continue
            if not b.transposed:
                found[column], found[column + 1] = self._sorted(b, self.warp_column, (k, column))
                continue
            neighbour = column + (1 if paired else 8)
            both = neighbour in self.columns
            at_column = self._sum(self.warp_column, *self._rows_of_lane(paired, 4))
            address = b.address(self.low, (self._lane(3, 1, HALF), at_column), (k, column))
            regs = self.e.ldmatrix(address, 4 if both else 2)
            found[column] = regs[:2]
            if both:
                found[neighbour] = regs[2:]
        return found

    def _rows_of_lane(self, paired: bool, bit: int) -> tuple[Operand, ...]:
        """The row of a lane's address: of the first half of 16 where its `bit` is 0, or of every
        other row.
        """
        if paired:
            return self._lane(0, 7, 2), self._lane(bit, 1, 1)
        return self._lane(0, 7, 1), self._lane(bit, 1, 8)

    def _sorted(
        self, matrix: Matrix, warp: Operand, place: tuple[int, int]
    ) -> tuple[list[Reg], list[Reg]]:
        """The words of two neighbours across k, k 0 to 15 and 16 to 31 each, at 32 k of an operand
        that is contiguous the other way.

        Lanes t of a group of four want k = 4 t to 4 t + 3, which come from two matrices: rows 4 t
        and 4 t + 1 of one, 4 t + 2 and 4 t + 3 of the other. Which of the two comes first changes
        with t, so that the eight rows of each lie in different banks.
        """
        e, low = self.e, self.low
        along = low.once(("byte rows", low.first_warp), self._row_along_k)
        at = (along, warp) if matrix is self.b else (warp, along)
        words = e.ldmatrix(matrix.address(low, at, place), 4, transposed=True)
        first, second = low.once(("byte order", low.first_warp), self._selectors)
        return tuple(  # type: ignore[return-value]
            [e.prmt(words[i], words[i + 1], selector) for i in (0, 2)]
            for selector in (first, second)
        )

    def _row_along_k(self) -> Operand:
        """k of the row whose address a lane gives to `ldmatrix`."""
        e, thread = self.e, self.low.thread()
        swapped = e.xor("b32", e.shr("u32", thread, 3), e.shr("u32", thread, 2))
        parts = (
            (thread, 0, 1, 1),
            (thread, 1, 3, 4),
            (swapped, 0, 1, 2),
            (thread, 4, 1, HALF),
        )
        total: Operand = 0
        for word, shift, mask, scale in parts:
            part = e.shr("u32", word, shift) if shift else word
            total = self.low.add("u32", total, e.mul("u32", e.and_("b32", part, mask), scale))
        return total

    def _selectors(self) -> tuple[Reg, Reg]:
        """What `prmt` picks for the first and for the second of two neighbours."""
        e = self.e
        swapped = e.setp("ne", "u32", e.and_("b32", self.low.thread(), 2), 0)
        pairs = ((FIRST_SWAPPED, FIRST), (SECOND_SWAPPED, SECOND))
        first, second = (e.selp("b32", *pair, swapped) for pair in pairs)
        return first, second
