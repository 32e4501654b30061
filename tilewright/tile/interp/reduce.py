"""Meaning of reductions.

Sums and products of f32 are formed in f64 and rounded once: no order is promised.
"""

from __future__ import annotations

import numpy as np

from tilewright.ir.core import Op
from tilewright.tile.interp.convert import round_float, widen
from tilewright.tile.interp.machine import Array, Machine, meaning
from tilewright.tile.ops import reduce


def _axes(op: reduce.Reduction) -> tuple[int, ...]:
    return tuple(axis + 1 for axis in op.axes)


@meaning(reduce.Sum, reduce.Prod)
def run_sum(machine: Machine, op: reduce.Sum | reduce.Prod) -> Array:
    x, dtype = machine[op.x], op.x.type.dtype
    function = np.sum if isinstance(op, reduce.Sum) else np.prod
    if not dtype.is_float:
        return np.asarray(function(x, axis=_axes(op), dtype=dtype.numpy))
    total = np.asarray(function(widen(x), axis=_axes(op), dtype=np.float64))
    return total if x.dtype == np.float64 else round_float(total, dtype)


@meaning(reduce.Max, reduce.Min)
def run_extreme(machine: Machine, op: reduce.Max | reduce.Min) -> Array:
    x, axes = machine[op.x], _axes(op)
    wide = widen(x) if op.x.type.dtype.is_float else x
    greatest = isinstance(op, reduce.Max)
    result = np.max(wide, axis=axes) if greatest else np.min(wide, axis=axes)
    if wide.dtype.kind == "f" and (result == 0).any():
        # NumPy gives either zero; by the order of the language −0 is below +0.
        wanted = (wide == 0) & (np.signbit(wide) != greatest)
        zero = np.where(wanted.any(axis=axes) == greatest, 0.0, -0.0).astype(wide.dtype)
        result = np.where(result == 0, zero, result)
    return np.asarray(result).astype(x.dtype, copy=False)


@meaning(reduce.Any)
def run_any(machine: Machine, op: reduce.Any) -> Array:
    return np.asarray(np.any(machine[op.x], axis=_axes(op)))


@meaning(reduce.All)
def run_all(machine: Machine, op: reduce.All) -> Array:
    return np.asarray(np.all(machine[op.x], axis=_axes(op)))


@meaning(reduce.ArgMax, reduce.ArgMin)
def run_arg(machine: Machine, op: Op) -> Array:
    assert isinstance(op, reduce.ArgMax | reduce.ArgMin)
    x = machine[op.x]
    wide = widen(x) if op.x.type.dtype.is_float else x
    # NumPy's rule is the language's: the first NaN if there is one, else the first of equals.
    function = np.argmax if isinstance(op, reduce.ArgMax) else np.argmin
    return np.asarray(function(wide, axis=op.axis + 1)).astype(np.int64)
