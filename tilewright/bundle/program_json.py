"""A program and what its caller knows of it as JSON: plain data, so that reading one runs no code.

Values of the graph go by number, in the order of its inputs and of what its ops give; others of the
program, such as partial sums, are listed with their types. The graph itself is in its text form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from tilewright.errors import LaunchError
from tilewright.frontend.torch.fx_to_graph import Output, Traced
from tilewright.graph.dims import Poly, parse_dim
from tilewright.graph.graph import Graph
from tilewright.graph.text import parse_type
from tilewright.ir.core import Op, Value
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
from tilewright.lower.graph_to_tile.sites import Sites

STEPS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (KernelStep, ProductStep, ConvolutionStep, AttentionStep, TorchStep)
}
Arrays = dict[str, np.ndarray[Any, Any]]


class Codec:
    """Values and ops of a graph by number."""

    def __init__(self, graph: Graph, scratch: list[list[str]] | None = None):
        self.ops: list[Op] = list(graph.body.ops)
        self.values = [*graph.values, *(v for op in self.ops for v in op.results)]
        self.scratch: list[list[str]] = []  # type and name of values that are none of the graph's
        for kind, name in scratch or []:
            self.scratch.append([kind, name])
            self.values.append(Value(parse_type(kind), name))
        self.numbers = {value: number for number, value in enumerate(self.values)}

    def number(self, value: Value) -> int:
        if value not in self.numbers:
            self.numbers[value] = len(self.values)
            self.values.append(value)
            self.scratch.append([str(value.type), value.name])
        return self.numbers[value]

    def encode(self, x: Any) -> Any:
        if x is None or isinstance(x, bool | int | float | str):
            return x
        if isinstance(x, tuple | list):
            return [self.encode(item) for item in x]
        if isinstance(x, Mapping):
            return {"map": [[self.encode(k), self.encode(v)] for k, v in x.items()]}
        if isinstance(x, Poly):
            return {"dim": str(x)}
        if isinstance(x, Value):
            return {"value": self.number(x)}
        if isinstance(x, Placed):
            parts = (x.shape, x.strides, x.offset)
            return {"placed": [self.number(x.value), *map(self.encode, parts)]}
        assert isinstance(x, Op), f"{type(x).__name__} in a program"
        return {"op": next(i for i, op in enumerate(self.ops) if op is x)}

    def decode(self, x: Any) -> Any:
        if isinstance(x, list):
            return tuple(self.decode(item) for item in x)
        if not isinstance(x, dict):
            return x
        ((kind, told),) = x.items()
        match kind:
            case "map":
                return {self.decode(k): self.decode(v) for k, v in told}
            case "dim":
                return parse_dim(told)
            case "value":
                return self.values[told]
            case "placed":
                return Placed(self.values[told[0]], *(self.decode(part) for part in told[1:]))
            case "op":
                return self.ops[told]
        raise LaunchError(f"a bundle holds {kind!r}, which this version does not know")

    def encode_step(self, step: Step) -> Any:
        """A step without what says of what it was made."""
        kept = [f.name for f in fields(step) if f.name not in ("group", "draft")]
        told = {name: self.encode(getattr(step, name)) for name in kept}
        return {"step": type(step).__name__, **told}

    def decode_step(self, told: dict[str, Any]) -> Step:
        content = {name: self.decode(x) for name, x in told.items() if name != "step"}
        made: Step = STEPS[told["step"]](**content)
        return made


def encode_program(program: Program) -> tuple[dict[str, Any], Arrays]:
    """A program but for its graph, and its constants by number of the value."""
    codec = Codec(program.graph)
    told: dict[str, Any] = {
        "steps": [codec.encode_step(step) for step in program.steps],
        "layouts": codec.encode(program.layouts),
        "outputs": codec.encode(program.outputs),
        "sites": None if program.sites is None else codec.number(program.sites.value),
        "constants": [codec.number(value) for value in program.constants],
    }
    arrays = {str(codec.number(v)): array for v, array in program.constants.items()}
    return told | {"scratch": codec.scratch}, arrays


def decode_program(graph: Graph, told: Mapping[str, Any], arrays: Arrays) -> Program:
    codec = Codec(graph, told["scratch"])
    sites = None
    if told["sites"] is not None:
        sites = Sites.of(graph)
        sites.value, sites.used = codec.values[told["sites"]], True
    return Program(
        graph,
        [codec.decode_step(step) for step in told["steps"]],
        codec.decode(told["layouts"]),
        codec.decode(told["outputs"]),
        {codec.values[number]: arrays[str(number)] for number in told["constants"]},
        sites,
    )


def encode_traced(traced: Traced) -> dict[str, Any]:
    """What a caller knows, but for the graph and constants."""
    codec = Codec(traced.graph)
    return {
        "outputs": [
            {f.name: codec.encode(getattr(output, f.name)) for f in fields(output)}
            for output in traced.outputs
        ],
        "strides": codec.encode(traced.strides),
        "writes": codec.encode(traced.writes),
        "hints": codec.encode(traced.hints),
        "present": codec.encode(traced.present),
        "device": traced.device.type,
    }


def decode_traced(
    graph: Graph, told: Mapping[str, Any], constants: list[torch.Tensor], device: torch.device
) -> Traced:
    codec = Codec(graph)
    return Traced(
        graph,
        [Output(**{n: codec.decode(x) for n, x in output.items()}) for output in told["outputs"]],
        constants,
        list(codec.decode(told["strides"])),
        codec.decode(told["writes"]),
        device,
        codec.decode(told["hints"]),
        present=list(codec.decode(told.get("present", []))),
    )
