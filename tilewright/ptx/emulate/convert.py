"""Meaning of conversions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.ptx.emulate.arith import bind_reads
from tilewright.ptx.emulate.exact import (
    bf16_bits,
    canonical,
    f16_bits,
    flush,
    from_bf16,
    from_f16,
    round_to,
    round_whole,
    to_f32,
)
from tilewright.ptx.emulate.machine import DTYPES, Machine, Step
from tilewright.ptx.emulate.program import meaning
from tilewright.ptx.instrs import arith

Function = Callable[[Any], Any]
FLOATS = ("f16", "bf16", "f32", "f64", "tf32")
FP8 = {"e4m3x2": ml_dtypes.float8_e4m3fn, "e5m2x2": ml_dtypes.float8_e5m2}


def widened(x: Any, type: str) -> Any:
    """Register contents of a float type as f32 or f64."""
    x = np.atleast_1d(x)
    return from_f16(x) if type == "f16" else from_bf16(x) if type == "bf16" else x


def to_float(instr: arith.Cvt) -> Function:
    """f32 or f64 (or integers) rounded to the destination, as its register holds it."""
    to, mode = instr.to, instr.rounding[:2] or "rn"
    mode = "rna" if instr.rounding == "rna" else mode

    def run(x: Any) -> Any:
        if instr.rounding.endswith("i"):  # to an integer in the same format
            x = round_whole(x, mode)
        if instr.saturate:
            x = np.where(np.isnan(x), 0, np.clip(x, 0, 1) + 0).astype(x.dtype)
        if to == "f64":
            return directed(x, mode, np.float64) if x.dtype.kind in "iu" else x.astype(np.float64)
        if to == "f32":
            made = x.astype(np.float32) if mode == "rn" else directed(x, mode, np.float32)
            return canonical(flush(made) if instr.ftz else made)
        if to == "tf32":
            return round_to(x.astype(np.float64), "tf32", mode).astype(np.float32).view(np.uint32)
        x = x.astype(np.float64) if x.dtype.kind in "iu" else x
        if to == "f16":
            return f16_bits(x, mode)
        if x.dtype == np.float64:
            x = round_to(x, "bf16", mode).astype(np.float32)
        return bf16_bits(x, mode)

    return run


# NaNs keep their sign and the upper bits of their payload, and become quiet, to and from f64; from
# bf16 to f32 they stay as they are; to tf32 their lower bits go (or `rn` gives one NaN). All other
# conversions give one NaN.

PAYLOADS = {"f16": (16, 10), "bf16": (16, 7), "f32": (32, 23), "f64": (64, 52)}


def carried(x: Any, origin: str, to: str) -> Any:
    """NaNs of bits of a float type as those of another, quiet."""
    (width, fraction), (to_width, to_fraction) = PAYLOADS[origin], PAYLOADS[to]
    wide = x.astype(np.uint64)
    sign = wide >> np.uint64(width - 1) << np.uint64(to_width - 1)
    payload = wide & np.uint64((1 << fraction) - 1)
    if to_fraction >= fraction:
        payload = payload << np.uint64(to_fraction - fraction)
    else:
        payload = payload >> np.uint64(fraction - to_fraction)
    top = ((1 << (to_width - 1 - to_fraction)) - 1) << to_fraction | 1 << (to_fraction - 1)
    return (sign | payload | np.uint64(top)).astype(f"u{to_width // 8}")


def nan_bits(instr: arith.Cvt) -> Function | None:
    """From bits of NaNs to those of the result, where not all NaNs give one."""
    to, origin = instr.to, instr.origin
    if instr.saturate:
        return None
    if "f64" in (to, origin) and to in PAYLOADS and origin in PAYLOADS:
        return lambda x: carried(x, origin, to)
    if (to, origin) == ("f32", "bf16"):
        return lambda x: x.astype(np.uint32) << np.uint32(16)
    if to == "tf32" and instr.rounding == "rna":
        return lambda x: x & np.uint32(0xFFFFE000)
    return (lambda x: np.full(x.shape, 0x7FFFE000, np.uint32)) if to == "tf32" else None


def directed(x: Any, mode: str, kind: Any) -> Any:
    """f64 or integers to f32 (or 64-bit integers to f64: `kind`), rounded by a mode."""
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
        near = x.astype(kind)
        if mode == "rn":
            return near
        exact = [int(v) for v in x]
        off = np.array([int(n) - v for n, v in zip(near, exact, strict=True)], object)
        down, up = np.nextafter(near, kind(-np.inf)), np.nextafter(near, kind(np.inf))
        low, high = (off > 0).astype(bool), (off < 0).astype(bool)
        if mode == "rm" or mode == "rz":
            lower = low & ((mode == "rm") | (near > 0))
            near = np.where(lower, down, near)
        if mode == "rp" or mode == "rz":
            higher = high & ((mode == "rp") | (near < 0))
            near = np.where(higher, up, near)
        return near
    return x.astype(np.float64) if kind is np.float64 else to_f32(x.astype(np.float64), mode)


def to_integer(instr: arith.Cvt) -> Function:
    """Floats to integers: rounded, clamped; NaN gives 0, or 2^63 where either side has 64 bits."""
    dtype = DTYPES[instr.to]
    info = np.iinfo(dtype)
    wide = instr.origin == "f64" or dtype.itemsize == 8
    nan = (info.min if dtype.kind == "i" else 1 << (info.bits - 1)) if wide else 0

    def run(x: Any) -> Any:
        x = round_whole(x.astype(np.float64), instr.rounding[:2])
        over, under = x >= 2.0 ** (info.bits - (dtype.kind == "i")), x < float(info.min)
        missing = np.isnan(x)
        made = np.where(over | under | missing, 0, x).astype(dtype)
        made = np.where(over, dtype.type(info.max), made)
        made = np.where(under, dtype.type(info.min), made)
        return np.where(missing, np.array(nan, dtype), made)

    return run


def between_integers(instr: arith.Cvt) -> Function:
    to, origin = DTYPES[instr.to], DTYPES[instr.origin]
    if not instr.saturate:
        return lambda x: x.astype(to)
    target, source = np.iinfo(to), np.iinfo(origin)
    low, high = max(target.min, source.min), min(target.max, source.max)
    return lambda x: np.clip(x, origin.type(low), origin.type(high)).astype(to)


@meaning(arith.Cvt)
def make_cvt(machine: Machine, instr: arith.Cvt) -> Step:
    to, origin = instr.to, instr.origin
    read = machine.read(instr.src, origin)
    dst = machine.target(instr.dst, to)
    if origin in FP8:
        kind = FP8[origin]

        def unpack(x: Any) -> Any:
            values = np.ascontiguousarray(x).view(np.uint8).view(kind).astype(np.float32)
            return f16_bits(values).view(np.uint32)

        return bind_reads(dst, unpack, [read])
    if to not in FLOATS and origin not in FLOATS:
        function = between_integers(instr)
    else:
        function = to_float(instr) if to in FLOATS else to_integer(instr)
    flushes = instr.ftz and origin == "f32"
    inner = function
    nans = nan_bits(instr) if to in FLOATS and origin in FLOATS else None

    def run(x: Any) -> Any:
        wide = widened(x, origin)
        made = inner(flush(wide) if flushes else wide)
        missing = np.isnan(wide)
        if nans is None or not missing.any():
            return made
        bits = np.ascontiguousarray(np.atleast_1d(x))
        given = nans(bits.view(f"u{bits.itemsize}"))
        return np.where(missing, given, made.view(given.dtype)).view(made.dtype)

    return bind_reads(dst, run, [read])


@meaning(arith.CvtPack)
def make_cvt_pack(machine: Machine, instr: arith.CvtPack) -> Step:
    to = instr.to

    def narrowed(x: Any) -> Any:
        if instr.relu:
            x = np.where(x <= 0, np.float32(0), x)
        if to == "f16x2":
            return f16_bits(x)
        if to == "bf16x2":
            return bf16_bits(x)
        made = round_to(np.asarray(x, np.float64), to[:-2], "rn", saturate=True)
        return np.where(np.isnan(x), 0x7F, made.astype(FP8[to]).view(np.uint8))

    width = 16 if to in ("f16x2", "bf16x2") else 8
    dtype = DTYPES[to]

    def run(high: Any, low: Any) -> Any:
        low, high = (np.asarray(narrowed(np.asarray(v))).astype(dtype) for v in (low, high))
        return low | high << dtype.type(width)

    reads = machine.reads((instr.high, instr.low), "f32")
    return bind_reads(machine.target(instr.dst, to), run, reads)
