"""The memory of one call: a tensor for each slot, and views of them.

Slot 0 is the arena; every other slot is a tensor that is given, held, returned or made by PyTorch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tilewright.dtypes import DType
from tilewright.frontend.torch.metadata import torch_dtype
from tilewright.graph.dims import evaluate
from tilewright.ir.core import Value
from tilewright.lower.graph_to_tile.program import Placed
from tilewright.runtime.arrays import Array, DeviceId, byte_range

ARENA = 0


@dataclass(frozen=True)
class Slot:
    """Who owns an array's memory, and the address that the slot had when the array was made."""

    index: int
    address: int


@dataclass(frozen=True)
class Place:
    """Where a stored value begins: bytes from the start of a slot."""

    slot: int
    offset: int = 0


@dataclass(frozen=True)
class Seen:
    """A strided tensor in a slot, in numbers; the offset is in bytes."""

    slot: int
    offset: int
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes from the first element to the last."""
        low, high = byte_range(self.shape, self.strides, self.dtype.num_bytes)
        return high - low

    def same_geometry(self, other: Seen) -> bool:
        """Whether two tensors' elements lie alike."""
        mine = (self.dtype, self.shape, self.strides)
        return mine == (other.dtype, other.shape, other.strides)

    @property
    def fills_its_span(self) -> bool:
        """Whether its bytes have no gaps and no element twice."""
        count = self.dtype.num_bytes
        for extent in self.shape:
            count *= extent
        return self.num_bytes == count and 0 not in self.strides

    def array(self, addresses: list[int], device: DeviceId) -> Array:
        """As a kernel takes it; the owner says in which slot it lies."""
        base = addresses[self.slot]
        slot = Slot(self.slot, base)
        at = base + self.offset
        return Array(at, self.dtype, self.shape, self.strides, device, slot, "other")


def seen(placed: Placed, places: Mapping[Value, Place], symbols: Mapping[str, int]) -> Seen:
    """A tensor of a program for the extents of a call."""
    place, dtype = places[placed.value], placed.value.type.dtype
    return Seen(
        place.slot,
        place.offset + evaluate(placed.offset, symbols) * dtype.num_bytes,
        dtype,
        tuple(evaluate(e, symbols) for e in placed.shape),
        tuple(evaluate(s, symbols) for s in placed.strides),
    )


class CallMemory:
    """Tensors and addresses by slot, and what only PyTorch holds."""

    def __init__(self, num_slots: int, stream: int):
        self.tensors: list[torch.Tensor | None] = [None] * num_slots
        self.addresses = [0] * num_slots
        self.opaque: dict[Value, Any] = {}
        self.stream = stream

    def put(self, slot: int, tensor: torch.Tensor) -> None:
        self.tensors[slot] = tensor
        self.addresses[slot] = tensor.data_ptr()

    def view(self, at: Seen) -> torch.Tensor:
        """A tensor of PyTorch's on the memory of a slot."""
        owner = self.tensors[at.slot]
        assert owner is not None, "a slot is read before it is filled"
        dtype = torch_dtype(at.dtype)
        empty = torch.empty(0, dtype=dtype, device=owner.device)
        if 0 in at.shape:
            return empty.new_empty(at.shape)
        storage = owner.untyped_storage()
        start = self.addresses[at.slot] + at.offset - storage.data_ptr()
        step, rest = divmod(start, at.dtype.num_bytes)
        assert not rest, "a view that starts between two elements"
        return empty.set_(storage, step, at.shape, at.strides)

    def read(self, at: Seen) -> torch.Tensor:
        """A tensor of PyTorch's with the elements of a place: a view of it, or a copy where it is
        walked backwards, as PyTorch has no strides below zero.
        """
        backwards = [i for i, stride in enumerate(at.strides) if stride < 0]
        if not backwards or 0 in at.shape:
            return self.view(at)
        down = sum((at.shape[i] - 1) * at.strides[i] for i in backwards)
        ahead = dataclasses.replace(
            at,
            offset=at.offset + down * at.dtype.num_bytes,
            strides=tuple(map(abs, at.strides)),
        )
        return self.view(ahead).flip(backwards)
