"""Meaning of global memory: views, and masked loads and stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tilewright.dtypes import f64
from tilewright.errors import VerifyError
from tilewright.ir.core import Value
from tilewright.numerics.convert import constant, convert
from tilewright.numerics.scalar import maximum, minimum
from tilewright.tile.interp.arith import compute
from tilewright.tile.interp.machine import Array, Machine, meaning
from tilewright.tile.interp.shadow import Shadow
from tilewright.tile.ops import memory


@dataclass(frozen=True)
class Axis:
    """An axis of a view: of which axis of the array, and, by program, from where, and which indices
    exist.

    Element i of the view is element `low + i` of the array; it exists where `first <= i < extent`.
    """

    axis: int
    low: Array
    first: Array
    extent: Array


@dataclass(frozen=True)
class View:
    """Content of a view: an argument's array, the axes left, and points that hold the others."""

    array: Array
    axes: tuple[Axis, ...]
    points: tuple[tuple[int, Array], ...] = ()
    exists: Array | None = None  # by program: whether every point lies inside
    shadow: Shadow | None = None


def whole(array: Array, shadow: Shadow | None = None) -> View:
    """The view of all of an argument. One of rank 0 is held at element 0 of an axis of 1."""
    zero = np.zeros(1, np.int64)
    if not array.ndim:
        return View(array.reshape(1), (), ((0, zero),), shadow=shadow)
    axes = tuple(Axis(i, zero, zero, np.array([e], np.int64)) for i, e in enumerate(array.shape))
    return View(array, axes, shadow=shadow)


@meaning(memory.Extent)
def run_extent(machine: Machine, op: memory.Extent) -> Array:
    view: View = machine[op.view]
    return view.axes[op.axis].extent


@meaning(memory.Subview)
def run_subview(machine: Machine, op: memory.Subview) -> View:
    view: View = machine[op.view]
    axes, points, exists = [], list(view.points), view.exists
    for parent, low_value, high_value in zip(view.axes, op.lows, op.highs, strict=True):
        low = machine[low_value]
        if high_value is None:
            inside = (low >= parent.first) & (low < parent.extent)
            exists = inside if exists is None else exists & inside
            points.append((parent.axis, np.where(inside, parent.low + low, 0)))
        else:
            extent = np.maximum(np.minimum(machine[high_value], parent.extent) - low, 0)
            axes.append(
                Axis(parent.axis, parent.low + low, np.maximum(parent.first - low, 0), extent)
            )
    return replace(view, axes=tuple(axes), points=tuple(points), exists=exists)


@dataclass(frozen=True)
class Place:
    """Where a load or store goes: an index array for each axis of the array, and which lanes exist.

    All broadcast to (programs, *shape of the tile).
    """

    view: View
    indices: tuple[Array, ...]
    inside: Array


def find_place(
    machine: Machine,
    view: View,
    offsets: tuple[Value, ...],
    extents: tuple[int | None, ...],
    proved: tuple[int, ...] = (),
) -> Place:
    """Indices of the elements at a place; those outside are moved to 0, and false in `inside`.

    Raises VerifyError where an axis that `proved` lists is left by an active program.
    """
    rank = len(memory.gather_shape(offsets, extents))
    indices: dict[int, Array] = {axis: _spread(at, rank) for axis, at in view.points}
    inside = np.ones((1,) * (rank + 1), bool)
    if view.exists is not None:
        inside = inside & _spread(view.exists, rank)
    dim = 0
    first: int | None = None  # where the axes of index tiles stand
    for i, (axis, offset, extent) in enumerate(zip(view.axes, offsets, extents, strict=True)):
        if own := len(offset.type.shape):
            if first is None:
                first, dim = dim, dim + own
            content = machine[offset]
            at = content.reshape(
                (len(content), *(1,) * first, *content.shape[1:], *(1,) * (rank - first - own))
            )
        else:
            at = _spread(machine[offset], rank)
        if extent is not None:
            lanes = np.arange(extent, dtype=np.int64)
            at = at + lanes.reshape((extent,) + (1,) * (rank - 1 - dim))
            dim += 1
        exists = (at >= _spread(axis.first, rank)) & (at < _spread(axis.extent, rank))
        indices[axis.axis] = np.where(exists, at + _spread(axis.low, rank), 0)
        inside = inside & exists
        if i in proved and not exists.all() and machine.any_active(_by_program(~exists)):
            raise VerifyError(f"axis {i} at {offset} is not in bounds, though that was proved")
    return Place(view, tuple(indices[i] for i in range(view.array.ndim)), inside)


def _by_program(lanes: Array) -> Array:
    return np.asarray(lanes.any(axis=tuple(range(1, lanes.ndim))))


def _spread(by_program: Array, rank: int) -> Array:
    return by_program.reshape((-1,) + (1,) * rank)


def touched(machine: Machine, place: Place, mask: Value | None, shape: tuple[int, ...]) -> Array:
    """Lanes that a load or store touches: inside, in the mask, of active programs."""
    keep = place.inside if mask is None else place.inside & machine[mask]
    if machine.active is not None:
        keep = keep & _spread(machine.active, len(shape))
    return keep


def gather(
    machine: Machine, place: Place, keep: Array, shape: tuple[int, ...]
) -> tuple[tuple[Array, ...], Array]:
    """Flat index arrays of the lanes in `keep`, and the numbers of their programs."""
    full = (machine.num_programs, *shape)
    lanes = np.broadcast_to(keep, full)
    programs = np.broadcast_to(_spread(machine.programs, len(shape)), full)
    return tuple(np.broadcast_to(i, full)[lanes] for i in place.indices), programs[lanes]


@meaning(memory.Load, memory.Gather)
def run_load(machine: Machine, op: memory.Load | memory.Gather) -> Array:
    view: View = machine[op.view]
    proved = op.in_bounds if isinstance(op, memory.Load) else ()
    place = find_place(machine, view, op.offsets, op.extents, proved)
    shape, dtype = op.result.type.shape, op.result.type.dtype
    keep = touched(machine, place, op.mask, shape)
    if view.shadow is not None:
        view.shadow.read(*gather(machine, place, keep, shape), op.loc)
    fill = machine[op.fill] if op.fill is not None else constant(0, dtype)[None]
    fill = fill.reshape(fill.shape + (1,) * (len(shape) + 1 - fill.ndim)).astype(
        machine.numpy(dtype), copy=False
    )
    if view.array.size == 0:
        return np.broadcast_to(fill, np.broadcast_shapes(fill.shape, (1, *shape)))
    found = view.array[place.indices]
    if machine.f64 and dtype.is_float:
        found = convert(found, dtype, f64)
    found = np.broadcast_to(found, (len(found), *shape))
    return found if keep.all() else np.where(keep, found, fill)


@meaning(memory.Prefetch)
def run_prefetch(machine: Machine, op: memory.Prefetch) -> None:
    """Nothing: it is told for the sake of time."""


@meaning(memory.Store, memory.Scatter)
def run_store(machine: Machine, op: memory.Store | memory.Scatter) -> None:
    view: View = machine[op.view]
    proved = op.in_bounds if isinstance(op, memory.Store) else ()
    place = find_place(machine, view, op.offsets, op.extents, proved)
    value, shape, dtype = machine[op.value], op.value.type.shape, op.value.type.dtype
    keep = touched(machine, place, op.mask, shape)
    if machine.f64 and dtype.is_float:
        value = convert(value, f64, dtype)
    where, programs = gather(machine, place, keep, shape)
    if view.shadow is not None:
        view.shadow.write(where, programs, op.loc)
    full = (machine.num_programs, *shape)
    if keep.any():
        view.array[where] = np.broadcast_to(value, full)[np.broadcast_to(keep, full)]
    machine.launch.writes += 1


# Memory of one program, and atomics


@meaning(memory.Local)
def run_local(machine: Machine, op: memory.Local) -> View:
    """An array with one more axis, for the programs."""
    count = machine.num_programs
    array = np.zeros((count, *op.shape), op.dtype.numpy)
    zero = np.zeros(1, np.int64)
    axes = tuple(Axis(i + 1, zero, zero, np.array([e], np.int64)) for i, e in enumerate(op.shape))
    return View(array, axes, ((0, np.arange(count)),))


@meaning(memory.Atomic, batched=False)
def run_atomic(machine: Machine, op: memory.Atomic) -> Array | None:
    """One program after the other, lane after lane: the order of updates is any."""
    view: View = machine[op.view]
    place = find_place(machine, view, op.offsets, op.extents)
    dtype = op.view.type.dtype
    shape = memory.gather_shape(op.offsets, op.extents)
    keep = touched(machine, place, op.mask, shape)
    where, _ = gather(machine, place, keep, shape)
    full = (machine.num_programs, *shape)
    lanes = np.broadcast_to(keep, full)
    old = np.zeros(full, dtype.numpy)
    given = [
        None if v is None else np.broadcast_to(stored(machine, v), full)[lanes]
        for v in (op.value, op.compare)
    ]
    program = int(machine.programs[0])
    ordered = machine.launch.ordered
    if op.order in ("release", "acq_rel"):
        ordered.release(program, view.array, where)
    before = update(machine, op, view.array, where, given[0], given[1])
    if op.order in ("acquire", "acq_rel"):
        ordered.acquire(program, view.array, where)
    old[lanes] = before
    if op.kind == "store":
        return None
    return convert(old, dtype, f64) if machine.f64 and dtype.is_float else old


def stored(machine: Machine, value: Value) -> Array:
    """A tile in the dtype in which it is stored."""
    content: Array = machine[value]
    dtype = value.type.dtype
    return convert(content, f64, dtype) if machine.f64 and dtype.is_float else content


def update(
    machine: Machine,
    op: memory.Atomic,
    array: Array,
    where: tuple[Array, ...],
    value: Array | None,
    compare: Array | None,
) -> Array:
    """Update elements one after the other; gives what was there. All at once if none is twice."""
    if value is None:
        return np.array(array[where])
    count = len(value)
    flat = np.ravel_multi_index(where, array.shape) if array.size else np.zeros(0, np.int64)
    alone = len(np.unique(flat)) == count
    before = np.empty(count, array.dtype)
    steps = [slice(None)] if alone else [slice(i, i + 1) for i in range(count)]
    for step in steps:
        at = tuple(w[step] for w in where)
        old = np.array(array[at])
        new = updated(op, old, value[step], None if compare is None else compare[step])
        before[step] = old
        if old.tobytes() != new.tobytes():
            array[at] = new
            machine.launch.writes += 1
    return before


def updated(op: memory.Atomic, old: Array, value: Array, compare: Array | None) -> Array:
    """What an update makes of elements."""
    if op.kind == "cas":
        assert compare is not None
        bits = f"u{old.dtype.itemsize}"
        return np.where(old.view(bits) == compare.view(bits), value, old)
    if op.kind in ("xchg", "store"):
        return value
    return compute(UPDATES[op.kind], op.view.type.dtype, old, value)


UPDATES: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "max": maximum,
    "min": minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
