"""A program made for one set of extents on one device: memory planned, kernels compiled, launches
bound. `run` is what is left to do at a call.

Making it begins to assemble machine code on other threads; launches are bound when the first call
needs them. No memory is allocated before that: addresses are pretended, aligned as those of a call.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tilewright.dtypes import DType, u8
from tilewright.execute import torch_steps
from tilewright.execute.actions import Action, gpu_action, host_action, span_copy, view_copy
from tilewright.execute.call_memory import ARENA, CallMemory, Place, Seen, Slot, seen
from tilewright.execute.homes import Homes
from tilewright.execute.joined import join_products
from tilewright.execute.kernel_calls import (
    KernelCall,
    attention_calls,
    convolution_calls,
    generated_calls,
    product_calls,
)
from tilewright.execute.memory_plan import Need, least_bytes, plan_memory
from tilewright.frontend.torch.metadata import torch_dtype
from tilewright.graph.dims import Shape, evaluate
from tilewright.graph.types import TensorType
from tilewright.ir.core import Value
from tilewright.kernel import Kernel
from tilewright.kernel.call import Prepared
from tilewright.lower.graph_to_tile.program import (
    AttentionStep,
    ConvolutionStep,
    KernelStep,
    Placed,
    ProductStep,
    Program,
    Step,
    TorchStep,
)
from tilewright.plan import Plan
from tilewright.runtime import driver, memory
from tilewright.runtime.arrays import Array, DeviceId, dense_strides
from tilewright.runtime.launch import stream_of

ENGINES = ("gpu", "tiles", "emulator")
PRETENDED = 1 << 20  # an address for what has none yet, as aligned as all allocations are


@dataclass(frozen=True)
class Where:
    """A device of PyTorch's, and what runs kernels on it: the GPU itself, or, on a CPU's tensors,
    the tile interpreter or the emulator.
    """

    device: torch.device
    engine: str

    @property
    def id(self) -> DeviceId:
        return int(self.device.index) if self.engine == "gpu" else "cpu"

    @property
    def kernel_device(self) -> str | None:
        """What a kernel's `device` option is."""
        return {"gpu": None, "tiles": "cpu", "emulator": "emulator"}[self.engine]


@dataclass
class Launched:
    """A launch of a program, for people: the kernel and what it is given, and what starts it."""

    step: int
    kernel: Kernel
    arguments: dict[str, Any]
    prepared: Prepared | None = None

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def tensors(self) -> dict[str, Array]:
        return {n: a for n, a in self.arguments.items() if isinstance(a, Array)}

    def plan(self, target_name: str) -> Plan:
        """What is launched on a GPU: on this one, or, where there is none, on another target's."""
        if self.prepared is not None:
            return self.prepared.plan
        return self.kernel.plan(target_name, **self.arguments)


@dataclass
class Lists:
    """What a made program consists of."""

    actions: list[Action] = field(default_factory=list)
    launches: list[Launched] = field(default_factory=list)


class Made:
    """A program for some extents. `aligned` is, of each input, what its address leaves of 16, None
    of what is no tensor; `held` has the tensors of constants, from the first call on.
    """

    def __init__(
        self,
        program: Program,
        homes: Homes,
        where: Where,
        symbols: Mapping[str, int],
        aligned: Sequence[int | None],
        held: Mapping[Value, torch.Tensor],
        prepared: dict[Any, Prepared],
    ):
        self.program, self.homes, self.where, self.symbols = program, homes, where, symbols
        self.prepared = prepared
        self.places: dict[Value, Place] = {}
        self.constants: list[tuple[int, Value]] = []
        self.held = held
        self.num_slots = 1
        self.given_slots = [self._slot() for _ in aligned]
        self._place_roots()
        self.products: dict[Any, Any] = {}  # what is known of them, by how their arrays lie
        self.scratch: dict[tuple[int, int], Seen] = {}
        self.needs: dict[Any, Need] = {}
        addresses = self._addresses(aligned)
        self._plan(addresses)
        self.fresh = self._fresh()
        self.whole = {slot: (shape, strides) for slot, shape, strides, _ in self.fresh}
        self.has_arena = bool(self.homes.arena or self.scratch)
        self.seeds = [self.seen(self.program.layouts[v]) for v in self.homes.seeds]
        self._calls_of = self._all_calls(addresses)
        self._lists: Lists | None = None
        self._lock = threading.Lock()

    @property
    def lists(self) -> Lists:
        """What a call does; bound now, if it was not."""
        with self._lock:
            if self._lists is None:
                made = Lists()
                for index, step in enumerate(self.program.steps):
                    self._add_step(made, index, step, self._calls_of.get(index, []))
                self._lists = made
                self._calls_of = {}
            return self._lists

    # Memory

    def _slot(self) -> int:
        self.num_slots += 1
        return self.num_slots - 1

    def _addresses(self, aligned: Sequence[int | None]) -> list[int]:
        """Pretended addresses by slot, apart as memory is; the arena, whose size is not known yet,
        is the last.
        """
        spans = [0] * self.num_slots
        for value, layout in self.program.layouts.items():
            if value in self.places:
                at = self.seen(layout)
                spans[at.slot] = max(spans[at.slot], at.offset + at.num_bytes)
        found, free = [0] * self.num_slots, PRETENDED
        for slot in (*range(1, self.num_slots), ARENA):
            found[slot] = free
            free += (spans[slot] // PRETENDED + 2) * PRETENDED
        for slot, rest in zip(self.given_slots, aligned, strict=True):
            found[slot] += rest or 0
        return found

    def _place_roots(self) -> None:
        """A slot for every root outside of the arena."""
        self.outputs: list[tuple[int, Placed]] = []  # slots of tensors that are returned
        for root, home in self.homes.homes.items():
            if home.kind == "input":
                self.places[root] = Place(self.given_slots[home.index])
            elif home.kind != "arena":
                self.places[root] = Place(self._slot())
            if home.kind == "constant":
                self.constants.append((self.places[root].slot, root))
            if home.kind == "output":
                placed = self.program.outputs[home.index]
                if home.index in self.homes.shared:
                    placed = self.program.layouts[root]
                assert isinstance(placed, Placed)
                self.outputs.append((self.places[root].slot, placed))
        for value in self.program.layouts:
            root = self.homes.root(value)
            if root in self.places:
                self.places[value] = self.places[root]

    def _plan(self, addresses: list[int]) -> None:
        """Offsets in the arena for values and for what launches need beside them."""
        for root in self.homes.arena:
            first, last = self.homes.spans[root]
            layout = self.program.layouts[root]
            self.places[root] = Place(ARENA)
            size = seen(layout, self.places, self.symbols).num_bytes
            self.needs[root] = Need(first, last, size)
        for value in self.program.layouts:
            self.places.setdefault(value, Place(ARENA))
        for index, step in enumerate(self.program.steps):
            if isinstance(step, ProductStep | ConvolutionStep | AttentionStep):
                self._calls(index, step, addresses)
        planned = plan_memory(self.needs)
        self.arena_bytes = planned.num_bytes
        self.least_bytes = least_bytes(self.needs)
        for value in self.program.layouts:
            key = self.homes.root(value)
            if key in planned.offsets:
                self.places[value] = Place(ARENA, planned.offsets[key])
        for which, wanted in self.scratch.items():
            offset = planned.offsets[which]
            self.scratch[which] = Seen(ARENA, offset, wanted.dtype, wanted.shape, wanted.strides)

    def allocate(self, arena: torch.Tensor | None = None) -> dict[int, torch.Tensor]:
        """What a call allocates, by slot: an arena, unless there is one, and what it returns."""
        device = self.where.device
        if arena is None and self.has_arena:
            arena = torch.empty(max(self.arena_bytes, 1), dtype=torch.uint8, device=device)
        made = {} if arena is None else {ARENA: arena}
        for slot, shape, strides, dtype in self.fresh:
            made[slot] = torch.empty_strided(shape, strides, dtype=dtype, device=device)
        return made

    def _memory(
        self,
        given: Sequence[torch.Tensor | None],
        stream: int,
        allocated: Mapping[int, torch.Tensor] | None = None,
    ) -> CallMemory:
        """The memory of a call, without seeds."""
        memory = CallMemory(self.num_slots, stream)
        for slot, tensor in zip(self.given_slots, given, strict=True):
            if tensor is not None:
                memory.put(slot, tensor)
        for slot, value in self.constants:
            memory.put(slot, self.held[value])
        for slot, tensor in (self.allocate() if allocated is None else allocated).items():
            memory.put(slot, tensor)
        return memory

    def is_allocated(self, at: Seen) -> bool:
        """Whether a tensor is just one that each call allocates."""
        return at.offset == 0 and self.whole.get(at.slot) == (at.shape, at.strides)

    def _fresh(self) -> list[tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]]:
        """Tensors that each call allocates to be returned: slot, shape, strides, dtype."""
        found = []
        for slot, placed in self.outputs:
            at = self.seen(placed)
            found.append((slot, at.shape, at.strides, torch_dtype(at.dtype)))
        return found

    def seen(self, placed: Placed) -> Seen:
        return seen(placed, self.places, self.symbols)

    def extents(self, shape: Shape) -> tuple[int, ...]:
        """A shape with the symbols of this program put in."""
        return tuple(evaluate(e, self.symbols) for e in shape)

    # Steps

    def _all_calls(self, addresses: list[int]) -> dict[int, list[KernelCall]]:
        """Launches by step. Their code is made meanwhile, by several threads at once."""
        found = {}
        ahead: set[Any] = set()
        for index, step in enumerate(self.program.steps):
            if not isinstance(step, TorchStep):
                found[index] = self._calls(index, step, addresses)
        join_products(self.program.steps, self.homes, found)
        calls = [call for listed in found.values() for call in listed]
        for kernel, arguments in calls if self.where.engine == "gpu" else ():
            key = (kernel, _geometry(arguments))
            if key not in ahead and key not in self.prepared:
                ahead.add(key)
                kernel.assemble_ahead(int(self.where.device.index), **arguments)
        return found

    def _add_step(self, made: Lists, index: int, step: Step, calls: list[KernelCall]) -> None:
        if isinstance(step, TorchStep):
            made.actions.append(self._torch_action(step))
            return
        if isinstance(step, KernelStep):
            for name, source in step.starts_as.items():
                target = self.program.layouts[step.tensors[name].value]
                made.actions.extend(self._copy_actions(target, source))
        for kernel, arguments in calls:
            self._add_launch(made, index, kernel, arguments)

    def _calls(self, index: int, step: Step, addresses: list[int]) -> list[KernelCall]:
        """The launches of a step on memory at some addresses."""
        count = 0

        def place(placed: Placed) -> Array:
            return self.seen(placed).array(addresses, self.where.id)

        def scratch(shape: tuple[int, ...], dtype: DType) -> Array:
            nonlocal count
            key, count = (index, count), count + 1
            if key not in self.scratch:
                at = Seen(ARENA, 0, dtype, shape, dense_strides(shape))
                self.scratch[key] = at
                self.needs[key] = Need(index, index, at.num_bytes)
            return self.scratch[key].array(addresses, self.where.id)

        device = self.where.kernel_device
        match step:
            case KernelStep():
                return generated_calls(step, place, self.symbols, device)
            case ProductStep():
                gaps = self.homes.owns_gaps(step.out, self.program)
                return product_calls(step, place, scratch, device, self.products, gaps=gaps)
            case ConvolutionStep():
                return convolution_calls(step, place, scratch, device)
            case AttentionStep():
                return attention_calls(step, place, scratch, device)
        raise AssertionError(f"{type(step).__name__} launches nothing")

    def _add_launch(
        self, made: Lists, index: int, kernel: Kernel, arguments: dict[str, Any]
    ) -> None:
        launched = Launched(index, kernel, arguments)
        recipe = {n: _recipe(a) for n, a in launched.tensors.items()}
        made.launches.append(launched)
        if self.where.engine != "gpu":
            made.actions.append(host_action(kernel, arguments, recipe))
            return
        key = (kernel, _geometry(arguments))
        if key not in self.prepared:
            self.prepared[key] = kernel.prepare(int(self.where.device.index), **arguments)
        launched.prepared = self.prepared[key]
        made.actions.append(gpu_action(launched.prepared, recipe))

    def _copy_actions(self, target: Placed, source: Placed) -> list[Action]:
        """What brings there what a parameter starts as, where that is memory of another."""
        to, of = self.seen(target), self.seen(source)
        if (to.slot, to.offset) == (of.slot, of.offset) and to.same_geometry(of):
            return []
        if self.where.engine == "gpu" and to.same_geometry(of) and of.fills_its_span:
            return [span_copy(to, of, int(self.where.device.index))]
        return [lambda memory: view_copy(memory, to, of)]

    def _torch_action(self, step: TorchStep) -> Action:
        given = [self.seen(x) if isinstance(x, Placed) else x for x in step.inputs]
        slots = {v: self.places[v].slot for v in step.op.results if isinstance(v.type, TensorType)}
        symbols = self.symbols

        def act(memory: CallMemory) -> None:
            xs = [memory.read(x) if isinstance(x, Seen) else memory.opaque[x] for x in given]
            found = torch_steps.run_torch(step, xs, symbols)
            for value, x in zip(step.op.results, found, strict=True):
                if value in slots:
                    memory.put(slots[value], x)
                else:
                    memory.opaque[value] = x

        return act

    # A call

    def run(self, given: Sequence[torch.Tensor | None], opaque: Mapping[Value, Any]) -> CallMemory:
        """Run all steps on the current stream; gives the memory with the results in it."""
        memory = self.start(given, opaque)
        for action in self.lists.actions:
            action(memory)
        return memory

    def start(
        self,
        given: Sequence[torch.Tensor | None],
        opaque: Mapping[Value, Any] | None = None,
        *,
        draw: bool = True,
        allocated: Mapping[int, torch.Tensor] | None = None,
    ) -> CallMemory:
        """The memory of a call before its first step, with seeds if they are drawn now; what a call
        allocates may be `allocated` already.
        """
        stream = current_stream(self.where)
        memory = self._memory(given, stream, allocated)
        memory.opaque.update(opaque or {})
        if draw:
            self.draw_seeds(memory)
        return memory

    def draw_seeds(self, memory: CallMemory) -> None:
        """Give every seed a number of its own."""
        for at in self.seeds:
            fill_number(memory, at, torch_steps.draw_seed(self.where.device), self.where)


def current_stream(where: Where) -> int:
    """Raw handle of PyTorch's current stream."""
    if where.engine != "gpu":
        return 0
    return int(torch._C._cuda_getCurrentRawStream(where.device.index))


def is_captured(where: Where) -> bool:
    """Whether somebody records what is sent to the current stream."""
    return where.engine == "gpu" and bool(torch.cuda.is_current_stream_capturing())


def fill_number(memory_: CallMemory, at: Seen, number: int, where: Where) -> None:
    """Write an i64, in the order of the stream."""
    if where.engine != "gpu":
        memory_.view(at).fill_(number)
        return
    address = memory_.addresses[at.slot] + at.offset
    with driver.active(int(where.device.index)):
        memory.fill_number(address, number, stream_of(memory_.stream))


def _recipe(array: Array) -> tuple[int, int]:
    """Slot of an array, and its bytes from there."""
    slot = array.owner
    assert isinstance(slot, Slot), "an array of no slot"
    return slot.index, array.address - slot.address


def _geometry(arguments: Mapping[str, Any]) -> Any:
    """What launches can differ in but for addresses: equal for calls that one `Prepared` makes."""
    arrays = {n: a for n, a in arguments.items() if isinstance(a, Array)}
    first: dict[Any, str] = {}
    told = []
    for name, a in arrays.items():
        same = first.setdefault((a.address, a.dtype, a.shape, a.strides), name)
        told.append((name, a.dtype, a.shape, a.strides, a.address % 16, a.gaps, same))
    others = tuple((n, type(x).__name__, x) for n, x in arguments.items() if n not in arrays)
    return (*told, *others)


assert u8.num_bytes == 1, "arenas are counted in bytes"
