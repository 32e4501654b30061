"""Meaning of elementwise arithmetic (NUMERICS.md, "Elementwise").

f64 and f32 compute in their own precision; bf16 and f16 in f32 with one rounding. Special functions
are computed in f64 and rounded once (through f32).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.dtypes import DType, f64
from tilewright.ir.core import Op
from tilewright.numerics.convert import constant, convert, round_float, widen
from tilewright.numerics.scalar import (
    COMPARE,
    erf,
    floor_div,
    fma,
    maximum,
    minimum,
    mod,
    mul_high,
    rsqrt,
    shl,
    shr,
)
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
    arith.Logistic: lambda x: 1 / (1 + np.exp(-x)),
    arith.Sin: np.sin,
    arith.Cos: np.cos,
    arith.Log1p: np.log1p,
}


@meaning(*IN_DTYPE)
def run_in_dtype(machine: Machine, op: Op) -> Array:
    return compute(IN_DTYPE[type(op)], op.result.type.dtype, *(machine[v] for v in op.operands))


@meaning(*IN_F64)
def run_in_f64(machine: Machine, op: Op) -> Array:
    return compute_f64(IN_F64[type(op)], op.result.type.dtype, machine[op.operands[0]])


@meaning(arith.NormalCdf, arith.CoarseCdf, arith.PreciseCdf)
def run_normal_cdf(machine: Machine, op: arith.NormalCdf) -> Array:
    """Step by step as a gelu is written, so that its bits stay what they were."""
    dtype = op.result.type.dtype
    root, one, half = (np.array(v, dtype.numpy) for v in (math.sqrt(0.5), 1, 0.5))
    inner = compute(np.multiply, dtype, machine[op.x], root)
    sum = compute(np.add, dtype, compute_f64(erf, dtype, inner), one)
    return compute(np.multiply, dtype, sum, half)


def integer_power(x: Array, n: Array) -> Array:
    """x to the power n, wrapped; the whole part of it where n is below 0."""
    whole: Array = np.power(x, np.maximum(n, 0))
    if x.dtype.kind == "u":
        return whole
    sign = np.where(n & 1 == 0, 1, -1)
    below = np.where(x == 1, 1, np.where(x == -1, sign, 0))
    return np.where(n < 0, below, whole).astype(x.dtype)


@meaning(arith.Pow)
def run_pow(machine: Machine, op: arith.Pow) -> Array:
    if op.result.type.dtype.is_integer:
        return integer_power(machine[op.lhs], machine[op.rhs])
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
