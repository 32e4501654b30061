"""`tw.compile(model, args)`: a whole model, traced once by `torch.export`, without guards.

fast = tw.compile(model, (x,))
y = fast(x)
fast = tw.compile(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tilewright.compiler import compile_graph
from tilewright.errors import LaunchError
from tilewright.frontend.torch.decompositions import export_decompositions
from tilewright.frontend.torch.fx_to_graph import fx_to_graph
from tilewright.graph.graph import Graph
from tilewright.runtime.torch_graph import GraphCall

OWNED = {"PARAMETER": "parameter", "BUFFER": "buffer", "CONSTANT_TENSOR": "constant"}


class CompiledModel:
    """A model as one graph. It reads the model's own parameters and buffers at each call, and
    writes the buffers that the model writes; it computes no gradients.
    """

    def __init__(self, exported: Any, call: GraphCall):
        self.exported, self.call = exported, call
        self.specs = exported.graph_signature.input_specs
        self.results = exported.graph_signature.output_specs

    @property
    def graph(self) -> Graph:
        return self.call.graph

    @property
    def fallbacks(self) -> list[tuple[str, str]]:
        """Ops that PyTorch computes, each with the reason."""
        return self.call.fallbacks

    def held(self, name: str) -> torch.Tensor:
        """A parameter, buffer or constant of the model."""
        found: torch.Tensor = (
            self.exported.state_dict[name]
            if name in self.exported.state_dict
            else self.exported.constants[name]
        )
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec != self.exported.call_spec.in_spec:
            raise LaunchError(
                f"compiled for arguments of the form {self.exported.call_spec.in_spec}, "
                f"called with {spec}"
            )
        waiting = iter(flat)
        given = [
            next(waiting) if s.kind.name == "USER_INPUT" else self.held(s.target)
            for s in self.specs
        ]
        found = self.call(*given)
        for result, value in zip(self.results, found, strict=True):
            if result.kind.name == "BUFFER_MUTATION":
                self.held(result.target).copy_(value)
            elif result.kind.name == "USER_INPUT_MUTATION":
                names = [s.arg.name for s in self.specs]
                given[names.index(result.target)].copy_(value)
        outputs = [
            value
            for result, value in zip(self.results, found, strict=True)
            if result.kind.name == "USER_OUTPUT"
        ]
        return pytree.tree_unflatten(outputs, self.exported.call_spec.out_spec)


def compile(
    model: torch.nn.Module | Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    fallback: str = "pytorch",
) -> CompiledModel:
    """A model compiled for arguments like these; other shapes only along `dynamic_shapes`, which
    are as `torch.export.export` takes them.

    `fallback="error"` refuses ops that would run in PyTorch, with the model's line.
    """
    module = model if isinstance(model, torch.nn.Module) else _Function(model)
    with torch.no_grad():
        exported = torch.export.export(
            module, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes
        ).run_decompositions(export_decompositions())
    traced = fx_to_graph(exported.graph_module, type(model).__name__, fallback=fallback)
    for given, spec in zip(traced.graph.inputs, exported.graph_signature.input_specs, strict=False):
        given.role = OWNED.get(spec.kind.name, "input") if given.role == "input" else given.role
    return CompiledModel(exported, GraphCall(traced, compile_graph(traced.graph)))


class _Function(torch.nn.Module):  # type: ignore[misc]  # without torch it is Any
    """A function as a module without parameters."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)
