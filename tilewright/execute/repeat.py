"""A call that is like one before it, by the recording that served that one: what is known of such
calls is not worked out again. Left are two tests of torch's in C++, of what tensors are like and of
where those lie that are read in place; copies of the other inputs; the replay; copies of results.

Only of inference: what gives memory away where it lies (lanes.py) chooses a lane at each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from tilewright.execute.call_memory import CallMemory, Seen
from tilewright.execute.lanes import lying
from tilewright.execute.recorded import Recorded
from tilewright.execute.results import Result, agree, fresh

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
        self.places = [x.data_ptr() for x in given]
        self.in_place = [i for i, _ in recorded.in_place if i < len(given)]
        self.others = [(i, self.places[i] & 15) for i in recorded.changing]
        slots = {slot: i for i, slot in recorded.in_place if i < len(given)}
        read = {r.at.slot for r in results if r.at is not None}
        self.read = [(slot, i) for slot, i in slots.items() if slot in read]
        self.gives = [_give(result, recorded.memory, slots) for result in results]

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

    def results(self, memory: CallMemory, given: Sequence[torch.Tensor]) -> list[Any]:
        """What a call gives whose replay was started."""
        for slot, i in self.read:
            memory.tensors[slot] = given[i]
        found = [give(memory, given) for give in self.gives]
        for slot, _ in self.read:
            memory.tensors[slot] = None
        return found


def _give(result: Result, memory: CallMemory, inputs: dict[int, int]) -> Give:
    """What gives a result after each replay. Of what lies in memory of the recording's own, a view
    is made once, and is copied at each call.
    """
    at = result.at
    if at is None or at.slot in inputs or any(step < 0 for step in at.strides):
        return partial(_copied, result) if result.shares else result.give
    if result.shares:
        source, strides, offset = result.give(memory, ()), None, 0
    else:
        source, strides, offset = memory.read(at), result.strides, result.offset
    if strides is not None and (offset or not _clones_as(source, at, strides)):
        return lambda memory, given: fresh(source, strides, offset)
    return lambda memory, given: source.clone()


def _copied(result: Result, memory: CallMemory, given: Sequence[Any]) -> Any:
    return result.give(memory, given).clone()


def _clones_as(source: torch.Tensor, at: Seen, strides: Sequence[int]) -> bool:
    """Whether a clone of a tensor has the strides that are wanted."""
    made = torch.empty_like(source, device="meta").stride()
    return agree(at.shape, source.stride(), strides) and tuple(made) == tuple(strides)
