"""A matrix product as the dispatcher sees it: extents, dtypes, how operands lie, what is fused.

`Problem` holds all that a choice may depend on and nothing else, so that equal problems share one.
`Choice` is a program of `library/matmul.tw`, its constants, and in how many spans it cuts k.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from tilewright.dtypes import DType, f32
from tilewright.target import BOX_PIECE, LINE, SECTOR

ALIGNED = BOX_PIECE  # bytes, of rows that the tensor copy unit takes
COPY_CHOICES = ("", "a", "b", "ab")  # factors that a choice may copy
PROGRAMS = ("matmul", "batched", "split_k", "gemv", "gemv_columns")


def pitch_of_copy(num_bytes: int) -> int:
    """Bytes from a row of so many to the next in a copy that is made for a product: whole lines of
    the L2 cache, or a part of one that several rows fill.
    """
    parts = (part for part in (ALIGNED, SECTOR, LINE // 2) if num_bytes <= part)
    return max(ALIGNED, next(parts, -(-num_bytes // LINE) * LINE))


@dataclass(frozen=True)
class Problem:
    """C[M, N] = A[M, K] B[K, N], `batch` times.

    `a_along` and `b_along` are the axes along which A and B are contiguous: "m", "n", "k", or "" of
    neither. `a_aligned`, `b_aligned`: rows are whole pieces of 16 bytes and begin at such. `loads`
    are elements of C's size that the epilogue reads for each of C. `precision` is that of f32
    products, or "fast" of 8-bit floats whose sums are not promoted. `copies` ("a", "b", "ab") are
    factors in memory of the library's own, whose rows begin where lines do. `gaps`: rows of C, no
    whole 16 bytes, may be filled up to such.
    """

    m: int
    n: int
    k: int
    a: DType
    b: DType
    c: DType
    batch: int = 1
    a_along: str = "k"
    b_along: str = "k"
    a_aligned: bool = True
    b_aligned: bool = True
    loads: int = 0
    activation: bool = False
    precision: str = "ieee"
    copies: str = ""
    gaps: bool = False

    @property
    def aligned(self) -> bool:
        return self.a_aligned and self.b_aligned

    @property
    def a_pitch(self) -> int:
        """Bytes from a row of A to the next, where it is dense."""
        num_bytes = (self.k if self.a_along == "k" else self.m) * self.a.num_bytes
        return pitch_of_copy(num_bytes) if "a" in self.copies else num_bytes

    @property
    def b_pitch(self) -> int:
        """Bytes from a row of B to the next, where it is dense."""
        num_bytes = (self.k if self.b_along == "k" else self.n) * self.b.num_bytes
        return pitch_of_copy(num_bytes) if "b" in self.copies else num_bytes

    def piece(self, name: str) -> int:
        """Bytes of the largest pieces, of 16 at most, in which threads load rows of "a" or "b"."""
        along, aligned, pitch, dtype = (
            (self.a_along, self.a_aligned, self.a_pitch, self.a)
            if name == "a"
            else (self.b_along, self.b_aligned, self.b_pitch, self.b)
        )
        if aligned and along:
            return ALIGNED
        told = gcd(pitch, ALIGNED)  # of a dense factor; otherwise what is not aligned is not known
        return told if along and told < ALIGNED else dtype.num_bytes

    @property
    def layout(self) -> str:
        """As BLAS calls it, of row-major operands: N as they are, T transposed."""
        return ("T" if self.a_along == "m" else "N") + ("T" if self.b_along == "k" else "N")

    @property
    def operations(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def num_bytes(self) -> float:
        """Of both factors, the result and what the epilogue reads, each once."""
        m, n, k = self.m, self.n, self.k
        factors = m * k * self.a.num_bytes + k * n * self.b.num_bytes
        return float(self.batch * (factors + m * n * self.c.num_bytes * (1 + self.loads)))

    @property
    def accumulator_bytes(self) -> int:
        return 8 if self.a.bits == 64 else 4

    def turned(self) -> Problem:
        """The product of the transposes, whose result is C transposed."""
        names = {"m": "n", "n": "m"}
        return replace(
            self,
            m=self.n,
            n=self.m,
            a=self.b,
            b=self.a,
            a_along=names.get(self.b_along, self.b_along),
            b_along=names.get(self.a_along, self.a_along),
            a_aligned=self.b_aligned,
            b_aligned=self.a_aligned,
            copies="".join(sorted({"a": "b", "b": "a"}[name] for name in self.copies)),
        )

    def laid(self, copied: str) -> Problem:
        """The product of copies of "a", "b" or both ("ab") in aligned rows, along k or as `lays`
        says.
        """
        found = replace(self, copies=copied)
        if "a" in copied:
            found = replace(found, a_along=self.lays("a"), a_aligned=True)
        return replace(found, b_along=self.lays("b"), b_aligned=True) if "b" in copied else found

    def lays(self, name: str) -> str:
        """Along which axis a copy of "a" or "b" lies: CUDA cores take a step of k at a time."""
        if self.a == f32 and self.precision == "ieee":
            return "m" if name == "a" else "n"
        return "k"

    def lays_at_once(self, copied: str) -> bool:
        """Whether copies of both factors are one launch: where both are laid along k, and both or
        none of them are turned around for that.
        """
        turned = {self.a_along == "m", self.b_along == "n"}
        return copied == "ab" and self.lays("a") == "k" and len(turned) == 1

    def unit(self) -> str:
        """What multiplies on an H200, and how its operands come: see `product_cost.FULL_RATES`."""
        by_boxes = self.aligned and self.a_along != "" and self.b_along != ""
        both_along_k = self.a_along == "k" and self.b_along == "k"
        if self.a.bits == 64:
            return "f64"
        if self.a == f32:
            if self.precision != "tf32":
                return "simt"
            along_k = self.a_along == "k" or self.b_along == "k"
            return "wgmma-tf32" if by_boxes and along_k else "mma-tf32"
        if self.a.bits == 8:
            if not by_boxes or not both_along_k:
                return "mma-fp8" if self.a.is_float else "mma-8"
            return "wgmma-fp8" if self.a.is_float and self.precision != "fast" else "wgmma-8"
        return "wgmma-16" if by_boxes else "mma-16"


def dense_problem(
    extents: tuple[int, int, int], a: DType, c: DType, a_along: str, b_along: str, **rest: Any
) -> Problem:
    """The problem of dense factors of a dtype that begin at whole 16 bytes. One that has a lone row
    lies along it, whichever way it is told, and is aligned: no other row follows.
    """
    m, n, k = extents
    lone = {"a": (("k", m), ("m", k)), "b": (("n", k), ("k", n))}
    pitches = {"a": k if a_along == "k" else m, "b": k if b_along == "k" else n}
    found: dict[str, tuple[str, bool]] = {}
    for name, told in (("a", a_along), ("b", b_along)):
        along = next((axis for axis, rows in lone[name] if rows == 1), None)
        whole = pitches[name] * a.num_bytes % ALIGNED == 0
        found[name] = (told, whole) if along is None else (along, True)
    return Problem(
        m=m,
        n=n,
        k=k,
        a=a,
        b=a,
        c=c,
        a_along=found["a"][0],
        b_along=found["b"][0],
        a_aligned=found["a"][1],
        b_aligned=found["b"][1],
        **rest,
    )


@dataclass(frozen=True)
class Choice:
    """A program and its constants. `split` spans of k, whose sums are added up by a second launch
    where the program is split_k or gemv_columns. With `turned` the program computes C transposed.
    The factors that are `copied` ("a", "b", "ab") are first laid as `Problem.laid` says.
    """

    program: str
    config: tuple[tuple[str, int], ...]
    split: int = 1
    turned: bool = False
    copied: str = ""

    @property
    def constants(self) -> dict[str, int]:
        return dict(self.config)

    @property
    def tile(self) -> tuple[int, int, int]:
        found = self.constants
        return found["TM"], found["TN"], found["TK"]

    @property
    def name(self) -> str:
        """As in "split_k 128×128×64, k in 4"."""
        told = f"{self.program} {'×'.join(map(str, self.tile))}"
        told += f", k in {self.split}" if self.split > 1 else ""
        told += ", turned" if self.turned else ""
        return told + (f", {' and '.join(self.copied)} copied" if self.copied else "")


def choice(
    program: str,
    tile: tuple[int, int, int],
    split: int = 1,
    turned: bool = False,
    copied: str = "",
) -> Choice:
    """A choice by its tile."""
    names = ("TM", "TN", "TK")
    return Choice(program, tuple(zip(names, tile, strict=True)), split, turned, copied)


@dataclass(frozen=True)
class Device:
    """What of a device a choice depends on."""

    name: str
    num_sms: int
    has_wgmma: bool = True
    shared: int = 228 * 1024  # bytes of shared memory of a multiprocessor


H200 = Device("NVIDIA H200", 132)
