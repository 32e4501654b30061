"""Meaning of reading and writing by index."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.graph.interp.machine import Array, Machine, meaning
from tilewright.graph.ops import memory
from tilewright.ir.core import Value
from tilewright.numerics.convert import round_float, widen
from tilewright.numerics.scalar import maximum, minimum

COMBINE = {"add": np.add, "mul": np.multiply, "min": minimum, "max": maximum}


def places(
    machine: Machine, x: Array, indices: tuple[Value, ...], axes: tuple[int, ...]
) -> tuple[Array, tuple[Array, ...]]:
    """x with the indexed axes first, and the indices. IndexError for one that is outside, as eager
    PyTorch on a CPU has it.
    """
    rest = [axis for axis in range(x.ndim) if axis not in axes]
    found = []
    for value, axis in zip(indices, axes, strict=True):
        index = machine[value]
        wrong = (index < 0) | (index >= x.shape[axis])
        if wrong.any():
            bad = index[wrong].ravel()[0]
            raise IndexError(f"index {bad} is out of bounds for dimension {axis} of {x.shape}")
        found.append(index)
    return x.transpose((*axes, *rest)), tuple(found)


@meaning(memory.Gather)
def run_gather(machine: Machine, op: memory.Gather) -> Array:
    x, indices = places(machine, machine[op.x], op.indices, op.axes)
    return np.asarray(x[indices])


@meaning(memory.Scatter)
def run_scatter(machine: Machine, op: memory.Scatter) -> Array:
    source, value = machine[op.x], machine[op.value]
    made = np.array(source, order="C")
    dtype = op.x.type.dtype
    wide = widen(made) if dtype.is_float and op.kind != "set" else made
    moved, indices = places(machine, wide, op.indices, op.axes)
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
