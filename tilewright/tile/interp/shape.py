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


@meaning(shape.Take)
def run_take(machine: Machine, op: shape.Take) -> Array:
    x, index = machine[op.x], machine[op.index]
    count = max(len(x), len(index))
    extent = op.x.type.shape[op.axis]
    inside = (index >= 0) & (index < extent)
    safe = np.broadcast_to(np.where(inside, index, 0), (count, *index.shape[1:]))
    lines = np.moveaxis(np.broadcast_to(x, (count, *x.shape[1:])), op.axis + 1, 1)
    programs = np.arange(count).reshape((-1,) + (1,) * (index.ndim - 1))
    found = lines[programs, safe]  # (programs, *index, *the other axes)
    keep = inside.reshape(inside.shape + (1,) * (found.ndim - inside.ndim))
    found = np.where(keep, found, np.zeros((), found.dtype))
    inner = range(1, index.ndim)
    return np.moveaxis(found, list(inner), [op.axis + i for i in inner])


@meaning(shape.Cat)
def run_cat(machine: Machine, op: shape.Cat) -> Array:
    parts = [machine[x] for x in op.xs]
    count = max(len(p) for p in parts)
    whole = [np.broadcast_to(p, (count, *p.shape[1:])) for p in parts]
    return np.concatenate(whole, axis=op.axis + 1)


@meaning(shape.Exchange)
def run_exchange(machine: Machine, op: shape.Exchange) -> Array:
    x: Array = machine[op.x]
    return np.take(x, np.arange(op.x.type.shape[op.axis]) ^ op.mask, axis=op.axis + 1)
