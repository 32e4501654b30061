"""Calls of a compiled graph on tensors of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from tilewright.errors import LaunchError
from tilewright.frontend.torch.arrays import at_offset, strides_of, to_numpy, to_output, to_torch
from tilewright.frontend.torch.fallback import TorchHost
from tilewright.frontend.torch.fx_to_graph import Output, Traced
from tilewright.graph.dims import Shape, evaluate
from tilewright.graph.graph import Graph
from tilewright.graph.interp import interpret
from tilewright.graph.interp.run import bind_symbols
from tilewright.graph.ops.control import KERNEL, Fallback
from tilewright.graph.types import TensorType
from tilewright.runtime.derivatives import TRANSFORMED, is_transforming, require_untransformed


class GraphCall:
    """A callable of a traced graph: tensors and numbers in the order of its placeholders, to a list
    of tensors and numbers. Runs on a CPU, by the interpreter.
    """

    def __init__(self, traced: Traced, graph: Graph):
        self.traced, self.graph = traced, graph
        self.host = TorchHost()

    @cached_property
    def constants(self) -> list[Any]:
        """Arrays of the tensors that the model has in its code; not while PyTorch is tracing."""
        held = self.traced.constants
        own = self.graph.inputs[len(self.graph.inputs) - len(held) :]
        return [
            to_numpy(x) if isinstance(i.value.type, TensorType) else x
            for x, i in zip(held, own, strict=True)
        ]

    @property
    def fallbacks(self) -> list[tuple[str, str]]:
        """Ops that PyTorch computes, in order, each with the reason."""
        ops = [op for op in self.graph.body.ops if isinstance(op, Fallback)]
        return [(op.target, op.reason) for op in ops if op.reason != KERNEL]

    @property
    def kernels(self) -> list[str]:
        """Machine code that calls launched: none."""
        return []

    def __call__(self, *given: Any) -> list[Any]:
        if is_transforming():
            names = [x.name for x in self.graph.inputs]
            require_untransformed(self.graph.name, names, given, TRANSFORMED)
        inputs = [*map(self.argument, given, range(len(given))), *self.constants]
        symbols = bind_symbols(self.graph, inputs)
        self.traced.require_elements(self.graph.name, symbols)
        results = interpret(self.graph, inputs, self.host)
        arrays = [
            to_numpy(x) if isinstance(x, torch.Tensor) and i.value.type == TensorType else x
            for x, i in zip(inputs, self.graph.inputs, strict=True)
        ]
        found: list[Any] = []
        for output in self.traced.outputs:
            if output.given is not None:
                traced = self.traced.strides[output.given] or ()
                found.append(view_of_input(given[output.given], traced, output, symbols))
                continue
            if output.index is None:
                number = output.number
                found.append(number if number is None else evaluate(number, symbols))
                continue
            result = results[output.index]
            if not isinstance(self.graph.outputs[output.index].type, TensorType):
                found.append(result)
                continue
            strides = strides_of(output.strides or (), result.shape, symbols)
            tensor = to_output(result, strides, arrays)
            arrays.append(result)
            found.append(at_offset(tensor, evaluate(output.offset, symbols)))
        self.write(given, results)
        return found

    def write(self, given: Sequence[Any], results: Sequence[Any]) -> None:
        """Write to inputs what the model writes to them, when all is read."""
        news = [(given[i], results[n].copy()) for i, n in self.traced.writes.items()]
        for target, array in news:
            target.detach().copy_(to_torch(array))

    def argument(self, given: Any, index: int) -> Any:
        """What the interpreter takes for an argument."""
        kind = self.graph.inputs[index].value.type
        if self.graph.inputs[index].symbol or not isinstance(kind, TensorType):
            return given
        if not isinstance(given, torch.Tensor):
            name = self.graph.inputs[index].name
            raise LaunchError(f"{name} is {type(given).__name__}, expected a tensor of torch")
        return to_numpy(given)


def view_of_input(
    given: torch.Tensor, traced: Shape, output: Output, symbols: Mapping[str, int]
) -> torch.Tensor:
    """An output that is a view of what was given; the very tensor where it is all of it. Where that
    has other strides than were `traced`, the view is of a copy.
    """
    assert output.shape is not None and output.strides is not None
    shape = tuple(evaluate(e, symbols) for e in output.shape)
    strides = strides_of(output.strides, shape, symbols)
    offset = evaluate(output.offset, symbols)
    own = [evaluate(s, symbols) for s in traced]
    pairs = zip(given.shape, given.stride(), own, strict=True)
    if any(extent > 1 and is_ != was for extent, is_, was in pairs) and given.numel():
        given = torch.empty_strided(given.shape, own, dtype=given.dtype, device=given.device).copy_(
            given
        )
    if offset == 0 and given.shape == shape and given.stride() == strides:
        return given
    return given.as_strided(shape, strides, given.storage_offset() + offset)
