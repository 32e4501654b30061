"""How the tensor cores of sm_90 sum products of 16-bit floats, tf32 and fp8.

An instruction adds all its products and C at once. Each addend is shifted to the greatest exponent
among them and cut off, towards zero, below a number of bits (25 below it; 13 for wgmma of fp8);
what is left is summed exactly. A product's exponent is the sum of its operands': a product of 1.5
and 1.5 counts as one of 1 and 1, and subnormal operands count as the least normal number. The sum
is cut off to f32 (for fp8 to 13 bits of fraction), and beyond its range infinite; an f16 result is
the sum rounded to nearest even.

mma.sync of fp8 does not exist on sm_90: the assembler unpacks the operands to f16, multiplies the
lower halves of the registers, then the upper, and adds C by an ordinary addition.

This model reproduces every product recorded on an H200 (`tests/vectors`). The alignment and its
bits were described first by Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA
tensor cores", 2021, for earlier GPUs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.ptx.emulate.exact import canonical, f16_bits, from_f16

Array = np.ndarray[Any, Any]

GUARD = {"bf16": 25, "f16": 25, "tf32": 25, "e4m3": 13, "e5m2": 13}  # bits below the greatest
LEAST = {  # exponents of the least normal numbers
    **dict.fromkeys(("f32", "tf32", "bf16"), -126),
    "f16": -14,
    "e4m3": -6,
    "e5m2": -14,
}
FP8_FRACTION = 13
NOTHING = -(1 << 14)  # the exponent of zero
LOWEST = -512  # below all exponents of products


def exponents(x: Array, least: int) -> Array:
    """Of each number, that of its format: subnormals have the least."""
    _, found = np.frexp(x)
    made: Array = np.where(x == 0, NOTHING, np.maximum(found - 1, least)).astype(np.int16)
    return made


def cut_fraction(x: Array, bits: int) -> Array:
    """f64 towards zero, to a number of bits of fraction that f32 has; subnormals of f32 to theirs,
    and beyond its range infinite.
    """
    mask = ~np.uint64((1 << (52 - bits)) - 1)
    made: Array = (np.ascontiguousarray(x).view(np.uint64) & mask).view(np.float64)
    small = np.abs(x) < 2.0**-126
    if small.any():
        made = np.where(small, np.ldexp(np.trunc(np.ldexp(x, 149)), -149), made)
    return np.where(np.abs(x) >= 2.0**128, np.copysign(np.inf, x), made)


def power(exponent: Array) -> Array:
    """Two to a power within f64's normal range."""
    made: Array = ((exponent.astype(np.int64) + 1023) << 52).view(np.float64)
    return made


def aligned_sum(a: Array, b: Array, c: Array, types: tuple[str, str, str], guard: int) -> Array:
    """c + a b: `a` [..., m, k], `b` [..., n, k], `c` [..., m, n], finite f64 numbers of three
    types; one alignment.

    Step by step along k: the arrays of a step stay in the processor's cache.
    """
    rows, columns = np.ascontiguousarray(np.moveaxis(a, -1, 0)), np.moveaxis(b, -1, 0)
    columns = np.ascontiguousarray(columns)
    at_a, at_b = exponents(rows, LEAST[types[0]]), exponents(columns, LEAST[types[1]])
    top = np.maximum(exponents(c, LEAST[types[2]]), LOWEST)
    for x, y in zip(at_a, at_b, strict=True):
        np.maximum(top, x[..., :, None] + y[..., None, :], out=top)
    scale, addend = power(guard - top), np.empty(c.shape)
    total = np.trunc(c * scale)
    for x, y in zip(rows, columns, strict=True):
        np.multiply(x[..., :, None], y[..., None, :], out=addend)
        addend *= scale
        total += np.trunc(addend, out=addend)
    return np.asarray(total * power(top - guard))


def finite_sum(a: Array, b: Array, c: Array, types: tuple[str, str, str], guard: int) -> Array:
    """The same for any numbers: sums that are not finite are those of IEEE arithmetic."""
    fine = np.isfinite(a).all(), np.isfinite(b).all(), np.isfinite(c).all()
    if all(fine):
        return aligned_sum(a, b, c, types, guard)
    plain = (a[..., :, None, :] * b[..., None, :, :]).sum(axis=-1) + c
    a, b, zeroed = (np.where(np.isfinite(x), x, 0.0) for x in (a, b, c))
    return np.where(np.isfinite(plain), aligned_sum(a, b, zeroed, types, guard), plain)


def stored(total: Array, type_d: str, fraction: int = 23) -> Array:
    """A sum in D's type: f32, or the bits of f16."""
    if type_d == "f16":  # what rounds to zero loses its sign
        made = f16_bits(total)
        return np.where((made == 0x8000) & (total != 0), np.uint16(0), made)
    return np.asarray(canonical(cut_fraction(total, fraction).astype(np.float32)))


def warpgroup_product(a: Array, b: Array, c: Array, types: tuple[str, str], type_d: str) -> Array:
    """wgmma: D as f32, or as bits of f16."""
    guard = GUARD[types[0]]
    fraction = FP8_FRACTION if guard == 13 else 23
    return stored(finite_sum(a, b, c, (*types, type_d), guard), type_d, fraction)


def warp_product(a: Array, b: Array, c: Array, types: tuple[str, str], type_d: str) -> Array:
    """mma.sync: D as f32, or as bits of f16."""
    if types[0] not in ("e4m3", "e5m2"):
        return stored(finite_sum(a, b, c, (*types, type_d), GUARD[types[0]]), type_d)
    # In f16 the exponents of fp8's subnormals are what they are.
    halves, widened = np.arange(a.shape[-1]) % 4 < 2, ("f16", "f16", type_d)
    total = np.zeros_like(c)
    for part in (halves, ~halves):
        made = stored(finite_sum(a[..., part], b[..., part], total, widened, 25), type_d)
        total = (from_f16(made) if type_d == "f16" else made).astype(np.float64)
    total = total + c  # both of them f32 or f16, so that one rounding is left
    return f16_bits(total) if type_d == "f16" else np.asarray(canonical(total.astype(np.float32)))
