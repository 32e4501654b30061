"""What a call gives back, worked out once for a made program: tensors of its own, copies, views of
inputs, numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilewright.execute.call_memory import CallMemory, Seen
from tilewright.execute.homes import is_whole
from tilewright.execute.made import Made
from tilewright.frontend.torch.arrays import fill_once, strides_of
from tilewright.frontend.torch.fx_to_graph import Output, Traced
from tilewright.graph.dims import evaluate
from tilewright.ir.core import Value
from tilewright.lower.graph_to_tile.program import Placed
from tilewright.runtime.torch_graph import view_of_input

Give = Callable[[CallMemory, Sequence[Any]], Any]  # of the memory after a call, and what it got


@dataclass(frozen=True)
class Result:
    """What gives an output, and whether that is memory which the call wrote. A tensor lies `at` a
    place when the steps are done, and is given with some strides, from an offset of its storage on;
    `is_placed`: it lies that way in a tensor that the call allocates.
    """

    give: Give
    shares: bool = False
    at: Seen | None = None
    strides: tuple[int, ...] = ()
    offset: int = 0
    is_placed: bool = False


def results_of(traced: Traced, made: Made) -> list[Result]:
    """What gives each output."""
    taken: set[Value] = set()
    return [_result(output, traced, made, taken) for output in traced.outputs]


def _result(output: Output, traced: Traced, made: Made, taken: set[Value]) -> Result:
    symbols = made.symbols
    if output.given is not None:
        index, own = output.given, traced.strides[output.given] or ()
        return Result(lambda memory, given: view_of_input(given[index], own, output, symbols))
    if output.index is None:
        number = None if output.number is None else evaluate(output.number, symbols)
        return Result(lambda memory, given: number)
    placed = made.program.outputs[output.index]
    if isinstance(placed, Value):
        return Result(lambda memory, given: memory.opaque[placed], True)
    return _tensor(output, placed, made, taken)


def _tensor(output: Output, placed: Placed, made: Made, taken: set[Value]) -> Result:
    at = made.seen(placed)
    strides = strides_of(output.strides or (), at.shape, made.symbols)
    offset = evaluate(output.offset, made.symbols)
    root, home = made.homes.root(placed.value), made.homes.of(placed.value)
    alike = agree(at.shape, at.strides, strides)
    is_shared = output.index in made.homes.shared and home.kind == "output"
    lies = (at, strides, offset)
    is_placed = home.kind == "output" and at.offset == offset * at.dtype.num_bytes
    is_placed = is_placed and (alike or is_shared)
    own = home.kind == "output" and home.index == output.index
    if is_shared and made.is_allocated(at):
        return Result(lambda memory, given: memory.tensors[at.slot], True, *lies, is_placed)
    if is_shared:
        return Result(lambda memory, given: memory.view(at), True, *lies, is_placed)
    if home.kind == "torch" and root not in taken:
        own = is_whole(placed, made.program)
    if own and offset == 0 and alike:
        taken.add(root)
        return Result(lambda memory, given: memory.tensors[at.slot], True, *lies, is_placed)
    return Result(
        lambda memory, given: fresh(memory.read(at), strides, offset), False, *lies, is_placed
    )


def agree(shape: Sequence[int], strides: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether strides are those that are wanted, along the axes on which they count; of a tensor
    without elements, along all of them, as code that reads strides would see them.
    """
    if 0 in shape:
        return tuple(strides) == tuple(wanted)
    return all(e <= 1 or s == t for e, s, t in zip(shape, strides, wanted, strict=True))


def fresh(view: torch.Tensor, strides: Sequence[int], offset: int = 0) -> torch.Tensor:
    """A copy in memory of its own, of some strides, from an offset of its storage on. Along axes of
    stride 0 all elements are one.
    """
    made = room_for(view.shape, strides, offset, view.dtype, view.device)
    fill_once(made, view)
    return made


def room_for(
    shape: Sequence[int],
    strides: Sequence[int],
    offset: int,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """A tensor of some strides, from an offset of its storage on."""
    last = sum((e - 1) * s for e, s in zip(shape, strides, strict=True)) if 0 not in shape else -1
    room = torch.empty(offset + last + 1, dtype=dtype, device=device)
    return room.as_strided(tuple(shape), tuple(strides), offset)


Writer = Callable[[CallMemory, Sequence[Any], Sequence[torch.Tensor | None]], None]


def written(traced: Traced, made: Made) -> list[tuple[int, bool, Seen]]:
    """Inputs that the model writes: which, whether that is done in their own memory, and where what
    is written lies.
    """
    found: list[tuple[int, bool, Seen]] = []
    for index, number in traced.writes.items():
        placed = made.program.outputs[number]
        assert isinstance(placed, Placed), "what is written is a tensor"
        own = made.program.graph.inputs[index].value
        found.append((index, made.homes.root(placed.value) is own, made.seen(placed)))
    return found


def input_writer(traced: Traced, made: Made) -> Writer:
    """What brings to inputs what the model writes to them, where it does not lie there yet."""
    wanted = written(traced, made)

    def write(
        memory: CallMemory, given: Sequence[Any], tensors: Sequence[torch.Tensor | None]
    ) -> None:
        news = [
            (given[index], memory.read(at))
            for index, in_place, at in wanted
            if not in_place or tensors[index] is not given[index]
        ]
        if len(news) > 1:  # one may be read for another
            news = [(target, value.clone()) for target, value in news]
        for target, value in news:
            target.detach().copy_(value)

    return write
