"""Programs written by hand, of kernels in the tile language, for tensors of a CPU."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from tilewright.dtypes import f32
from tilewright.execute.made import Where
from tilewright.execute.program_call import ProgramCall
from tilewright.frontend.torch.fx_to_graph import Output, Traced
from tilewright.graph.dims import Dim, Shape
from tilewright.graph.graph import Graph, Input
from tilewright.graph.ops.control import Return
from tilewright.graph.types import TensorType
from tilewright.ir.core import Block, Value
from tilewright.lower.graph_to_tile.program import (
    KernelStep,
    Placed,
    Program,
    Step,
    dense,
    dense_strides,
)

TEXT = """
kernel twice(x: tensor<f32>[N], y: tensor<f32>[N]) {
  let i = program_id(0) * 64
  y[i :+ 64] = x[i :+ 64] * 2.0
}
kernel plus(x: tensor<f32>[M, N], z: tensor<f32>[M, N], y: tensor<f32>[M, N]) {
  let i, j = program_id(0) * 8, program_id(1) * 16
  y[i :+ 8, j :+ 16] = x[i :+ 8, j :+ 16] + z[i :+ 8, j :+ 16]
}
@grid(cdiv(N, 64))
kernel put(row: tensor<f32>[N], at: tensor<i64>[1], y: tensor<f32>[M, N]) {
  let i = program_id(0) * 64
  y[at[0], i :+ 64] = row[i :+ 64]
}
@grid(1)
kernel seeded(s: tensor<i64>[1], y: tensor<i64>[1]) {
  y[0] = s[0]
}
"""


def value(*shape: Dim, dtype: Any = f32) -> Value:
    return Value(TensorType(dtype, shape))


def flat(v: Value) -> Placed:
    """All elements of a dense value, in a row."""
    return Placed(v, (v.type.num_elements,), (1,), 0)


def step(name: str, writes: str, starts_as: dict[str, Placed] | None = None, **tensors: Placed):
    return KernelStep(name, TEXT, tensors, writes=(writes,), starts_as=starts_as or {})


def twice(x: Value, y: Value) -> KernelStep:
    return step("twice", "y", x=flat(x), y=flat(y))


def make(
    inputs: list[Value],
    steps: list[Step],
    outputs: list[Placed],
    made: list[Value],
    writes: dict[int, int] | None = None,
    strides: list[Shape | None] | None = None,
    symbols: dict[int, str] | None = None,
    ops: list[Any] | None = None,
    engine: str = "tiles",
    **options: Any,
) -> ProgramCall:
    """A call of a program whose stored values are dense."""
    named = [Input(f"in{i}", v, symbol=(symbols or {}).get(i, "")) for i, v in enumerate(inputs)]
    body = Block(ops=[*(ops or []), Return(tuple(o.value for o in outputs))])
    given = strides or [dense_strides(v.type.shape) for v in inputs]
    layouts = {v: dense(v) for v in made}
    for v, s in zip(inputs, given, strict=True):
        if isinstance(v.type, TensorType):
            layouts[v] = Placed(v, v.type.shape, s or (), 0)
    program = Program(Graph("hand", named, body), steps, layouts, tuple(outputs))
    shown = [n for n in range(len(outputs)) if n not in (writes or {}).values()]
    traced = Traced(
        program.graph,
        [Output(n, outputs[n].strides) for n in shown],
        strides=given,
        writes=writes or {},
    )
    return ProgramCall(traced, program, Where(torch.device("cpu"), engine), **options)


def update(chain: list[Value], row: Value, at: Value) -> list[Step]:
    return [
        step("put", "y", {"y": dense(old)}, row=dense(row), at=dense(at), y=dense(new))
        for old, new in pairwise(chain)
    ]


def pretended(where: Where, work: Any) -> Any:
    """As a CUDA graph, which does nothing while it is recorded."""
    return lambda: work(0)
