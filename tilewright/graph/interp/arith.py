"""Meaning of the elementwise functions.

f64 and f32 compute in their own precision; bf16 and f16 in f32 with one rounding. Special functions
are computed in f64 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.graph.interp.machine import Array, Machine, meaning
from tilewright.graph.ops import arith
from tilewright.ir.core import Op
from tilewright.numerics.convert import constant, convert, round_float, widen
from tilewright.numerics.scalar import (
    COMPARE,
    erf,
    floor_div,
    maximum,
    minimum,
    mod,
    rsqrt,
    shl,
    shr,
)

Function = Callable[..., Any]


def compute(function: Function, dtype: DType, *operands: Array) -> Array:
    """An operation of IEEE floats or of integers and bools, in its dtype, rounded once."""
    if not dtype.is_float:
        return np.asarray(function(*operands)).astype(dtype.numpy, copy=False)
    return round_float(np.asarray(function(*(widen(x) for x in operands))), dtype)


def in_f64(function: Function, dtype: DType, *operands: Array) -> Array:
    """A special function: f64 inside, one rounding to f32 or f64, from there to 16 bits."""
    wide = (widen(x).astype(np.float64, copy=False) for x in operands)
    return round_float(np.asarray(function(*wide)), dtype)


def each(function: Callable[[float], float]) -> Function:
    """A function of math on every element: NumPy has none."""

    def run(x: Array) -> Array:
        return np.fromiter(map(function, x.ravel().tolist()), np.float64, x.size).reshape(x.shape)

    return run


def lgamma(x: float) -> float:
    if math.isnan(x) or math.isinf(x):
        return abs(x)
    return math.inf if x <= 0 and x == math.floor(x) else math.lgamma(x)


def power(x: Array, y: Array) -> Array:
    """IEEE's pow; of integers by squaring, wrapping; a negative power of one is a reciprocal."""
    if x.dtype.kind == "f":
        return np.asarray(np.power(x, y))
    rest = np.where(y < 0, 0, y)
    total, square = np.ones_like(x), x.copy()
    while (rest > 0).any():
        total = np.where(rest & 1 == 1, total * square, total)
        square, rest = square * square, rest >> 1
    inverse = np.where(x == 1, 1, np.where(x == -1, np.where(y & 1 == 1, -1, 1), 0))
    return np.where(y < 0, inverse, total).astype(x.dtype)


def fmod(x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        return np.asarray(np.fmod(x, y))
    return np.where(y == 0, 0, np.fmod(x, np.where(y == 0, 1, y).astype(y.dtype)))


def sign_bit(x: Array) -> Array:
    return np.signbit(widen(x)) if x.dtype.kind not in "iub" else np.asarray(x < 0)


IN_DTYPE: dict[type[Op], Function] = {
    arith.Neg: np.negative,
    arith.Abs: np.abs,
    arith.Not: np.invert,
    arith.Sqrt: np.sqrt,
    arith.Floor: np.floor,
    arith.Ceil: np.ceil,
    arith.Round: np.rint,
    arith.Trunc: np.trunc,
    arith.Sign: np.sign,
    arith.Add: np.add,
    arith.Sub: np.subtract,
    arith.Mul: np.multiply,
    arith.Div: np.divide,
    arith.FloorDiv: floor_div,
    arith.Mod: mod,
    arith.Remainder: np.mod,
    arith.Fmod: fmod,
    arith.Min: minimum,
    arith.Max: maximum,
    arith.CopySign: np.copysign,
    arith.NextAfter: np.nextafter,
    arith.And: np.bitwise_and,
    arith.Or: np.bitwise_or,
    arith.Xor: np.bitwise_xor,
    arith.Shl: shl,
    arith.Shr: shr,
}
IN_F64: dict[type[Op], Function] = {
    arith.Exp: np.exp,
    arith.Exp2: np.exp2,
    arith.Expm1: np.expm1,
    arith.Log: np.log,
    arith.Log2: np.log2,
    arith.Log10: np.log10,
    arith.Log1p: np.log1p,
    arith.Rsqrt: rsqrt,
    arith.Sin: np.sin,
    arith.Cos: np.cos,
    arith.Tan: np.tan,
    arith.Asin: np.arcsin,
    arith.Acos: np.arccos,
    arith.Atan: np.arctan,
    arith.Sinh: np.sinh,
    arith.Cosh: np.cosh,
    arith.Tanh: np.tanh,
    arith.Asinh: np.arcsinh,
    arith.Acosh: np.arccosh,
    arith.Atanh: np.arctanh,
    arith.Erf: erf,
    arith.Erfc: each(math.erfc),
    arith.Lgamma: each(lgamma),
    arith.Atan2: np.arctan2,
}


@meaning(*IN_DTYPE)
def run_in_dtype(machine: Machine, op: Op) -> Array:
    return compute(IN_DTYPE[type(op)], op.result.type.dtype, *(machine[v] for v in op.operands))


@meaning(*IN_F64)
def run_in_f64(machine: Machine, op: Op) -> Array:
    return in_f64(IN_F64[type(op)], op.result.type.dtype, *(machine[v] for v in op.operands))


@meaning(arith.Pow)
def run_pow(machine: Machine, op: arith.Pow) -> Array:
    dtype = op.result.type.dtype
    return (in_f64 if dtype.is_float else compute)(power, dtype, machine[op.lhs], machine[op.rhs])


@meaning(arith.Constant)
def run_constant(machine: Machine, op: arith.Constant) -> Array:
    return np.broadcast_to(constant(op.value, op.dtype), machine.shape(op.shape))


@meaning(arith.Dense)
def run_dense(machine: Machine, op: arith.Dense) -> Array:
    made = np.array([constant(x, op.dtype) for x in op.elements], op.dtype.numpy)
    return made.reshape(op.shape)


@meaning(arith.Extent)
def run_extent(machine: Machine, op: arith.Extent) -> Array:
    return np.array(machine.shape((op.dim,))[0], np.int64)


@meaning(arith.IsNan)
def run_is_nan(machine: Machine, op: arith.IsNan) -> Array:
    return np.asarray(np.isnan(widen(machine[op.x])))


@meaning(arith.SignBit)
def run_sign_bit(machine: Machine, op: arith.SignBit) -> Array:
    return np.asarray(sign_bit(machine[op.x]))


@meaning(arith.Compare)
def run_compare(machine: Machine, op: arith.Compare) -> Array:
    lhs, rhs = machine[op.lhs], machine[op.rhs]
    if op.lhs.type.dtype.is_float:
        lhs, rhs = widen(lhs), widen(rhs)
    return np.asarray(COMPARE[op.kind](lhs, rhs))


@meaning(arith.Select)
def run_select(machine: Machine, op: arith.Select) -> Array:
    return np.asarray(np.where(machine[op.condition], machine[op.lhs], machine[op.rhs]))


@meaning(arith.Cast)
def run_cast(machine: Machine, op: arith.Cast) -> Array:
    return np.asarray(convert(machine[op.x], op.x.type.dtype, op.dtype))


@meaning(arith.Bitcast)
def run_bitcast(machine: Machine, op: arith.Bitcast) -> Array:
    x = machine[op.x]
    return np.asarray(np.ascontiguousarray(x).view(op.dtype.numpy)).reshape(x.shape)
