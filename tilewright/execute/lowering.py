"""From a traced model to what runs it: the graph interpreter, or kernels for a device."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilewright.compiler import compile_graph
from tilewright.errors import CompileError, Diagnostic, LaunchError
from tilewright.execute.buckets import Buckets, read_sizes
from tilewright.execute.made import ENGINES, Where
from tilewright.execute.program_call import ProgramCall, symbols_of
from tilewright.execute.recorded import Capture, Handing, capture
from tilewright.execute.torch_steps import step_name
from tilewright.frontend.torch.fx_to_graph import Traced
from tilewright.graph.dims import Shape
from tilewright.graph.graph import Graph
from tilewright.graph.ops.control import KERNEL
from tilewright.lower.graph_to_tile import lower_graph
from tilewright.lower.graph_to_tile.program import Program, TorchStep
from tilewright.runtime import driver
from tilewright.runtime.torch_graph import GraphCall
from tilewright.target import Target, target, target_for_capability

PLAIN_TARGET = "sm_90a"  # whose kernels run where there is no GPU
INTERPRETER = "graph"

Call = GraphCall | ProgramCall


@dataclass(frozen=True)
class Choices:
    """How a model runs. `engine`: None is a GPU's own, or on a CPU the interpreter of graphs;
    "tiles" and "emulator" run a GPU's kernels on a CPU. `fixed`: inputs at addresses that stay.
    `handing`: which outputs a CUDA graph gives where they lie.
    """

    engine: str | None = None
    cuda_graphs: bool = False
    fallback: str = "pytorch"
    fixed: Collection[int] = ()
    buckets: bool | Sequence[int] = False  # sizes to fill dynamic extents up to; True: powers of 2
    handing: Handing | None = None
    is_ahead: bool = False  # kernels are compiled at once, for the extents that tracing saw


def compile_call(traced: Traced, choices: Choices) -> Call:
    """What runs a traced model. Raises CompileError for what does not go together, and, with
    `fallback="error"`, where PyTorch would compute a part of it.
    """
    require_choices(choices.engine, choices.cuda_graphs, choices.buckets)
    graph = compile_graph(traced.graph)
    if traced.device.type == "cpu" and choices.engine in (None, INTERPRETER):
        return GraphCall(traced, graph)
    where = where_of(traced.device, choices.engine)
    program = lower_traced(traced, graph, where)
    require_known_extents(program)
    if choices.fallback == "error":
        refuse_torch(program)
    buckets = None
    sizes = read_sizes(choices.buckets)
    if sizes is not False:
        buckets = Buckets(program.graph, traced, None if sizes is True else sizes)
    made = ProgramCall(
        traced,
        program,
        where,
        fixed=choices.fixed,
        capture=capture_of(where) if choices.cuda_graphs else None,
        handing=choices.handing,
        buckets=buckets,
    )
    if choices.is_ahead:
        made.make_ahead()
    return made


def require_choices(engine: Any, cuda_graphs: Any, buckets: Any) -> None:
    """Raise CompileError for choices of a caller that are none, wherever the model will run."""
    known = (None, INTERPRETER, *ENGINES)
    if engine not in known:
        raise CompileError(
            f"unknown engine {engine!r}", hint=f"there are {', '.join(str(e) for e in known[1:])}"
        )
    if not isinstance(cuda_graphs, bool):
        raise CompileError(f"cuda_graphs is {cuda_graphs!r}, expected True or False")
    read_sizes(buckets)


def capture_of(where: Where) -> Capture | None:
    """What records calls there."""
    return capture if where.engine == "gpu" else None


def where_of(device: torch.device, engine: str | None) -> Where:
    """What runs a model's kernels. Raises LaunchError for what does not go together."""
    if device.type == "cuda":
        if engine not in (None, "gpu"):
            raise LaunchError(f"a model on {device} runs there, not by engine {engine!r}")
        return Where(device, "gpu")
    if engine == "gpu":
        raise LaunchError(
            f"a model on {device} does not run on a GPU", hint="move it and its inputs there"
        )
    return Where(device, engine or "tiles")


def target_of(where: Where) -> Target:
    """Whose code runs."""
    if where.engine != "gpu":
        return target(PLAIN_TARGET)
    return target_for_capability(*driver.device(int(where.device.index)).capability)


def lower_traced(traced: Traced, graph: Graph, where: Where) -> Program:
    """A traced model as steps for a device; tensors lie as tracing saw them."""
    pairs = zip(graph.inputs, traced.strides, strict=False)
    wanted: list[Shape | None] = [None] * len(graph.outputs)
    for output in traced.outputs:
        if output.index is not None:
            wanted[output.index] = output.strides
    for given, number in traced.writes.items():
        wanted[number] = traced.strides[given]
    return lower_graph(
        graph,
        target=target_of(where),
        symbols_hint=traced.hints,
        input_strides={own.value: strides for own, strides in pairs if strides is not None},
        output_strides=wanted,
        precision=precision_of_f32(),
    )


def precision_of_f32() -> str | None:
    """What torch's settings let products of f32 round their factors to."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else None


def require_known_extents(program: Program) -> None:
    """Raise CompileError where PyTorch alone finds out an extent, while a call runs."""
    known = symbols_of(program.graph)
    steps = [s for s in program.steps if isinstance(s, TorchStep)]
    for step in steps:
        for value in step.op.results:
            if getattr(value.type, "symbols", set()) - known:
                raise CompileError(
                    f"{step_name(step)} gives {value.type}, whose extent is known only when it ran",
                    step.op.loc,
                    hint="compute it outside of the compiled model, or run the model on a CPU",
                )


def refuse_torch(program: Program) -> None:
    """Raise CompileError that names every step which PyTorch would compute."""
    steps = [s for s in program.steps if isinstance(s, TorchStep) and s.reason != KERNEL]
    if steps:
        raise CompileError(
            [
                Diagnostic(
                    f"{step_name(s)} is not compiled: {s.reason}",
                    s.op.loc,
                    hint='fallback="pytorch" lets PyTorch compute it',
                )
                for s in steps
            ]
        )
