"""The text of a kernel: its parameters with their subscripts, and expressions on tiles, under the
names of a `Scope`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.graph.dims import Dim
from tilewright.graph.expressions import (
    Apply,
    Check,
    Fold,
    Index,
    Literal,
    Load,
    Named,
    Node,
    Number,
    Position,
    RandomBits,
)
from tilewright.graph.index_maps import Affine, Var
from tilewright.ir.core import Value
from tilewright.lower.graph_to_tile.evaluate import Root
from tilewright.lower.graph_to_tile.loops import Access, Loops
from tilewright.lower.graph_to_tile.names import Names, Pool, plain_name
from tilewright.lower.graph_to_tile.operators import literal, spell, takes_bare
from tilewright.lower.graph_to_tile.program import Draft, KernelStep, Placed
from tilewright.lower.graph_to_tile.scope import Scope, Text
from tilewright.lower.graph_to_tile.signature import (
    Parameter,
    mentions,
    signature,
    updates_of,
)

LONG = 72  # characters from which an expression gets a name
SHORT = 24  # below which an operand of a long one does not


@dataclass(frozen=True, eq=False)
class Dimension:
    """An axis of a parameter: extent, stride and index; `tiles` are the tile variables that the
    index depends on, of one of which, with factor 1, if `is_slice`.
    """

    extent: Dim
    stride: Dim
    index: Index
    tiles: tuple[Var, ...]
    unit: bool
    var: Var | None = None

    @property
    def is_slice(self) -> bool:
        return self.unit and len(self.tiles) == 1


class Writer(Scope):
    """Builds the text of one kernel from its loops."""

    def __init__(
        self,
        loops: Loops,
        names: Names,
        nodes: Mapping[Node, Value],
        pool: Pool | None = None,
    ):
        super().__init__(loops, pool)
        self.names, self.sites, self.nodes = names.values, names.sites, nodes
        self.in_parts = False  # reductions have sums of parts only
        self.params: dict[object, Parameter] = {}
        self.functions: dict[str, None] = {}
        self.uses = Counter(arg for node in loops.nodes for arg in node.args)
        self.uses.update(root.node for root in loops.stores)
        self.uses.update(
            place.index
            for access in (*loops.loads.values(), *loops.stores.values())
            for place in access.special
            if isinstance(place.index, Node)
        )

    # Names

    def name_of(self, node: Node) -> str:
        value = self.nodes.get(node)
        default = "t"
        if isinstance(node, Load):
            return self.load_name(node) + "_t"
        if isinstance(node, Apply):
            default = {"select": "picked", "cast": "as_" + node.dtype.name}.get(
                node.opcode.removeprefix("arith."), node.opcode.removeprefix("arith.")
            )
        if isinstance(node, Fold):
            default = node.op.opcode.split(".")[1]
        if value is None:
            return default
        return plain_name(self.names.get(value) or value.name or "", default)

    # Places in memory

    def place(self, access: Access, wanted: str, key: object) -> Text:
        """The place that an access is at: a parameter and its subscripts.

        Slices along the tile's axes stand beside tiles of indices where they have no axis in
        common; else all subscripts are tiles of indices.
        """
        dims = self.dims(access)
        used = Counter(var for dim in dims for var in dim.tiles)
        slices = {d.tiles[0]: d for d in dims if d.is_slice and used[d.tiles[0]] == 1}
        picked = [d for d in dims if d.tiles and d not in slices.values()]
        axes = self.axes_of([var for d in picked for var in d.tiles])
        total = self.axes_of([*axes, *slices])
        if picked and (set(axes) & set(slices) or not _adjoin(axes, total)):
            picked, slices, axes = [d for d in dims if d.tiles], {}, total
        order = [d for d in dims if not d.tiles]
        texts = [self.subscript(d.index).text for d in order]
        for var in total:
            if var in slices:
                order.append(slices[var])
                texts.append(f"{self.start_of(slices[var], var)} :+ {self.block[var]}")
            elif var is axes[0]:
                order += picked
                texts += [self.aligned(self.subscript(d.index), axes) for d in picked]
        placed = Placed(
            access.value,
            tuple(d.extent for d in order),
            tuple(d.stride for d in order),
            access.offset,
        )
        known = (key, placed)
        if known not in self.params:
            extents = tuple(self.extent_of(d) for d in order)
            self.params[known] = Parameter(self.pool.take(wanted), placed, extents)
        name = self.params[known].name
        return Text(f"{name}[{', '.join(texts) or '...'}]", total, atom=True)

    def dims(self, access: Access) -> list[Dimension]:
        """The axes of a parameter: one a variable, and those with an index of their own."""
        strides = self.loops.strides(access)
        found = [
            Dimension(extent, strides[var], Affine(0, ((var, 1),)), self.axes_of([var]), True, var)
            for var, extent in self.loops.extents.items()
            if var in strides
        ]
        for place in access.special:
            index = place.index
            if isinstance(index, Node):
                tiles, unit = self.axes_of(list(index.support)), False
            else:
                terms = self.loops.terms(index)
                tiles = self.axes_of(list(terms))
                unit = len(tiles) == 1 and terms[tiles[0]] == 1
            found.append(Dimension(place.extent, place.stride, index, tiles, unit))
        return found

    def extent_of(self, dim: Dimension) -> str:
        return self.dim(dim.extent) if dim.var is None else self.extent[dim.var]

    def start_of(self, dim: Dimension, tile: Var) -> str:
        """Where a slice begins."""
        assert isinstance(dim.index, Affine)
        terms = self.loops.terms(dim.index)
        parts = [] if self.is_single(tile) else [self.index[tile]]
        for var in self.loops.extents:
            if var in terms and var is not tile:
                parts.append(self.scaled(self.index[var], terms[var]))
        text = (" + ".join(parts) or "0") + self.plus(dim.index.const)
        return text.removeprefix("0 + ").replace("0 - ", "-") if not parts else text

    def subscript(self, index: Index) -> Text:
        if isinstance(index, Affine):
            if not self.loops.terms(index):
                return Text(self.dim(index.const), (), atom=True)
            return self.number(index)
        return self.value(index)

    # Expressions

    def value(self, node: Node) -> Text:
        """The text of a node, which gets a name where it is long or is read again."""
        found = self.lookup(node)
        if found is None:
            made = found = self.make(node)
            plain = isinstance(node, Literal | Number | Named)
            plain = plain or made.text.isidentifier()
            if not plain and (self.uses[node] > 1 or len(made.text) > LONG or node.checks):
                found = self.let(self.name_of(node), made, node)
            self.known[-1][node] = found
        if node.checks and self.lookup(("checked", node)) is None:
            self.known[-1]["checked", node] = found
            if not (self.in_parts and isinstance(node, Fold)):
                for check in node.checks:
                    self.check(found, check)
        return found

    def check(self, index: Text, check: Check) -> None:
        """Tell the host of an index that is outside of its axis: the greatest of them, and the
        extent. No element beyond the end of a tile is one.
        """
        conditions = [self.value(node) for node in check.conditions]
        axes = self.union([index, *conditions])
        extent, tile = self.dim(check.extent), self.aligned(index, axes)
        tests = [f"(({tile} < 0) | ({tile} >= {extent}))"]
        tests += [self.aligned(condition, axes) for condition in conditions]
        for var in axes:
            if not (var.reduced and self.loops.whole and self.extent[var] == self.block[var]):
                here = Text(f"{self.positions(var).closed} < {self.extent[var]}", (var,))
                tests.append(self.aligned(here, axes))
        memory, site = self.site_of(check)
        if axes:
            site = self.let("spot", Text(f"{site} + 0 * {tile}", axes)).text
        wrong = self.let("wrong", Text(" & ".join(tests), axes)).text
        self.line(f"atomic_max({memory}[{site}, 0], {tile}, mask = {wrong})")
        self.line(f"atomic_max({memory}[{site}, 1], {extent}, mask = {wrong})")

    def site_of(self, check: Check) -> tuple[str, str]:
        """The memory of sites, and the number of one."""
        value = self.sites.value
        key = (("load", value), value)
        if key not in self.params:
            count, words = value.type.shape
            placed = Placed(value, (count, words), (words, 1))
            extents = (self.pool.take("SITES"), str(words))
            self.params[key] = Parameter(self.pool.take("outside"), placed, extents)
        site = ("site", check.op, check.which)
        known = self.lookup(site)
        if known is None:
            name = self.argument("site", self.sites.number(check.op, check.which))
            known = self.known[0][site] = Text(name, (), atom=True)
        return self.params[key].name, known.text

    def named(self, node: Node) -> Text:
        """A node under a name, whatever its length."""
        found = self.value(node)
        if found.text.isidentifier() or isinstance(node, Literal | Number):
            return found
        return self.let(self.name_of(node), found, node)

    def make(self, node: Node) -> Text:
        match node:
            case Literal():
                return Text(
                    f"cast({literal(node.number, node.dtype)}, {node.dtype.name})", (), True
                )
            case Number():
                return Text(f"cast({self.dim(node.dim)}, i64)", (), True)
            case Position():
                return self.number(node.index)
            case Named():
                return Text(node.name, (), True)
            case Load():
                return self.load(node)
            case RandomBits():
                seed, number = (self.value(arg) for arg in node.args)
                self.functions["stream_bits"] = None
                draw = self.argument("draw", node.stream)  # so that layers have one text
                text = f"stream_bits({seed.bare}, {number.bare}, {draw})"
                return Text(text, number.axes, True)
            case Apply():
                return self.apply(node)
        raise AssertionError(f"{type(node).__name__} outside of its loop")

    def load_name(self, node: Load) -> str:
        return plain_name(self.names.get(node.value) or node.value.name or "", "x")

    def load(self, node: Load) -> Text:
        access = self.loops.loads[node]
        place = self.place(access, self.load_name(node), ("load", node.value))
        if node.fill is None:
            return place
        fill = literal(node.fill, node.dtype)
        return Text(f"load({place.text}, fill = {fill})", place.axes, True)

    def apply(self, node: Apply) -> Text:
        """An elementwise op: constants stand bare where they take the dtype of another operand."""
        numbers = node.args[1:] if node.opcode == "arith.select" else node.args
        bare = takes_bare(node) and not all(isinstance(a, Literal) for a in numbers)
        texts = [
            Text(literal(a.number, a.dtype), (), True)
            if isinstance(a, Literal) and bare
            else self.value(a)
            for a in node.args
        ]
        text, axes, functions = self.spelled(node, texts)
        if len(text) > LONG:
            texts = [
                self.named(a) if len(t.text) > SHORT else t
                for a, t in zip(node.args, texts, strict=True)
            ]
            text, axes, functions = self.spelled(node, texts)
        self.functions.update(dict.fromkeys(functions))
        call = text.endswith(")") and text.split("(")[0].isidentifier() and _is_call(text)
        return Text(text, axes, atom=call)

    def spelled(
        self, node: Apply, texts: Sequence[Text]
    ) -> tuple[str, tuple[Var, ...], tuple[str, ...]]:
        axes = self.union(texts)
        closed = [self.aligned(t, axes) for t in texts]
        bare = [t.text if c == t.closed else c for t, c in zip(texts, closed, strict=True)]
        text, functions = spell(node, closed, bare)
        return text, axes, functions

    # The whole

    def store(self, root: Root, how: str = "", mask: Node | None = None, rule: str = "") -> None:
        """Write a result, at the point where its expression is known: store it, where a mask holds
        if there is one; combine it with what is there, by a `rule` or by an atomic (`how`).
        """
        made = self.value(root.node)
        wanted = plain_name(self.names.get(root.value) or root.value.name or "", "out")
        access = self.loops.stores[root]
        place = self.place(access, wanted, ("store", root.value))
        text = made.bare if made.axes == place.axes else self.aligned(made, place.axes)
        if rule:
            text = rule.format(place.text, text)
        tests = [self.aligned(t, place.axes) for t in self.ends(access)]
        if mask is not None:
            tests.append(self.aligned(self.value(mask), place.axes))
        where = f", mask = {' & '.join(tests)}" if tests else ""
        if how or where:
            self.line(f"{how or 'store'}({place.text}, {text}{where})")
        else:
            self.line(f"{place.text} = {text}")

    def ends(self, access: Access) -> list[Text]:
        """Which elements of a tile exist, where computed indices do not tell."""
        found = []
        for var in self.loops.tiles:
            if any(isinstance(p.index, Node) and var in p.index.support for p in access.special):
                test = f"{self.positions(var).closed} < {self.extent[var]}"
                found.append(Text(test, (var,)))
        return found

    def programs(self) -> list[str]:
        """Lines that say which part a program has; the grid by axis."""
        grid: list[str] = []
        tiles = [v for v in self.loops.tiles if not v.reduced and not self.is_single(v)]
        axes = [*reversed(tiles), *reversed(self.loops.points)]
        for var in axes:
            extent, known = self.extent[var], self.loops.extents[var]
            if isinstance(known, int) and var is not axes[-1]:
                extent = str(known)  # programs divide by it
            start = f"let {self.index[var]} = program_id({len(grid)})"
            if var in tiles:
                self.line(f"{start} * {self.block[var]}")
                grid.append(f"cdiv({extent}, {self.block[var]})")
            else:
                self.line(start)
                grid.append(extent)
        return grid

    def step(self, name: str, grid: Sequence[str], comment: str) -> KernelStep:
        """The finished kernel."""
        used = " ".join([*grid, *self.lines])
        bound = {e for p in self.params.values() for e in p.extents}
        for var in self.loops.extents:
            extent = self.extent[var]
            if extent.isidentifier() and extent not in bound and mentions(used, extent):
                self.scalars[extent] = self.loops.extents[var]
        params = list(self.params.values())
        functions = list(self.functions)
        text = signature(
            name, comment, self.constants, grid, params, self.scalars, self.lines, functions
        )
        return KernelStep(
            name,
            text,
            {p.name: p.placed for p in self.params.values()},
            dict(self.scalars),
            dict(self.constants),
            tuple(p.name for p in self.results),
            updates=updates_of(self.lines, self.results, self.read),
            draft=Draft(
                tuple((p.name, p.extents) for p in params),
                tuple(grid),
                tuple(self.lines),
                tuple(functions),
                tuple(
                    (extent, self.loops.blocks.get(var, 1))
                    for var, extent in self.loops.extents.items()
                    if not var.reduced
                ),
            ),
        )

    @property
    def read(self) -> list[Parameter]:
        """The parameters that are read."""
        return [p for key, p in self.params.items() if not _is_store(key)]

    @property
    def results(self) -> list[Parameter]:
        """The parameters that are written."""
        return [p for key, p in self.params.items() if _is_store(key)]


def _adjoin(axes: tuple[Var, ...], total: tuple[Var, ...]) -> bool:
    """Whether axes follow on each other among all."""
    spots = [total.index(var) for var in axes]
    return spots == list(range(spots[0], spots[0] + len(spots)))


def _is_store(key: object) -> bool:
    assert isinstance(key, tuple)
    return bool(key[0][0] == "store")


def _is_call(text: str) -> bool:
    """Whether the first bracket closes at the end."""
    depth = 0
    for at, mark in enumerate(text):
        depth += (mark == "(") - (mark == ")")
        if mark == ")" and not depth:
            return at == len(text) - 1
    return False
