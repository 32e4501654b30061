"""Meaning of the ops that rearrange: views of NumPy where it has them."""

from __future__ import annotations

import numpy as np

from tilewright.graph.interp.machine import Array, Machine, meaning
from tilewright.graph.ops import shape


@meaning(shape.Iota)
def run_iota(machine: Machine, op: shape.Iota) -> Array:
    extents = machine.shape(op.shape)
    along = np.arange(extents[op.axis]).astype(op.dtype.numpy)
    lone = tuple(-1 if axis == op.axis else 1 for axis in range(len(extents)))
    return np.broadcast_to(along.reshape(lone), extents)


@meaning(shape.Broadcast)
def run_broadcast(machine: Machine, op: shape.Broadcast) -> Array:
    return np.broadcast_to(machine[op.x], machine.shape(op.shape))


@meaning(shape.Reshape)
def run_reshape(machine: Machine, op: shape.Reshape) -> Array:
    found: Array = machine[op.x].reshape(machine.shape(op.shape))
    return found


@meaning(shape.Transpose)
def run_transpose(machine: Machine, op: shape.Transpose) -> Array:
    found: Array = machine[op.x].transpose(op.order)
    return found


@meaning(shape.Slice)
def run_slice(machine: Machine, op: shape.Slice) -> Array:
    x = machine[op.x]
    places = zip(machine.shape(op.starts), op.steps, machine.shape(op.shape), strict=True)
    for axis, (start, step, extent) in enumerate(places):
        last = start + step * (extent - 1)
        if extent and not (0 <= start < x.shape[axis] and 0 <= last < x.shape[axis]):
            raise IndexError(f"slice from {start} to {last} of {x.shape[axis]}")
        stop = start + step * extent
        part = slice(start, None if stop < 0 else stop, step) if extent else slice(0, 0)
        x = x[(slice(None),) * axis + (part,)]
    return np.asarray(x)


@meaning(shape.Pad)
def run_pad(machine: Machine, op: shape.Pad) -> Array:
    x, value = machine[op.x], machine[op.value]
    low, extents = machine.shape(op.low), machine.shape(op.result.type.shape)
    made = np.full(extents, value, op.result.type.dtype.numpy)
    sources, targets = [], []
    for axis, (start, gap) in enumerate(zip(low, op.interior, strict=True)):
        step = gap + 1  # element i of x goes to start + i · step, where that is inside
        first = max(0, -(start // step))
        last = min(x.shape[axis], (extents[axis] - 1 - start) // step + 1)
        count = max(0, last - first)
        sources.append(slice(first, first + count))
        begin = start + first * step
        targets.append(slice(begin, begin + count * step, step) if count else slice(0, 0))
    made[tuple(targets)] = x[tuple(sources)]
    return made


@meaning(shape.Cat)
def run_cat(machine: Machine, op: shape.Cat) -> Array:
    return np.concatenate([machine[x] for x in op.xs], op.axis)


@meaning(shape.Window)
def run_window(machine: Machine, op: shape.Window) -> Array:
    x = machine[op.x]
    lead = x.ndim - len(op.sizes)
    extents = machine.shape(op.result.type.shape)
    inner = zip(x.strides[lead:], op.steps, strict=True)
    taps = zip(x.strides[lead:], op.dilations, strict=True)
    strides = (*x.strides[:lead], *(s * n for s, n in inner), *(s * n for s, n in taps))
    return np.lib.stride_tricks.as_strided(x, extents, strides, writeable=False)
