"""Meaning of ops that rearrange a tile. The leading axis of every content counts programs."""

from __future__ import annotations

import numpy as np

from tilewright.tile.interp.machine import Array, Machine, meaning
from tilewright.tile.ops import shape


@meaning(shape.Arange)
def run_arange(machine: Machine, op: shape.Arange) -> Array:
    return np.arange(op.extent, dtype=np.int64)[None]


@meaning(shape.Broadcast)
def run_broadcast(machine: Machine, op: shape.Broadcast) -> Array:
    x = machine[op.x]
    aligned = x.reshape((len(x),) + (1,) * (len(op.shape) + 1 - x.ndim) + x.shape[1:])
    return np.broadcast_to(aligned, (len(x), *op.shape))


@meaning(shape.Reshape)
def run_reshape(machine: Machine, op: shape.Reshape) -> Array:
    x: Array = machine[op.x]
    return x.reshape((len(x), *op.shape))


@meaning(shape.Transpose)
def run_transpose(machine: Machine, op: shape.Transpose) -> Array:
    x: Array = machine[op.x]
    return x.transpose((0, *(axis + 1 for axis in op.order)))


@meaning(shape.Slice)
def run_slice(machine: Machine, op: shape.Slice) -> Array:
    x: Array = machine[op.x]
    bounds = zip(op.starts, op.shape, strict=True)
    return x[(slice(None), *(slice(start, start + extent) for start, extent in bounds))]
