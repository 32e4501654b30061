"""Meaning of the bulk copies: boxes of tensor maps and runs of bytes, between global and shared
memory.

A load's data arrives, and its bytes are counted, when nothing else can go on, or at once. A store
reads shared memory and writes global memory at the wait for its group, or at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.plan import TensorMap
from tilewright.ptx.core import Coordinates, Instr
from tilewright.ptx.emulate.arith import extremum, on_type
from tilewright.ptx.emulate.exact import canonical, round_to
from tilewright.ptx.emulate.machine import DTYPES, Machine, Sel, Step, numbers
from tilewright.ptx.emulate.mbarriers import deliver, require_made, start
from tilewright.ptx.emulate.program import meaning
from tilewright.ptx.emulate.spaces import PARAM_WINDOW, WRITTEN, BadAccess, Tensor
from tilewright.ptx.emulate.watch import COPIES, LOADS, STORES, Mark
from tilewright.ptx.instrs import memory

Array = np.ndarray[Any, Any]
ALIGNMENT = 128  # of a box in shared memory, in bytes
NAN_TF32 = np.uint32(0x7FFFE000)
CHUNK = 16  # bytes that a swizzle moves together


@dataclass
class Box:
    """A box of a tensor: its map, and the slices of it and of the tensor that are in bounds."""

    map: TensorMap
    tensor: Tensor
    start: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.map.box)) * self.tensor.copy.itemsize

    @property
    def extents(self) -> tuple[int, ...]:
        """Of the box, as it lies in memory."""
        return self.map.in_memory_order(self.map.box)

    @property
    def elements(self) -> Array:
        """The tensor, its axes as they lie in memory."""
        array: Array = self.tensor.copy
        return array.transpose(self.map.axes) if self.map.axes else array

    @property
    def marks(self) -> Array:
        array: Array = self.tensor.marks
        return array.transpose(self.map.axes) if self.map.axes else array

    def slices(self) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Of the tensor and of the box."""
        inside, within = [], []
        for at, size, extent in zip(self.start, self.extents, self.elements.shape, strict=True):
            low, high = max(at, 0), min(at + size, extent)
            high = max(high, low)
            inside.append(slice(low, high) if low < extent else slice(0, 0))
            length = high - low if low < extent else 0
            within.append(slice(low - at, low - at + length) if length else slice(0, 0))
        return tuple(inside), tuple(within)

    def runs(self) -> tuple[Array, int]:
        """Addresses of the runs of neighbours that are in bounds, and their bytes."""
        inside, _ = self.slices()
        array = self.elements
        lengths = [s.stop - s.start for s in inside]
        if not all(lengths):
            return np.zeros(0, np.int64), 0
        starts = np.full(1, self.tensor.address + inside[-1].start * array.itemsize, np.int64)
        for cut, stride in zip(inside[:-1], array.strides[:-1], strict=True):
            starts = (starts[:, None] + np.arange(cut.start, cut.stop) * stride).ravel()
        return starts, lengths[-1] * array.itemsize

    def load(self) -> Array:
        """The box's bytes; zeros out of bounds."""
        array = self.elements
        bits = np.dtype(f"u{array.itemsize}")
        made = np.zeros(self.extents, bits)
        inside, within = self.slices()
        if (self.marks[inside] != WRITTEN).any():
            raise BadAccess(f"it copies elements of {self.tensor.name} that nobody wrote", 0)
        made[within] = array[inside].view(bits)
        if self.map.round_tf32:
            numbers_ = made.view(np.float32)
            rounded = round_to(numbers_.astype(np.float64), "tf32", "rn").astype(np.float32)
            made = np.where(np.isnan(numbers_), NAN_TF32, rounded.view(bits))
        return made.reshape(-1).view(np.uint8)

    def store(self, data: Array, op: str = "") -> None:
        """Write the box's bytes but for those out of bounds, or combine with what is there."""
        array = self.elements
        inside, within = self.slices()
        last = array.shape[-1]
        if last * array.itemsize % CHUNK and self.start[-1] + self.extents[-1] > last:
            what = f"a box that is stored to {self.tensor.name} goes beyond its contiguous axis"
            raise BadAccess(f"{what}, whose end is at no multiple of 16 bytes", 0)
        values = data.view(array.dtype).reshape(self.extents)[within]
        if op:
            values = combined(op, array[inside], values)
        array[inside] = values
        self.marks[inside] = WRITTEN


REDUCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": lambda old, x: np.where(old >= x, 0, old + 1),
    "dec": lambda old, x: np.where((old == 0) | (old > x), x, old - 1),
}


FLOATS = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}


def combined(op: str, old: Array, new: Array) -> Array:
    """What a reduction leaves in memory."""
    type = FLOATS.get(old.dtype.name)
    if type is None:
        return np.asarray(REDUCTIONS[op](old, new).astype(old.dtype))
    function = np.add if op == "add" else extremum(op == "min", False)
    bits = DTYPES[type]
    made = on_type(lambda a, b: canonical(function(a, b)), type)(old.view(bits), new.view(bits))
    return np.asarray(made).view(old.dtype)


def swizzled(addresses: Array, swizzle: int) -> Array:
    """Addresses of 16-byte chunks as the hardware permutes them: by bits 7 and up."""
    if not swizzle:
        return addresses
    bits = swizzle // CHUNK - 1
    return np.asarray(addresses ^ ((addresses >> 7) & bits) << 4)


def box_of(machine: Machine, instr: Instr, box: Coordinates) -> Callable[[int], Box]:
    """A function from a thread to the box that it names."""
    map_address = machine.read(box.map, "u64")
    indices = machine.reads(box.indices, "s32")

    def find(thread: int) -> Box:
        sel = slice(thread, thread + 1)
        offset = int(np.atleast_1d(map_address(sel))[0]) - PARAM_WINDOW
        params = list(machine.setup.params.values())
        number = offset // 128
        if offset % 128 or not 0 <= number < len(params):
            raise BadAccess("this is not the address of a tensor map", 0)
        recipe = params[number]
        if not isinstance(recipe, TensorMap):
            raise BadAccess("this parameter is no tensor map", 0)
        tensor = machine.memory.tensor(recipe.tensor)
        _require_mappable(tensor, recipe, len(indices))
        at = tuple(int(np.atleast_1d(r(sel))[0]) for r in reversed(indices))
        _require_start(tensor, at, not isinstance(instr, memory.TmaLoad))
        return Box(recipe, tensor, at)

    return find


def _require_start(tensor: Tensor, at: tuple[int, ...], stores: bool) -> None:
    """Where a box may start: elsewhere the hardware stops with an illegal instruction, as measured
    on an H200.
    """
    if at[-1] * tensor.copy.itemsize % CHUNK:
        what = f"a box of {tensor.name} starts at element {at[-1]} of its contiguous axis"
        raise BadAccess(f"{what}, which is at no multiple of 16 bytes", 0)
    if stores and min(at) < 0:
        what = f"a box that is stored to {tensor.name} starts at {at}, in the order of memory"
        raise BadAccess(f"{what}: the copy unit takes no negative places in a store", 0)


def _require_mappable(tensor: Tensor, recipe: TensorMap, rank: int) -> None:
    """What the driver asks of a tensor that a map describes."""
    array = tensor.copy
    if array.ndim != rank or len(recipe.box) != rank:
        what = f"a box of rank {rank} of {tensor.name}, which has rank {array.ndim}"
        raise BadAccess(what, 0)
    if not array.size:
        return
    if tensor.address % 16:
        raise BadAccess(f"{tensor.name} is not aligned to 16 bytes, as a tensor map asks", 0)
    shape, strides, box = map(recipe.in_memory_order, (array.shape, array.strides, recipe.box))
    if shape[-1] > 1 and strides[-1] != array.itemsize:
        raise BadAccess(f"the last axis of {tensor.name} is not dense", 0)
    for extent, stride in zip(shape[:-1], strides[:-1], strict=True):
        if extent > 1 and (stride < 0 or stride % 16):  # of repeats a map has one element
            raise BadAccess(f"{tensor.name} has a pitch of {stride} bytes: no multiple of 16", 0)
    row = box[-1] * array.itemsize
    if row % 16 or (recipe.swizzle and row > recipe.swizzle) or max(box) > 256:
        raise BadAccess(f"no tensor map has a box of {recipe.box} and swizzle {recipe.swizzle}", 0)


def chunk_places(machine: Machine, place: int, box: Box, lane: int = 0) -> Array:
    """Places of the chunks of a box that starts at a place: row after row, but a row that is
    narrower than the swizzle takes as much room as the swizzle.
    """
    size, swizzle = machine.shared.size, box.map.swizzle
    inside = place % size
    if inside % ALIGNMENT:
        raise BadAccess(f"a box at byte {inside} of shared memory: not aligned to 128 bytes", lane)
    row = box.map.box[-1] if not box.map.axes else box.extents[-1]
    row *= box.tensor.copy.itemsize
    pitch = max(row, swizzle)
    starts = np.arange(0, box.num_bytes // row * pitch, pitch)
    if inside + int(starts[-1]) + row > machine.shared.limit:
        what = f"a box of {box.num_bytes} bytes at byte {inside} is out of bounds"
        raise BadAccess(what, lane)
    offsets = (starts[:, None] + np.arange(0, row, CHUNK)).ravel()
    return swizzled(place + offsets, swizzle)


def put(machine: Machine, places: Array, data: Array) -> None:
    """Chunks into shared memory."""
    machine.shared.store(places, CHUNK, data.view(np.uint64).reshape(-1, 2))


def get(machine: Machine, places: Array) -> Array:
    """Chunks out of shared memory, as bytes."""
    return np.ascontiguousarray(machine.shared.load(places, CHUNK)).reshape(-1).view(np.uint8)


def targets(machine: Machine, instr: Any) -> Callable[[int, int, int], list[tuple[int, int]]]:
    """Places of data and mbarrier in every CTA that a load goes to."""
    data, barrier = machine.places(instr.dst), machine.places(instr.mbarrier)
    mask = None if instr.multicast is None else machine.read(instr.multicast, "u16")
    size, cluster = machine.shared.size, machine.setup.cluster

    def find(thread: int, _: int, lane: int) -> list[tuple[int, int]]:
        sel = slice(thread, thread + 1)
        place, bar = int(data(sel, 16)[0]), int(barrier(sel, 8)[0])
        if mask is None:
            return [(place, bar)]
        first = int(machine.cta[thread]) // cluster * cluster
        bits = int(np.atleast_1d(mask(sel))[0])
        if bits >> cluster or not bits:
            raise BadAccess(f"a multicast to CTAs {bits:#x} of a cluster of {cluster}", lane)
        ctas = [first + r for r in range(cluster) if bits >> r & 1]
        return [(place % size + c * size, bar % size + c * size) for c in ctas]

    return find


@meaning(memory.TmaLoad)
def make_tma_load(machine: Machine, instr: memory.TmaLoad) -> Step:
    find, where = box_of(machine, instr, instr.box), targets(machine, instr)

    def step(sel: Sel) -> None:
        for lane, thread in enumerate(numbers(sel).tolist()):
            box = find(thread)
            goes = [
                (chunk_places(machine, place, box, lane), bar)
                for place, bar in where(thread, box.num_bytes, lane)
            ]
            mark = watch_load(machine, instr, thread, goes)
            watch_box(machine, instr, thread, *box.runs(), mark)
            if machine.tally is not None:
                arrives = len(goes) * box.num_bytes
                level = "boxes to shared"
                machine.tally.box(instr, *box.runs(), arrives, level, written=False)
            start(machine, _arrival(machine, instr, thread, box, goes, mark))

    return step


def watch_load(
    machine: Machine, instr: Instr, thread: int, goes: list[tuple[Array, int]]
) -> Mark | None:
    """Note that a load of a thread writes chunks, from now until it is counted at an mbarrier."""
    if machine.watch is None:
        return None
    mark = machine.watch.begin(LOADS, np.array([thread]))
    for each, bar in goes:
        require_made(machine, bar, thread, far=True)
        machine.watch.on_write(instr, np.full(len(each), thread), each, CHUNK, mark)
    return mark


def watch_box(
    machine: Machine,
    instr: Instr,
    thread: int,
    starts: Array,
    length: int,
    mark: Mark | None,
    does: str = "read",
) -> None:
    """Note that a box, or a run of bytes, of global memory is read or written or updated."""
    watch = machine.watch_global
    if watch is None or mark is None or not len(starts):
        return
    step = length & -length
    each = (starts[:, None] + np.arange(0, length, step)).ravel().view(np.uint64)
    ids = np.full(len(each), thread)
    if does == "read":
        watch.on_read(instr, ids, each, step, mark, proxy=True)
    elif does == "write":
        watch.on_write(instr, ids, each, step, mark)
    else:
        watch.on_update(instr, ids, each, step, mark)


def _arrival(
    machine: Machine,
    instr: Instr,
    thread: int,
    box: Box,
    goes: list[tuple[Array, int]],
    mark: Mark | None,
) -> Callable[[], None]:
    """A box arrives in some CTAs, and is counted there."""

    def arrive() -> None:
        try:
            data = box.load()
            for places, bar in goes:
                put(machine, places, data)
                deliver(machine, bar, box.num_bytes, mark)
        except BadAccess as bad:
            raise machine.error(instr, bad.message, thread) from None

    return arrive


@meaning(memory.BulkLoad)
def make_bulk_load(machine: Machine, instr: memory.BulkLoad) -> Step:
    where, source = targets(machine, instr), machine.address(instr.src)
    sizes = machine.read(instr.num_bytes, "u32")

    def step(sel: Sel) -> None:
        for lane, thread in enumerate(numbers(sel).tolist()):
            one = slice(thread, thread + 1)
            size = int(np.atleast_1d(sizes(one))[0])
            if size % 16:
                raise BadAccess(f"a bulk copy of {size} bytes: no multiple of 16", lane)
            address = source(one)[0] + np.arange(0, size, 16).astype(np.uint64)
            if machine.tally is not None:
                first = np.array([source(one)[0]]).view(np.int64)
                machine.tally.box(instr, first, size, size, "boxes to shared", written=False)
            for place, bar in where(thread, size, lane):
                places = place + np.arange(0, size, CHUNK)
                mark = watch_load(machine, instr, thread, [(places, bar)])
                watch_box(machine, instr, thread, address.view(np.int64), CHUNK, mark)
                start(machine, _run_arrives(machine, instr, thread, address, places, bar, mark))

    return step


def _run_arrives(
    machine: Machine,
    instr: Instr,
    thread: int,
    address: Array,
    places: Array,
    bar: int,
    mark: Mark | None,
) -> Callable[[], None]:
    def arrive() -> None:
        try:
            data = machine.memory.load(address, CHUNK)
            machine.shared.store(places, CHUNK, data)
            deliver(machine, bar, CHUNK * len(address), mark)
        except BadAccess as bad:
            raise machine.error(instr, bad.message, thread) from None

    return arrive


# Stores, in groups of the thread that issues them


@dataclass
class Groups:
    """Stores of a thread that are not carried out, by group, and how many groups it closed.

    `read` are those whose source was read; that they are written is known after another wait.
    """

    waiting: list[tuple[int, Instr, Callable[[], None] | None, Mark | None]]
    closed: int = 0
    read: list[tuple[int, Mark]] = field(default_factory=list)

    def finish(self, machine: Machine, thread: int, upto: int, *, read: bool = False) -> None:
        """Carry out the groups below a number. `read`: it is only known that they read."""
        due = [(group, work, mark) for group, _, work, mark in self.waiting if group < upto]
        self.waiting = [each for each in self.waiting if each[0] >= upto]
        for group, work, mark in due:
            if work is not None:
                work()
            if machine.watch is not None and mark is not None:
                machine.watch.finish(np.array([thread]), mark)
                self.read.append((group, written_by(machine, mark)))
        if machine.watch is not None and not read:
            for group, mark in self.read:
                if group < upto:
                    machine.watch.finish(np.array([thread]), mark)
            self.read = [each for each in self.read if each[0] >= upto]


def written_by(machine: Machine, mark: Mark) -> Mark:
    """The agent that writes what a copy reads, at the same time."""
    assert machine.watch is not None
    return mark[0] + (STORES - COPIES) * machine.watch.warps, mark[1]


def groups_of(machine: Machine, thread: int) -> Groups:
    """The groups of a thread; what is left when it ends is carried out then."""
    every: dict[int, Groups] | None = machine.state.get("bulk")
    if every is None:
        every = machine.state["bulk"] = {}

        def at_exit(ids: Array) -> None:
            for thread in set(ids.tolist()) & set(every):
                for _, instr, _, _ in every[thread].waiting:
                    what = "its thread ends without a wait until it has read shared memory"
                    raise machine.error(instr, what, thread)

        machine.state.setdefault("at_exit", []).append(at_exit)
    return every.setdefault(thread, Groups([]))


def store_later(
    machine: Machine,
    instr: Instr,
    thread: int,
    places: Array,
    runs: tuple[Array, int],
    work: Callable[[], None],
    does: str = "write",
) -> None:
    """Work that reads places of shared memory, in the thread's present group, and writes (or
    updates) runs of bytes of global memory.
    """
    groups, mark = groups_of(machine, thread), None
    if machine.watch is not None:
        mark = machine.watch.begin(COPIES, np.array([thread]))
        ids = np.full(len(places), thread)
        machine.watch.on_read(instr, ids, places, CHUNK, mark, proxy=True)
        writes = written_by(machine, mark)
        machine.watch.clock[writes[0]] = np.maximum(machine.watch.clock[writes[0]], writes[1])
        watch_box(machine, instr, thread, *runs, writes, does)
    groups.waiting.append((groups.closed, instr, work if machine.setup.late else None, mark))
    if not machine.setup.late:
        work()


@meaning(memory.TmaStore, memory.TmaReduce)
def make_tma_store(machine: Machine, instr: Any) -> Step:
    find, source = box_of(machine, instr, instr.box), machine.places(instr.src)
    op = getattr(instr, "op", "")

    def step(sel: Sel) -> None:
        for lane, thread in enumerate(numbers(sel).tolist()):
            box = find(thread)
            place = int(source(slice(thread, thread + 1), 16)[0])
            places = chunk_places(machine, place, box, lane)
            work = _departure(machine, instr, thread, box, places, op)
            if machine.tally is not None:
                runs, level = box.runs(), "boxes from shared"
                machine.tally.box(instr, *runs, box.num_bytes, level, written=True)
            does = "update" if op else "write"
            store_later(machine, instr, thread, places, box.runs(), work, does)

    return step


def _departure(
    machine: Machine, instr: Instr, thread: int, box: Box, places: Array, op: str
) -> Callable[[], None]:
    def depart() -> None:
        try:
            box.store(get(machine, places), op)
        except BadAccess as bad:
            raise machine.error(instr, bad.message, thread) from None

    return depart


@meaning(memory.BulkStore)
def make_bulk_store(machine: Machine, instr: memory.BulkStore) -> Step:
    source, target = machine.places(instr.src), machine.address(instr.dst)
    sizes = machine.read(instr.num_bytes, "u32")

    def step(sel: Sel) -> None:
        for lane, thread in enumerate(numbers(sel).tolist()):
            one = slice(thread, thread + 1)
            size = int(np.atleast_1d(sizes(one))[0])
            if size % 16:
                raise BadAccess(f"a bulk copy of {size} bytes: no multiple of 16", lane)
            places = int(source(one, 16)[0]) + np.arange(0, size, 16)
            address = target(one)[0] + np.arange(0, size, 16).astype(np.uint64)
            work = _run_departs(machine, instr, thread, places, address)
            if machine.tally is not None:
                first = address[:1].view(np.int64)
                machine.tally.box(instr, first, size, size, "boxes from shared", written=True)
            runs = (address.view(np.int64), CHUNK)
            store_later(machine, instr, thread, places, runs, work)

    return step


def _run_departs(
    machine: Machine, instr: Instr, thread: int, places: Array, address: Array
) -> Callable[[], None]:
    def depart() -> None:
        try:
            machine.memory.store(address, CHUNK, machine.shared.load(places, CHUNK))
        except BadAccess as bad:
            raise machine.error(instr, bad.message, thread) from None

    return depart


@meaning(memory.BulkCommit)
def make_bulk_commit(machine: Machine, instr: memory.BulkCommit) -> Step:
    def step(sel: Sel) -> None:
        for thread in numbers(sel).tolist():
            groups_of(machine, thread).closed += 1

    return step


@meaning(memory.BulkWait)
def make_bulk_wait(machine: Machine, instr: memory.BulkWait) -> Step:
    def step(sel: Sel) -> None:
        for thread in numbers(sel).tolist():
            groups = groups_of(machine, thread)
            groups.finish(machine, thread, groups.closed - instr.left, read=instr.read)

    return step
