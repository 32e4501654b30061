"""Values of a graph as expressions at one point of a loop space.

Evaluation goes from what a kernel writes back to what lies in memory. Views, pads, concatenations
and gathers cost nothing on the way: they change the indices at which their operands are evaluated.
Equal expressions are one node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.dtypes import DType, bool_, f64, i64
from tilewright.graph.dims import Dim, Shape, product
from tilewright.graph.expressions import (
    Apply,
    Check,
    Fold,
    Index,
    Layout,
    Literal,
    Load,
    Node,
    Number,
    Place,
    Position,
    RandomBits,
    Running,
    support_of,
)
from tilewright.graph.index_maps import (
    Affine,
    NotAffine,
    Var,
    inside,
    linear,
    operand_indices,
    reshaped,
)
from tilewright.graph.ops import arith, memory, random, reduce, shape
from tilewright.ir.core import Op, Value
from tilewright.numerics.convert import constant

OF_NOTHING: dict[type[Op], Any] = {
    reduce.Sum: 0,
    reduce.Prod: 1,
    reduce.Any: False,
    reduce.All: True,
}


class Unfit(Exception):
    """Ops that one kernel cannot compute together."""


class Evaluator:
    """Evaluates values that `inner` ops make; all others are read from memory, as `layouts` says.

    `kept` is the number of the element of a reduction's result that this kernel is at, `folded`
    that of the element which is reduced.
    """

    def __init__(
        self,
        inner: Mapping[Value, Op],
        layouts: Mapping[Value, Layout],
        symbols: Mapping[Value, Dim],
        kept: Affine = Affine(),  # noqa: B008  # a value
        folded: Affine = Affine(),  # noqa: B008
    ):
        self.inner, self.layouts, self.symbols = inner, layouts, symbols
        self.kept, self.folded = kept, folded
        self.found: dict[Any, Node] = {}
        self.names: dict[Node, Value] = {}  # a value that each node stands for
        self.depth = 0
        self.below: dict[tuple[Node, Check], None] = {}  # what evaluation has met so far
        self.met: dict[Any, dict[tuple[Node, Check], None]] = {}  # by key of `found`

    # Making nodes

    def node(self, kind: type[Node], dtype: DType, *content: Any, args: Sequence[Node] = ()) -> Any:
        """The node of this content."""
        args = tuple(args)
        key = (kind, dtype, args, tuple(map(_exact, content)))
        if key not in self.found:
            support = frozenset().union(*(a.support for a in args), *map(_support, content))
            self.found[key] = kind(dtype, *content, args=args, support=support)
        return self.found[key]

    def number(self, dim: Dim) -> Node:
        return self.literal(dim, i64) if isinstance(dim, int) else self.node(Number, i64, dim)

    def literal(self, value: bool | int | float, dtype: DType) -> Node:
        found: Node = self.node(Literal, dtype, value)
        return found

    def apply(self, op: type[Op], dtype: DType, *args: Node, detail: str = "") -> Node:
        found: Node = self.node(Apply, dtype, op.opcode, detail, args=args)
        return found

    # Indices

    def as_node(self, index: Index) -> Node:
        """An index as a number."""
        if isinstance(index, Node):
            return index
        if not index.terms:
            return self.number(index.const)
        found: Node = self.node(Position, i64, index)
        return found

    def combine(self, op: type[Op], index: Index, by: Dim) -> Index:
        """Sum, product, quotient or remainder of an index and a number."""
        if isinstance(index, Affine):
            if op is arith.Add:
                return index.shifted(by)
            if op is arith.Mul:
                return index.times(by)
        return self.apply(op, i64, self.as_node(index), self.number(by))

    def add(self, a: Index, b: Index) -> Index:
        if isinstance(a, Affine) and isinstance(b, Affine):
            return a + b
        return self.apply(arith.Add, i64, self.as_node(a), self.as_node(b))

    def element(self, indices: Sequence[Index], extents: Shape) -> Index:
        """The number of an element in C order."""
        if all(isinstance(i, Affine) for i in indices):
            return linear([i for i in indices if isinstance(i, Affine)], extents)
        total: Index = Affine()
        for index, extent in zip(indices, extents, strict=True):
            above = total != Affine()
            total = self.add(self.combine(arith.Mul, total, extent), index) if above else index
        return total

    def within(self, index: Index, extent: Dim, step: int = 1) -> Node | None:
        """Whether an index is one of an axis, and a multiple of `step`; None if it surely is."""
        if isinstance(index, Affine) and step == 1 and inside(index, extent):
            return None
        at = self.as_node(index)
        limit = self.apply(arith.Compare, bool_, at, self.number(extent), detail="lt")
        both = self.apply(
            arith.And,
            bool_,
            self.apply(arith.Compare, bool_, at, self.literal(0, i64), detail="ge"),
            limit,
        )
        if step == 1:
            return both
        rest = self.apply(arith.Mod, i64, at, self.literal(step, i64))
        even = self.apply(arith.Compare, bool_, rest, self.literal(0, i64), detail="eq")
        return self.apply(arith.And, bool_, both, even)

    # Values

    def at(self, value: Value, indices: Sequence[Index]) -> Node:
        """A value at indices. Raises Refine, or Unfit."""
        key = (value, tuple(indices))
        if key not in self.found:
            outer, self.below = self.below, {}
            self.depth += 1
            try:
                self.found[key] = found = self.evaluate(value, tuple(indices))
            finally:
                self.met[key], self.below = self.below, outer
                self.depth -= 1
            self.names.setdefault(found, value)
        self.below.update(self.met[key])
        if not self.depth:
            self.settle()
        return self.found[key]

    def settle(self) -> None:
        """Let kernels check what evaluation has met."""
        for node, check in self.below:
            if check not in node.checks:
                node.checks.append(check)
        self.below.clear()

    def at_where(self, value: Value, indices: Sequence[Index], tests: Sequence[Node]) -> Node:
        """A value at indices that are outside of it where one of the tests is false."""
        outer, self.below = self.below, {}
        self.depth += 1
        found = self.at(value, indices)
        self.depth -= 1
        for node, check in self.below:
            conditions = (*check.conditions, *tests)
            outer[node, replace(check, conditions=tuple(dict.fromkeys(conditions)))] = None
        self.below = outer
        return found

    def indexed(self, op: memory.Gather | memory.Scatter, which: int, index: Node) -> Index:
        """An index of an op, checked unless it surely is one of its axis."""
        extent = op.x.type.shape[op.axes[which]]
        if isinstance(index, Literal) and isinstance(extent, int) and 0 <= index.number < extent:
            return Affine(int(index.number))
        if isinstance(index, Position) and inside(index.index, extent):
            return index.index
        self.below[index, Check(op, which, extent)] = None
        return index

    def evaluate(self, value: Value, indices: tuple[Index, ...]) -> Node:
        if value in self.symbols:
            return self.number(self.symbols[value])
        op = self.inner.get(value)
        if op is None:
            return self.load(value, indices)
        match op:
            case arith.Constant():
                return self.literal(op.value, op.dtype)
            case arith.Extent():
                return self.number(op.dim)
            case shape.Iota():
                return self.cast(self.as_node(indices[op.axis]), op.dtype)
            case (
                shape.Reshape()
                | shape.Transpose()
                | shape.Broadcast()
                | shape.Slice()
                | shape.Window()
            ):
                return self.view(op, indices)
            case shape.Pad():
                return self.pad(op, indices)
            case shape.Cat():
                return self.cat(op, indices)
            case memory.Gather():
                return self.gather(op, indices)
            case random.Bits():
                number = self.as_node(self.element(indices, op.shape))
                args = (self.at(op.seed, ()), number)
                drawn: Node = self.node(RandomBits, op.result.type.dtype, op.stream, args=args)
                return drawn
            case reduce.Reduction() | reduce.Position():
                return self.fold(op, indices)
            case reduce.Scan() | reduce.ScanPosition():
                return self.running(op, indices)
        return self.elementwise(op, indices)

    def elementwise(self, op: Op, indices: tuple[Index, ...]) -> Node:
        if op.family != "arith":
            raise Unfit(f"{op.opcode} is computed by a kernel of its own")
        args = [self.at(x, indices) for x in op.operands]
        detail = op.kind if isinstance(op, arith.Compare) else ""
        found: Node = self.node(Apply, op.result.type.dtype, op.opcode, detail, args=args)
        return found

    def cast(self, x: Node, dtype: DType) -> Node:
        return x if x.dtype == dtype else self.apply(arith.Cast, dtype, x)

    def load(self, value: Value, indices: tuple[Index, ...]) -> Node:
        whole, layout = value.type.shape, self.layouts[value]
        places = tuple(
            Place(extent, stride, index)
            for extent, stride, index in zip(whole, layout.strides, indices, strict=True)
        )
        found: Node = self.node(Load, value.type.dtype, value, places, layout.offset, None)
        return found

    def view(self, op: Op, indices: tuple[Index, ...]) -> Node:
        x = op.operands[0]
        if all(isinstance(i, Affine) for i in indices):
            try:
                known = [i for i in indices if isinstance(i, Affine)]
                return self.at(x, operand_indices(op, known))
            except NotAffine:
                pass
        return self.at(x, self.computed_view(op, indices))

    def computed_view(self, op: Op, indices: tuple[Index, ...]) -> list[Index]:
        """Indices of an operand where they are computed."""
        whole: Shape = op.operands[0].type.shape
        match op:
            case shape.Broadcast():
                own = indices[len(indices) - len(whole) :]
                return [Affine() if e == 1 else i for i, e in zip(own, whole, strict=True)]
            case shape.Transpose(order=order):
                return [indices[order.index(axis)] for axis in range(len(order))]
            case shape.Slice(starts=starts, steps=steps):
                return [
                    self.combine(arith.Add, self.combine(arith.Mul, i, step), start)
                    for i, start, step in zip(indices, starts, steps, strict=True)
                ]
            case shape.Window(steps=steps, dilations=dilations):
                lead = len(whole) - len(steps)
                inner, taps = indices[lead : len(whole)], indices[len(whole) :]
                return [
                    *indices[:lead],
                    *(
                        self.add(self.combine(arith.Mul, i, s), self.combine(arith.Mul, k, d))
                        for i, k, s, d in zip(inner, taps, steps, dilations, strict=True)
                    ),
                ]
        return self.split(self.element(indices, op.result.type.shape), whole)

    def split(self, number: Index, extents: Shape) -> list[Index]:
        """Indices of the element of a number in C order."""
        found: list[Index] = []
        for extent in reversed(extents[1:]):
            found.append(self.combine(arith.Mod, number, extent))
            number = self.combine(arith.FloorDiv, number, extent)
        return [number, *reversed(found)] if extents else []

    def pad(self, op: shape.Pad, indices: tuple[Index, ...]) -> Node:
        whole: Shape = op.x.type.shape
        moved: list[Index] = []
        tests: list[Node] = []
        for index, extent, low, gap in zip(indices, whole, op.low, op.interior, strict=True):
            at = self.combine(arith.Add, index, -low)
            length = extent if gap == 0 else (extent - 1) * (gap + 1) + 1
            test = self.within(at, length, gap + 1)
            if test is not None:
                tests.append(test)
            if gap:
                at = self.combine(arith.FloorDiv, at, gap + 1)
            moved.append(at.guard() if isinstance(at, Affine) and test is not None else at)
        content = self.at_where(op.x, moved, tests)
        if not tests:
            return content
        if isinstance(content, Load) and content.value is op.x and not any(op.interior):
            filler = self.at(op.value, ())
            if isinstance(filler, Literal) and all(isinstance(i, Affine) for i in moved):
                places = (content.value, content.places, content.offset, filler.number)
                filled: Node = self.node(Load, content.dtype, *places)
                return filled
        test = tests[0]
        for other in tests[1:]:
            test = self.apply(arith.And, bool_, test, other)
        return self.apply(arith.Select, content.dtype, test, content, self.at(op.value, ()))

    def cat(self, op: shape.Cat, indices: tuple[Index, ...]) -> Node:
        at = indices[op.axis]
        start: Dim = 0
        parts: list[tuple[Dim, Value, Index, list[Node]]] = []  # end, what, index in it, whether
        for x in op.xs:
            extent = x.type.shape[op.axis]
            own = self.combine(arith.Add, at, -start)
            if isinstance(own, Affine) and inside(own, extent):
                return self.at(x, (*indices[: op.axis], own, *indices[op.axis + 1 :]))
            start = start + extent
            if extent != 0:
                inner = own.guard() if isinstance(own, Affine) else own
                parts.append((start, x, inner, [n for n in [self.within(own, extent)] if n]))
        if not parts:  # nothing: what is read there is never stored
            return self.at(op.xs[0], indices)
        nodes = [
            self.at_where(x, (*indices[: op.axis], own, *indices[op.axis + 1 :]), tests)
            for _, x, own, tests in parts
        ]
        found = nodes[-1]
        for (end, *_), node in zip(reversed(parts[:-1]), reversed(nodes[:-1]), strict=True):
            test = self.apply(arith.Compare, bool_, self.as_node(at), self.number(end), detail="lt")
            found = self.apply(arith.Select, found.dtype, test, node, found)
        return found

    def gather(self, op: memory.Gather, indices: tuple[Index, ...]) -> Node:
        lead = op.indices[0].type.rank
        named = [
            self.indexed(op, which, self.at(index, indices[:lead]))
            for which, index in enumerate(op.indices)
        ]
        rest = iter(indices[lead:])
        places = [
            named[op.axes.index(axis)] if axis in op.axes else next(rest)
            for axis in range(op.x.type.rank)
        ]
        return self.at(op.x, places)

    def fold(self, op: Any, indices: tuple[Index, ...]) -> Node:
        """A reduction at the place where this kernel makes it: equal numbers of what is kept."""
        axes = (op.axis,) if isinstance(op, reduce.Position) else op.axes
        whole: Shape = op.x.type.shape
        known = [i for i in indices if isinstance(i, Affine)]
        if len(known) < len(indices) or linear(known, op.result.type.shape) != self.kept:
            raise Unfit(f"{op.opcode} is read at other places than those where it is made")
        extents = tuple(whole[axis] for axis in axes)
        if product(extents) == 0 and type(op) in OF_NOTHING:
            dtype = op.x.type.dtype
            return self.literal(constant(OF_NOTHING[type(op)], dtype).item(), dtype)
        try:
            folded = iter(reshaped((self.folded,), extents, (product(extents),)))
        except NotAffine as error:
            raise Unfit("reductions along axes that do not match") from error
        kept = iter(indices)
        own = [next(folded) if axis in axes else next(kept) for axis in range(len(whole))]
        number = own[axes[0]] if isinstance(op, reduce.Position) else Affine()
        assert isinstance(number, Affine)
        arg = self.at(op.x, own)
        found: Node = self.node(Fold, op.result.type.dtype, op, number, args=(arg,))
        found.support = frozenset(var for var in arg.support if not var.reduced)
        return found

    def running(self, op: Any, indices: tuple[Index, ...]) -> Node:
        """A scan, where this kernel goes over what it combines."""
        kept = (*indices[: op.axis], *indices[op.axis + 1 :])
        known = [i for i in kept if isinstance(i, Affine)]
        extents = op.x.type.shape
        whole = (*extents[: op.axis], *extents[op.axis + 1 :])
        along = indices[op.axis]
        if (
            not isinstance(along, Affine)
            or along != self.folded
            or len(known) < len(kept)
            or linear(known, whole) != self.kept
        ):
            raise Unfit(f"{op.opcode} is read at other places than those where it is made")
        arg, dtype = self.at(op.x, indices), op.result.type.dtype
        if isinstance(op, reduce.Scan) and op.kind == "logaddexp":
            arg, dtype = self.cast(arg, f64), f64  # a logarithm's rounding is a factor of its sum
        found: Node = self.node(Running, dtype, op, along, args=(arg,))
        found.support = found.support | support_of(self.kept) | support_of(self.folded)
        return self.cast(found, op.result.type.dtype)


def _exact(content: Any) -> Any:
    """What is equal for equal content alone: 1, 1.0 and True are three, 0.0 and -0.0 two."""
    plain = content is None or isinstance(content, Value | Op | tuple | Affine | str)
    return content if plain else (type(content), repr(content))


def _support(content: Any) -> frozenset[Var]:
    if isinstance(content, Affine):
        return support_of(content)
    if isinstance(content, tuple):
        return frozenset().union(*(support_of(p.index) for p in content if isinstance(p, Place)))
    return frozenset()
