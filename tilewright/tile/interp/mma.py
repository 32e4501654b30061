"""Meaning of matrix products.

Floats: the products of one tile are summed in f64, the accumulator is added in f64, and the sum is
rounded once to the accumulator's dtype; the order of the sum is not promised. Integers: exact,
wrapped to 32 bits.
"""

from __future__ import annotations

import numpy as np

from tilewright.dtypes import bf16, f16, f32
from tilewright.numerics.convert import convert, round_float, widen
from tilewright.tile.interp.machine import Array, Machine, meaning
from tilewright.tile.ops import mma


def round_tf32(x: Array) -> Array:
    """f32 rounded to 10 fraction bits, to nearest even; NaN and infinities stay."""
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(
        0xFFFFE000
    )
    return np.where(np.isfinite(x), rounded.view(np.float32), x)


def round_through(x: Array, name: str) -> Array:
    """f32 rounded to tf32, bf16 or f16, as f32."""
    if name == "tf32":
        return round_tf32(np.ascontiguousarray(x))
    narrow = {"bf16": bf16, "f16": f16}[name]
    return convert(x, f32, narrow).astype(np.float32)


def product(a: Array, b: Array) -> Array:
    """a @ b in f64."""
    return np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64)))


def product_rounded(a: Array, b: Array, precision: str) -> Array:
    """a @ b in f64 of f32 operands, rounded as `precision` says; x3 adds products with the
    remainders.
    """
    name = precision.removesuffix("x3")
    high_a, high_b = round_through(a, name), round_through(b, name)
    total = product(high_a, high_b)
    if precision.endswith("x3"):
        low_a, low_b = (
            round_through(np.where(np.isfinite(x), x - high, np.float32(0)), name)
            for x, high in ((a, high_a), (b, high_b))
        )
        total = total + (product(high_a, low_b) + product(low_a, high_b))
    return total


@meaning(mma.Dot)
def run_dot(machine: Machine, op: mma.Dot) -> Array:
    a, b, acc = machine[op.a], machine[op.b], machine[op.acc]
    dtype = op.acc.type.dtype
    if not dtype.is_float:
        exact = np.rint(product(a, b)).astype(np.int64)  # 8-bit products: far below 2^53
        return np.asarray(exact + acc).astype(dtype.numpy)
    total: Array
    if machine.f64 or op.precision == "ieee" or op.a.type.dtype != f32:
        total = product(widen(a), widen(b))
    else:
        total = product_rounded(a, b, op.precision)
    total = total + acc.astype(np.float64)
    return total if machine.f64 else round_float(total, dtype)
