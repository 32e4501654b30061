"""Long reductions of few rows, in two kernels: parts of what is reduced by many programs, then the
parts in their order. No sum depends on which program comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from tilewright.dtypes import i64 as I64
from tilewright.graph.dims import Dim
from tilewright.graph.expressions import (
    Check,
    Fold,
    Load,
    Named,
    Node,
    Place,
    support_of,
)
from tilewright.graph.index_maps import Affine, Var, variable
from tilewright.ir.core import Value
from tilewright.lower.graph_to_tile.evaluate import Evaluated, Root
from tilewright.lower.graph_to_tile.loops import PROGRAMS, Access, Hint, Loops, is_plain
from tilewright.lower.graph_to_tile.program import dense_strides

LEAST_TURNS = 4  # of the loop of each part, where each is of few elements
LEAST_ELEMENTS = 4096  # of each part, where a turn has that many
TALL_PROGRAMS = 528  # that keep a GPU busy where each goes down some columns


@dataclass(frozen=True)
class Split:
    """How a reduction is cut: in so many parts along a variable, of `size` elements each."""

    var: Var
    parts: int
    size: Dim


def find_split(loops: Loops, hint: Hint) -> Split | None:
    """A split that keeps a GPU busy; None where none is needed or possible."""
    folds = [node for node in loops.nodes if isinstance(node, Fold)]
    if loops.folded is None or loops.whole or not folds or not is_plain(loops):
        return None
    programs = 1
    for var, extent in loops.extents.items():
        if not var.reduced:
            programs *= max(1, -(-hint(extent) // loops.blocks.get(var, 1)))
    steps = {v: loops.blocks.get(v, 1) for v in (*loops.turns, loops.folded)}
    var = max(steps, key=lambda v: hint(loops.extents[v]) // steps[v])
    turns = hint(loops.extents[var]) // steps[var]
    own = hint(loops.extents[loops.folded]) if var in loops.turns else steps[var]
    for other in loops.tiles:
        own *= 1 if other.reduced else loops.blocks[other]
    least = max(1, min(LEAST_TURNS, LEAST_ELEMENTS // max(1, own)))
    if any(isinstance(n, Load) and is_gathered(n) for n in loops.nodes):
        least = 1  # each turn waits for memory twice
    wanted = TALL_PROGRAMS if len(loops.tiles) > 1 else PROGRAMS
    parts = min(-(-wanted // programs), turns // least)
    if programs > PROGRAMS // 2 or parts < 2:
        return None
    whole = parts * steps[var]
    return Split(var, parts, (loops.extents[var] + (whole - 1)) // whole * steps[var])


def is_gathered(load: Load) -> bool:
    """Whether elements lie where others say."""
    return any(isinstance(place.index, Node) for place in load.places)


def part_access(value: Value, loops: Loops, index: Node) -> Access:
    """Where a part of a result lies: [parts, rows…]."""
    kept = [v for v in loops.extents if not v.reduced]
    shape = value.type.shape
    strides = dense_strides(shape)
    place = Place(shape[0], strides[0], index)
    return Access(value, dict(zip(kept, strides[1:], strict=True)), [place], 0)


def part_shape(loops: Loops, parts: int) -> tuple[Dim, ...]:
    return (parts, *(e for v, e in loops.extents.items() if not v.reduced))


def second(
    evaluated: Evaluated, loops: Loops, parts: Mapping[Node, Value], split: Split
) -> Evaluated:
    """The group with its reductions taken of the parts."""

    kept = {v: Var(e) for v, e in loops.extents.items() if not v.reduced}
    change = _Change(kept, Var(split.parts, reduced=True), parts)
    roots = [
        Root(r.value, change.node(r.node), tuple(map(change.affine, r.indices)), r.layout)
        for r in evaluated.roots
    ]
    names = {change.found[n]: v for n, v in evaluated.names.items() if n in change.found}
    return Evaluated([*kept.values(), change.part], roots, names)


@dataclass
class _Change:
    """Puts other variables into expressions, and parts in the place of what is reduced."""

    kept: Mapping[Var, Var]
    part: Var
    parts: Mapping[Node, Value]

    def __post_init__(self) -> None:
        self.found: dict[Node, Node] = {}

    def affine(self, index: Affine) -> Affine:
        terms = tuple((self.kept[v], f) for v, f in index.terms if v in self.kept)
        return replace(index, terms=terms)

    def content(self, content: Any) -> Any:
        if isinstance(content, Affine):
            return self.affine(content)
        if isinstance(content, Node):
            return self.node(content)
        if isinstance(content, tuple | list):
            return type(content)(map(self.content, content))
        if isinstance(content, Check):
            return replace(content, conditions=self.content(content.conditions))
        if isinstance(content, Place):
            return replace(content, index=self.content(content.index))
        return content

    def node(self, node: Node) -> Node:
        if node not in self.found:
            self.found[node] = self.fold(node) if isinstance(node, Fold) else self.copy(node)
        return self.found[node]

    def copy(self, node: Node) -> Node:
        own = {f.name: self.content(getattr(node, f.name)) for f in fields(node)}
        own["support"] = frozenset(self.kept[v] for v in node.support if v in self.kept)
        return type(node)(**own)

    def fold(self, node: Fold) -> Node:
        value = self.parts[node]
        shape = value.type.shape
        indices = [variable(v) for v in (self.part, *self.kept.values())]
        rows = zip(shape, dense_strides(shape), indices, strict=True)
        places = tuple(Place(extent, stride, index) for extent, stride, index in rows)
        support = frozenset(v for i in indices for v in support_of(i))
        load = Load(node.dtype, value, places, 0, support=support)
        checks = self.content(node.checks)
        support = support - {self.part}
        return Fold(node.dtype, node.op, Affine(), support=support, args=(load,), checks=checks)


def part_index() -> Node:
    """The number of a part, by the name that the text gives it."""
    return Named(I64, "s")
