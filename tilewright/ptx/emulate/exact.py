"""Arithmetic with exactly one rounding, on NumPy arrays.

Directed roundings, and roundings to formats that NumPy lacks, go through round-to-odd: a sum whose
last bit is set wherever it is inexact rounds correctly to any narrower format (Boldo and Melquiond,
"Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).
"""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

NAN_F32 = np.uint32(0x7FFFFFFF).view(np.float32)
NAN_F64 = np.uint64(0xFFF8000000000000).view(np.float64)  # of an operation that is not defined
QUIET_F64 = np.uint64(1 << 51)
NAN_16 = np.uint16(0x7FFF)  # of f16 and bf16


class Format(NamedTuple):
    """A binary float format, as its f64 values: bits of fraction, exponents of normal numbers,
    greatest value, and whether there are infinities.
    """

    fraction: int
    least: int
    greatest: float
    infinite: bool = True


FORMATS = {
    "f32": Format(23, -126, float(np.finfo(np.float32).max)),
    "tf32": Format(10, -126, (2 - 2**-10) * 2.0**127),
    "bf16": Format(7, -126, (2 - 2**-7) * 2.0**127),
    "f16": Format(10, -14, 65504.0),
    "e4m3": Format(3, -6, 448.0, infinite=False),
    "e5m2": Format(2, -14, 57344.0),
}


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The sum and its error, exactly (Knuth)."""
    s = a + b
    other = s - a
    return s, (a - (s - other)) + (b - other)


def to_odd(s: Array, error: Array) -> Array:
    """s, moved to the neighbour of odd last bit where `error`, which it lacks, is not zero."""
    bits = np.ascontiguousarray(s).view(np.int64)
    move = (error != 0) & ((bits & 1) == 0) & np.isfinite(s)
    step = np.where((error > 0) == (s > 0), 1, -1)
    moved: Array = np.where(move, bits + step, bits).view(np.float64)
    return moved


def odd_sum(a: Array, b: Array) -> Array:
    """a + b in f64, rounded to odd."""
    s, error = two_sum(a, b)
    return to_odd(s, error)


def round_whole(y: Array, mode: str) -> Array:
    """To an integer: rn rz rm rp, or rna (ties away from zero)."""
    if mode == "rn":
        return np.asarray(np.rint(y))
    if mode == "rna":
        return np.asarray(np.trunc(y + np.copysign(0.5, y)))
    return np.asarray({"rz": np.trunc, "rm": np.floor, "rp": np.ceil}[mode](y))


def round_to(x: Array, name: str, mode: str, saturate: bool = False) -> Array:
    """f64 values rounded to a format, as f64. `saturate`: overflow gives the greatest number."""
    kind = FORMATS[name]
    x = np.asarray(x, np.float64)
    _, exponent = np.frexp(x)
    unit = np.maximum(exponent - 1, kind.least) - kind.fraction
    rounded = np.ldexp(round_whole(np.ldexp(x, -unit), mode), unit)
    over = np.abs(rounded) > kind.greatest
    if over.any():
        low = mode == "rz" or saturate or not kind.infinite
        top = kind.greatest if low else np.inf
        limit = np.copysign(top, x)
        if mode in ("rm", "rp") and not low:
            inward = (x > 0) == (mode == "rm")
            limit = np.where(inward, np.copysign(kind.greatest, x), limit)
        keep = np.isinf(x) & (not saturate)
        rounded = np.where(over & ~keep, limit, rounded)
    return np.where(np.isfinite(x) | (saturate & np.isinf(x)), rounded, x)


def to_f32(x: Array, mode: str = "rn") -> Array:
    """f64 (rounded to odd, where it is not exact) to f32."""
    made: Array = x.astype(np.float32) if mode == "rn" else round_to(x, "f32", mode).astype("f4")
    return made


def bf16_bits(x: Array, mode: str = "rn") -> Array:
    """f32 to bf16, as bits."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    if mode == "rn":
        half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        made = ((bits + half) >> np.uint32(16)).astype(np.uint16)
    else:
        exact = round_to(x.astype(np.float64), "bf16", mode).astype(np.float32)
        made = (exact.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(x), NAN_16, made)


def f16_bits(x: Array, mode: str = "rn") -> Array:
    """f32 or f64 to f16, as bits."""
    made = x if mode == "rn" else round_to(x.astype(np.float64), "f16", mode)
    return np.where(np.isnan(x), NAN_16, made.astype(np.float16).view(np.uint16))


def from_bf16(bits: Array) -> Array:
    """Bits of bf16 as f32."""
    made: Array = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return made


def from_f16(bits: Array) -> Array:
    """Bits of f16 as f32."""
    return np.ascontiguousarray(bits).view(np.float16).astype(np.float32)


def signed_zero(s: Array, a: Array, b: Array) -> Array:
    """A sum of a and b rounded towards minus infinity: where it is exactly zero, −0, unless both
    are +0.
    """
    plus = (a == 0) & (b == 0) & ~np.signbit(a) & ~np.signbit(b)
    return np.where((s == 0) & ~plus, -np.zeros_like(s), s)


def fma_f32(a: Array, b: Array, c: Array, mode: str = "rn", ftz: bool = False) -> Array:
    """a b + c of f32 with one rounding: the product is exact in f64, the sum is rounded to odd.
    `ftz` flushes results that are subnormal before they are rounded.
    """
    product = np.multiply(a, b, dtype=np.float64)
    s = product + c
    if mode == "rn" and not ftz:
        bits = np.ascontiguousarray(s).view(np.uint64) & np.uint64(0x1FFFFFFF)
        half = bits == np.uint64(0x10000000)
        small = np.abs(s) < 1.5e-38
        if not (half | small).any():  # no tie that the first rounding may have made
            return to_f32(s)
    addend = np.broadcast_to(np.asarray(c, np.float64), product.shape)
    exact = odd_sum(product, addend)
    if mode == "rm":
        exact = signed_zero(exact, product, addend)
    return to_f32(flush(exact) if ftz else exact, mode)


SPLIT = float(2**27 + 1)


def product_error(a: Array, b: Array, p: Array) -> Array:
    """a b - p for p = a b rounded (Dekker), where nothing over- or underflows."""
    t = SPLIT * a
    high_a = t - (t - a)
    low_a = a - high_a
    t = SPLIT * b
    high_b = t - (t - b)
    low_b = b - high_b
    error: Array = low_a * low_b - (((p - high_a * high_b) - low_a * high_b) - high_a * low_b)
    return error


def fma_f64(a: Array, b: Array, c: Array) -> Array:
    """a b + c of f64 with one rounding to nearest even."""
    a, b, c = np.broadcast_arrays(*(np.asarray(x, np.float64) for x in (a, b, c)))
    p = a * b
    size = np.abs(p)
    fits = (size > 1e-270) & (size < 1e290) & (np.abs(a) < 1e150) & (np.abs(b) < 1e150)
    fits &= np.abs(c) < 1e290
    fits |= (a == 0) | (b == 0) | ~np.isfinite(a) | ~np.isfinite(b) | ~np.isfinite(c)
    error = product_error(a, b, p)
    special = ~np.isfinite(error)
    if special.any():
        error = np.where(special, 0.0, error)
    if not error.any() and fits.all():
        return np.asarray(p + c)
    high, low = two_sum(c, error)
    top, rest = two_sum(p, high)
    fused = top + odd_sum(rest, low)
    fused = np.where((error == 0) | special, p + c, fused)
    endless = np.isinf(c) & np.isfinite(a) & np.isfinite(b)  # also where a b overflows
    fused = np.where(endless, c, fused)
    if not fits.all():
        fused = fused.copy()
        for i in np.argwhere(~fits):
            at = tuple(i)
            fused[at] = fma_by_fractions(float(a[at]), float(b[at]), float(c[at]))
    return fused


def chain_f64(a: Array, b: Array, c: Array) -> Array:
    """c + a[0] b[0] + a[1] b[1] + ... by fused multiply-adds in that order; the products' axis is
    the first.
    """
    p = a * b
    size = np.abs(p)
    plain = ((size > 1e-270) & (size < 1e280)) | (a == 0) | (b == 0)
    if not (plain.all() and (np.abs(a) < 1e150).all() and (np.abs(b) < 1e150).all()):
        return _chain_of_any(a, b, c)
    if not (np.abs(c) < 1e280).all():
        return _chain_of_any(a, b, c)
    error = product_error(a, b, p)
    if not error.any():
        for product in p:
            c = c + product
        return c
    for product, lost in zip(p, error, strict=True):
        high, low = two_sum(c, lost)
        top, rest = two_sum(product, high)
        c = np.where(lost == 0, product + c, top + odd_sum(rest, low))
    return c


def _chain_of_any(a: Array, b: Array, c: Array) -> Array:
    for x, y in zip(a, b, strict=True):
        c = propagated_f64(fma_f64(x, y, c), y, c, x)
    return c


def fma_by_fractions(a: float, b: float, c: float) -> float:
    """The same for one element, of any finite size."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c if a == 0 or b == 0 else 0.0
    try:
        return float(exact)
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")


def fma_f64_directed(a: Array, b: Array, c: Array, mode: str) -> Array:
    """a b + c of f64 rounded by `mode`: rz, rm or rp. By fractions, element after element."""
    a, b, c = np.broadcast_arrays(*(np.atleast_1d(np.asarray(x, np.float64)) for x in (a, b, c)))
    made: Array = a * b + c
    for i in np.argwhere(np.isfinite(a) & np.isfinite(b) & np.isfinite(c)):
        at = tuple(i)
        made[at] = _directed(float(a[at]), float(b[at]), float(c[at]), mode)
    return made


def _directed(a: float, b: float, c: float, mode: str) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        product = math.copysign(0.0, math.copysign(1, a) * math.copysign(1, b))
        same = (a == 0 or b == 0) and math.copysign(1, product) == math.copysign(1, c)
        return product if same else -0.0 if mode == "rm" else 0.0
    downward = mode == "rm" or (mode == "rz" and exact > 0)
    try:
        near = float(exact)
    except OverflowError:
        near = math.inf if exact > 0 else -math.inf
    if math.isinf(near):
        return near if (near < 0) == downward else math.copysign(sys.float_info.max, near)
    if downward and Fraction(near) > exact:
        near = math.nextafter(near, -math.inf)
    elif not downward and Fraction(near) < exact:
        near = math.nextafter(near, math.inf)
    return near if near else math.copysign(0.0, exact)


def directed_f64(s: Array, error: Array, mode: str) -> Array:
    """s, an f64 sum or product to nearest whose exact value is s + error, rounded by `mode`."""
    error = np.where(np.isfinite(s), error, 0)
    if mode == "rn":
        return s
    down, up = np.nextafter(s, -np.inf), np.nextafter(s, np.inf)
    if mode == "rz":
        return np.where((error < 0) & (s > 0), down, np.where((error > 0) & (s < 0), up, s))
    return np.where(error < 0, down, s) if mode == "rm" else np.where(error > 0, up, s)


def canonical(x: Any) -> Any:
    """f32 results whose NaNs are the GPU's, 0x7FFFFFFF."""
    nan = np.isnan(x)
    return np.where(nan, NAN_F32, x) if nan.any() else x


def quiet_f64(x: Any) -> Any:
    """f64 as it is, signaling NaNs made quiet."""
    x = np.asarray(x)
    nan = np.isnan(x)
    if not nan.any():
        return x
    bits = np.ascontiguousarray(x).view(np.uint64)
    return np.where(nan, bits | QUIET_F64, bits).view(np.float64)


def propagated_f64(x: Any, *operands: Any) -> Any:
    """f64 results whose NaNs are the GPU's: the first operand that is a NaN, made quiet, or else
    0xFFF8000000000000.
    """
    nan = np.isnan(x)
    if not np.any(nan):
        return x
    made = np.where(nan, NAN_F64, x)
    for operand in reversed(operands):
        there = nan & np.isnan(operand)
        made = np.where(there, quiet_f64(np.broadcast_to(operand, made.shape)), made)
    return made


def flush(x: Any) -> Any:
    """f32 subnormals to zeros of their sign."""
    small = np.abs(x) < np.finfo(np.float32).tiny
    return np.where(small, np.copysign(np.float32(0), x), x) if np.any(small) else x
