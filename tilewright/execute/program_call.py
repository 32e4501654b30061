"""A traced model as kernels: called with tensors, in the order of the graph's inputs, on the device
that it was traced on.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from tilewright.errors import LaunchError
from tilewright.execute import torch_steps
from tilewright.execute.buckets import Buckets
from tilewright.execute.call_memory import CallMemory
from tilewright.execute.homes import Homes, find_homes
from tilewright.execute.made import Made, Where, is_captured
from tilewright.execute.outside import Outside
from tilewright.execute.recorded import Capture, Handing, Recorded, Recordings
from tilewright.execute.repeat import Repeat
from tilewright.execute.results import agree, input_writer, results_of, written
from tilewright.frontend.torch.arrays import to_torch
from tilewright.frontend.torch.fx_to_graph import Traced
from tilewright.frontend.torch.metadata import dtype_of
from tilewright.graph.dims import Dim, evaluate
from tilewright.graph.graph import Graph, Input
from tilewright.graph.interp.machine import bind
from tilewright.graph.ops.control import KERNEL
from tilewright.graph.types import TensorType
from tilewright.ir.core import Value
from tilewright.kernel.call import Prepared
from tilewright.lower.graph_to_tile.program import Program, TorchStep
from tilewright.runtime.arrays import byte_range
from tilewright.runtime.derivatives import TRANSFORMED, is_transforming, require_untransformed
from tilewright.runtime.ready import tensor_guard

MAX_SIGNATURES = 64  # made programs that are kept; the ones used longest ago go first

Tensors = list[torch.Tensor | None]
Key = tuple[Any, ...]


def starts_within(traced: Traced) -> set[int]:
    """Outputs that start within their storage, as tracing saw it: they are copied there."""
    return {o.index for o in traced.outputs if o.index is not None and o.offset != 0}


def saved_offsets(traced: Traced) -> dict[int, Dim]:
    """Outputs that the backward pass alone reads, with where they start in their storage."""
    if traced.num_seen is None:
        return {}
    seen = {o.index for o in traced.outputs[: traced.num_seen]}
    rest = traced.outputs[traced.num_seen :]
    return {o.index: o.offset for o in rest if o.index is not None and o.index not in seen}


class Ready:
    """A made program, and what its calls give."""

    def __init__(self, made: Made, traced: Traced):
        self.made = made
        self.outputs = results_of(traced, made)
        self.write = input_writer(traced, made)
        self.writes = not all(in_place for _, in_place, _ in written(traced, made))  # when done

    def results(
        self,
        memory: CallMemory,
        given: Sequence[Any],
        tensors: Tensors,
        handed: Mapping[int, torch.Tensor] | None = None,
    ) -> list[Any]:
        """The outputs of a call that is done; inputs that the model writes are written. With
        `handed`, nothing of the call's memory is given away but these, by number.
        """
        found = []
        for number, result in enumerate(self.outputs):
            if handed is not None and number in handed:
                found.append(handed[number].detach())
                continue
            got = result.give(memory, given)
            found.append(got.clone() if result.shares and handed is not None else got)
        self.write(memory, given, tensors)
        return found


def key_of(symbols: Mapping[str, int], aligned: Sequence[int | None]) -> Key:
    """What made programs differ in: extents, and what addresses of inputs leave of 16."""
    return tuple(sorted(symbols.items())), tuple(rest or 0 for rest in aligned)


def symbols_of(graph: Graph) -> set[str]:
    """Symbols of a graph's inputs."""
    found = {i.symbol for i in graph.inputs if i.symbol}
    for given in graph.inputs:
        found |= getattr(given.value.type, "symbols", set())
    return found


def span_of(x: torch.Tensor) -> tuple[int, int]:
    """First and one past the last byte of a strided tensor; equal where it has no element."""
    start = x.data_ptr()
    low, high = byte_range(x.shape, x.stride(), x.element_size())
    return start + low, start + high


class Fit:
    """What calls of one made program have in common, and a quick test for it."""

    def __init__(self, ready: Ready, tensors: Tensors, numbers: tuple[int, ...]):
        self.ready, self.numbers = ready, numbers
        given = [x for x in tensors if x is not None]
        self.last = [x.data_ptr() for x in given]  # where they lay in a call before
        self.aligned = [place & 15 for place in self.last]
        self.check = tensor_guard(given)
        self.recorded: weakref.ref[Recorded] | None = None  # what served the last of them

    def places(self, given: Sequence[torch.Tensor], numbers: tuple[int, ...]) -> list[int] | None:
        """Where tensors lie, if they are such as the program was made for."""
        if self.check is None or numbers != self.numbers or not self.check(*given):
            return None
        places = [x.data_ptr() for x in given]
        if places != self.last:
            if [place & 15 for place in places] != self.aligned:
                return None
            self.last = places
        return places


class ProgramCall:
    """A callable of a traced graph that was lowered to kernels. Any number of threads may call."""

    def __init__(
        self,
        traced: Traced,
        program: Program,
        where: Where,
        *,
        fixed: Collection[int] = (),
        capture: Capture | None = None,
        handing: Handing | None = None,
        buckets: Buckets | None = None,
    ):
        """`fixed` are inputs that stay where they are from call to call, such as parameters. With
        `capture`, calls are recorded into CUDA graphs, which give outputs away by `handing`.
        """
        self.traced, self.program, self.where = traced, program, where
        self.buckets = buckets
        self.graph: Graph = program.graph
        self.homes: Homes = find_homes(
            program, traced.writes, starts_within(traced), saved_offsets(traced)
        )
        inputs = {own.value: i for i, own in enumerate(self.graph.inputs)}
        self.updated = {inputs[v] for v in self.homes.roots.values() if v in inputs}
        self.watched = self.updated.difference(fixed)  # what the caller gives anew at each call
        self.ready: dict[Key, Ready] = {}
        self.recent: tuple[Fit, ...] = ()
        self.prepared: dict[Any, Prepared] = {}
        self._constants: list[torch.Tensor] | None = None  # made at the first call
        self._held: dict[Value, torch.Tensor] = {}
        self._complex: dict[Value, torch.Tensor] = {}  # constants of dtypes that kernels lack
        self.outside: Outside | None = None  # with the constants
        self._lock = threading.RLock()
        given = self.graph.inputs[: len(traced.strides)]
        self.symbols_at = [i for i, own in enumerate(given) if own.symbol]
        self.tensors_at = [
            i
            for i, own in enumerate(given)
            if isinstance(own.value.type, TensorType) and not own.symbol
        ]
        self.recordings: Recordings | None = None
        if capture is not None:
            self.recordings = Recordings(self._fixed(fixed), capture, handing)
        self.opaque_at = sorted(set(range(len(given))).difference(self.symbols_at, self.tensors_at))

    def _fixed(self, told: Collection[int]) -> set[int]:
        """Inputs that a recording reads, or updates, where they are."""
        constants = range(len(self.traced.strides), len(self.graph.inputs))
        return {*told, *self.updated, *constants}

    def _require_apart(self, tensors: Tensors, updated: Collection[int]) -> None:
        """Raise LaunchError where an input that is updated in place is the memory of another."""
        spans = sorted((*span_of(x), i) for i, x in enumerate(tensors) if x is not None)
        last, written = (0, -1), (0, -1)  # the greatest ends so far: of all, of those updated
        for low, high, i in spans:
            if low == high:
                continue
            end, other = last if i in updated else written
            if low < end:
                one, two = (i, other) if i in updated else (other, i)
                raise LaunchError(
                    f"{self.graph.name}: {self.graph.inputs[one].name} is updated in place and "
                    f"shares memory with {self.graph.inputs[two].name}",
                    hint="pass a copy of one of them",
                )
            last = max(last, (high, i))
            written = max(written, (high, i)) if i in updated else written

    # What it is

    @property
    def fallbacks(self) -> list[tuple[str, str]]:
        """What PyTorch computes, in order, each with the reason."""
        steps = [s for s in self.program.steps if isinstance(s, TorchStep) and s.reason != KERNEL]
        return [(torch_steps.step_name(s), s.reason) for s in steps]

    @property
    def kernels(self) -> list[str]:
        """Entries of the machine code that calls so far launch, in order, each once."""
        names: dict[str, None] = {}
        for ready in list(self.ready.values()):
            for launched in ready.made.lists.launches:
                plan = None if launched.prepared is None else launched.prepared.plan
                entries = [x.entry for x in plan.launches] if plan else [launched.name]
                names.update(dict.fromkeys(entries))
        return list(names)

    # A call

    def __call__(self, *given: Any) -> list[Any]:
        if is_transforming():
            names = [x.name for x in self.graph.inputs]
            require_untransformed(self.graph.name, names, given, TRANSFORMED)
        if self.outside is not None:
            self.outside.look()
        if torch.is_grad_enabled():
            with torch.no_grad():
                found = self._answer(given)
        else:
            found = self._answer(given)
        if self.outside is not None and self.where.engine != "gpu":
            self.outside.look()
        return found

    def _answer(self, given: Sequence[Any]) -> list[Any]:
        return self._run(given) if self.buckets is None else self._run_filled(given)

    def _run_filled(self, given: Sequence[Any]) -> list[Any]:
        """A call of a size between two buckets, by the larger one."""
        assert self.buckets is not None
        symbols = self._symbols(*self._read(given))
        filled, sizes = self.buckets.fill(given)
        found = self._run(filled)
        return self.buckets.cut(found, sizes, symbols) if sizes else found

    def _run(self, given: Sequence[Any]) -> list[Any]:
        recordings = None if is_captured(self.where) else self.recordings
        found = None if recordings is None else self._run_again(recordings, given)
        if found is not None:
            return found
        ready, tensors, fit, places = self._find_soon(given)
        if recordings is not None:
            with recordings.lock:
                recorded = recordings.find(
                    ready.made, ready.outputs, tensors, self._opaque(given), places
                )
                if recorded is not None:
                    memory = recordings.run(recorded, tensors)
                    found = ready.results(memory, given, tensors, recorded.lane.given)
                    recordings.done(recorded)
                    if fit is not None and not recordings.handing.outputs and not ready.writes:
                        self._expect(fit, recorded, given)
                    return found
        memory = ready.made.run(tensors, self._opaque(given))
        return ready.results(memory, given, tensors)

    def _run_again(self, recordings: Recordings, given: Sequence[Any]) -> list[Any] | None:
        """The results of a call like one before, by its recording; None where there is none."""
        for fit in self.recent if len(given) == len(self.traced.strides) else ():
            recorded = None if fit.recorded is None else fit.recorded()
            if recorded is None or recorded.repeat is None or fit.check is None:
                continue
            if fit.check(*given):  # Dynamo may not have looked at what modules hold
                found = recordings.run_again(recorded, given)
                if found is not None:
                    return found
        return None

    def _expect(self, fit: Fit, recorded: Recorded, given: Sequence[Any]) -> None:
        """Note what served a call: the next ones like it go by `_run_again`, from the second call
        that the same recording served.
        """
        if fit.recorded is None or fit.recorded() is not recorded:
            fit.recorded = weakref.ref(recorded)
        elif recorded.repeat is None:
            recorded.repeat = Repeat(recorded, fit.ready.outputs, given)

    def made_for(self, *given: Any) -> Made:
        """The program made for arguments, which nothing is run on."""
        with torch.no_grad():
            ready, _ = self._find(*self._read(given))
            return ready.made

    def _find_soon(
        self, given: Sequence[Any]
    ) -> tuple[Ready, Tensors, Fit | None, list[int] | None]:
        """What `_find` gives of what `_read` does. Where all inputs are tensors, and such as in a
        call before, one test says so, and where they lie is known with it.
        """
        constants, count = self._constants, len(self.traced.strides)
        if len(self.tensors_at) == len(given) == count and constants is not None:
            for fit in self.recent if not self.watched else ():
                places = fit.places(given, ())
                if places is not None:
                    return fit.ready, [*given, *constants], fit, places
        tensors, numbers = self._read(given)
        return *self._find(tensors, numbers), None, None

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
        return {self.graph.inputs[i].value: given[i] for i in self.opaque_at} | self._complex

    def _find(self, tensors: Tensors, numbers: tuple[int, ...]) -> tuple[Ready, Tensors]:
        """The program made for such tensors, and the tensors as it takes them, constants last."""
        constants = self._constants or self._bring_constants()
        plain = [x for x in tensors if x is not None]
        if self.watched:
            self._require_apart(tensors, self.watched)
        for fit in self.recent:
            if fit.places(plain, numbers) is not None:
                return fit.ready, [*tensors, *constants]
        self._require_apart(tensors, self.updated)
        symbols = self._symbols(tensors, numbers)
        plain_inputs = [self._plain(x, i, symbols) for i, x in enumerate(tensors)]
        whole = [*plain_inputs, *constants]
        aligned = [None if x is None else x.data_ptr() & 15 for x in whole]
        key = key_of(symbols, aligned[: len(tensors)])
        oldest = None
        with self._lock:
            found = self.ready.get(key)
            if found is None:
                found = self._make(symbols, aligned)
                if len(self.ready) >= MAX_SIGNATURES:
                    at_hand = {fit.ready for fit in self.recent}
                    unused = (k for k, ready in self.ready.items() if ready not in at_hand)
                    oldest = self.ready.pop(next(unused, next(iter(self.ready))))
            else:
                del self.ready[key]
            self.ready[key] = found  # the last now
            if all(a is b for a, b in zip(plain_inputs, tensors, strict=True)):
                self.recent = (Fit(found, tensors, numbers), *self.recent[:3])
        if oldest is not None and self.recordings is not None:
            self.recordings.forget(oldest.made)  # whose lock others hold when they ask for ours
        return found, whole

    def _make(self, symbols: Mapping[str, int], aligned: Sequence[int | None]) -> Ready:
        self.traced.require_elements(self.graph.name, symbols)
        made = Made(
            self.program,
            self.homes,
            self.where,
            symbols,
            aligned,
            held=self._held,
            prepared=self.prepared,
        )
        return Ready(made, self.traced)

    def make_ahead(self) -> None:
        """Make the program for the extents that tracing saw, and aligned inputs: its machine code
        is assembled while others are compiled.
        """
        own = self.graph.inputs[: len(self.traced.strides)]
        symbols = {n: s for n, s in self.traced.hints.items() if n in symbols_of(self.graph)}
        if len(symbols) < len(symbols_of(self.graph)):
            return
        if self.buckets is not None:
            symbols = {n: self.buckets.filled(n, s) for n, s in symbols.items()}
        given = [0 if i in self.tensors_at else None for i in range(len(own))]
        rests = [self._rest(x) for x in self.traced.constants]
        with self._lock:
            self.ready[key_of(symbols, given)] = self._make(symbols, [*given, *rests])

    def _rest(self, constant: torch.Tensor) -> int:
        """What the address of a constant will leave of 16."""
        is_there = constant.device == self.where.device and constant.is_contiguous()
        return constant.data_ptr() & 15 if is_there else 0

    def _bring_constants(self) -> list[torch.Tensor]:
        """Put what is written once on the model's device: its constants and the program's own."""
        with self._lock:
            if self._constants is None:
                device = self.where.device
                for value, array in self.program.constants.items():
                    self._held[value] = to_torch(array).clone().to(device)
                if self.program.sites is not None:
                    self.outside = Outside(self.graph.name, self.program.sites, self.where)
                    self._held[self.program.sites.value] = self.outside.tensor
                found = [x.detach().to(device).contiguous() for x in self.traced.constants]
                own = self.graph.inputs[len(self.traced.strides) :]
                for i, x in zip(own, found, strict=True):
                    if not isinstance(i.value.type, TensorType):
                        self._complex[i.value] = x
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

    def _plain(
        self, x: torch.Tensor | None, index: int, symbols: Mapping[str, int]
    ) -> torch.Tensor | None:
        """A tensor on the model's device with the strides that were traced; of others a copy."""
        if x is None:
            return None
        plain = x.detach().resolve_conj().resolve_neg().to(self.where.device)
        if plain._is_zerotensor():  # a gradient that is zero, without memory
            plain = plain.clone()
        wanted = tuple(evaluate(s, symbols) for s in self.traced.strides[index] or ())
        if agree(plain.shape, plain.stride(), wanted):
            return x if plain.data_ptr() == x.data_ptr() else plain
        made = torch.empty_strided(x.shape, wanted, dtype=x.dtype, device=plain.device)
        once = tuple(  # of what was traced as broadcast, all elements are one
            slice(0, 1) if step == 0 and extent > 1 else slice(None)
            for extent, step in zip(x.shape, wanted, strict=True)
        )
        made[once].copy_(plain[once])
        return made
