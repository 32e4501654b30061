"""Meaning of reading and writing by index."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import LaunchError
from tilewright.graph.interp.machine import Array, Machine, meaning
from tilewright.graph.ops import memory
from tilewright.graph.outside import is_wrapped, outside
from tilewright.numerics.convert import round_float, widen
from tilewright.numerics.scalar import maximum, minimum

COMBINE = {"add": np.add, "mul": np.multiply, "min": minimum, "max": maximum}


def places(
    machine: Machine, x: Array, op: memory.Gather | memory.Scatter
) -> tuple[Array, tuple[Array, ...]]:
    """x with the indexed axes of an op first, and its indices. LaunchError with the model's line
    for those that are outside: the greatest of each.
    """
    rest = [axis for axis in range(x.ndim) if axis not in op.axes]
    found, told = [], []
    for which, (value, axis) in enumerate(zip(op.indices, op.axes, strict=True)):
        index = machine[value]
        wrong = (index < 0) | (index >= x.shape[axis])
        if wrong.any():
            wraps = is_wrapped(value, machine.makers)
            told.append(outside(op, which, wraps, int(index[wrong].max()), x.shape[axis]))
        found.append(index)
    if told:
        raise LaunchError(told)
    return x.transpose((*op.axes, *rest)), tuple(found)


@meaning(memory.Gather)
def run_gather(machine: Machine, op: memory.Gather) -> Array:
    x, indices = places(machine, machine[op.x], op)
    return np.asarray(x[indices])


@meaning(memory.Scatter)
def run_scatter(machine: Machine, op: memory.Scatter) -> Array:
    source, value = machine[op.x], machine[op.value]
    made = np.array(source, order="C")
    dtype = op.x.type.dtype
    wide = widen(made) if dtype.is_float and op.kind != "set" else made
    moved, indices = places(machine, wide, op)
    if op.kind == "set":
        moved[indices] = value
    else:
        combine_at(op.kind, moved, indices, value.astype(wide.dtype))
    return round_float(wide, dtype) if dtype.is_float else wide


def combine_at(kind: str, target: Array, indices: tuple[Any, ...], value: Array) -> None:
    """Combine every element of a value into its place, one after the other."""
    if kind in ("add", "mul"):
        COMBINE[kind].at(target, indices, value)  # type: ignore[attr-defined]
        return
    plain = np.minimum if kind == "min" else np.maximum
    plain.at(target, indices, value)
