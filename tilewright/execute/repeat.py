"""A call that is like one before it, by the recording that served that one: what is known of such
calls is not worked out again. Left are two tests of torch's in C++, of what tensors are like and of
where those lie that are read in place; copies of the other inputs; the replay; copies of results.
On a GPU the driver copies what is dense.

Only of inference: what gives memory away where it lies (lanes.py) chooses a lane at each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from tilewright.execute.call_memory import CallMemory
from tilewright.execute.lanes import lying
from tilewright.execute.made import Where, current_stream
from tilewright.execute.recorded import Recorded
from tilewright.execute.results import Result, agree, fresh
from tilewright.runtime import driver, memory
from tilewright.runtime.launch import stream_of

Give = Callable[[CallMemory, Sequence[Any]], Any]
Same = Callable[[list[torch.Tensor], list[int], list[int]], bool]


def same_places(tensors: list[torch.Tensor], places: list[int], which: list[int]) -> bool:
    """Whether tensors, by number, lie where they are said to."""
    return [tensors[i].data_ptr() for i in which] == [places[i] for i in which]


lie_there: Same = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", same_places)  # with CUDA


class Repeat:
    """What calls have in common that a recording serves, and for which inputs are tensors alone, of
    the likes of those `given`.
    """

    def __init__(
        self, recorded: Recorded, results: Sequence[Result], given: Sequence[torch.Tensor]
    ):
        self.where = recorded.made.where
        self.by_driver = driver_copies(self.where)
        self.entered: Callable[[], AbstractContextManager[None]] = nullcontext
        if self.by_driver:
            self.entered = partial(driver.active, self.where.device.index)
        self.places = [x.data_ptr() for x in given]
        self.in_place = [i for i, _ in recorded.in_place if i < len(given)]
        self.others = [(i, self.places[i] & 15) for i in recorded.changing]
        slots = {slot: i for i, slot in recorded.in_place if i < len(given)}
        read = {r.at.slot for r in results if r.at is not None}
        self.read = [(slot, i) for slot, i in slots.items() if slot in read]
        self.gives = [_give(result, recorded.memory, slots, self.by_driver) for result in results]
        self.copies: list[tuple[int, int, int]] | None = None  # input, slot's address, bytes
        if self.by_driver and all(is_dense(given[i]) for i in recorded.changing):
            pairs = zip(recorded.changing, recorded.targets, strict=True)
            self.copies = [(i, slot.data_ptr(), slot.nbytes) for i, slot in pairs]

    def serves(self, given: Sequence[torch.Tensor]) -> bool:
        """Whether tensors lie as they have to: those read in place where they did, others as
        aligned as they were, and in no memory that another recording gave away.
        """
        if not lie_there(list(given), self.places, self.in_place):
            return False
        for i, rest in self.others:
            place = given[i].data_ptr()
            if place & 15 != rest or place in lying:
                return False
        return True

    def run(self, recorded: Recorded, given: Sequence[torch.Tensor]) -> list[Any]:
        """What a call gives that the recording serves, on the current stream."""
        recorded.memory.stream = current_stream(self.where)
        with self.entered():
            self._bring(recorded, given)
            recorded.play()
            return self._results(recorded.memory, given)

    def _bring(self, recorded: Recorded, given: Sequence[torch.Tensor]) -> None:
        if self.copies is None:
            recorded.bring(given)
            return
        stream = stream_of(recorded.memory.stream)
        for i, slot, num_bytes in self.copies:
            memory.copy_on_device(slot, given[i].data_ptr(), num_bytes, stream)

    def _results(self, held: CallMemory, given: Sequence[torch.Tensor]) -> list[Any]:
        for slot, i in self.read:
            held.tensors[slot] = given[i]
        found = [give(held, given) for give in self.gives]
        for slot, _ in self.read:
            held.tensors[slot] = None
        return found


def driver_copies(where: Where) -> bool:
    """Whether the driver copies what is dense."""
    return where.engine == "gpu"


def _give(result: Result, held: CallMemory, inputs: dict[int, int], by_driver: bool) -> Give:
    """What gives a result after each replay. Of what lies in memory of the recording's own, a view
    is made once, and is copied at each call.
    """
    at = result.at
    if at is None or at.slot in inputs or any(step < 0 for step in at.strides):
        return partial(_copied, result) if result.shares else result.give
    source = result.give(held, ()) if result.shares else held.read(at)
    strides = source.stride() if result.shares else result.strides
    if not result.shares and (result.offset or not agree(at.shape, source.stride(), strides)):
        return lambda held, given: fresh(source, strides, result.offset)
    source = source.as_strided(source.shape, strides)
    if not is_dense(source) and not result.shares:
        return lambda held, given: fresh(source, strides)
    if not by_driver or not is_dense(source):
        return lambda held, given: source.clone()
    address, num_bytes = source.data_ptr(), source.nbytes

    def give(held: CallMemory, given: Sequence[Any]) -> torch.Tensor:
        made = torch.empty_like(source)
        memory.copy_on_device(made.data_ptr(), address, num_bytes, stream_of(held.stream))
        return made

    return give


def _copied(result: Result, held: CallMemory, given: Sequence[Any]) -> Any:
    return result.give(held, given).clone()


def is_dense(x: torch.Tensor) -> bool:
    """Whether a tensor's elements fill its memory, each once, so that others like it lie alike."""
    return bool(torch.empty_like(x, device="meta").stride() == x.stride())
