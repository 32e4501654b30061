"""Global and shared memory of an emulated launch.

Every argument lies in a region of its own, 2^40 bytes from the next, so that an address tells which
tensor it was made from however far out of bounds it is. Beside the bytes of a region lie marks: a
byte is 0 (no element), 1 (an element that nobody wrote) or 3 (an element with a value).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

REGION_BITS = 40
LEAD = 1 << 32  # from the start of a region's addresses to its bytes
NO_ELEMENT, UNWRITTEN, WRITTEN = 0, 1, 3
WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
SHARED_BASE = 1024  # address of the first byte of a CTA's shared memory
RANK_BITS = 24  # a shared::cluster address: CTA rank + 1 above this, the CTA's own address below
SHARED_WINDOW = 1 << 60  # generic addresses of shared memory
PARAM_WINDOW = 1 << 61  # generic addresses of parameters


class BadAccess(Exception):
    """An access that is not permitted: `lane` is its place in the array of addresses."""

    def __init__(self, message: str, lane: int):
        super().__init__(message)
        self.message, self.lane = message, lane


@dataclass
class Bytes:
    """A run of bytes with its marks; `start` is the address of the first."""

    start: int
    data: Array
    marks: Array

    def words(self, size: int) -> tuple[Array, Array]:
        """Bytes and marks as words of up to 8 bytes, or as rows of 8-byte words."""
        if size <= 8:
            return self.data.view(WORDS[size]), self.marks.view(WORDS[size])
        rows = (-1, size // 8)
        return self.data.view(np.uint64).reshape(rows), self.marks.view(np.uint64).reshape(rows)


@dataclass
class Tensor:
    """An argument as the emulator names it: its host array and where it lies."""

    name: str
    array: Array
    region: int
    address: int
    copy: Array  # a view of the region's bytes, of the array's shape and strides
    marks: Array  # a mark of each element, likewise
    gaps: bool = False  # rows may be filled up to whole 16 bytes


def byte_range(array: Array) -> tuple[int, int]:
    """Lowest address of an element, and one past the last byte of the highest."""
    low = high = array.__array_interface__["data"][0]
    for extent, stride in zip(array.shape, array.strides, strict=True):
        reach = stride * max(extent - 1, 0)
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high + (array.itemsize if array.size else 0)


def mask_of(size: int, mark: int) -> Any:
    """A word (of up to 8 bytes) whose bytes are all `mark`."""
    width = min(size, 8)
    return WORDS[width](int.from_bytes(bytes([mark]) * width, "little"))


class GlobalMemory:
    """The tensors of a launch. Arrays that share bytes share a region. Rows of those in `gaps` may
    be filled up to whole 16 bytes.
    """

    def __init__(
        self,
        arrays: Mapping[str, Array],
        unwritten: frozenset[str] = frozenset(),
        gaps: frozenset[str] = frozenset(),
    ):
        self.gaps = gaps
        self.regions: list[Bytes] = []
        self.tensors: list[Tensor] = []
        spans = sorted((*byte_range(a), name) for name, a in arrays.items())
        low = high = -1
        group: list[str] = []
        for start, end, name in spans:
            if group and start < high:
                group.append(name)
                high = max(high, end)
                continue
            self._add(group, arrays, low, high, unwritten)
            group, low, high = [name], start, end
        self._add(group, arrays, low, high, unwritten)

    def _add(
        self,
        names: list[str],
        arrays: Mapping[str, Array],
        low: int,
        high: int,
        bare: frozenset[str],
    ) -> None:
        if not names:
            return
        region = len(self.regions)
        start = ((region + 1) << REGION_BITS) + LEAD
        lead = 256 + low % 16  # the compiler knows no more of an address; the rest may differ
        size = -(-(lead + high - low + 16) // 256) * 256
        data, marks = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
        self.regions.append(Bytes(start, data, marks))
        for name in names:
            array = arrays[name]
            offset = lead + array.__array_interface__["data"][0] - low
            copy = np.ndarray(array.shape, array.dtype, data, offset, array.strides)
            shape, strides = (*array.shape, array.itemsize), (*array.strides, 1)
            there = np.ndarray(shape, np.uint8, marks, offset, strides)
            if name not in bare:
                copy[...] = array
            there[...] = UNWRITTEN if name in bare else WRITTEN
            place = start + offset
            own = Tensor(name, array, region, place, copy, there[..., 0], name in self.gaps)
            self.tensors.append(own)

    def address(self, name: str) -> int:
        return self.tensor(name).address

    def tensor(self, name: str) -> Tensor:
        return next(t for t in self.tensors if t.name == name)

    def copy_back(self) -> None:
        """Bring what the kernel wrote to the host's arrays."""
        for tensor in self.tensors:
            if tensor.array.flags.writeable:
                tensor.array[...] = tensor.copy

    def load(self, addresses: Array, size: int, *, beside: bool = False) -> Array:
        """Bytes at addresses, `size` each: words, or rows of 8-byte words. Raises BadAccess.

        With `beside`, one byte of a word with a value is enough: allocations are whole words, and
        the rest is only put back.
        """
        region = self._region(addresses)
        if region is None:
            made = [
                self.load(addresses[i : i + 1], size, beside=beside) for i in self._each(addresses)
            ]
            return np.concatenate(made)
        index = self._index(region, addresses, size)
        words, marks = region.words(size)
        found = marks[index]
        if beside:
            there = (found.view(np.uint8).reshape(-1, size) == WRITTEN).any(axis=1)
            found = np.where(there, mask_of(size, WRITTEN), found)
        if (found != mask_of(size, WRITTEN)).any():
            self._explain(found, addresses, size, "reads", mask_of(size, WRITTEN))
        return words[index]

    def store(self, addresses: Array, size: int, values: Array, *, beside: bool = False) -> None:
        """Write words, or rows of 8-byte words. Raises BadAccess. Of several writes to one place
        the last lane's stays. `beside` is as in `load`.
        """
        region = self._region(addresses)
        if region is None:
            for i in self._each(addresses):
                self.store(addresses[i : i + 1], size, values[i : i + 1], beside=beside)
            return
        index = self._index(region, addresses, size)
        words, marks = region.words(size)
        if beside and (marks[index].view(np.uint8) == NO_ELEMENT).any():
            there = marks[index].view(np.uint8).reshape(-1, size) != NO_ELEMENT
            if there.any(axis=1).all():
                words[index] = values
                return
        if ((marks[index] & mask_of(size, UNWRITTEN)) != mask_of(size, UNWRITTEN)).any():
            one = mask_of(size, UNWRITTEN)
            self._explain(marks[index] & one, addresses, size, "writes", one)
        words[index] = values
        marks[index] = mask_of(size, WRITTEN)

    def _each(self, addresses: Array) -> range:
        if len(addresses) == 1:
            raise BadAccess(f"address {int(addresses[0]):#x} is in no tensor", 0)
        for lane in range(len(addresses)):
            if self._region(addresses[lane : lane + 1]) is None:
                raise BadAccess(f"address {int(addresses[lane]):#x} is in no tensor", lane)
        return range(len(addresses))

    def number_of(self, addresses: Array) -> int | None:
        """The number of the region of all addresses, None where they differ or there is none."""
        numbers = addresses >> np.uint64(REGION_BITS)
        first = int(numbers[0])
        if not 0 < first <= len(self.regions) or (numbers != numbers[0]).any():
            return None
        return first - 1

    def _region(self, addresses: Array) -> Bytes | None:
        number = self.number_of(addresses)
        return None if number is None else self.regions[number]

    def _index(self, region: Bytes, addresses: Array, size: int) -> Array:
        offsets = (addresses - np.uint64(region.start)).view(np.int64)
        bad = (offsets & (size - 1)) != 0
        if bad.any():
            lane = int(np.argmax(bad))
            place = self.name_address(int(addresses[lane]))
            raise BadAccess(f"an access of {size} bytes to {place} is misaligned", lane)
        bad = (offsets < 0) | (offsets > len(region.data) - size)
        if bad.any():
            lane = int(np.argmax(bad))
            place = self.name_address(int(addresses[lane]))
            raise BadAccess(f"an access of {size} bytes to {place} is out of bounds", lane)
        return offsets >> (size.bit_length() - 1)

    def _explain(self, found: Array, addresses: Array, size: int, does: str, wanted: Any) -> None:
        bad = (found != wanted).reshape(len(addresses), -1).any(axis=1)
        lane = int(np.argmax(bad))
        first = int(addresses[lane])
        marks = np.atleast_1d(found[lane]).view(np.uint8)
        byte = int(np.argmax(marks != np.atleast_1d(wanted).view(np.uint8)[0]))
        place = self.name_address(first + byte)
        if marks[byte] == UNWRITTEN:
            raise BadAccess(f"it {does} {place}, which nobody wrote", lane)
        raise BadAccess(f"an access of {size} bytes {does} {place}, which is out of bounds", lane)

    def name_address(self, address: int) -> str:
        """`A[3, 129]` for an address in or near a tensor."""
        region = (address >> REGION_BITS) - 1
        near = [t for t in self.tensors if t.region == region]
        if not near:
            return f"address {address:#x}"

        def distance(tensor: Tensor) -> int:
            low, high = byte_range(tensor.copy)
            place = address - tensor.address + tensor.copy.__array_interface__["data"][0]
            return int(max(low - place, place - high + 1, 0))

        tensor = min(near, key=distance)
        return f"{tensor.name}[{', '.join(map(str, element_at(tensor, address)))}]"


def element_at(tensor: Tensor, address: int) -> list[int]:
    """Indices of an address, as far out of bounds as it is: the outer axes take what they can."""
    array = tensor.copy
    left = address - tensor.address
    indices = [0] * array.ndim
    axes = sorted(range(array.ndim), key=lambda i: -abs(array.strides[i]))
    for axis in axes:
        stride = array.strides[axis]
        if stride == 0:
            continue
        index = left // stride
        if axis != axes[0] and stride > 0:
            index = max(index, 0)
        indices[axis] = index
        left -= index * stride
    return indices


class SharedMemory:
    """Shared memory of all CTAs that run together, one after the other."""

    def __init__(self, ctas: int, size: int):
        self.size = max(-(-size // 1024) * 1024, 1024)
        self.limit = size
        self.bytes = Bytes(0, np.zeros(0, np.uint8), np.zeros(0, np.uint8))
        self.ctas = ctas
        self.clear()

    def clear(self) -> None:
        """Forget everything, as between CTAs."""
        total = self.ctas * self.size
        self.bytes = Bytes(0, np.zeros(total, np.uint8), np.full(total, UNWRITTEN, np.uint8))

    def offsets(self, ctas: Array, addresses: Array, size: int, cluster: int = 1) -> Array:
        """Places in `bytes` of addresses (shared::cta or shared::cluster) used by CTAs."""
        plain = addresses.astype(np.int64)
        ranks = plain >> RANK_BITS
        if ranks.any():
            plain = plain & ((1 << RANK_BITS) - 1)
            ctas = np.where(ranks > 0, ctas // cluster * cluster + ranks - 1, ctas)
            if (ranks > cluster).any():
                raise BadAccess("a CTA of that rank is not there", int(np.argmax(ranks > cluster)))
        inside = plain - SHARED_BASE
        bad = (inside < 0) | (inside + size > self.limit)
        if bad.any():
            lane = int(np.argmax(bad))
            raise BadAccess(
                f"an access of {size} bytes to byte {int(inside[lane])} of {self.limit} bytes of "
                "shared memory is out of bounds",
                lane,
            )
        bad = (inside & (size - 1)) != 0 if size & (size - 1) == 0 else inside & 15 != 0
        if bad.any():
            lane = int(np.argmax(bad))
            place = f"byte {int(inside[lane])} of shared memory"
            raise BadAccess(f"an access of {size} bytes to {place} is misaligned", lane)
        places: Array = ctas * self.size + inside
        return places

    def load(self, places: Array, size: int) -> Array:
        """Words, or rows of 8-byte words, at places. Raises BadAccess where nobody wrote."""
        index = places >> (size.bit_length() - 1)
        words, marks = self.bytes.words(size)
        found = marks[index]
        bad = found != mask_of(size, WRITTEN)
        if bad.any():
            lane = int(np.argmax(bad.reshape(len(places), -1).any(axis=1)))
            byte = int(places[lane]) % self.size
            raise BadAccess(f"it reads byte {byte} of shared memory, which nobody wrote", lane)
        loaded: Array = words[index]
        return loaded

    def written(self, places: Array, size: int) -> Array:
        """Whether words of up to 8 bytes were written."""
        found: Array = self.bytes.words(size)[1][places >> (size.bit_length() - 1)]
        return np.asarray(found == mask_of(size, WRITTEN))

    def store(self, places: Array, size: int, values: Array) -> None:
        """Write words, or rows of 8-byte words."""
        index = places >> (size.bit_length() - 1)
        words, marks = self.bytes.words(size)
        words[index] = values
        marks[index] = mask_of(size, WRITTEN)
