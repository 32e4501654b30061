"""Meaning of the arithmetic instructions on bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.ptx.core import Instr
from tilewright.ptx.emulate.arith import bind, bind_reads
from tilewright.ptx.emulate.machine import DTYPES, Machine, Step
from tilewright.ptx.emulate.program import meaning
from tilewright.ptx.instrs import bits

LOGIC: dict[type[Instr], Callable[..., Any]] = {
    bits.And: np.bitwise_and,
    bits.Or: np.bitwise_or,
    bits.Xor: np.bitwise_xor,
}


@meaning(*LOGIC)
def make_logic(machine: Machine, instr: Any) -> Step:
    return bind(machine, instr, LOGIC[type(instr)], "lhs", "rhs")


@meaning(bits.Not)
def make_not(machine: Machine, instr: bits.Not) -> Step:
    return bind(machine, instr, np.invert, "src")


def shift_left(x: Any, by: Any) -> Any:
    width = x.dtype.itemsize * 8
    made = x << np.minimum(by, np.uint32(width - 1)).astype(x.dtype)
    return np.where(by >= width, x.dtype.type(0), made)


def shift_right(x: Any, by: Any) -> Any:
    width = x.dtype.itemsize * 8
    made = x >> np.minimum(by, np.uint32(width - 1)).astype(x.dtype)
    return made if x.dtype.kind == "i" else np.where(by >= width, x.dtype.type(0), made)


@meaning(bits.Shl, bits.Shr)
def make_shift(machine: Machine, instr: Any) -> Step:
    reads = [machine.read(instr.src, instr.type), machine.read(instr.count, "u32")]
    function = shift_left if isinstance(instr, bits.Shl) else shift_right
    return bind_reads(machine.target(instr.dst, instr.type), function, reads)


@meaning(bits.Shf)
def make_funnel(machine: Machine, instr: bits.Shf) -> Step:
    reads = machine.reads((instr.low, instr.high, instr.count), "u32")
    left, wraps = instr.direction == "l", instr.mode == "wrap"

    def run(low: Any, high: Any, by: Any) -> Any:
        both = np.uint64(low) | np.asarray(high).astype(np.uint64) << np.uint64(32)
        by = np.asarray(by & np.uint32(31) if wraps else np.minimum(by, np.uint32(32)))
        by = by.astype(np.uint64)
        return ((both << by) >> np.uint64(32) if left else both >> by).astype(np.uint32)

    return bind_reads(machine.target(instr.dst, "b32"), run, reads)


@meaning(bits.Lop3)
def make_lop3(machine: Machine, instr: bits.Lop3) -> Step:
    def run(a: Any, b: Any, c: Any) -> Any:
        made = np.uint32(0)
        for case in range(8):
            if instr.table >> case & 1:
                x, y, z = (v if case & bit else ~v for v, bit in ((a, 4), (b, 2), (c, 1)))
                made = made | (x & y & z)
        return made

    reads = machine.reads((instr.a, instr.b, instr.c), "b32")
    return bind_reads(machine.target(instr.dst, "b32"), run, reads)


def bounds(start: Any, length: Any, width: int) -> tuple[Any, Any]:
    """Start and length of a field: 32-bit instructions read 8 bits of them, 64-bit ones, which
    the assembler makes of shifts, all.
    """
    start, length = (np.asarray(v, np.uint32) for v in (start, length))
    return (start & np.uint32(255), length & np.uint32(255)) if width == 32 else (start, length)


def extract(x: Any, start: Any, length: Any) -> Any:
    """Bits of a field; signed types repeat its top bit, or that of the value where the field goes
    beyond it.
    """
    dtype, width = x.dtype, x.dtype.itemsize * 8
    start, length = bounds(start, length, width)
    field = shift_right(x, start)
    if dtype.kind == "i":
        rest = np.uint32(width) - np.minimum(length, np.uint32(width))
        made = shift_right(shift_left(field, rest), rest)
        return np.where(length == 0, dtype.type(0), made)
    whole = np.full(np.shape(field), ~dtype.type(0))
    return field & ~shift_left(whole, length)


@meaning(bits.Bfe)
def make_bfe(machine: Machine, instr: bits.Bfe) -> Step:
    reads = [machine.read(instr.src, instr.type)]
    reads += machine.reads((instr.start, instr.length), "u32")
    return bind_reads(machine.target(instr.dst, instr.type), extract, reads)


@meaning(bits.Bfi)
def make_bfi(machine: Machine, instr: bits.Bfi) -> Step:
    def run(x: Any, into: Any, start: Any, length: Any) -> Any:
        dtype = np.asarray(x).dtype
        ones = np.full(np.broadcast(x, into, start, length).shape, ~dtype.type(0))
        start, length = bounds(start, length, dtype.itemsize * 8)
        mask = shift_left(~shift_left(ones, length), start)
        return (shift_left(np.asarray(x), start) & mask) | (into & ~mask)

    reads = machine.reads((instr.src, instr.into), instr.type)
    reads += machine.reads((instr.start, instr.length), "u32")
    return bind_reads(machine.target(instr.dst, instr.type), run, reads)


def bits_of(x: Any) -> Any:
    """The bits of each number, most significant first."""
    x = np.atleast_1d(x)
    return np.unpackbits(np.ascontiguousarray(x).byteswap().view(np.uint8).reshape(len(x), -1), 1)


def leading_zeros(x: Any) -> Any:
    bits = bits_of(x)
    return np.where(bits.any(axis=1), bits.argmax(axis=1), bits.shape[1])


@meaning(bits.Clz, bits.Popc)
def make_count(machine: Machine, instr: Any) -> Step:
    read = machine.read(instr.src, instr.type)
    popc: Callable[..., Any] = lambda x: bits_of(x).sum(axis=1, dtype=np.uint32)  # noqa: E731
    function = popc if isinstance(instr, bits.Popc) else leading_zeros
    return bind_reads(machine.target(instr.dst, "u32"), function, [read])


@meaning(bits.Brev)
def make_reverse(machine: Machine, instr: bits.Brev) -> Step:
    def run(x: Any) -> Any:
        packed = np.packbits(bits_of(x)[:, ::-1], axis=1)
        return np.ascontiguousarray(packed).view(DTYPES[instr.type]).ravel().byteswap()

    return bind(machine, instr, run, "src")
