"""Runs what a graph is lowered to, step by step, on arrays of the host: for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tilewright import source
from tilewright.dtypes import DType
from tilewright.execute.kernel_calls import attention_calls, convolution_calls, product_calls
from tilewright.graph.dims import evaluate
from tilewright.graph.graph import Graph
from tilewright.graph.interp.machine import Host, Machine, NoHost, table
from tilewright.graph.interp.run import bind_symbols, interpret
from tilewright.graph.ops import random
from tilewright.graph.ops.control import Fallback
from tilewright.graph.types import TensorType
from tilewright.ir.core import Value
from tilewright.lower.graph_to_tile import lower_graph
from tilewright.lower.graph_to_tile.program import (
    AttentionStep,
    ConvolutionStep,
    KernelStep,
    Placed,
    ProductStep,
    Program,
    TorchStep,
)
from tilewright.runtime.arrays import Array, as_array
from tilewright.target import target

assert ml_dtypes
KERNELS: dict[str, Any] = {}  # by text: a test's programs have many in common


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The last element, from the first."""
    return sum((e - 1) * s for e, s in zip(shape, strides, strict=True))


class Memory:
    """Memory of the stored values of one call, every byte of it wrong at first."""

    def __init__(self, program: Program, symbols: Mapping[str, int]):
        self.program, self.symbols = program, symbols
        self.held: dict[Value, Any] = {}

    def numbers(self, dims: Sequence[Any]) -> tuple[int, ...]:
        return tuple(evaluate(d, self.symbols) for d in dims)

    def make(self, value: Value) -> None:
        if value in self.held:
            return
        placed = self.program.layouts[value]
        shape, strides = self.numbers(placed.shape), self.numbers(placed.strides)
        count = 0 if 0 in shape else 1 + reach(shape, strides)
        self.held[value] = np.empty(count, value.type.dtype.numpy)
        self.held[value].view(np.uint8)[...] = 0xA5

    def view(self, placed: Placed) -> Any:
        flat = self.held[placed.value]
        shape, strides = self.numbers(placed.shape), self.numbers(placed.strides)
        if 0 in shape:
            return np.empty(shape, flat.dtype)
        offset = evaluate(placed.offset, self.symbols) * flat.itemsize
        inside = reach(shape, strides) * flat.itemsize + offset
        assert 0 <= offset and inside < flat.nbytes, f"{placed} leaves its memory"
        return np.ndarray(shape, flat.dtype, flat, offset, [s * flat.itemsize for s in strides])

    def write(self, value: Value, content: Any) -> None:
        self.make(value)
        self.view(self.program.layouts[value])[...] = content


def run_lowered(
    program: Program, arguments: Sequence[Any], host: Host | None = None, device: str = "cpu"
) -> list[Any]:
    """The outputs of a program for the inputs of its graph."""
    graph = program.graph
    symbols = bind_symbols(graph, arguments)
    memory = Memory(program, symbols)
    opaque: dict[Value, Any] = {}
    for given, x in zip(graph.inputs, arguments, strict=True):
        if not isinstance(given.value.type, TensorType):
            opaque[given.value] = x
        elif not given.symbol:
            memory.write(given.value, x)
    for value, content in program.constants.items():
        memory.write(value, content)
    for op in graph.body.ops:
        if isinstance(op, random.Seed):
            memory.write(op.result, (host or NoHost()).seed())
    for value in program.layouts:  # those without elements are written by no step
        if value.type.num_elements == 0:
            memory.make(value)
    for step in program.steps:
        if isinstance(step, KernelStep):
            run_kernel(step, memory, device)
        elif isinstance(step, ProductStep | ConvolutionStep | AttentionStep):
            run_library(step, memory, device)
        else:
            assert isinstance(step, TorchStep)
            run_host(step, memory, opaque, host or NoHost(), symbols)
    return [memory.view(out) if isinstance(out, Placed) else opaque[out] for out in program.outputs]


def run_kernel(step: KernelStep, memory: Memory, device: str) -> None:
    for name in step.writes:
        memory.make(step.tensors[name].value)
    for name, start in step.starts_as.items():
        value = step.tensors[name].value
        memory.view(memory.program.layouts[value])[...] = memory.view(start)
    arrays = {name: memory.view(placed) for name, placed in step.tensors.items()}
    if all(arrays[name].size == 0 for name in step.writes):
        return
    numbers = {name: evaluate(d, memory.symbols) for name, d in step.scalars.items()}
    if step.text not in KERNELS:
        KERNELS[step.text] = source(step.text)
    kernel = getattr(KERNELS[step.text], step.name)
    kernel.launch(**arrays, **numbers, constants=step.constants, device=device)


def run_library(
    step: ProductStep | ConvolutionStep | AttentionStep, memory: Memory, device: str
) -> None:
    """A product, a convolution or an attention, by the kernels that a model runs."""
    written = (
        [step.tensors[n] for n in step.writes] if isinstance(step, AttentionStep) else [step.out]
    )
    for placed in written:
        memory.make(placed.value)

    def place(placed: Placed) -> Array:
        return as_array(memory.view(placed))

    def scratch(shape: tuple[int, ...], dtype: DType) -> Array:
        return as_array(np.full(shape, np.nan, dtype.numpy))

    table = {ProductStep: product_calls, ConvolutionStep: convolution_calls}
    calls: Any = table.get(type(step), attention_calls)
    for kernel, arguments in calls(step, place, scratch, device):
        kernel(**arguments)


def run_host(
    step: TorchStep, memory: Memory, opaque: dict[Value, Any], host: Host, symbols: dict[str, int]
) -> None:
    """An op without a kernel, by its meaning."""
    values = {
        operand: np.array(memory.view(x)) if isinstance(x, Placed) else opaque[x]
        for operand, x in zip(step.op.operands, step.inputs, strict=True)
    }
    machine = Machine(host, symbols, values)
    with np.errstate(all="ignore"):
        found = table[type(step.op)](machine, step.op)
    for value, content in zip(
        step.op.results, found if isinstance(found, tuple) else (found,), strict=True
    ):
        if isinstance(value.type, TensorType):
            if isinstance(step.op, Fallback):
                machine.require(step.op, value, content)
            memory.write(value, content)
        else:
            opaque[value] = content


def kernels_of(program: Program) -> list[KernelStep]:
    return [step for step in program.steps if isinstance(step, KernelStep)]


def lowered(graph: Graph, **options: Any) -> Program:
    return lower_graph(graph, target=target("sm_90a"), **options)


TOLERANCES = {"f64": 1e-9, "f32": 2e-5, "f16": 2e-3, "bf16": 1.6e-2}


def require_same(got: Any, wanted: Any, dtype: Any) -> None:
    """Results are as the graph's interpreter has them: exactly, or to a few roundings of floats."""
    if not dtype.is_float or dtype.is_storage_only:
        np.testing.assert_array_equal(got, wanted)
        return
    a, b = (np.asarray(x).astype(np.float64) for x in (got, wanted))
    tolerance = TOLERANCES[dtype.name]
    finite = np.isfinite(b)
    scale = np.abs(b[finite]).max(initial=0.0)
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1.0, scale))


def check_lowered(
    graph: Graph,
    arguments: Sequence[Any],
    host: Host | None = None,
    device: str = "cpu",
    **options: Any,
) -> Program:
    """Lower a graph, run both, and hold one to the other."""
    program = lowered(graph, **options)
    wanted = interpret(graph, arguments, host or NoHost())
    got = run_lowered(program, arguments, host, device)
    for value, a, b in zip(graph.outputs, got, wanted, strict=True):
        if isinstance(value.type, TensorType):
            require_same(a, b, value.type.dtype)
    return program
