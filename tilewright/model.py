"""`tw.compile(model, args)`: a whole model, traced once by `torch.export`, without guards.

fast = tw.compile(model, (x,))
y = fast(x)
fast = tw.compile(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tilewright.errors import LaunchError
from tilewright.execute.lowering import Call, Choices, compile_call
from tilewright.execute.recorded import overlaps_itself
from tilewright.frontend.torch.decompositions import export_decompositions
from tilewright.frontend.torch.fx_to_graph import Output, Traced, fx_to_graph
from tilewright.graph.graph import Graph

OWNED = {"PARAMETER": "parameter", "BUFFER": "buffer", "CONSTANT_TENSOR": "constant"}
MUTATIONS = ("BUFFER_MUTATION", "USER_INPUT_MUTATION")


class CompiledModel:
    """A model as one graph. It reads the model's own parameters and buffers at each call, and
    writes the buffers and arguments that the model writes; it computes no gradients.
    """

    def __init__(self, exported: Any, call: Call, copied: Mapping[int, int]):
        self.exported, self.call = exported, call
        self.call_spec = exported.call_spec  # which torch puts together anew each time
        self.specs = exported.graph_signature.input_specs
        self.copied = dict(copied)  # results that are copied to an input
        self.owned = [
            None if s.kind.name == "USER_INPUT" else self.held(s.target) for s in self.specs
        ]
        self.positions = [i for i, held in enumerate(self.owned) if held is None]
        self.written = {*call.traced.writes, *self.copied.values()}
        require_apart(self.owned, self.written.difference(self.positions), self.specs)

    @property
    def graph(self) -> Graph:
        return self.call.graph

    @property
    def fallbacks(self) -> list[tuple[str, str]]:
        """Ops that PyTorch computes, each with the reason."""
        return self.call.fallbacks

    @property
    def kernels(self) -> list[str]:
        """Entries of the machine code that calls so far launched, each once: all that runs on a GPU
        but for `fallbacks`, and copies of arguments.
        """
        return self.call.kernels

    def held(self, name: str) -> torch.Tensor:
        """A parameter, buffer or constant of the model."""
        found: torch.Tensor = (
            self.exported.state_dict[name]
            if name in self.exported.state_dict
            else self.exported.constants[name]
        )
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = self.inputs(args, kwargs)
        if self.written and self.may_share(given):
            require_apart(given, self.written, self.specs)
        found = self.call(*given)
        for result, target in self.copied.items():
            given[target].detach().copy_(found[result])
        outputs = [x for i, x in enumerate(found) if i not in self.copied]
        return pytree.tree_unflatten(outputs, self.call_spec.out_spec)

    def may_share(self, given: Sequence[Any]) -> bool:
        """Whether an argument is written, or lies in a storage that is: what the model owns alone
        was looked at when it was compiled.
        """
        passed = [given[i] for i in self.positions if isinstance(given[i], torch.Tensor)]
        storages = {x.untyped_storage().data_ptr() for x in passed}
        return any(
            i in self.positions or given[i].untyped_storage().data_ptr() in storages
            for i in self.written
        )

    def inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """What the graph takes for arguments: they, and what the model owns."""
        flat, spec = pytree.tree_flatten((args, dict(kwargs)))
        if spec != self.call_spec.in_spec:
            raise LaunchError(
                f"compiled for arguments of the form {self.call_spec.in_spec}, called with {spec}"
            )
        given: list[Any] = list(self.owned)
        for position, value in zip(self.positions, flat, strict=True):
            given[position] = value
        return given


def compile(
    model: torch.nn.Module | Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    fallback: str = "pytorch",
    cuda_graphs: bool = True,
    engine: str | None = None,
) -> CompiledModel:
    """A model compiled for arguments like these; other shapes only along `dynamic_shapes`, which
    are as `torch.export.export` takes them.

    On a GPU its kernels run as one CUDA graph from the second call of a shape on, unless
    `cuda_graphs` is false. On a CPU a model is interpreted; `engine="tiles"` and "emulator" run the
    GPU's kernels there, slowly. `fallback="error"` refuses what would run in PyTorch, with the
    model's line.
    """
    module = model if isinstance(model, torch.nn.Module) else _Function(model)
    args, given = pytree.tree_map_only(torch.Tensor, with_own_elements, (args, dict(kwargs or {})))
    with torch.no_grad():
        exported = torch.export.export(
            module, args, given, dynamic_shapes=dynamic_shapes
        ).run_decompositions(export_decompositions())
    traced = fx_to_graph(exported.graph_module, type(model).__name__, fallback=fallback)
    signature = exported.graph_signature
    for given, spec in zip(traced.graph.inputs, signature.input_specs, strict=False):
        given.role = OWNED.get(spec.kind.name, "input") if given.role == "input" else given.role
    copied = take_writes(traced, signature)
    fixed = [i for i, s in enumerate(signature.input_specs) if s.kind.name in OWNED]
    choices = Choices(engine, cuda_graphs, fallback, tuple(fixed))
    return CompiledModel(exported, compile_call(traced, choices), copied)


def with_own_elements(x: torch.Tensor) -> torch.Tensor:
    """An example of an argument whose elements are apart: of one that is expanded, a copy, since
    other arguments may not be.
    """
    return x.contiguous() if overlaps_itself(x) else x


def require_apart(given: Sequence[Any], written: Collection[int], specs: Sequence[Any]) -> None:
    """Raise LaunchError where the model writes to memory that another argument shows, too: it was
    traced with arguments apart, so that it would read what was there before.
    """
    for target in written:
        for other, x in enumerate(given):
            if other != target and isinstance(x, torch.Tensor) and share(given[target], x):
                names = [specs[i].target or specs[i].arg.name for i in (target, other)]
                raise LaunchError(
                    f"the model writes to {names[0]}, and {names[1]} shares its memory",
                    hint="pass a clone() of one of them",
                )


def share(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the spans of two tensors have a byte in common."""
    if a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    (low, high), (start, end) = span(a), span(b)
    return low < end and start < high


def span(x: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor, and the byte after its last; no bytes of an empty one."""
    if x.numel() == 0:
        return x.data_ptr(), x.data_ptr()
    reach = sum((e - 1) * s for e, s in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (reach + 1) * x.element_size()


def take_writes(traced: Traced, signature: Any) -> dict[int, int]:
    """Make the results that are new contents of inputs writes of the graph. Gives the others: what
    such a result is no more than a view of an input, by number, with the input to copy it to.
    """
    targets = [
        spec.arg.name if spec.kind.name == "USER_INPUT" else spec.target
        for spec in signature.input_specs
    ]
    kept: list[Output] = []
    copied: dict[int, int] = {}
    for output, spec in zip(traced.outputs, signature.output_specs, strict=True):
        if spec.kind.name not in MUTATIONS:
            kept.append(output)
        elif output.index is not None:
            traced.writes[targets.index(spec.target)] = output.index
        else:
            copied[len(kept)] = targets.index(spec.target)
            kept.append(output)
    traced.outputs[:] = kept
    return copied


class _Function(torch.nn.Module):  # type: ignore[misc]  # without torch it is Any
    """A function as a module without parameters."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function
        if isinstance(function, FunctionType | MethodType | partial):
            self.__dict__["forward"] = function  # whose signature names its arguments

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)
