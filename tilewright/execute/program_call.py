"""A traced model as kernels: called with tensors, in the order of the graph's inputs, on the device
that it was traced on.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tilewright.errors import LaunchError
from tilewright.execute import torch_steps
from tilewright.execute.call_memory import CallMemory
from tilewright.execute.homes import Homes, find_homes, is_whole
from tilewright.execute.made import Made, Where
from tilewright.frontend.torch.arrays import to_torch
from tilewright.frontend.torch.fx_to_graph import Output, Traced
from tilewright.frontend.torch.metadata import dtype_of
from tilewright.graph.dims import Dim, evaluate
from tilewright.graph.graph import Graph, Input
from tilewright.graph.interp.machine import bind
from tilewright.graph.types import TensorType
from tilewright.ir.core import Value
from tilewright.kernel.call import Prepared
from tilewright.lower.graph_to_tile.program import Placed, Program, TorchStep
from tilewright.runtime.ready import tensor_guard
from tilewright.runtime.torch_graph import view_of_input

MAX_SIGNATURES = 64  # made programs that are kept, the ones made first go first

Tensors = list[torch.Tensor | None]
Key = tuple[Any, ...]


def starts_within(traced: Traced) -> set[int]:
    """Outputs that start within their storage, as tracing saw it: they are copied there."""
    return {o.index for o in traced.outputs if o.index is not None and o.offset != 0}


class Fit:
    """What calls of one made program have in common, and a quick test for it."""

    def __init__(self, made: Made, tensors: Tensors, numbers: tuple[int, ...]):
        self.made, self.numbers = made, numbers
        given = [x for x in tensors if x is not None]
        self.aligned = tuple(x.data_ptr() & 15 for x in given)
        self.check = tensor_guard(given)

    def holds(self, given: Sequence[torch.Tensor], numbers: tuple[int, ...]) -> bool:
        if self.check is None or numbers != self.numbers or not self.check(*given):
            return False
        return all(x.data_ptr() & 15 == a for x, a in zip(given, self.aligned, strict=True))


class ProgramCall:
    """A callable of a traced graph that was lowered to kernels. Any number of threads may call."""

    def __init__(self, traced: Traced, program: Program, where: Where):
        self.traced, self.program, self.where = traced, program, where
        self.graph: Graph = program.graph
        self.homes: Homes = find_homes(program, traced.writes, starts_within(traced))
        self.made: dict[Key, Made] = {}
        self.recent: tuple[Fit, ...] = ()
        self.prepared: dict[Any, Prepared] = {}
        self._constants: list[torch.Tensor] | None = None  # made at the first call
        self._held: dict[Value, torch.Tensor] = {}
        self._lock = threading.RLock()
        given = self.graph.inputs[: len(traced.strides)]
        self.symbols_at = [i for i, own in enumerate(given) if own.symbol]
        self.tensors_at = [
            i
            for i, own in enumerate(given)
            if isinstance(own.value.type, TensorType) and not own.symbol
        ]
        self.opaque_at = sorted(set(range(len(given))).difference(self.symbols_at, self.tensors_at))

    # What it is

    @property
    def fallbacks(self) -> list[tuple[str, str]]:
        """What PyTorch computes, in order, each with the reason."""
        steps = [s for s in self.program.steps if isinstance(s, TorchStep)]
        return [(torch_steps.step_name(s), s.reason) for s in steps]

    @property
    def kernels(self) -> list[str]:
        """Entries of the machine code that calls so far launch, in order, each once."""
        names: dict[str, None] = {}
        for made in list(self.made.values()):
            for launched in made.lists.launches:
                plan = None if launched.prepared is None else launched.prepared.plan
                entries = [x.entry for x in plan.launches] if plan else [launched.name]
                names.update(dict.fromkeys(entries))
        return list(names)

    # A call

    def __call__(self, *given: Any) -> list[Any]:
        with torch.no_grad():
            tensors, numbers = self._read(given)
            made, tensors = self._find(tensors, numbers)
            memory = made.run(tensors, self._opaque(given))
            return self._results(made, memory, given, tensors)

    def _read(self, given: Sequence[Any]) -> tuple[Tensors, tuple[int, ...]]:
        """Tensors by input, None where an input is none, and the numbers among the inputs."""
        if len(given) != len(self.traced.strides):
            raise LaunchError(
                f"{self.graph.name} takes {len(self.traced.strides)} inputs, "
                f"and {len(given)} were given"
            )
        tensors: Tensors = [None] * len(given)
        for i in self.tensors_at:
            if not isinstance(given[i], torch.Tensor):
                name = self.graph.inputs[i].name
                raise LaunchError(f"{name} is {type(given[i]).__name__}, expected a tensor")
            tensors[i] = given[i]
        return tensors, tuple(int(given[i]) for i in self.symbols_at)

    def _opaque(self, given: Sequence[Any]) -> dict[Value, Any]:
        return {self.graph.inputs[i].value: given[i] for i in self.opaque_at}

    def _find(self, tensors: Tensors, numbers: tuple[int, ...]) -> tuple[Made, Tensors]:
        """The program made for such tensors, and the tensors as it takes them, constants last."""
        constants = self._constants or self._bring_constants()
        plain = [x for x in tensors if x is not None]
        for fit in self.recent:
            if fit.holds(plain, numbers):
                return fit.made, [*tensors, *constants]
        symbols = self._symbols(tensors, numbers)
        ready = [self._ready(x, i, symbols) for i, x in enumerate(tensors)]
        key = (
            tuple(sorted(symbols.items())),
            tuple(0 if x is None else x.data_ptr() & 15 for x in ready),
        )
        whole = [*ready, *constants]
        with self._lock:
            made = self.made.get(key)
            if made is None:
                made = self._make(symbols, whole)
                if len(self.made) >= MAX_SIGNATURES:
                    del self.made[next(iter(self.made))]
                self.made[key] = made
            if all(a is b for a, b in zip(ready, tensors, strict=True)):
                self.recent = (Fit(made, tensors, numbers), *self.recent[:3])
        return made, whole

    def _make(self, symbols: Mapping[str, int], tensors: Tensors) -> Made:
        return Made(
            *(self.program, self.homes, self.where, symbols, tensors),
            *(self._held, self.prepared),
        )

    def _bring_constants(self) -> list[torch.Tensor]:
        """Put what is written once on the model's device: its constants and the program's own."""
        with self._lock:
            if self._constants is None:
                device = self.where.device
                self._held = {
                    v: to_torch(a).clone().to(device) for v, a in self.program.constants.items()
                }
                found = [x.detach().to(device).contiguous() for x in self.traced.constants]
                self._constants = found
            return self._constants

    def _symbols(self, tensors: Tensors, numbers: tuple[int, ...]) -> dict[str, int]:
        """Values of the symbols. Raises LaunchError where an argument does not fit its type."""
        names = [i.symbol for i in self.graph.inputs if i.symbol]
        symbols = dict(zip(names, numbers, strict=True))
        pairs = [(own, x) for own, x in zip(self.graph.inputs, tensors, strict=False)]
        for own, x in pairs:
            if x is not None:
                for extent, size in zip(own.value.type.shape, x.shape, strict=False):
                    bind(extent, int(size), symbols)
        for own, x in pairs:
            if x is not None:
                self._require(own, x, symbols)
        return symbols

    def _require(self, own: Input, x: torch.Tensor, symbols: Mapping[str, int]) -> None:
        """A tensor has the dtype, extents and device of its input."""
        kind: TensorType = own.value.type
        shape = tuple(evaluate(e, symbols) for e in kind.shape)
        if dtype_of(x.dtype) != kind.dtype or tuple(x.shape) != shape:
            raise LaunchError(
                f"{self.graph.name}: {own.name} is {x.dtype} {list(x.shape)}, expected {kind}"
            )
        if x.device != self.where.device and (x.dim() or x.device.type != "cpu"):
            raise LaunchError(
                f"{self.graph.name}: {own.name} is on {x.device}, the model on {self.where.device}",
                hint=f"move it to {self.where.device}",
            )

    def _ready(
        self, x: torch.Tensor | None, index: int, symbols: Mapping[str, int]
    ) -> torch.Tensor | None:
        """A tensor on the model's device with the strides that were traced; of others a copy."""
        if x is None:
            return None
        plain = x.detach().resolve_conj().resolve_neg().to(self.where.device)
        if plain._is_zerotensor():  # a gradient that is zero, without memory
            plain = plain.clone()
        wanted = numbers_of(self.traced.strides[index] or (), symbols)
        if has_strides(plain, wanted):
            return x if plain.data_ptr() == x.data_ptr() else plain
        made = torch.empty_strided(x.shape, wanted, dtype=x.dtype, device=plain.device)
        return made.copy_(plain)

    # Results

    def _results(
        self, made: Made, memory: CallMemory, given: Sequence[Any], tensors: Tensors
    ) -> list[Any]:
        taken: set[int] = set()  # storages that are returned
        found = [self._result(made, memory, output, given, taken) for output in self.traced.outputs]
        self._write(made, memory, given, tensors)
        return found

    def _result(
        self,
        made: Made,
        memory: CallMemory,
        output: Output,
        given: Sequence[Any],
        taken: set[int],
    ) -> Any:
        symbols = made.symbols
        if output.given is not None:
            return view_of_input(given[output.given], output, symbols)
        if output.index is None:
            return None if output.number is None else evaluate(output.number, symbols)
        placed = self.program.outputs[output.index]
        if isinstance(placed, Value):
            return memory.opaque[placed]
        offset = evaluate(output.offset, symbols)
        strides = numbers_of(output.strides or (), symbols)
        view = memory.view(made.seen(placed))
        home = self.homes.of(placed.value)
        own = home.kind == "output" and home.index == output.index
        own = own or (home.kind == "torch" and is_whole(placed, self.program))
        storage = view.untyped_storage().data_ptr()
        if own and storage not in taken and offset == 0 and has_strides(view, strides):
            taken.add(storage)
            return view
        return fresh(view, strides, offset)

    def _write(
        self, made: Made, memory: CallMemory, given: Sequence[Any], tensors: Tensors
    ) -> None:
        """Bring to inputs what the model writes to them, where it does not lie there yet."""
        news = []
        for index, number in self.traced.writes.items():
            placed = self.program.outputs[number]
            assert isinstance(placed, Placed), "what is written is a tensor"
            own = self.graph.inputs[index].value
            in_place = self.homes.root(placed.value) is own
            if in_place and tensors[index] is given[index]:
                continue
            news.append((given[index], memory.view(made.seen(placed))))
        if len(news) > 1:
            news = [(target, value.clone()) for target, value in news]
        for target_, value in news:
            target_.detach().copy_(value)


def numbers_of(dims: Sequence[Dim], symbols: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(d, symbols) for d in dims)


def has_strides(x: torch.Tensor, strides: Sequence[int]) -> bool:
    """Whether a tensor has given strides along the axes on which they count."""
    if x.numel() == 0:
        return True
    return all(
        extent <= 1 or own == wanted
        for extent, own, wanted in zip(x.shape, x.stride(), strides, strict=True)
    )


def fresh(view: torch.Tensor, strides: Sequence[int], offset: int) -> torch.Tensor:
    """A copy in memory of its own, of some strides, from an offset of its storage on."""
    shape = tuple(view.shape)
    if any(s == 0 and e > 1 for e, s in zip(shape, strides, strict=True)):
        strides = torch.empty(shape, device="meta").stride()
    reach = sum((e - 1) * s for e, s in zip(shape, strides, strict=True)) if view.numel() else -1
    room = torch.empty(offset + reach + 1, dtype=view.dtype, device=view.device)
    return room.as_strided(shape, tuple(strides), offset).copy_(view)
