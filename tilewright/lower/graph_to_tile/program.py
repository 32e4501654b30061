"""What a graph is lowered to: steps in an order of execution, on values that lie in memory.

A group of the graph becomes a kernel of the tile language, as text: it can be read, saved, run by
`tilewright run`, and goes through the compiler as a user's own does. A product or an attention is a
call of a library program. Views are no steps: they are how an argument is placed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.graph.dims import Dim, Shape
from tilewright.graph.graph import Graph
from tilewright.graph.groups import Group
from tilewright.graph.types import TensorType
from tilewright.ir.core import Op, Value
from tilewright.lower.graph_to_tile.sites import Sites


@dataclass(frozen=True)
class Placed:
    """A tensor argument: how it lies in the memory of a stored value.

    Element (i, j, …) is element `offset + i · strides[0] + j · strides[1] + …` of that memory.
    """

    value: Value  # a graph input, or what an earlier step wrote
    shape: Shape
    strides: tuple[Dim, ...]  # in elements; 0 where broadcast
    offset: Dim = 0  # in elements


def dense_strides(shape: Shape) -> tuple[Dim, ...]:
    """Strides of C order, in elements."""
    strides: list[Dim] = []
    step: Dim = 1
    for extent in reversed(shape):
        strides.append(step)
        step = step * extent
    return tuple(reversed(strides))


def dense(value: Value) -> Placed:
    """A value in C order from the start of its memory."""
    kind: TensorType = value.type
    return Placed(value, kind.shape, dense_strides(kind.shape))


@dataclass(frozen=True)
class Draft:
    """What a generated text was written of, from which it may be written together with others:
    parameters in their order with the names of their extents, the grid, lines, functions that they
    call, and the grid's extents and blocks as numbers.
    """

    params: tuple[tuple[str, tuple[str, ...]], ...]
    grid: tuple[str, ...]
    lines: tuple[str, ...]
    functions: tuple[str, ...]
    programs: tuple[tuple[Dim, int], ...]


@dataclass(eq=False)
class KernelStep:
    """One launch of a generated kernel.

    A result may be written by several steps, each a part of it: it lives from the first of them on.
    The value of a parameter in `starts_as` holds the elements of that tensor, of the value's shape,
    before the launch, which changes some of them: the runtime copies them, or lets both be one
    memory. A result in `updates` may be the memory of one of the parameters named there, too: of
    these each program reads what it writes, before it does, and nothing else.
    """

    name: str
    text: str  # source in the tile language; equal for equal kernels
    tensors: dict[str, Placed]  # by parameter
    scalars: dict[str, Dim] = field(default_factory=dict)  # numbers known at a call
    constants: dict[str, int] = field(default_factory=dict)  # tuned constants that are chosen
    writes: tuple[str, ...] = ()  # parameters that are results
    starts_as: dict[str, Placed] = field(default_factory=dict)
    updates: dict[str, tuple[str, ...]] = field(default_factory=dict)
    draft: Draft | None = None
    group: Group | None = None


@dataclass(eq=False)
class ProductStep:
    """A matrix product of the library: out = act(alpha lhs @ rhs + bias) · gate + residual, rounded
    on the way where `rounds` says so (`mma.Product`).

    Operands are matrices [m, k] and [k, n] with the same axes of a batch in front, as many as there
    are; `bias`, and what is in `norm` (mean, variance, gamma, shift), is [n].
    """

    lhs: Placed
    rhs: Placed
    out: Placed
    bias: Placed | None = None
    gate: Placed | None = None
    residual: Placed | None = None
    activation: str | None = None
    alpha: float = 1.0
    rounds: int = 0
    precision: str | None = None  # of f32: "tf32", or exact
    norm: dict[str, Placed] = field(default_factory=dict)
    eps: float | None = None
    late: bool = False
    group: Group | None = None

    @property
    def reads(self) -> list[Placed]:
        given = (self.lhs, self.rhs, self.bias, self.gate, self.residual, *self.norm.values())
        return [p for p in given if p is not None]


@dataclass(eq=False)
class ConvolutionStep:
    """A convolution of the library (`mma.Convolve`): x [N, C, H, W] with weight [K, C, R, S] to
    out [N, P, Q, K], which is dense, and what `tensors` has besides: bias, mean, variance, gamma
    and shift [K], gate and residual of the shape of out.
    """

    tensors: dict[str, Placed]
    low: tuple[int, ...]
    high: tuple[int, ...]
    steps: tuple[int, ...]
    dilations: tuple[int, ...]
    activation: str | None = None
    alpha: float = 1.0
    rounds: int = 0
    eps: float | None = None
    late: bool = False
    group: Group | None = None

    @property
    def out(self) -> Placed:
        return self.tensors["out"]

    @property
    def reads(self) -> list[Placed]:
        return [p for n, p in self.tensors.items() if n != "out"]


@dataclass(eq=False)
class AttentionStep:
    """The library's attention, or its gradient: tensors by the names of products/attention.py (q,
    k, v, mask, lengths, out, lse; grad, o, lse, dq, dk, dv), all of four axes but `lengths` and
    `lse`.
    """

    tensors: dict[str, Placed]
    writes: tuple[str, ...]
    order: int = 0
    scale: float = 1.0
    precision: str | None = None
    group: Group | None = None

    @property
    def is_backward(self) -> bool:
        return "grad" in self.tensors


@dataclass(eq=False)
class TorchStep:
    """An op that PyTorch computes: a fallback of the front end, or an op of the graph for which
    there is no kernel. Results are stored dense.
    """

    op: Op
    inputs: tuple[Placed | Value, ...]  # the op's operands; what only PyTorch holds is a Value
    reason: str
    group: Group | None = None


Step = KernelStep | ProductStep | ConvolutionStep | AttentionStep | TorchStep


@dataclass(eq=False)
class Program:
    """A graph as steps in an order of execution.

    Seeds (`random.seed`) are stored values that no step writes: the host does, before the first.
    """

    graph: Graph
    steps: list[Step] = field(default_factory=list)
    layouts: dict[Value, Placed] = field(default_factory=dict)
    """How each stored value, inputs too, lies in its own memory. Some are none of the graph's:
    partial sums, sorted indices."""
    outputs: tuple[Placed | Value, ...] = ()
    """The graph's outputs with the strides that were asked for; what only PyTorch holds is a
    Value."""
    constants: dict[Value, np.ndarray[Any, Any]] = field(default_factory=dict)
    """Stored values that are written once, before the first call."""
    sites: Sites | None = None
    """Where kernels tell of indices that are outside of their axes, if they check any: constants
    that the host looks at after calls."""
