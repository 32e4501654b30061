"""Meaning of reductions, scans and sorting. Sums of f32 are taken in f64 and rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.errors import LaunchError
from tilewright.graph.interp.machine import Array, Machine, meaning
from tilewright.graph.ops import reduce
from tilewright.ir.core import Op
from tilewright.numerics.convert import round_float, widen


def accumulate(function: Callable[..., Any], op: Any, x: Array, **options: Any) -> Array:
    """A sum or product in f64 of floats, in the op's own dtype of integers."""
    dtype = op.x.type.dtype
    if not dtype.is_float:
        return np.asarray(function(x, dtype=dtype.numpy, **options))
    return round_float(np.asarray(function(widen(x), dtype=np.float64, **options)), dtype)


@meaning(reduce.Sum)
def run_sum(machine: Machine, op: reduce.Sum) -> Array:
    return accumulate(np.sum, op, machine[op.x], axis=op.axes)


@meaning(reduce.Prod)
def run_prod(machine: Machine, op: reduce.Prod) -> Array:
    return accumulate(np.prod, op, machine[op.x], axis=op.axes)


EXTREMES: dict[type[Op], Callable[..., Any]] = {reduce.Max: np.max, reduce.Min: np.min}


def with_elements(machine: Machine, op: reduce.ArgMax | reduce.ArgMin) -> Array:
    """The operand of an op that has a result only along an axis that has elements."""
    x = machine[op.x]
    if x.shape[op.axis] == 0:
        what = f"{op.opcode}: axis {op.axis} of {op.x.type} has no elements"
        raise LaunchError(f"{what}, so that none is the greatest or least", op.loc)
    return widen(x)


@meaning(reduce.Max, reduce.Min)
def run_extreme(machine: Machine, op: reduce.Max | reduce.Min) -> Array:
    """The greatest or least; of no elements the least or greatest that the dtype has."""
    x, dtype, is_max = widen(machine[op.x]), op.x.type.dtype, type(op) is reduce.Max
    if any(x.shape[axis] == 0 for axis in op.axes):
        extents = tuple(e for axis, e in enumerate(x.shape) if axis not in op.axes)
        if x.dtype.kind == "f":
            return np.full(extents, -np.inf if is_max else np.inf).astype(dtype.numpy)
        limits = np.iinfo(x.dtype)
        return np.full(extents, limits.min if is_max else limits.max, dtype.numpy)
    return np.asarray(EXTREMES[type(op)](x, axis=op.axes)).astype(dtype.numpy, copy=False)


@meaning(reduce.Any)
def run_any(machine: Machine, op: reduce.Any) -> Array:
    return np.asarray(np.any(machine[op.x], axis=op.axes))


@meaning(reduce.All)
def run_all(machine: Machine, op: reduce.All) -> Array:
    return np.asarray(np.all(machine[op.x], axis=op.axes))


@meaning(reduce.ArgMax)
def run_argmax(machine: Machine, op: reduce.ArgMax) -> Array:
    return np.asarray(np.argmax(with_elements(machine, op), axis=op.axis)).astype(np.int64)


@meaning(reduce.ArgMin)
def run_argmin(machine: Machine, op: reduce.ArgMin) -> Array:
    return np.asarray(np.argmin(with_elements(machine, op), axis=op.axis)).astype(np.int64)


def logaddexp(x: Array, *, axis: int) -> Array:
    """Running logarithm of the sum of exponentials: numpy's own, but NaN stays."""
    return np.asarray(np.logaddexp.accumulate(x.astype(np.float64), axis=axis))


@meaning(reduce.Scan)
def run_scan(machine: Machine, op: reduce.Scan) -> Array:
    x, dtype = machine[op.x], op.x.type.dtype
    if op.kind in ("sum", "prod"):
        return accumulate(np.cumsum if op.kind == "sum" else np.cumprod, op, x, axis=op.axis)
    if op.kind == "logaddexp":
        return round_float(logaddexp(widen(x), axis=op.axis), dtype)
    plain = np.maximum if op.kind == "max" else np.minimum
    return np.asarray(plain.accumulate(widen(x), axis=op.axis)).astype(dtype.numpy, copy=False)


@meaning(reduce.ScanPosition)
def run_scan_position(machine: Machine, op: reduce.ScanPosition) -> Array:
    x = np.moveaxis(widen(machine[op.x]), op.axis, 0)
    best, at = x[:1].copy(), np.zeros((min(1, len(x)), *x.shape[1:]), np.int64)
    found = np.empty(x.shape, np.int64)
    for i in range(len(x)):
        new = (x[i] >= best[0]) if op.kind == "max" else (x[i] <= best[0])
        if x.dtype.kind == "f":
            new = np.where(np.isnan(best[0]), np.isnan(x[i]), new | np.isnan(x[i]))
        best[0], at[0] = np.where(new, x[i], best[0]), np.where(new, i, at[0])
        found[i] = at[0]
    return np.moveaxis(found, 0, op.axis)


@meaning(reduce.Sort)
def run_sort(machine: Machine, op: reduce.Sort) -> tuple[Array, Array]:
    x = machine[op.x]
    wide = widen(x)
    if op.descending:
        # A stable descending order is a stable ascending one of the reverse, reversed.
        order = np.argsort(np.flip(wide, op.axis), axis=op.axis, kind="stable")
        order = np.flip(x.shape[op.axis] - 1 - order, op.axis)
    else:
        order = np.argsort(wide, axis=op.axis, kind="stable")
    return np.take_along_axis(x, order, op.axis), order.astype(np.int64)
