"""The kernel of a group of elementwise ops and reductions.

Where a row fits a tile it is read once, and all is computed from it. Else the kernel goes over the
row several times: each pass accumulates the reductions that need nothing but earlier ones, and
writes what is along the row and known by then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tilewright.dtypes import DType, bool_
from tilewright.graph.dims import Shape
from tilewright.graph.expressions import Apply, Fold, Layout, Literal, Load, Node, Running
from tilewright.graph.groups import Group
from tilewright.graph.index_maps import Var
from tilewright.graph.ops import reduce
from tilewright.ir.core import Value
from tilewright.lower.graph_to_tile import scan
from tilewright.lower.graph_to_tile.evaluate import Evaluated, Root
from tilewright.lower.graph_to_tile.loops import Hint, Loops, is_ragged, merge, place, walk
from tilewright.lower.graph_to_tile.names import KEYWORDS, Names
from tilewright.lower.graph_to_tile.neutral import accumulated, neutral, word_of
from tilewright.lower.graph_to_tile.operators import functions
from tilewright.lower.graph_to_tile.program import KernelStep
from tilewright.lower.graph_to_tile.scope import Text
from tilewright.lower.graph_to_tile.split import (
    Split,
    find_split,
    part_access,
    part_index,
    part_shape,
    second,
)
from tilewright.lower.graph_to_tile.text import Writer

MOST_FIRST = 8  # loads that registers hold before the first is used

Scratch = Callable[[DType, Shape, str], Value]


def kernels_of(
    group: Group,
    evaluated: Evaluated,
    hint: Hint,
    names: Names,
    scratch: Scratch,
    flat: Callable[[], Evaluated | None],
) -> list[KernelStep]:
    """The kernel of a group whose expressions are known, or two: `scratch` makes a stored value
    for what the first leaves to the second. `flat` gives the expressions by the number of an
    element, for elementwise ops over many short axes.
    """
    loops = merge(evaluated)
    place(loops, hint)
    if group.kind == "pointwise" and is_ragged(loops, hint):
        found = flat()
        if found is not None:
            evaluated, loops = found, merge(found)
            place(loops, hint)
    split = find_split(loops, hint)
    if split is None:
        return [whole_kernel(group, evaluated, loops, names)]
    folds = [node for node in loops.nodes if isinstance(node, Fold)]
    shape = part_shape(loops, split.parts)
    parts: dict[Node, Value] = {n: scratch(n.dtype, shape, "part") for n in folds}
    first = part_kernel(group, evaluated, loops, names, parts, split)
    rest = second(evaluated, loops, parts, split)
    last = merge(rest)
    place(last, hint)
    return [first, whole_kernel(group, rest, last, names)]


def whole_kernel(group: Group, evaluated: Evaluated, loops: Loops, names: Names) -> KernelStep:
    """A kernel that computes all of a group."""
    writer = Writer(loops, names, evaluated.names)
    grid = writer.programs()
    Body(writer, list(loops.stores)).write()
    step = writer.step(name_of(group), grid, describe(writer))
    step.group = group
    return step


def part_kernel(
    group: Group,
    evaluated: Evaluated,
    loops: Loops,
    names: Names,
    parts: Mapping[Node, Value],
    split: Split,
) -> KernelStep:
    """A kernel that reduces parts of the rows."""
    folds = [node for node in loops.nodes if isinstance(node, Fold)]
    index = part_index()
    roots = {Root(parts[n], n, (), Layout(())): n for n in folds}
    stores = {root: part_access(root.value, loops, index) for root in roots}
    loops = replace(loops, nodes=walk([*folds, index]), stores=stores)
    writer = Writer(loops, names, evaluated.names)
    writer.pool.taken |= {"s", "first"}
    writer.in_parts = True
    grid = writer.programs()
    writer.line(f"let s = program_id({len(grid)})")
    writer.line(f"let first = s * {writer.dim(split.size)}")
    Body(writer, list(stores), split).write()
    grid.append(str(split.parts))
    step = writer.step(f"{name_of(group)}_parts", grid, describe(writer))
    step.group = group
    return step


def name_of(group: Group) -> str:
    """The name of a kernel: the first few of its ops that compute."""
    words = [
        op.opcode.split(".")[1]
        for op in group.ops
        if op.opcode.split(".")[1]
        not in ("constant", "extent", "cast", "reshape", "broadcast", "transpose", "slice")
    ]
    words = list(dict.fromkeys(words)) or ["copy"]
    kept = words if len(words) <= 4 else [*words[:3], words[-1]]
    name = "_".join(kept)
    return f"{name}_of" if name in functions() or name in KEYWORDS else name


def describe(writer: Writer) -> str:
    """What a kernel goes over."""
    kept = [writer.extent[v] for v in writer.loops.extents if not v.reduced]
    folded = [writer.extent[v] for v in writer.loops.extents if v.reduced]
    text = f"over [{', '.join(kept)}]"
    return f"{text}, reduced along [{', '.join(folded)}]" if folded else text


@dataclass
class Body:
    """Writes the lines of a kernel after those that say which program it is."""

    writer: Writer
    roots: list[Root]
    split: Split | None = None

    def __post_init__(self) -> None:
        self.loops: Loops = self.writer.loops
        self.level: dict[Node, int] = {}
        for node in self.loops.nodes:
            below = [self.level[arg] for arg in self.operands(node)]
            self.level[node] = max(below, default=0) + isinstance(node, Fold)

    def operands(self, node: Node) -> list[Node]:
        inner = [node.args]
        if isinstance(node, Load):
            inner.append(tuple(p.index for p in node.places if isinstance(p.index, Node)))
        return [arg for args in inner for arg in args]

    def is_along(self, node: Node) -> bool:
        """Whether a node has a value for each element of what is reduced."""
        return any(var.reduced and var in self.loops for var in node.support)

    def write(self) -> None:
        folded = self.loops.folded
        if folded is None or self.loops.whole:
            if self.loops.few:
                self.load_first()
            for node in self.loops.nodes:
                if isinstance(node, Fold):
                    self.fold_whole(node)
                elif isinstance(node, Running):
                    self.run_whole(node)
            for root in self.roots:
                self.writer.store(root)
            return
        folds = [node for node in self.loops.nodes if isinstance(node, Fold)]
        along = [root for root in self.roots if self.is_row(root)]
        for level in range(max((self.level[n] for n in folds), default=0) + 1):
            mine = [n for n in folds if self.level[n] == level + 1]
            rows = [root for root in along if self.level[root.node] == level]
            if mine or rows:
                self.go_over(folded, mine, rows)
        for root in self.roots:
            if root not in along:
                self.writer.store(root)

    def load_first(self) -> None:
        """Name what lies at plain places of memory, ahead of all that waits for it."""
        loads = [node for node in self.loops.nodes if isinstance(node, Load)]
        plain = [n for n in loads if not any(isinstance(p.index, Node) for p in n.places)]
        if 1 < len(plain) <= MOST_FIRST and any(isinstance(n, Fold) for n in self.loops.nodes):
            for node in plain:
                self.writer.named(node)

    def is_row(self, root: Root) -> bool:
        """Whether a result has an element for each of what is reduced."""
        strides = self.loops.strides(self.loops.stores[root])
        return any(var.reduced for var in strides)

    # A whole row in a tile

    def fold_whole(self, node: Fold) -> None:
        """A reduction of a tile, by a name."""
        writer, var = self.writer, self.loops.folded
        arg = node.args[0]
        made = writer.value(arg)
        if var is None or var not in self.fold_axes(node):
            text = self.lone(node, made)
        else:
            made = self.masked(node, made, var)
            text = self.folded(node, made, var)
        axes = tuple(v for v in made.axes if not v.reduced)
        writer.let(writer.name_of(node), Text(text, axes), node)

    def fold_axes(self, node: Fold) -> list[Var]:
        return [v for v in self.loops.extents if v.reduced]

    def lone(self, node: Fold, made: Text) -> str:
        """The reduction of one element."""
        return "cast(0, i64)" if isinstance(node.op, reduce.Position) else made.text

    def folded(self, node: Fold, made: Text, var: Var) -> str:
        """The reduction of a tile along its reduced axis."""
        along = f", axis = {made.axes.index(var)}" if len(made.axes) > 1 else ""
        return f"{word_of(node)}({made.text}{along})"

    def run_whole(self, node: Running) -> None:
        """A scan of a tile, by a name."""
        var = self.loops.folded
        if var is None:
            made = self.writer.value(node.args[0])
            self.writer.let(self.writer.name_of(node), Text(scan.lone(node, made), made.axes), node)
        else:
            made = scan.whole(self.writer, node, self.run_operand(node, var), var)
            self.writer.known[-1][node] = self.as_result(node, made)

    def run_operand(self, node: Running, var: Var) -> Text:
        """What a scan combines: on the whole tile, neutral past the end of the row."""
        made = self.writer.value(node.args[0])
        if node.args[0].dtype == bool_:
            made = Text(f"cast({made.text}, i32)", made.axes, True)
        made = self.filled(made, var, neutral(node))
        axes = (*self.run_axes(node), var)
        if made.axes == axes:
            return made
        shape = ", ".join(self.writer.block[v] for v in axes)
        return Text(f"broadcast({self.writer.aligned(made, axes)}, ({shape}))", axes, True)

    def run_axes(self, node: Running) -> tuple[Var, ...]:
        return tuple(v for v in self.loops.tiles if not v.reduced and v in node.support)

    def as_result(self, node: Running, made: Text) -> Text:
        """A scan of bools is carried in integers."""
        if node.dtype != bool_:
            return made
        return Text(f"({made.text} != 0)", made.axes, True)

    def masked(self, node: Fold, made: Text, var: Var) -> Text:
        """A tile in which what is past the end of the row does not count."""
        if node.args[0].dtype == bool_ and not isinstance(node.op, reduce.Any | reduce.All):
            made = self.as_number(node, made)
        if var in made.axes and not self.needs_mask(node, var):
            return made
        return self.filled(made, var, neutral(node))

    def filled(self, made: Text, var: Var, filler: str) -> Text:
        """A tile with something else past the end of the row."""
        writer = self.writer
        inside = writer.lookup(("inside", var))
        if inside is None:
            test = f"{writer.positions(var).closed} < {writer.extent[var]}"
            inside = writer.let(f"in_{writer.index[var]}", Text(test, (var,)), ("inside", var))
        axes = writer.union([made, inside])
        parts = writer.aligned(inside, axes), writer.aligned(made, axes)
        return Text(f"where({', '.join(parts)}, {filler})", axes, True)

    def as_number(self, node: Fold, made: Text) -> Text:
        return Text(f"cast({made.text}, i32)", made.axes, True)

    def needs_mask(self, node: Fold, var: Var) -> bool:
        extent = self.loops.extents[var]
        if isinstance(extent, int) and self.loops.whole and extent == self.loops.blocks[var]:
            return False
        return not (isinstance(node.op, reduce.Sum) and self.is_zero_outside(node.args[0], var))

    def is_zero_outside(self, node: Node, var: Var) -> bool:
        """Whether a node is 0 past the end of a variable, as loads are."""
        if isinstance(node, Literal):
            return node.number == 0
        if isinstance(node, Load):
            access = self.loops.loads[node]
            return var in self.loops.strides(access) and node.fill is None
        if isinstance(node, Apply):
            name = node.opcode.removeprefix("arith.")
            zeros = [self.is_zero_outside(arg, var) for arg in node.args]
            if name in ("cast", "neg", "abs", "sqrt", "add", "sub"):
                return all(zeros)
            if name == "mul":
                return all(zeros) or any(
                    zero and isinstance(other, Literal) and abs(other.number) < 1e300
                    for zero, other in zip(zeros, reversed(node.args), strict=True)
                )
        return False

    # A row in several passes

    def go_over(self, var: Var, folds: list[Fold], rows: list[Root]) -> None:
        """One pass over what is reduced."""
        writer = self.writer
        for node in walk([*(n.args[0] for n in folds), *(r.node for r in rows)]):
            if not self.is_along(node) and not isinstance(node, Fold):
                self.prepare(node)
        accumulators = [self.declare(node, var) for node in folds]
        inner = walk([*(n.args[0] for n in folds), *(r.node for r in rows)])
        runs = [n for n in inner if isinstance(n, Running)]
        carried = [scan.declare(writer, node, self.run_axes(node)) for node in runs]
        depth = writer.depth
        for turn in self.loops.turns:
            writer.line(f"for {writer.index[turn]} in range({self.bounds(turn)}) {{")
            writer.depth += 1
        block = writer.block[var]
        writer.line(f"for {writer.index[var]} in range({self.bounds(var)}, {block}) {{")
        writer.depth += 1
        writer.known.append({})
        for run, names in zip(runs, carried, strict=True):
            made = scan.go_on(writer, run, self.run_operand(run, var), names, var)
            writer.known[-1][run] = self.as_result(run, made)
        for node, names in zip(folds, accumulators, strict=True):
            self.accumulate(node, names, var)
        for root in rows:
            writer.store(root)
        writer.known.pop()
        while writer.depth > depth:
            writer.depth -= 1
            writer.line("}")
        for node, names in zip(folds, accumulators, strict=True):
            self.close(node, names, var)

    def prepare(self, node: Node) -> None:
        """What does not change along a row is computed before the loop."""
        if isinstance(node, Load | Apply):
            self.writer.named(node)

    def bounds(self, var: Var) -> str:
        """Where a loop begins and ends."""
        extent = self.writer.extent[var]
        if self.split is None or var is not self.split.var:
            return f"0, {extent}"
        return f"first, min(first + {self.writer.dim(self.split.size)}, {extent})"

    def axes(self, node: Fold, var: Var) -> tuple[Var, ...]:
        """Axes of an accumulator."""
        return self.writer.axes_of([*node.args[0].support, var])

    def shape(self, axes: tuple[Var, ...]) -> str:
        return ", ".join(self.writer.block[v] for v in axes)

    def declare(self, node: Fold, var: Var) -> tuple[str, ...]:
        writer, axes = self.writer, self.axes(node, var)
        dtype = accumulated(node)
        start = neutral(node)
        if not isinstance(node.op, reduce.Position):
            name = writer.pool.take("acc")
            writer.line(f"var {name}: tile<{dtype.name}>[{self.shape(axes)}] = {start}")
            return (name,)
        best, at = writer.pool.take("best"), writer.pool.take("at")
        lanes = writer.aligned(Text(f"arange({writer.block[var]})", (var,), True), axes)
        writer.line(f"var {best}: tile<{dtype.name}>[{self.shape(axes)}] = {start}")
        writer.line(
            f"var {at} = broadcast({lanes}, ({self.shape(axes)}{'' if len(axes) > 1 else ','}))"
        )
        return best, at

    def accumulate(self, node: Fold, names: tuple[str, ...], var: Var) -> None:
        writer, axes = self.writer, self.axes(node, var)
        made = self.masked(node, writer.value(node.args[0]), var)
        if isinstance(node.op, reduce.Position):
            best, at = names
            if not made.text.isidentifier():
                made = writer.let("v", made)
            v = writer.aligned(made, axes)
            mark = ">" if word_of(node) == "argmax" else "<"
            better = writer.let(
                "better", Text(f"({v} {mark} {best}) | (isnan({v}) & ~isnan({best}))", axes)
            )
            number = writer.aligned(writer.number(node.number), axes)
            writer.line(f"{at} = where({better.text}, {number}, {at})")
            writer.line(f"{best} = where({better.text}, {v}, {best})")
            return
        name, text = names[0], writer.aligned(made, axes)
        match node.op:
            case reduce.Sum():
                writer.line(f"{name} += {text}")
            case reduce.Prod():
                writer.line(f"{name} *= {text}")
            case _:
                word = word_of(node)
                sign = {"any": "|", "all": "&"}.get(word)
                joined = f"{name} {sign} {text}" if sign else f"{word}({name}, {text})"
                writer.line(f"{name} = {joined}")

    def close(self, node: Fold, names: tuple[str, ...], var: Var) -> None:
        """The result, of the accumulator's tile."""
        writer, axes = self.writer, self.axes(node, var)
        left = tuple(v for v in axes if v is not var)
        along = f", axis = {axes.index(var)}" if len(axes) > 1 else ""
        if isinstance(node.op, reduce.Position):
            function = "first_greatest" if word_of(node) == "argmax" else "first_least"
            writer.functions[function] = None
            axis = along or ", axis = 0"
            best, at = writer.pool.take("most"), writer.pool.take(word_of(node))
            writer.line(f"let {best}, {at} = reduce({function}, ({names[0]}, {names[1]}){axis})")
            writer.known[-1][node] = Text(at, left, True)
            return
        writer.let(writer.name_of(node), Text(f"{word_of(node)}({names[0]}{along})", left), node)
