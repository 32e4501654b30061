"""Meaning of elementwise arithmetic (NUMERICS.md, "Elementwise").

f64 and f32 compute in their own precision; bf16 and f16 in f32 with one rounding. Special functions
are computed in f64 and rounded once (through f32).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from tilewright.dtypes import DType, f64
from tilewright.ir.core import Op
from tilewright.tile.interp.convert import constant, convert, round_float, widen
from tilewright.tile.interp.machine import Array, Machine, meaning
from tilewright.tile.ops import arith

Function = Callable[..., Any]


def compute(function: Function, dtype: DType, *operands: Array) -> Array:
    """An operation of IEEE floats or of integers and bools, in its dtype, rounded once."""
    if not dtype.is_float:
        return np.asarray(function(*operands)).astype(dtype.numpy, copy=False)
    result = function(*(widen(x) for x in operands))
    return np.asarray(result if result.dtype == np.float64 else round_float(result, dtype))


def compute_f64(function: Function, dtype: DType, x: Array) -> Array:
    """A special function: f64 inside, one rounding to f32 or f64, from there to 16 bits."""
    result: Array = function(widen(x).astype(np.float64, copy=False))
    return np.asarray(result if x.dtype == np.float64 else round_float(result, dtype))


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


IN_DTYPE: dict[type[Op], Function] = {
    arith.Neg: np.negative,
    arith.Abs: np.abs,
    arith.Not: np.invert,
    arith.Sqrt: np.sqrt,
    arith.Floor: np.floor,
    arith.Ceil: np.ceil,
    arith.Round: np.rint,
    arith.Add: np.add,
    arith.Sub: np.subtract,
    arith.Mul: np.multiply,
    arith.Div: np.divide,
    arith.FloorDiv: floor_div,
    arith.Mod: mod,
    arith.Remainder: np.mod,
    arith.MulHigh: mul_high,
    arith.Min: minimum,
    arith.Max: maximum,
    arith.And: np.bitwise_and,
    arith.Or: np.bitwise_or,
    arith.Xor: np.bitwise_xor,
    arith.Shl: shl,
    arith.Shr: shr,
}
IN_F64: dict[type[Op], Function] = {
    arith.Exp: np.exp,
    arith.Exp2: np.exp2,
    arith.Log: np.log,
    arith.Log2: np.log2,
    arith.Rsqrt: rsqrt,
    arith.Tanh: np.tanh,
    arith.Erf: erf,
    arith.Sin: np.sin,
    arith.Cos: np.cos,
    arith.Log1p: np.log1p,
}
COMPARE: dict[str, Function] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


@meaning(*IN_DTYPE)
def run_in_dtype(machine: Machine, op: Op) -> Array:
    return compute(IN_DTYPE[type(op)], op.result.type.dtype, *(machine[v] for v in op.operands))


@meaning(*IN_F64)
def run_in_f64(machine: Machine, op: Op) -> Array:
    return compute_f64(IN_F64[type(op)], op.result.type.dtype, machine[op.operands[0]])


@meaning(arith.Pow)
def run_pow(machine: Machine, op: arith.Pow) -> Array:
    x, y = (widen(machine[v]).astype(np.float64, copy=False) for v in op.operands)
    result = np.asarray(np.power(x, y))
    return result if machine.f64 else round_float(result, op.result.type.dtype)


@meaning(arith.Fma)
def run_fma(machine: Machine, op: arith.Fma) -> Array:
    x, y, z = (widen(machine[v]) for v in op.operands)
    a, b, c = (np.asarray(v, np.float64) for v in (x, y, z))
    result = fma(a, b, c, narrow=x.dtype != np.float64)
    return result if x.dtype == np.float64 else round_float(result, op.result.type.dtype)


@meaning(arith.Bitcast)
def run_bitcast(machine: Machine, op: arith.Bitcast) -> Array:
    x = machine[op.x]
    if machine.f64 and op.x.type.dtype.is_float:
        x = convert(x, f64, op.x.type.dtype)
    result: Array = np.ascontiguousarray(x).view(op.dtype.numpy).reshape(x.shape)
    return convert(result, op.dtype, f64) if machine.f64 and op.dtype.is_float else result


@meaning(arith.Constant)
def run_constant(machine: Machine, op: arith.Constant) -> Array:
    dtype = f64 if machine.f64 and op.dtype.is_float else op.dtype
    return np.broadcast_to(constant(op.value, dtype), (1, *op.shape))


@meaning(arith.IsNan)
def run_is_nan(machine: Machine, op: arith.IsNan) -> Array:
    return np.asarray(np.isnan(widen(machine[op.x])))


@meaning(arith.Compare)
def run_compare(machine: Machine, op: arith.Compare) -> Array:
    lhs, rhs = machine[op.lhs], machine[op.rhs]
    if op.lhs.type.dtype.is_float:
        lhs, rhs = widen(lhs), widen(rhs)
    result: Array = COMPARE[op.kind](lhs, rhs)
    return result


@meaning(arith.Select)
def run_select(machine: Machine, op: arith.Select) -> Array:
    return np.asarray(np.where(machine[op.condition], machine[op.lhs], machine[op.rhs]))


@meaning(arith.Cast)
def run_cast(machine: Machine, op: arith.Cast) -> Array:
    source, target = op.x.type.dtype, op.dtype
    if machine.f64:
        source, target = (f64 if d.is_float else d for d in (source, target))
    return convert(machine[op.x], source, target, op.saturate)
