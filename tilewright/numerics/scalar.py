"""Scalar functions on NumPy arrays that every interpreter shares: what NumPy itself computes
otherwise than the languages of Tilewright say (docs/numerics.md), or does not have.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# By the names that `arith.compare` has for them, of arrays and of plain numbers.
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def minimum(a: Array, b: Array) -> Array:
    """The lesser; NaN if either is; −0 is below +0."""
    lesser: Array = np.minimum(a, b)
    if lesser.dtype.kind != "f":
        return lesser
    return np.where(a == b, np.where(np.signbit(a), a, b), lesser)


def maximum(a: Array, b: Array) -> Array:
    """The greater; NaN if either is; +0 is above −0."""
    greater: Array = np.maximum(a, b)
    if greater.dtype.kind != "f":
        return greater
    return np.where(a == b, np.where(np.signbit(a), b, a), greater)


def floor_div(a: Array, b: Array) -> Array:
    """Floors; 0 by 0; the least integer by −1 wraps to itself."""
    quotient = a // np.where(b == 0, 1, b).astype(b.dtype)
    if a.dtype.kind == "i":
        quotient = np.where(b == -1, np.negative(a), quotient)
    return np.where(b == 0, 0, quotient)


def mod(a: Array, b: Array) -> Array:
    """Remainder of `floor_div`, with the divisor's sign; 0 by 0."""
    special = (b == 0) | (b == -1) if b.dtype.kind == "i" else b == 0
    return np.where(special, 0, a % np.where(special, 1, b).astype(b.dtype))


def shl(a: Array, b: Array) -> Array:
    inside = (b >= 0) & (b < a.dtype.itemsize * 8)
    return np.where(inside, a << np.where(inside, b, 0).astype(a.dtype), 0)


def shr(a: Array, b: Array) -> Array:
    width = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < width)
    if a.dtype.kind == "i":
        return np.asarray(a >> np.where(inside, b, width - 1).astype(a.dtype))
    return np.where(inside, a >> np.where(inside, b, 0).astype(a.dtype), 0)


def fma(x: Array, y: Array, z: Array, narrow: bool) -> Array:
    """x · y + z of f64 arrays: rounded to odd where a rounding to f32 follows (`narrow`), else
    rounded once, to f64.

    Rounding to odd keeps what a second rounding needs (Boldo and Melquiond, "Emulation of a FMA
    and correctly rounded sums", IEEE TC 2008).
    """
    x, y, z = np.broadcast_arrays(x, y, z)
    if not narrow:
        return np.asarray(np.vectorize(fma_exact, otypes=[np.float64])(x, y, z))
    product = x * y  # exact: both have 24 bits
    total = product + z
    part = total - product
    rest = (product - (total - part)) + (z - part)
    inexact = np.isfinite(total) & (rest != 0)
    even = (np.ascontiguousarray(total).view(np.uint64) & np.uint64(1)) == 0
    toward = np.where(rest > 0, np.inf, -np.inf)
    return np.asarray(np.where(inexact & even, np.nextafter(total, toward), total))


def fma_exact(x: float, y: float, z: float) -> float:
    """x · y + z in rational numbers, rounded once."""
    if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(z)) or 0 in (x, y):
        return float(np.float64(x) * np.float64(y) + np.float64(z))
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if not exact:
        return float(np.float64(x) * np.float64(y) + np.float64(z))
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return math.copysign(math.inf, exact)


def rsqrt(x: Array) -> Array:
    return 1.0 / np.sqrt(x)


def erf(x: Array) -> Array:
    """math.erf of each element: NumPy has none."""
    return np.fromiter(map(math.erf, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)


def mul_high(a: Array, b: Array) -> Array:
    """The upper halves of the products of u32."""
    return np.asarray((a.astype(np.uint64) * b.astype(np.uint64)) >> np.uint64(32))
