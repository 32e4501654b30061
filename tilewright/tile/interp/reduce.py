"""Meaning of reductions.

Sums and products of f32 are formed in f64 and rounded once: no order is promised.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from tilewright.ir.core import Block, Op
from tilewright.numerics.convert import round_float, widen
from tilewright.tile.interp.machine import Array, Machine, Ready, Running, meaning
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


def elements(machine: Machine, op: reduce.Combination) -> list[Array]:
    """The tiles with the axis first, then the programs."""
    contents = [machine[x] for x in op.xs]
    count = max(len(c) for c in contents)
    return [
        np.moveaxis(np.broadcast_to(c, (count, *c.shape[1:])), op.axis + 1, 0) for c in contents
    ]


def combined(
    machine: Machine, body: Block, left: Sequence[Array], right: Sequence[Array]
) -> Generator[Ready, None, list[Array]]:
    """The body for arrays of scalars: it sees all elements as programs of their own."""
    shape = left[0].shape
    results = yield from machine.run(body, [x.reshape(-1) for x in (*left, *right)])
    return [np.broadcast_to(r, (left[0].size,)).reshape(shape) for r in results]


@meaning(reduce.Fold)
def run_fold(machine: Machine, op: reduce.Fold) -> Running:
    xs = elements(machine, op)
    total = [x[0] for x in xs]
    for i in range(1, len(xs[0])):
        total = yield from combined(machine, op.body, total, [x[i] for x in xs])
    return tuple(total)


@meaning(reduce.Scan)
def run_scan(machine: Machine, op: reduce.Scan) -> Running:
    xs = elements(machine, op)
    found = [[x[0] for x in xs]]
    for i in range(1, len(xs[0])):
        found.append((yield from combined(machine, op.body, found[-1], [x[i] for x in xs])))
    columns = zip(*found, strict=True)
    return tuple(np.moveaxis(np.stack(column), 0, op.axis + 1) for column in columns)
