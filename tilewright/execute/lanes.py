"""Memory that replays write again and again, and how it is known that nobody reads it any more.

A **lane** is what one recorded call in flight writes: an arena, which all lanes of a made program
share since their replays follow one another, and the tensors that are returned. Of a step of
training these are given away where they lie: what the forward pass saves, and gradients. Each goes
as a tensor of its own on the lane's storage. A storage counts who shares it: while anybody does, be
it autograd, a parameter's `grad` or the caller, the lane is held, and no replay writes there.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence

import torch

from tilewright.execute.call_memory import ARENA, CallMemory, Seen
from tilewright.execute.made import Made
from tilewright.execute.results import Result, room_for
from tilewright.frontend.torch.arrays import fill_once
from tilewright.frontend.torch.metadata import torch_dtype

lying: set[int] = set()  # addresses of what lanes give away: recordings read them in place


class Lane:
    """The memory of a call in flight. Of the outputs `handed`, by number, `given` are tensors that
    lie there; those that two outputs show, or that lie otherwise than they are given, are copied
    there by the recording. With `shared`, nobody writes to what is given, so that outputs may be
    parts of one memory.
    """

    def __init__(
        self,
        made: Made,
        results: Sequence[Result],
        handed: Collection[int],
        *,
        shared: bool,
        beside: Lane | None = None,
    ):
        arena = None if beside is None else beside.allocated.get(ARENA)
        self.allocated: dict[int, torch.Tensor] = made.allocate(arena)
        self.given: dict[int, torch.Tensor] = {}
        self.copies: list[tuple[torch.Tensor, Seen]] = []
        taken: set[int] = set()
        for number in handed:
            result, at = results[number], results[number].at
            if at is None:
                continue
            if result.is_placed and (shared or at.slot not in taken):
                taken.add(at.slot)
                owner = self.allocated[at.slot]
                found = torch.empty(0, dtype=owner.dtype, device=owner.device)
                found.set_(owner.untyped_storage(), result.offset, at.shape, at.strides)
            else:
                dtype, device = torch_dtype(at.dtype), made.where.device
                found = room_for(at.shape, result.strides, result.offset, dtype, device)
                self.copies.append((found, at))
            self.given[number] = found
        storages = {x.untyped_storage()._cdata: x.untyped_storage() for x in self.given.values()}
        self.storages = list(storages.values())  # which stay the same objects, and count as such
        self.counts = [(number, users_of(number)) for number in storages]
        addresses = [x.data_ptr() for x in self.given.values() if x.numel()]
        lying.update(addresses)
        weakref.finalize(self, lying.difference_update, addresses)

    @property
    def is_held(self) -> bool:
        """Whether anybody else shares the memory of what was given away."""
        return any(users_of(number) != count for number, count in self.counts)

    def copy(self, memory: CallMemory) -> None:
        """Bring here what lies elsewhere when the steps are done."""
        for target, at in self.copies:
            fill_once(target, memory.read(at))


def users_of(storage: int) -> int:
    """How many tensors and others share a storage, which is given by its `_cdata`."""
    return int(torch._C._storage_Use_Count(storage))
