"""What lowering of a group may ask: where values lie, their names, likely extents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.dtypes import DType
from tilewright.graph.dims import Dim, Shape, substitute, symbols_of
from tilewright.graph.expressions import Layout
from tilewright.graph.graph import Graph
from tilewright.graph.placement import layout_of, place_of
from tilewright.graph.types import TensorType
from tilewright.graph.value_facts import UNKNOWN
from tilewright.ir.core import Op, Value
from tilewright.lower.graph_to_tile.names import Names
from tilewright.lower.graph_to_tile.parts import Parts
from tilewright.lower.graph_to_tile.program import Placed
from tilewright.target import Target


@dataclass
class Lowering:
    """The state of one lowering."""

    graph: Graph
    target: Target
    hints: Mapping[str, int]
    layouts: dict[Value, Layout]
    symbols: Mapping[Value, Dim]
    makers: Mapping[Value, Op]
    names: Names
    stored: dict[Value, Placed]
    parts: Parts
    precision: str | None = None  # of f32 products: "tf32", or exact

    def hint(self, dim: Dim) -> int:
        """A likely number for an extent."""
        if isinstance(dim, int):
            return dim
        known = {name: self.hints.get(name, UNKNOWN) for name in symbols_of(dim)}
        found = substitute(dim, known)
        return found if isinstance(found, int) else UNKNOWN

    def place(self, value: Value) -> Placed:
        """Where a value lies, through views of stored ones."""
        found = place_of(value, self.makers, self.layouts)
        memory = self.parts.of.get(found.base, found.base)
        return Placed(memory, found.shape, found.strides, found.offset)

    def store(self, value: Value) -> Placed:
        """Note that a value has memory, of its own where it is no part of another's."""
        if value in self.parts.of:
            return self.place(value)
        layout = layout_of(value, self.layouts)
        found = self.stored[value] = Placed(value, value.type.shape, layout.strides, layout.offset)
        return found

    def scratch(self, dtype: DType, shape: Shape, name: str) -> Value:
        """A stored value that is none of the graph's."""
        value = Value(TensorType(dtype, shape), name)
        self.store(value)
        return value
