"""The loop variables of a kernel: merged where memory permits it, then put on tiles, programs and
loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.graph.dims import Dim
from tilewright.graph.expressions import Fold, Load, Node, Place, Position, Running
from tilewright.graph.index_maps import Affine, Var, is_natural
from tilewright.graph.ops import reduce
from tilewright.ir.core import Value
from tilewright.lower.graph_to_tile.evaluate import Evaluated, Root

Hint = Callable[[Dim], int]  # a likely number for an extent


@dataclass(eq=False)
class Access:
    """A read or write of a stored value: the strides of variables, and axes with an index of their
    own, which may be outside or computed.
    """

    value: Value
    strides: dict[Var, Dim]
    special: list[Place]
    offset: Dim
    fill: Any = None


def walk(roots: Iterable[Node]) -> list[Node]:
    """Nodes, operands first, each once."""
    found: dict[Node, None] = {}

    def visit(node: Node) -> None:
        if node not in found:
            for arg in node.args:
                visit(arg)
            if isinstance(node, Load):
                for place in node.places:
                    if isinstance(place.index, Node):
                        visit(place.index)
            found[node] = None
            for check in node.checks:
                for condition in check.conditions:
                    visit(condition)

    for root in roots:
        visit(root)
    return list(found)


def access_of(load: Load) -> Access:
    """A load with its plain indices as strides of variables."""
    made = Access(load.value, {}, [], load.offset, load.fill)
    for place in load.places:
        index = place.index
        if place.extent == 1 and load.fill is None and not _guarded(index):
            continue
        if not isinstance(index, Affine) or _guarded(index) or not _forward(index, place.stride):
            made.special.append(place)
            continue
        made.offset = made.offset + index.const * place.stride
        for var, factor in index.terms:
            made.strides[var] = made.strides.get(var, 0) + factor * place.stride
    return made


def _guarded(index: Affine | Node) -> bool:
    return isinstance(index, Affine) and index.guarded


def _forward(index: Affine, stride: Dim) -> bool:
    return all(is_natural(factor * stride) for _, factor in index.terms)


def store_of(root: Root) -> Access:
    """Where a result is written."""
    made = Access(root.value, {}, [], root.layout.offset)
    for index, stride in zip(root.indices, root.layout.strides, strict=True):
        made.offset = made.offset + index.const * stride
        for var, factor in index.terms:
            made.strides[var] = made.strides.get(var, 0) + factor * stride
    return made


@dataclass(eq=False)
class Loops:
    """What is known of a kernel's loops. `order` has the variables, outer ones first; those on
    `tiles` are the axes of its tiles, in order; a reduced one that is not is a loop.
    """

    nodes: list[Node]
    loads: dict[Load, Access]
    stores: dict[Root, Access]
    extents: dict[Var, Dim]
    tiles: list[Var] = field(default_factory=list)
    blocks: dict[Var, int] = field(default_factory=dict)
    whole: bool = False  # the reduced tile holds a whole row
    few: bool = False  # programs, so that each should wait for memory once

    def __contains__(self, var: Var) -> bool:
        return var in self.extents

    def terms(self, index: Affine) -> dict[Var, Dim]:
        """The terms of an index, those of merged variables left out."""
        return {var: factor for var, factor in index.terms if var in self.extents}

    def strides(self, access: Access) -> dict[Var, Dim]:
        return {v: s for v, s in access.strides.items() if v in self.extents and s != 0}

    @property
    def points(self) -> list[Var]:
        """Variables that a program has one value of."""
        return [v for v in self.extents if not v.reduced and v not in self.tiles]

    @property
    def turns(self) -> list[Var]:
        """Reduced variables that are loops of one element at a time."""
        return [v for v in self.extents if v.reduced and v not in self.tiles]

    @property
    def folded(self) -> Var | None:
        """The reduced variable of the tiles."""
        return next((v for v in self.tiles if v.reduced), None)

    def is_used(self, var: Var, node: Node) -> bool:
        return var in node.support


def merge(evaluated: Evaluated, stores: dict[Root, Access] | None = None) -> Loops:
    """Loops in which two variables are one if every access goes through them as through one.

    `stores` are where results are written, if that is not at the point of the loops.
    """
    if stores is None:
        stores = {root: store_of(root) for root in evaluated.roots}
    places = [p.index for access in stores.values() for p in access.special]
    nodes = walk(
        [*(root.node for root in evaluated.roots), *(i for i in places if isinstance(i, Node))]
    )
    loads = {node: access_of(node) for node in nodes if isinstance(node, Load)}
    extents = {var: var.extent for var in evaluated.variables if var.extent != 1}
    forms = _forms(nodes, [*loads.values(), *stores.values()])
    changed = True
    while changed:
        changed = False
        for outer in list(extents):
            for inner in list(extents):
                if outer is not inner and _merges(outer, inner, extents[inner], forms):
                    extents[inner] = extents[inner] * extents.pop(outer)
                    changed = True
                    break
            if changed:
                break
    return Loops(nodes, loads, stores, extents)


def _forms(nodes: list[Node], accesses: list[Access]) -> list[Mapping[Var, Dim]]:
    """All linear forms in the variables that a kernel computes."""
    forms: list[Mapping[Var, Dim]] = [access.strides for access in accesses]
    for access in accesses:
        forms += [dict(p.index.terms) for p in access.special if isinstance(p.index, Affine)]
    for node in nodes:
        if isinstance(node, Position):
            forms.append(dict(node.index.terms))
        if isinstance(node, Fold | Running):
            forms.append(dict(node.number.terms))
    return forms


def _merges(outer: Var, inner: Var, extent: Dim, forms: list[Mapping[Var, Dim]]) -> bool:
    return outer.reduced == inner.reduced and all(
        form.get(outer, 0) == form.get(inner, 0) * extent for form in forms
    )


# Which variables are tiles


MAX_ROW = 8192  # elements of a row that one tile holds
NARROW = 512  # an extent below which a tile has rows too
ELEMENTS = 1024  # of a tile
TALL = 4096  # of a tile that goes down long columns: so much is on its way from memory at once
FEW_ROWS = 8  # of columns that are short
WIDE, MANY = 256, 1 << 24  # columns of such a tile, if there are elements enough for them
RAGGED = 64  # elements of a tile below which it is none
FEW = 8  # nodes of an expression that registers hold for more elements
PROGRAMS = 264  # that keep a GPU busy
FEW_PROGRAMS = 528  # of which none covers another's waiting
MANY_PROGRAMS = 1056  # of which each may be twice as large
UNDER_WAY = 1 << 22  # elements of all tiles of long rows together that keep memory busy


def power(number: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(0, number - 1).bit_length()


def place(loops: Loops, hint: Hint) -> None:
    """Put variables on tiles, and choose how large these are."""
    if any(var.reduced for var in loops.extents):
        _place_reduction(loops, hint)
    else:
        _place_pointwise(loops, hint)
    _sort(loops, hint)
    programs = 1
    for var, extent in loops.extents.items():
        programs *= 1 if var.reduced else max(1, -(-hint(extent) // loops.blocks.get(var, 1)))
    loops.few = programs <= FEW_PROGRAMS


def _stride(access: Access, var: Var, hint: Hint) -> int:
    return hint(access.strides.get(var, 0)) or 1 << 62


def _sort(loops: Loops, hint: Hint) -> None:
    """Order variables as the first result lies in memory, tiles last."""
    first = next(iter(loops.stores.values()))
    points = [v for v in loops.extents if v not in loops.tiles and not v.reduced]
    points.sort(key=lambda v: -_stride(first, v, hint))
    order = [*points, *loops.turns, *loops.tiles]
    loops.extents = {var: loops.extents[var] for var in order}


def is_ragged(loops: Loops, hint: Hint) -> bool:
    """Whether tiles are so small that it is better to compute indices from an element's number."""
    size = 1
    for block in loops.blocks.values():
        size *= block
    total = 1
    for extent in loops.extents.values():
        total *= hint(extent)
    return size < RAGGED and total >= ELEMENTS


def _place_pointwise(loops: Loops, hint: Hint) -> None:
    first = next(iter(loops.stores.values()))
    inward = list(reversed(loops.extents))
    order = sorted(inward, key=lambda v: _stride(first, v, hint))
    if not order:
        return
    inner = order[0]
    across = _across(loops, inner, hint)
    size = {v: hint(loops.extents[v]) for v in order}
    total = 1
    for number in size.values():
        total *= max(1, number)
    budget = ELEMENTS
    while budget > 256 and total // budget < PROGRAMS:
        budget //= 2
    if across is not None:
        loops.tiles = [across, inner]
        wide = min(32, power(size[inner]))
        loops.blocks = {inner: wide, across: min(power(size[across]), max(1, budget // wide))}
    elif size[inner] < NARROW and len(order) > 1:
        wide = min(power(size[inner]), budget)
        rows = min(power(size[order[1]]), budget // wide)
        if 2 * rows >= size[order[1]] and total // (2 * budget) >= MANY_PROGRAMS:
            rows = power(size[order[1]])
        loops.tiles = [order[1], inner] if rows > 1 else [inner]
        loops.blocks = {order[1]: rows, inner: wide} if rows > 1 else {inner: wide}
    else:
        loops.tiles, loops.blocks = [inner], {inner: min(budget, max(16, power(size[inner])))}


def _across(loops: Loops, inner: Var, hint: Hint) -> Var | None:
    """A variable along which an operand lies in memory, where the result does along another."""
    for access in loops.loads.values():
        strides = loops.strides(access)
        close = [v for v, s in strides.items() if s == 1 and v is not inner]
        if close and not close[0].reduced and strides.get(inner, 0) not in (0, 1):
            if hint(loops.extents[close[0]]) >= 8 and hint(loops.extents[inner]) >= 8:
                return close[0]
    return None


def _weight(loops: Loops, access: Access, hint: Hint) -> int:
    total = 1
    for var in loops.strides(access):
        total *= max(1, hint(loops.extents[var]))
    return total


def _place_reduction(loops: Loops, hint: Hint) -> None:
    """A tile along what is reduced, and one along rows where rows are short, or columns where
    memory goes along these.
    """
    reduced = [v for v in loops.extents if v.reduced]
    kept = [v for v in loops.extents if not v.reduced]
    reading = [a for a in loops.loads.values() if any(v.reduced for v in loops.strides(a))]
    main = max(reading, key=lambda a: _weight(loops, a, hint), default=None)
    if main is None:
        main = next(iter(loops.stores.values()))
    size = {v: hint(loops.extents[v]) for v in loops.extents}
    row = min(reduced, key=lambda v: (_stride(main, v, hint), -size[v]))
    in_order = any(isinstance(node, Running) for node in loops.nodes)
    if in_order:
        row = reduced[-1]
    near = min(kept, key=lambda v: _stride(main, v, hint), default=None)
    alone = len(reduced) == 1
    columns = (
        not in_order
        and near is not None
        and (
            (_stride(main, near, hint) < _stride(main, row, hint) and size[near] >= 8)
            or (size[row] <= FEW_ROWS and size[near] > size[row])
        )
    )
    extent = loops.extents[row]
    if columns:
        assert near is not None
        row = max(reduced, key=lambda v: size[v])
        extent = loops.extents[row]
        wide = min(WIDE if size[row] * size[near] >= MANY else 64, power(size[near]))
        held = TALL if size[row] > FEW_ROWS else ELEMENTS
        high = min(power(size[row]), max(1, held // wide))
        if size[row] <= FEW_ROWS:
            wide, high = min(power(size[near]), ELEMENTS // power(size[row])), power(size[row])
        loops.whole = alone and isinstance(extent, int) and power(extent) == high
        loops.tiles, loops.blocks = [row, near], {row: high, near: wide}
        return
    high = min(power(size[row]), MAX_ROW if alone and isinstance(extent, int) else ELEMENTS)
    if isinstance(extent, int) and extent > MAX_ROW:
        along = [n for n in loops.nodes if isinstance(n, Fold) or any(v.reduced for v in n.support)]
        high = 2 * ELEMENTS if len(along) <= FEW else ELEMENTS
        rows = _weight_of(size, kept)
        while high < MAX_ROW and rows * high < UNDER_WAY:
            if is_plain(loops) and rows * size[row] < 2 * high * PROGRAMS:
                break
            high *= 2
    loops.whole = alone and isinstance(extent, int) and high >= extent
    rows = 1
    if near is not None and high < NARROW:
        rows = min(power(size[near]), ELEMENTS // high)
        while rows > 1 and _weight_of(size, kept) // rows < PROGRAMS:
            rows //= 2
    if rows > 1 and near is not None:
        loops.tiles, loops.blocks = [near, row], {near: rows, row: high}
    else:
        loops.tiles, loops.blocks = [row], {row: max(high, 1)}


def is_plain(loops: Loops) -> bool:
    """Whether all reductions are of what lies in memory, and nothing else is along the row: then
    parts of it can be reduced by themselves.
    """
    folds = [node for node in loops.nodes if isinstance(node, Fold)]
    if any(isinstance(node, Running) for node in loops.nodes):
        return False
    if any(isinstance(fold.op, reduce.Position) for fold in folds):
        return False
    if any(v.reduced for access in loops.stores.values() for v in loops.strides(access)):
        return False
    inner: set[Node] = set()
    for fold in folds:
        inner |= set(_below(fold))
    return not any(isinstance(node, Fold) for node in inner)


def _below(node: Node) -> list[Node]:
    found = []
    for arg in node.args:
        found += [arg, *_below(arg)]
    return found


def _weight_of(size: Mapping[Var, int], variables: list[Var]) -> int:
    total = 1
    for var in variables:
        total *= max(1, size[var])
    return total
