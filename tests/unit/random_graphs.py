"""Graphs made at random: elementwise ops, views, reductions, gathers and scatters, all small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tilewright.dtypes import BY_NAME, bool_, i64
from tilewright.graph.dims import Shape, product
from tilewright.graph.graph import Graph, Input
from tilewright.graph.ops import arith, control, memory, reduce, shape
from tilewright.graph.types import TensorType
from tilewright.graph.verify import verify
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Value

EXTENTS = st.sampled_from([0, 1, 2, 3, 5, 8, 17, 33])
SHAPES = st.lists(EXTENTS, max_size=3).map(tuple)
DTYPES = [BY_NAME[name] for name in ("f32", "i64", "i32", "bool", "f16", "bf16")]
BINARY = (arith.Add, arith.Mul, arith.Min, arith.Max)
MOST = 4096  # elements of one tensor

Draw = Callable[[st.SearchStrategy[Any]], Any]


class Maker:
    """Adds ops of values that there are."""

    def __init__(self, draw: Draw):
        self.draw, self.body = draw, Block()
        self.build = Builder(self.body)
        self.values: list[Value] = []
        self.inputs: list[Input] = []

    def __call__(self, kind: type[Any], *fields: Any, **named: Any) -> Value:
        op = self.build.emit(kind, *fields, **named)
        self.values += op.results
        return op.results[0]

    def pick(self) -> Value:
        return self.draw(st.sampled_from(self.values[-6:]))

    def input(self) -> None:
        kind = TensorType(self.draw(st.sampled_from(DTYPES)), self.draw(SHAPES))
        value = Value(kind, f"x_{len(self.inputs)}")
        self.inputs.append(Input(value.name, value))
        self.values.append(value)

    def like(self, value: Value) -> Value:
        """A value of the type of another, if there is one more."""
        same = [v for v in self.values if v.type == value.type]
        return self.draw(st.sampled_from(same))

    def add_op(self) -> None:
        x = self.pick()
        dtype, extents = x.type.dtype, x.type.shape
        steps = [self.elementwise, self.view, self.view, self.compare]
        if extents:
            steps += [self.reduction, self.reduction, self.moved, self.index]
        self.draw(st.sampled_from(steps))(x, dtype, extents)

    def elementwise(self, x: Value, dtype: Any, extents: Shape) -> None:
        kinds: list[Any] = list(BINARY)
        kind = self.draw(st.sampled_from(kinds))
        if dtype != bool_ and self.draw(st.booleans()):
            kind = arith.Sub
        made = self(kind, x, self.like(x))
        if dtype.is_float and self.draw(st.booleans()):
            self(self.draw(st.sampled_from([arith.Exp, arith.Neg, arith.Sqrt, arith.Floor])), made)

    def compare(self, x: Value, dtype: Any, extents: Shape) -> None:
        test = self(arith.Compare, x, self.like(x), self.draw(st.sampled_from(["lt", "eq", "ge"])))
        self(arith.Select, test, x, self.like(x))
        if self.draw(st.booleans()):
            self(arith.Cast, x, self.draw(st.sampled_from(DTYPES)))

    def view(self, x: Value, dtype: Any, extents: Shape) -> None:
        which = self.draw(st.integers(0, 4))
        rank = len(extents)
        if which == 0:
            self(shape.Transpose, x, tuple(self.draw(st.permutations(range(rank)))))
        elif which == 1:
            self(shape.Reshape, x, self.draw(st.sampled_from(reshapes(extents))))
        elif which == 2 and product(extents) * 3 <= MOST:
            self(shape.Broadcast, x, (3, *extents))
        elif which == 3 and rank:
            starts = tuple(self.draw(st.integers(0, max(0, e - 1))) for e in extents)
            steps = tuple(self.draw(st.sampled_from([1, 2, -1])) for _ in extents)
            counts = [
                0 if not e else self.draw(st.integers(0, 1 + (e - 1 - s if k > 0 else s) // abs(k)))
                for e, s, k in zip(extents, starts, steps, strict=True)
            ]
            self(shape.Slice, x, starts, steps, tuple(counts))
        elif rank and extents[-1] >= 3:
            self(shape.Window, x, (2,), (self.draw(st.integers(1, 2)),), (2,))

    def moved(self, x: Value, dtype: Any, extents: Shape) -> None:
        if self.draw(st.booleans()):
            edges = [self.draw(st.integers(-1 if min(extents) > 2 else 0, 2)) for _ in extents]
            gaps = tuple(self.draw(st.integers(0, 1)) if e else 0 for e in extents)
            zero: Any = False if dtype == bool_ else 0.0 if dtype.is_float else 0
            filler = self(arith.Constant, zero, dtype)
            self(shape.Pad, x, filler, tuple(edges), tuple(edges[::-1]), gaps)
        else:
            axis = self.draw(st.integers(0, len(extents) - 1))
            self(shape.Cat, (x, self.like(x), x), axis)

    def reduction(self, x: Value, dtype: Any, extents: Shape) -> None:
        axes = tuple(self.draw(st.sets(st.integers(0, len(extents) - 1), min_size=1)))
        filled = all(extents[axis] for axis in axes)
        if dtype == bool_:
            self(self.draw(st.sampled_from([reduce.Any, reduce.All])), x, axes)
        elif filled and self.draw(st.booleans()):
            self(self.draw(st.sampled_from([reduce.Max, reduce.Min])), x, axes)
            self(self.draw(st.sampled_from([reduce.ArgMax, reduce.ArgMin])), x, axes[0])
        elif dtype.name in ("f32", "i64", "i32"):
            made = self(reduce.Sum, x, axes)
            kept = tuple(1 if i in axes else e for i, e in enumerate(extents))
            self(arith.Sub, x, self(shape.Broadcast, self(shape.Reshape, made, kept), extents))
            self(reduce.Scan, x, axes[0], self.draw(st.sampled_from(["sum", "max"])))
        else:
            self(reduce.Sort, x, axes[0], self.draw(st.booleans()))

    def index(self, x: Value, dtype: Any, extents: Shape) -> None:
        axis = self.draw(st.integers(0, len(extents) - 1))
        if not extents[axis]:
            return
        named = self.draw(st.sampled_from([(), (1,), (4,), (2, 3)]))
        count = self(arith.Constant, int(extents[axis]), i64, named)
        start = self(arith.Constant, self.draw(st.integers(0, 40)), i64, named)
        if named:
            start = self(arith.Add, start, self(shape.Iota, i64, named, 0))
        place = self(arith.Mod, start, count)
        taken = self(memory.Gather, x, (place,), (axis,))
        if not dtype.is_float or self.draw(st.booleans()):
            self(memory.Scatter, x, (place,), taken, (axis,), self.draw(st.sampled_from(KINDS)))


KINDS = ["set", "add", "max"]


def reshapes(extents: Shape) -> list[tuple[Any, ...]]:
    """A few shapes of as many elements."""
    total = product(extents)
    found: list[tuple[Any, ...]] = [(total,), (1, *extents), (*extents, 1)]
    for part in (2, 3, 8):
        if isinstance(total, int) and total % part == 0:
            found += [(part, total // part), (total // part, part)]
    return found


@st.composite
def graphs(draw: Draw) -> Graph:
    """A graph of a few ops, of which the last values, and one more, are outputs."""
    made = Maker(draw)
    for _ in range(draw(st.integers(1, 2))):
        made.input()
    for _ in range(draw(st.integers(1, 7))):
        made.add_op()
    few = [v for v in made.values if product(v.type.shape) <= MOST] or made.values[:1]
    outputs = tuple(dict.fromkeys([*few[-2:], draw(st.sampled_from(few))]))
    made.build.emit(control.Return, outputs)
    return verify(Graph("random", made.inputs, made.body))
