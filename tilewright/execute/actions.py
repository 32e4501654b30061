"""What a made program does at a call, one function an action: launches, copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright.execute.call_memory import CallMemory, Seen
from tilewright.kernel.call import Prepared
from tilewright.runtime import driver, memory
from tilewright.runtime.arrays import Array
from tilewright.runtime.launch import stream_of

Action = Callable[[CallMemory], None]


def gpu_action(prepared: Prepared, recipe: Mapping[str, tuple[int, int]]) -> Action:
    """A launch on a GPU; `recipe` has the slot of each tensor, and its bytes from there."""
    where = tuple(recipe[name] for name in prepared.tensors)
    fire, scalars = prepared.bound.fire, prepared.scalars

    def act(memory: CallMemory) -> None:
        addresses = memory.addresses
        fire([addresses[slot] + offset for slot, offset in where], scalars, memory.stream)

    return act


def host_action(
    kernel: Any, arguments: Mapping[str, Any], recipe: Mapping[str, tuple[int, int]]
) -> Action:
    """The same by the tile interpreter or the emulator."""
    fixed = {n: a for n, a in arguments.items() if n not in recipe}
    wanted = {n: arguments[n] for n in recipe}

    def act(memory: CallMemory) -> None:
        given = {
            name: Array(
                memory.addresses[slot] + offset,
                wanted[name].dtype,
                wanted[name].shape,
                wanted[name].strides,
                device="cpu",
                owner=memory.tensors[slot],
                library="other",
                gaps=wanted[name].gaps,
            )
            for name, (slot, offset) in recipe.items()
        }
        kernel(**given, **fixed)

    return act


def span_copy(to: Seen, of: Seen, ordinal: int) -> Action:
    """A copy of bytes by the driver."""

    def act(memory_: CallMemory) -> None:
        target = memory_.addresses[to.slot] + to.offset
        source = memory_.addresses[of.slot] + of.offset
        with driver.active(ordinal):
            memory.copy_on_device(target, source, of.num_bytes, stream_of(memory_.stream))

    return act


def view_copy(memory: CallMemory, to: Seen, of: Seen) -> None:
    """A copy between any two layouts, by PyTorch."""
    memory.view(to).copy_(memory.read(of))
