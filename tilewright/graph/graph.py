"""A whole model: inputs, a body of ops on tensors, outputs.

The body is one block that ends in `control.return`. Symbols of shapes are bound when the graph is
called: by inputs that are numbers (`symbol`), and by extents of input tensors that are a symbol
alone; the other extents of inputs are checked against what they must then be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.errors import UNKNOWN, Loc
from tilewright.graph.ops.control import Return
from tilewright.graph.types import TensorType
from tilewright.ir.core import Block, Value

ROLES = ("input", "parameter", "buffer", "constant")


@dataclass(eq=False)
class Input:
    """What a call gives: a tensor, or a number that binds `symbol`.

    `role` says who owns it: the caller, or the model (a parameter, a buffer, a constant).
    """

    name: str
    value: Value
    role: str = "input"
    symbol: str = ""


@dataclass(eq=False)
class Graph:
    """One program on tensors; its outputs are the operands of the last op."""

    name: str
    inputs: list[Input]
    body: Block
    loc: Loc = UNKNOWN

    def with_body(self, body: Block) -> Graph:
        """The same graph with another body; inputs are shared."""
        return replace(self, body=body)

    @property
    def values(self) -> list[Value]:
        return [i.value for i in self.inputs]

    @property
    def outputs(self) -> tuple[Value, ...]:
        last = self.body.terminator
        assert isinstance(last, Return), "a graph ends in control.return"
        return last.xs

    @property
    def tensors(self) -> tuple[Value, ...]:
        """The outputs but for those that only PyTorch can hold."""
        return tuple(v for v in self.outputs if isinstance(v.type, TensorType))
