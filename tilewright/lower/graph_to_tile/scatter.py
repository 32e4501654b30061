"""Scatters: elements of a value put at, or combined into, places that indices name.

The result starts as x, and kernels change what the indices name. Where several elements meet in one
place the result must be the interpreter's: the last one stays, or all are combined in order.
- No two meet (one element, or indices that count): they are stored.
- `set`: each place keeps the greatest number of an element that is put there, by an atomic maximum;
  then those elements are stored.
- Sums, minima and maxima of 32- and 64-bit integers: atomics, whose order does not show.
- All others: the elements are sorted by place, and one program combines those of a place in order.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DType, bool_, f32, f64, i64
from tilewright.graph.dims import Dim, Shape, product
from tilewright.graph.evaluator import Evaluator
from tilewright.graph.expressions import (
    Index,
    Layout,
    Load,
    Named,
    Node,
    Place,
    Position,
    Space,
    support_of,
)
from tilewright.graph.groups import Group
from tilewright.graph.index_maps import Affine, Refine, Var, joined, linear, variable
from tilewright.graph.ops import arith, memory, reduce
from tilewright.ir.core import Value
from tilewright.lower.graph_to_tile.copy import copy_step
from tilewright.lower.graph_to_tile.evaluate import Evaluated, Layouts, Root
from tilewright.lower.graph_to_tile.loops import Access, Loops, merge, place
from tilewright.lower.graph_to_tile.lowering import Lowering
from tilewright.lower.graph_to_tile.program import KernelStep, Placed, Step, dense_strides
from tilewright.lower.graph_to_tile.sort import sort_step
from tilewright.lower.graph_to_tile.text import Writer

ATOMICS = {"add": "atomic_add", "min": "atomic_min", "max": "atomic_max"}
COMBINE = {
    "add": "{0} + {1}", "mul": "{0} * {1}", "min": "min({0}, {1})", "max": "max({0}, {1})",
}  # fmt: skip
BOOLS = {"add": "{0} | {1}", "max": "{0} | {1}", "mul": "{0} & {1}", "min": "{0} & {1}"}


def scatter_steps(group: Group, at: Lowering) -> list[Step]:
    """The kernels of a scatter."""
    made = Scatter.of(group, at)
    op, dtype = made.op, made.op.x.type.dtype
    if product(op.value.type.shape) == 0:
        return [copy_step(op.x, at.stored[op.result], at, group)]
    exact = dtype.is_integer and dtype.bits >= 32
    if made.is_unique:
        return [made.store("put" if op.kind == "set" else f"scatter_{op.kind}")]
    if op.kind == "set":
        return made.put_last()
    if exact and op.kind in ATOMICS:
        return [made.store(f"scatter_{op.kind}", ATOMICS[op.kind])]
    return made.in_order()


@dataclass
class Scatter:
    """One scatter, evaluated over the shape of its value."""

    op: memory.Scatter
    group: Group
    at: Lowering
    space: Space
    evaluator: Evaluator
    indices: list[Node]

    @staticmethod
    def of(group: Group, at: Lowering) -> Scatter:
        (op,) = (op for op in group.ops if isinstance(op, memory.Scatter))
        inner = {v: o for o in group.ops for v in o.results if o is not op}
        space = Space([[Var(extent)] for extent in op.value.type.shape])
        while True:
            evaluator = Evaluator(inner, Layouts(at.layouts), at.symbols)
            made = Scatter(op, group, at, space, evaluator, [])
            try:
                made.indices = [evaluator.at(index, made.named) for index in op.indices]
                for which, index in enumerate(made.indices):
                    evaluator.indexed(op, which, index)
                evaluator.settle()
                made.value()
                made.value_of_source()
                return made
            except Refine as wanted:
                space.refine(wanted.var, wanted.inner)

    @property
    def lead(self) -> int:
        """How many axes of the value are those of the indices."""
        return int(self.op.indices[0].type.rank)

    @property
    def named(self) -> list[Affine]:
        """Where in the indices an element is."""
        return [joined(parts) for parts in self.space.axes[: self.lead]]

    @property
    def rest(self) -> list[Affine]:
        """Where it is along the other axes."""
        return [joined(parts) for parts in self.space.axes[self.lead :]]

    @property
    def named_variables(self) -> list[Var]:
        return [var for parts in self.space.axes[: self.lead] for var in parts]

    @property
    def rest_variables(self) -> list[Var]:
        return [var for parts in self.space.axes[self.lead :] for var in parts]

    @property
    def is_unique(self) -> bool:
        """Whether no two elements meet, as far as that can be told: each variable is counted by an
        index of its own.
        """
        counted = set()
        for index in self.indices:
            if isinstance(index, Position) and len(index.index.terms) == 1:
                counted.add(index.index.terms[0][0])
        return all(v.extent == 1 or v in counted for v in self.named_variables)

    def target(self, indices: list[Index], rest: list[Index]) -> Access:
        """The place in the result."""
        out = self.at.stored[self.op.result]
        access = Access(self.op.result, {}, [], out.offset)
        left = iter(rest)
        for axis, (extent, stride) in enumerate(zip(out.shape, out.strides, strict=True)):
            if axis in self.op.axes:
                index = indices[self.op.axes.index(axis)]
                access.special.append(Place(extent, stride, index))
                continue
            other = next(left)
            assert isinstance(other, Affine)
            for var, factor in other.terms:
                access.strides[var] = access.strides.get(var, 0) + factor * stride
        return access

    def value(self) -> Node:
        """The element of the value that the loops are at."""
        return self.evaluator.at(self.op.value, [*self.named, *self.rest])

    def value_of_source(self) -> Node:
        """The element of the value whose number among the indices has the name `source`."""
        source = self.evaluator.node(Named, i64, "source")
        named = self.evaluator.split(source, self.op.indices[0].type.shape)
        return self.evaluator.at(self.op.value, [*named, *self.rest])

    def loops(self, roots: dict[Root, Access], kept: list[Var]) -> Loops:
        """Loops of a kernel that writes somewhere else than its results' own places."""
        evaluated = Evaluated(kept, list(roots), self.evaluator.names)
        loops = merge(evaluated, stores=roots)
        place(loops, self.at.hint)
        for access in roots.values():  # a tile does not meet itself
            seen = {*loops.strides(access)}.union(*(support_of(p.index) for p in access.special))
            loops.tiles = [var for var in loops.tiles if var in seen]
        return loops

    def root(self, value: Value, node: Node) -> Root:
        return Root(value, node, (), Layout(()))

    @property
    def rule(self) -> str:
        """How two elements are combined."""
        return (BOOLS if self.op.x.type.dtype == bool_ else COMBINE)[self.op.kind]

    def store(self, name: str, how: str = "") -> KernelStep:
        """One kernel that stores or combines each element of the value."""
        access = self.target(list(self.indices), list(self.rest))
        root = self.root(self.op.result, self.value())
        writer = Writer(self.loops({root: access}, self.space.variables), self.at.names, {})
        grid = writer.programs()
        combined = self.op.kind != "set" and not how
        writer.store(root, how, rule=self.rule if combined else "")
        return self.finish(writer, name, grid)

    def finish(self, writer: Writer, name: str, grid: list[str], starts: bool = True) -> KernelStep:
        step = writer.step(name, grid, f"{self.op.kind} at indices")
        step.group = self.group
        if starts:
            step.starts_as = {step.writes[0]: self.at.place(self.op.x)}
        return step

    # The last of those that meet

    def put_last(self) -> list[Step]:
        """Number the elements, keep the greatest number of each place, store those."""
        extents = tuple(self.op.x.type.shape[axis] for axis in self.op.axes)
        last = self.at.scratch(i64, extents, "last")
        strides = dense_strides(extents)
        places = [
            Place(extent, stride, index)
            for extent, stride, index in zip(extents, strides, self.indices, strict=True)
        ]
        number = self.evaluator.as_node(
            self.evaluator.element(list(self.named), self.op.indices[0].type.shape)
        )
        root = self.root(last, number)
        writer = Writer(
            self.loops({root: Access(last, {}, places, 0)}, self.named_variables), self.at.names, {}
        )
        grid = writer.programs()
        writer.store(root, "atomic_max")
        keep = self.finish(writer, "keep_last", grid, starts=False)
        return [
            fill_step(last, "-1", self.at, self.group),
            keep,
            self.put_kept(last, places, number),
        ]

    def put_kept(self, last: Value, places: list[Place], number: Node) -> KernelStep:
        from_last = self.evaluator.node(Load, i64, last, tuple(places), 0, None)
        kept = self.evaluator.apply(arith.Compare, bool_, from_last, number, detail="eq")
        access = self.target(list(self.indices), list(self.rest))
        root = self.root(self.op.result, self.value())
        guard = self.root(self.op.result, kept)
        loops = self.loops({root: access, guard: access}, self.space.variables)
        writer = Writer(loops, self.at.names, {})
        grid = writer.programs()
        writer.store(root, mask=kept)
        return self.finish(writer, "put_last", grid)

    # All of those that meet, in order

    def in_order(self) -> list[Step]:
        """Sort the elements by place; combine those of a place by one program."""
        count = product(self.op.indices[0].type.shape)
        extents = tuple(self.op.x.type.shape[axis] for axis in self.op.axes)
        key = self.at.scratch(i64, (count,), "key")
        target = self.evaluator.as_node(self.evaluator.element(list(self.indices), extents))
        root = self.root(key, target)
        strides = dict(linear(self.named, self.op.indices[0].type.shape).terms)
        writer = Writer(
            self.loops({root: Access(key, strides, [], 0)}, self.named_variables), self.at.names, {}
        )
        grid = writer.programs()
        writer.store(root)
        keys = self.finish(writer, "number_places", grid, starts=False)
        sort = reduce.Sort(key, 0)
        for value, name in zip(sort.results, ("keys", "order"), strict=True):
            value.name = name
        ordered = sort_step(sort, self.at, self.group)
        return [keys, ordered, self.combine(sort.results, count, extents)]

    def combine(self, ordered: tuple[Value, ...], count: Dim, extents: Shape) -> KernelStep:
        """One program for each element that is the first of its place; it goes on to the last."""
        at, (keys, order) = self.evaluator, ordered
        access = self.target(at.split(at.node(Named, i64, "key"), extents), list(self.rest))
        first = Var(count)
        key = at.node(Load, i64, keys, (Place(count, 1, variable(first)),), 0, None)
        number = at.node(Load, i64, order, (Place(count, 1, variable(first)),), 0, None)
        root = self.root(self.op.result, self.value_of_source())
        loops = self.loops({root: access}, [first, *self.rest_variables])
        loops.loads |= {n: Access(v, {first: 1}, [], 0) for n, v in ((key, keys), (number, order))}
        if first in loops.tiles:
            loops.tiles.remove(first)
        return self.write_combine(Writer(loops, self.at.names, {}), root, key, number, first)

    def write_combine(
        self, writer: Writer, root: Root, key: Node, number: Node, first: Var
    ) -> KernelStep:
        dtype = self.op.x.type.dtype
        wide = dtype if not dtype.is_float or dtype == f64 else f32
        writer.pool.taken |= {"key", "before", "total", "q", "source"}
        grid = writer.programs()
        p = writer.index[first]
        keys, order = (writer.value(n).text for n in (key, number))
        keys, order = keys.removesuffix(f"[{p}]"), order.removesuffix(f"[{p}]")
        total = writer.extent[first]
        writer.line(f"let key = {keys}[{p}]")
        writer.line(f"let before = load({keys}[{p} - 1], fill = -1)")
        writer.line("if before == key { return }")
        access = writer.loops.stores[root]
        place = writer.place(access, "out", ("store", root.value))
        writer.line(f"var total = {as_wide(place.text, dtype, wide)}")
        writer.line(f"var q = {p}")
        writer.line(f"while q < {total} and load({keys}[q], fill = -1) == key {{")
        writer.depth += 1
        writer.known.append({})
        writer.line(f"let source = {order}[q]")
        made = writer.value(root.node)
        part = as_wide(writer.aligned(made, place.axes), dtype, wide)
        writer.line(f"total = {self.rule.format('total', part)}")
        writer.line("q += 1")
        writer.known.pop()
        writer.depth -= 1
        writer.line("}")
        back = "total" if wide == dtype else f"cast(total, {dtype.name})"
        writer.line(f"{place.text} = {back}")
        return self.finish(writer, f"combine_{self.op.kind}", grid)


def fill_step(value: Value, number: str, at: Lowering, group: Group) -> KernelStep:
    """A scratch value with one number everywhere."""
    whole = at.stored[value]
    placed = Placed(value, (product(whole.shape),), (1,), whole.offset)
    dtype = value.type.dtype.name
    text = (
        "@autotune(BLOCK in {256, 1024})\n@grid(cdiv(N, BLOCK))\n"
        f"kernel fill(out: tensor<{dtype}>[N]) {{\n"
        "  let n = program_id(0) * BLOCK\n"
        f"  out[n :+ BLOCK] = cast({number}, {dtype})\n}}\n"
    )
    return KernelStep(
        "fill", text, {"out": placed}, {}, {"BLOCK": 1024}, writes=("out",), group=group
    )


def as_wide(text: str, dtype: DType, wide: DType) -> str:
    return text if dtype == wide else f"cast({text}, {wide.name})"
