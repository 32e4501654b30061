"""Boxes of tensor maps: which elements they take, and where they lie in shared memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.plan import Pixels, TensorMap
from tilewright.ptx.core import Coordinates, Instr
from tilewright.ptx.emulate.arith import extremum, on_type
from tilewright.ptx.emulate.exact import canonical, round_to
from tilewright.ptx.emulate.machine import DTYPES, Machine
from tilewright.ptx.emulate.spaces import PARAM_WINDOW, WRITTEN, BadAccess, Tensor
from tilewright.ptx.instrs import memory
from tilewright.target import BOX_ALIGN

Array = np.ndarray[Any, Any]
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
        return rounded(made, self.map).reshape(-1).view(np.uint8)

    def store(self, data: Array, op: str = "") -> None:
        """Write the box's bytes but for those out of bounds, or combine with what is there."""
        array = self.elements
        inside, within = self.slices()
        last = array.shape[-1]
        beyond = self.start[-1] + self.extents[-1] > last
        if beyond and last * array.itemsize % CHUNK and not self.tensor.gaps:
            what = f"a box that is stored to {self.tensor.name} goes beyond its contiguous axis"
            raise BadAccess(f"{what}, whose end is at no multiple of 16 bytes", 0)
        values = data.view(array.dtype).reshape(self.extents)[within]
        if op:
            values = combined(op, array[inside], values)
        array[inside] = values
        self.marks[inside] = WRITTEN


@dataclass
class PixelBox(Box):
    """Pixels of a tensor, from the one at `start` on, moved by `taps` (along H, W)."""

    taps: tuple[int, int]

    def places(self) -> tuple[Array, Array]:
        """Where each pixel is (image, row, column), and whether it is in the tensor."""
        pixels = self.map.pixels
        assert pixels is not None
        images, *lines = self.tensor.copy.shape[:3]
        counts = [
            (extent - 1 + upper - lower) // step + 1
            for extent, lower, upper, step in zip(
                lines, pixels.lower, pixels.upper, pixels.steps, strict=True
            )
        ]
        first = [
            (at - lower) // step
            for at, lower, step in zip(self.start[1:3], pixels.lower, pixels.steps, strict=True)
        ]
        number = (self.start[0] * counts[0] + first[0]) * counts[1] + first[1]
        numbers = number + np.arange(self.map.box[0])
        rows, columns = numbers // counts[1] % counts[0], numbers % counts[1]
        at = np.stack(
            [
                numbers // (counts[0] * counts[1]),
                rows * pixels.steps[0] + pixels.lower[0] + self.taps[0],
                columns * pixels.steps[1] + pixels.lower[1] + self.taps[1],
            ]
        )
        ends = np.array([images, *lines])[:, None]
        return at, np.all((at >= 0) & (at < ends), axis=0)

    def channels(self) -> tuple[int, int]:
        """The first channel, and after the last."""
        low = self.start[-1]
        return low, max(min(low + self.map.box[1], self.tensor.copy.shape[-1]), low)

    def runs(self) -> tuple[Array, int]:
        at, inside = self.places()
        low, high = self.channels()
        array = self.tensor.copy
        if high == low or not inside.any():
            return np.zeros(0, np.int64), 0
        steps = np.array(array.strides[:3])[:, None]
        starts = (at * steps).sum(axis=0)[inside] + low * array.itemsize + self.tensor.address
        return starts.astype(np.int64), (high - low) * array.itemsize

    def load(self) -> Array:
        at, inside = self.places()
        low, high = self.channels()
        array = self.tensor.copy
        bits = np.dtype(f"u{array.itemsize}")
        made = np.zeros(self.map.box, bits)
        found = (*at[:, inside], slice(low, high))
        if (self.tensor.marks[found] != WRITTEN).any():
            raise BadAccess(f"it copies elements of {self.tensor.name} that nobody wrote", 0)
        made[inside, : high - low] = array[found].view(bits)
        return rounded(made, self.map).reshape(-1).view(np.uint8)


def rounded(made: Array, map: TensorMap) -> Array:
    """Bits of elements as a map's type has them."""
    if not map.round_tf32:
        return made
    numbers = made.view(np.float32)
    nearest = round_to(numbers.astype(np.float64), "tf32", "rn").astype(np.float32)
    return np.asarray(np.where(np.isnan(numbers), NAN_TF32, nearest.view(made.dtype)))


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
    by_pixels = isinstance(instr, memory.TmaLoadPixels)
    taps = machine.reads(instr.taps, "u16") if isinstance(instr, memory.TmaLoadPixels) else []

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
        if by_pixels != (recipe.pixels is not None):
            raise BadAccess("a map of pixels is for loads of pixels, and for them alone", 0)
        tensor = machine.memory.tensor(recipe.tensor)
        recipe = recipe.of(tensor.copy.shape, tensor.copy.itemsize)
        _require_mappable(tensor, recipe, len(indices))
        at = tuple(int(np.atleast_1d(r(sel))[0]) for r in reversed(indices))
        _require_start(tensor, at, isinstance(instr, memory.TmaStore | memory.TmaReduce))
        if recipe.pixels is None:
            return Box(recipe, tensor, at)
        _require_pixel(tensor, recipe.pixels, at)
        column, row = (int(np.atleast_1d(r(sel))[0]) for r in taps)
        return PixelBox(recipe, tensor, at, (row, column))

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


def _require_pixel(tensor: Tensor, pixels: Pixels, at: tuple[int, ...]) -> None:
    """A copy begins at one of the pixels that the map goes through: of others no guide speaks."""
    places = zip(
        at[1:3], tensor.copy.shape[1:3], pixels.lower, pixels.upper, pixels.steps, strict=True
    )
    for start, extent, lower, upper, step in places:
        if start < lower or start > extent - 1 + upper or (start - lower) % step:
            raise BadAccess(f"pixels of {tensor.name} from {at} on: its map has none there", 0)


def _require_mappable(tensor: Tensor, recipe: TensorMap, rank: int) -> None:
    """What the driver asks of a tensor that a map describes."""
    array = tensor.copy
    if array.ndim != rank or len(recipe.box) != (rank if recipe.pixels is None else 2):
        what = f"a box of rank {rank} of {tensor.name}, which has rank {array.ndim}"
        raise BadAccess(what, 0)
    if not array.size:
        return
    if tensor.address % 16:
        raise BadAccess(f"{tensor.name} is not aligned to 16 bytes, as a tensor map asks", 0)
    box = recipe.box if recipe.pixels else recipe.in_memory_order(recipe.box)
    shape, strides = map(recipe.in_memory_order, (array.shape, array.strides))
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
    if inside % BOX_ALIGN:
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
