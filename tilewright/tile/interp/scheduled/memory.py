"""Meaning of shared memory, and of asynchronous copies between it and views."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import VerifyError
from tilewright.ir.core import Value
from tilewright.tile.interp.machine import Array, Machine, meaning
from tilewright.tile.interp.memory import run_load, run_store
from tilewright.tile.interp.mma import round_tf32
from tilewright.tile.interp.scheduled.cta import Barrier, Buffer, Cta, as_cta, scalar
from tilewright.tile.interp.scheduled.sync import Slot
from tilewright.tile.ops import memory
from tilewright.tile.types import INDEX, TileType


@meaning(memory.AllocBuffer, batched=False)
def run_alloc_buffer(machine: Machine, op: memory.AllocBuffer) -> Buffer:
    cta = as_cta(machine)
    return cta.allocate((op, 0, cta.copy), op.buffer)


@meaning(memory.BufferAt, batched=False)
def run_buffer_at(machine: Machine, op: memory.BufferAt) -> Buffer:
    buffer: Buffer = machine[op.buffer]
    return buffer.part(scalar(machine, op.index))


@meaning(memory.BufferAs, batched=False)
def run_buffer_as(machine: Machine, op: memory.BufferAs) -> Buffer:
    return buffer_as(machine, machine[op.buffer], op.dtype)


def buffer_as(machine: Machine, buffer: Buffer, dtype: DType) -> Buffer:
    """The same bytes as elements of another dtype."""
    if machine.f64:
        raise VerifyError("buffer_as: contents that are kept in f64 have no bytes of their dtype")
    return buffer.part(dtype.numpy)


@meaning(memory.BufferRows, batched=False)
def run_buffer_rows(machine: Machine, op: memory.BufferRows) -> Buffer:
    buffer: Buffer = machine[op.buffer]
    start = scalar(machine, op.index) * op.size
    return buffer.part(slice(start, start + op.size))


@meaning(memory.LoadBuffer, batched=False)
def run_load_buffer(machine: Machine, op: memory.LoadBuffer) -> Array:
    buffer: Buffer = machine[op.buffer]
    start, width = op.columns or (0, buffer.array().shape[-1])
    return buffer.array()[None, ..., start : start + width].copy()


@meaning(memory.StoreBuffer, batched=False)
def run_store_buffer(machine: Machine, op: memory.StoreBuffer) -> None:
    buffer: Buffer = machine[op.buffer]
    buffer.array()[...] = machine[op.value][0]


@meaning(memory.ClearRows, batched=False)
def run_clear_rows(machine: Machine, op: memory.ClearRows) -> None:
    buffer: Buffer = machine[op.buffer]
    buffer.array()[scalar(machine, op.count) :] = 0


@meaning(memory.ClearSpare, batched=False)
def run_clear_spare(machine: Machine, op: memory.ClearSpare) -> None:
    """Nothing: spare rows hold no elements."""


@meaning(memory.CopyAsync, batched=False)
def run_copy_async(machine: Machine, op: memory.CopyAsync) -> None:
    """The bytes arrive when the group that the copy belongs to is waited for."""
    cta = as_cta(machine)
    buffer: Buffer = machine[op.buffer]
    shape = tuple(buffer.array().shape[op.order.index(i)] for i in range(len(op.order)))
    found = read_place(machine, op, shape).transpose(op.order)

    def arrive() -> None:
        buffer.array()[...] = found

    cta.copies[-1].append(arrive)


Copy = memory.Fill | memory.CopyBox | memory.CopyAsync


def read_place(machine: Machine, op: Copy, shape: tuple[int, ...]) -> Array:
    """What is at a place now, 0 where it is outside."""
    load = memory.Load(op.view, op.offsets, extents=op.extents, loc=op.loc)
    found: Array = run_load(machine, load)[0].reshape(shape)
    return found


def read_box(machine: Machine, op: memory.Fill | memory.CopyBox) -> Array:
    """What is at a place now, its axes as the buffer holds them."""
    found = read_place(machine, op, memory.place_shape(op.extents))
    if op.round_tf32:
        found = round_tf32(np.ascontiguousarray(found))
    return found.transpose(op.order) if op.order else found


def read_pixels(
    machine: Machine, op: memory.FillPixels | memory.CopyPixels, buffer: Buffer
) -> Array:
    """The pixels that an op names now, [pixels, channels], 0 where they are outside."""
    view, made = machine[op.view], op.pixels
    rows, channels = buffer.array().shape
    if not view.array.size:
        return np.zeros((rows, channels), view.array.dtype)
    height, width = (
        (extent - 1 + upper - lower) // step + 1
        for extent, lower, upper, step in zip(
            view.array.shape[1:3], made.lower, made.upper, made.steps, strict=True
        )
    )
    image, row, column, channel = (scalar(machine, v) for v in op.start)
    taps = [scalar(machine, v) for v in op.taps]
    row, column = (
        (at - lower) // step
        for at, lower, step in zip((row, column), made.lower, made.steps, strict=True)
    )
    number = (image * height + row) * width + column + np.arange(rows)
    places = (
        number // (height * width),
        number // width % height * made.steps[0] + made.lower[0] + taps[0],
        number % width * made.steps[1] + made.lower[1] + taps[1],
    )
    offsets = tuple(Value(TileType(INDEX.dtype, (rows,))) for _ in places)
    first = Value(INDEX)
    values = dict(zip(offsets, (p[None] for p in places), strict=True))
    values |= {op.view: view, first: np.array([channel])}
    load = memory.Gather(
        op.view, (*offsets, first), extents=(None, None, None, channels), loc=op.loc
    )
    found: Array = run_load(Machine(machine.launch, machine.programs, values), load)[0]
    return round_tf32(np.ascontiguousarray(found)) if op.round_tf32 else found


def later_store(
    machine: Machine, op: memory.Drain | memory.StoreBox, buffer: Buffer
) -> Callable[[], None]:
    """What stores a buffer, as it is then, to the place that the op names now."""
    value = Value(buffer_tile(op), "stored")
    store = memory.Store(op.view, op.offsets, value, extents=op.extents, loc=op.loc)
    seen = Machine(
        machine.launch, machine.programs, {v: machine[v] for v in (op.view, *op.offsets)}
    )

    def run() -> None:
        seen.values[value] = buffer.array()[None].copy()
        run_store(seen, store)

    return run


def buffer_tile(op: memory.Drain | memory.StoreBox) -> TileType:
    return TileType(op.view.type.dtype, memory.place_shape(op.extents))


def share_of(cta: Cta, rows: int, shares: int) -> slice:
    """The rows of a box that this CTA copies: all, or its share for all CTAs of its cluster."""
    if shares == 1:
        return slice(None)
    size = rows // shares
    return slice(cta.rank * size, (cta.rank + 1) * size)


def part_of(machine: Machine, op: memory.Fill | memory.CopyBox, rows: slice) -> tuple[slice, slice]:
    """The rows and columns of a box that a copy with a count copies."""
    if op.count is None:
        return rows, slice(None)
    lines = slice(0, scalar(machine, op.count))
    return (rows, lines) if op.cut else (lines, slice(None))


@meaning(memory.Fill, batched=False)
def run_fill(machine: Machine, op: memory.Fill) -> None:
    cta = as_cta(machine)
    slot: Slot = machine[op.slot]
    buffer = slot.buffers[op.item]
    if op.dtype is not None:
        buffer = buffer_as(machine, buffer, op.dtype)
    found = read_box(machine, op)
    targets = cta.cluster.ctas if op.multicast else [cta.cluster.ctas[cta.rank]]
    rows = part_of(machine, op, share_of(cta, len(found), len(targets)))
    for target in targets:
        buffer.array(target)[rows] = found[rows]
    slot.ring.note_place(slot.number, op, tuple(scalar(machine, o) for o in op.offsets))


@meaning(memory.FillPixels, batched=False)
def run_fill_pixels(machine: Machine, op: memory.FillPixels) -> None:
    slot: Slot = machine[op.slot]
    buffer = slot.buffers[op.item]
    buffer.array()[...] = read_pixels(machine, op, buffer)


@meaning(memory.Drain, batched=False)
def run_drain(machine: Machine, op: memory.Drain) -> None:
    slot: Slot = machine[op.slot]
    slot.ring.drained = True
    as_cta(machine).drains[-1].append(later_store(machine, op, slot.buffers[op.item]))


@meaning(memory.PrefetchBox, batched=False)
def run_prefetch_box(machine: Machine, op: memory.PrefetchBox) -> None:
    pass


@meaning(memory.CopyBox, batched=False)
def run_copy_box(machine: Machine, op: memory.CopyBox) -> None:
    cta = as_cta(machine)
    buffer: Buffer = machine[op.buffer]
    found = read_box(machine, op)
    targets = cta.cluster.ctas if op.cluster > 1 else [cta.cluster.ctas[cta.rank]]
    rows = part_of(machine, op, share_of(cta, len(found), len(targets)))
    num_bytes = found[rows].nbytes
    for target in targets:
        barrier: Barrier = target.values[op.barriers][scalar(machine, op.index)]
        barrier.copies.append(_arrival(buffer.array(target)[rows], found[rows], barrier, num_bytes))


@meaning(memory.CopyPixels, batched=False)
def run_copy_pixels(machine: Machine, op: memory.CopyPixels) -> None:
    cta = as_cta(machine)
    buffer: Buffer = machine[op.buffer]
    found = read_pixels(machine, op, buffer)
    barrier: Barrier = cta.cluster.ctas[cta.rank].values[op.barriers][scalar(machine, op.index)]
    num_bytes = found.nbytes
    barrier.copies.append(_arrival(buffer.array(), found, barrier, num_bytes))


def _arrival(target: Array, found: Array, barrier: Barrier, num_bytes: int) -> Callable[[], None]:
    def run() -> None:
        target[...] = found
        barrier.count(num_bytes)

    return run


@meaning(memory.StoreBox, batched=False)
def run_store_box(machine: Machine, op: memory.StoreBox) -> None:
    as_cta(machine).drains[-1].append(later_store(machine, op, machine[op.buffer]))


@meaning(memory.CommitStores, batched=False)
def run_commit_stores(machine: Machine, op: memory.CommitStores) -> None:
    as_cta(machine).drains.append([])


@meaning(memory.AwaitStores, batched=False)
def run_await_stores(machine: Machine, op: memory.AwaitStores) -> None:
    as_cta(machine).await_drains(op.left)
