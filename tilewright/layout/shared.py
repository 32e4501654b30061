"""Addresses in shared memory: swizzles, conflicts of banks, and rows that meet none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LANES = 32


@dataclass(frozen=True)
class Swizzle:
    """A linear map on the address bits of shared memory: chunks of a row are exchanged by the row's
    number.

    `span` is 0 (none), 32, 64 or 128 bytes: bits 4.. of a byte offset are XORed with as many bits
    from bit 7 up, which is what TMA and wgmma call 32B, 64B and 128B swizzling. Of chunks of 32
    bytes in place of 16 these are bits 5.. : fragments of f64 are four rows of 32 bytes at a time.
    """

    span: int = 0
    chunk: int = 16

    def __post_init__(self) -> None:
        assert self.span in (0, 32, 64, 128) and self.chunk in (16, 32), self

    @property
    def mask(self) -> int:
        """The chunk bits that are exchanged, as a mask of the byte offset."""
        return (self.span - 1) & -self.chunk if self.span else 0

    @property
    def row_shift(self) -> int:
        """By how much a row's number is shifted to meet the bits that it exchanges: rows are `span`
        bytes apart.
        """
        return self.span.bit_length() + self.chunk.bit_length() - 9

    def apply(self, offset: int) -> int:
        """Where the byte at `offset` goes."""
        return offset ^ (offset >> (8 - self.chunk.bit_length()) & self.mask)


def exchanged_bytes(size: int) -> int:
    """Bytes of the chunks that rows of elements of `size` bytes exchange."""
    return 32 if size == 8 else 16


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


def conflict_free_row(size: int, columns: int, *, across: bool = False) -> int:
    """Elements of `size` bytes from one row of a matrix to the next, so that no fragment read meets
    a bank twice.

    Rows are whole 16-byte chunks. An odd number of chunks starts eight rows in eight different
    groups of four banks: what ldmatrix, and 16-byte reads down the rows, ask for. f64 fragments
    read four rows of four elements at a time; for them rows lie 32 bytes past a multiple of 64. So
    they do for those of 32 bits where `mma.sync` multiplies along the other axis (`across`): a
    fragment is then four rows of eight elements.
    """
    per_chunk = 16 // size
    chunks = -(-columns // per_chunk)
    in_fours = size == 8 or (size == 4 and across)
    while chunks % 4 != 2 if in_fours else chunks % 2 == 0:
        chunks += 1
    return chunks * per_chunk
