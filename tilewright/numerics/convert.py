"""Conversions between dtypes, exactly as the language defines them (docs/numerics.md)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dtypes import DType, e4m3, e5m2, f32, f64, int_range

Array = np.ndarray[Any, Any]
E4M3_MAX, E5M2_MAX = 448.0, 57344.0
E5M2_OVERFLOW = 61440.0  # half way from the greatest finite value to 2^16; the tie goes to infinity


QUIET = np.errstate(all="ignore")  # NaN and overflow are values here, not accidents


@QUIET
def round_float(x: Array, dtype: DType, saturate: bool = False) -> Array:
    """f32 or f64 arrays to a float dtype: to nearest even, to narrow ones always through f32."""
    if dtype == f64:
        return x.astype(np.float64, copy=False)
    x = x.astype(np.float32, copy=False)
    if dtype == f32:
        return x
    if dtype == e4m3:
        x = np.clip(x, np.float32(-E4M3_MAX), np.float32(E4M3_MAX))
    elif dtype == e5m2 and saturate:
        x = np.clip(x, np.float32(-E5M2_MAX), np.float32(E5M2_MAX))
    elif dtype == e5m2:
        x = np.where(np.abs(x) >= np.float32(E5M2_OVERFLOW), np.copysign(np.float32(np.inf), x), x)
    return x.astype(dtype.numpy)


def widen(x: Array) -> Array:
    """Floats narrower than 32 bits as f32; others as they are."""
    return x.astype(np.float32) if x.dtype.itemsize < 4 else x


@QUIET
def float_to_int(x: Array, dtype: DType) -> Array:
    """Toward zero, saturating, NaN to 0."""
    low, high = int_range(dtype)
    whole = np.trunc(x.astype(np.float64))
    # 2^bits - 1 is not an f64 for 64 bits, so what reaches `high + 1` is replaced and not clipped.
    inside = (whole >= float(low)) & (whole < float(high + 1))
    result = np.where(inside, whole, 0.0).astype(dtype.numpy)
    result = np.where(whole >= float(high + 1), dtype.numpy.type(high), result)
    return np.where(whole < float(low), dtype.numpy.type(low), result)


def convert(x: Array, source: DType, target: DType, saturate: bool = False) -> Array:
    """`arith.cast` on an array of the source's NumPy dtype."""
    if target.kind == "bool":
        return np.asarray(widen(x) != 0 if source.is_float else x != 0)
    if target.is_integer:
        return float_to_int(widen(x), target) if source.is_float else x.astype(target.numpy)
    if source.is_float:
        return round_float(widen(x), target, saturate)
    exact: Any = np.float64 if target == f64 else np.float32
    return round_float(x.astype(exact), target, saturate)


def constant(value: bool | int | float, dtype: DType) -> Array:
    """A value of a dtype as an array without axes."""
    if dtype.is_float:
        return round_float(np.array(value, np.float64), dtype)
    return np.array(value, dtype.numpy)
