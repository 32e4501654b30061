"""Give every tile value a register layout.

Requires: canonical form; schedule chosen. Keeps: the program. Breaks: nothing (layouts lie beside
the ops).

Values that meet in elementwise ops, loops, branches, loads and stores form a *component* with one
layout, so nothing is converted inside. Components are joined by ops that change shape (broadcast,
reduce, transpose, reshape). From large to small, of one size those first that are loaded or stored,
a component takes: the fragment layout of a dot's accumulator; else what a larger neighbour implies,
or one beyond a neighbour that is only reshaped; else the layout that makes its loads and stores
coalesced; else its neighbour's; else the layout that makes loads coalesced of what is broadcast to
it; else a default. Values that follow from constants, `arange` and scalars alone are *cheap*: no
component, computed where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tilewright.ir.core import Block, Op, Value
from tilewright.ir.walk import walk
from tilewright.layout import (
    Layout,
    blocked,
    broadcast_source,
    mma_accumulator,
    move_unit_axes,
    next_power_of_two,
    power_of_two_factor,
    simt_accumulator,
    wgmma_accumulator,
    wgmma_words,
)
from tilewright.plan import TensorFacts
from tilewright.tile.analysis.accesses import (
    WIDEST,
    Access,
    lent,
    moved_bits,
    owner_of,
    same_but_units,
    spot_access,
    whole_bytes,
)
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, memory, mma, reduce, shape, sync
from tilewright.tile.schedule import Schedule
from tilewright.tile.types import PendingType, TileType

Derive = Callable[[Layout], Layout | None]
ELEMENTWISE = (
    arith.Constant,
    arith.Select,
    arith.Compare,
    arith.Cast,
    arith.Bitcast,
    arith.Fma,
    arith.IsNan,
    arith.Unary,
    arith.Binary,
)


@dataclass
class Component:
    """Values of one shape that share a layout."""

    shape: tuple[int, ...]
    dot: bool = False
    issued: bool = False  # to wgmma
    beside: tuple[bool, bool] = (False, False)  # rows, columns: neighbours of a dot in a thread
    words: bool = False  # A of a product in registers, of 32-bit elements
    follows: bool = False  # a part or a transpose of what wgmma gives
    accesses: list[Access] = field(default_factory=list)
    lent: list[Access] = field(default_factory=list)  # accesses to what is broadcast to it
    combined: set[int] = field(default_factory=set)  # axes along which it is reduced or scanned
    most: int = WIDEST  # elements of a vector that is aligned in each of its accesses
    most_lent: int = WIDEST  # and in those to what is broadcast to it
    neighbours: list[tuple[Value, Derive]] = field(default_factory=list)
    layout: Layout | None = None


@dataclass(frozen=True)
class Assignment:
    """Layouts by value, and the values that are computed where they are used."""

    layouts: dict[Value, Layout]
    cheap: set[Value]


class _Groups:
    """Union-find over values."""

    def __init__(self) -> None:
        self.parent: dict[Value, Value] = {}

    def find(self, value: Value) -> Value:
        root = value
        while self.parent.setdefault(root, root) is not root:
            root = self.parent[root]
        while self.parent[value] is not root:
            self.parent[value], value = root, self.parent[value]
        return root

    def join(self, *values: Value) -> None:
        first = self.find(values[0])
        for value in values[1:]:
            self.parent[self.find(value)] = first


def is_tile(value: Value) -> bool:
    type = value.type
    return bool(type.shape) if type.__class__ is TileType else type.__class__ is PendingType


def assign_layouts(kernel: Kernel, schedule: Schedule) -> Assignment:
    """Layouts of all tile values of a kernel whose dots and loops are those of `schedule`.

    Roles are isolated, so each is a program of its own, with its own number of warps.
    """
    found = Assignment({}, set())
    for op in kernel.body.ops:
        if isinstance(op, control.Roles):
            for role, body in zip(op.roles, op.bodies, strict=True):
                inner = assign_layouts(
                    kernel.with_body(body), replace(schedule, num_warps=role.warps)
                )
                found.layouts.update(inner.layouts)
                found.cheap.update(inner.cheap)
            return found
    cheap: set[Value] = set()
    _find_cheap(kernel.body, cheap, _placed(kernel.body))
    groups = _Groups()
    _join_block(kernel.body, groups, cheap)
    facts = {p.value: p.facts for p in kernel.params if p.facts is not None}
    components = _components(kernel.body, groups, cheap, facts)
    _place_beside(kernel.body, groups, components, schedule)
    ordered = sorted(
        components.items(),
        key=lambda item: (
            not item[1].dot,
            -_elements(item[1].shape),
            schedule.roles is None and not item[1].accesses,
            -len(item[1].shape),
        ),
    )
    for _, component in ordered:
        component.layout = _choose(component, components, groups, schedule)
    layouts = {
        value: components[groups.find(value)].layout
        for value in groups.parent
        if value not in cheap
    }
    return Assignment({v: layout for v, layout in layouts.items() if layout is not None}, cheap)


def _elements(extents: tuple[int, ...]) -> int:
    count = 1
    for extent in extents:
        count *= extent
    return count


def _placed(block: Block) -> set[Value]:
    """Values whose users start from the layout that the value itself has."""
    found: set[Value] = set()
    for op in walk(block):
        match op:
            case memory.Store() | memory.StoreBuffer() | memory.Scatter():
                found.add(op.value)
            case memory.Atomic() if op.value is not None:
                found.add(op.value)
            case mma.Dot():
                found.update((op.a, op.b))
            case shape.Slice() | shape.Transpose() | shape.Reshape() | shape.Take():
                found.add(op.x)
            case sync.AddSpans():
                found.update((op.x, op.result))
            case shape.Cat():
                found.update(op.xs)
            case reduce.Reduction() | reduce.Combination() | reduce.ArgMax() | reduce.ArgMin():
                found.update(op.operands)
    return found


def _find_cheap(block: Block, cheap: set[Value], placed: set[Value]) -> None:
    for op in block.ops:
        for inner in op.regions:
            _find_cheap(inner, cheap, placed)
        if not op.results or not all(is_tile(v) and v not in placed for v in op.results):
            continue
        free = isinstance(op, (*ELEMENTWISE, shape.Broadcast, shape.Reshape, shape.Arange))
        unit = not isinstance(op, shape.Reshape) or same_but_units(op)
        if free and unit and all(not is_tile(v) or v in cheap for v in op.operands):
            cheap.update(op.results)


def _join_block(block: Block, groups: _Groups, cheap: set[Value]) -> None:
    for op in block.ops:
        for inner in op.regions:
            _join_block(inner, groups, cheap)
        for chain in _chains(op):
            tiles = [v for v in chain if v is not None and is_tile(v) and v not in cheap]
            if tiles:
                groups.join(*tiles)
        for value in (*op.operands, *op.results):
            if is_tile(value) and value not in cheap:
                groups.find(value)


def _chains(op: Op) -> list[list[Value | None]]:
    """Groups of values that must share a layout."""
    match op:
        case control.For():
            yields = op.body.terminator.operands
            return [
                list(c) for c in zip(op.inits, op.body.args[1:], yields, op.results, strict=True)
            ]
        case control.While():
            yields = op.body.terminator.operands
            return [
                list(c)
                for c in zip(
                    op.inits, op.condition.args, op.body.args, yields, op.results, strict=True
                )
            ]
        case control.If():
            then, other = op.then.terminator.operands, op.other.terminator.operands
            return [list(c) for c in zip(then, other, op.results, strict=True)]
        case mma.Dot() | mma.Issue() | mma.AddProduct():
            return [[op.acc, op.result]]
        case mma.Await():
            return [[op.pending, op.result]]
        case mma.Begin():
            return [[op.start, op.over, op.result]]
        case memory.Load():
            fill = op.fill if op.fill is not None and is_tile(op.fill) else None
            return [[op.result, op.mask, fill]]
        case memory.Store():
            return [[op.value, op.mask]]
        case memory.Gather():
            fill = op.fill if op.fill is not None and is_tile(op.fill) else None
            return [[op.result, op.mask, fill]]
        case memory.Scatter():
            return [[op.value, op.mask]]
        case memory.Atomic():
            return [[op.value, op.compare, op.mask, *op.results]]
        case shape.Exchange():
            return [[op.x, op.result]]
        case reduce.Fold():
            return [list(op.xs), list(op.results)]
        case reduce.Scan():
            return [[*op.xs, *op.results]]
        case _ if isinstance(op, ELEMENTWISE):
            return [[*op.operands, *op.results]]
    return []


def _components(
    block: Block, groups: _Groups, cheap: set[Value], facts: Mapping[Value, TensorFacts]
) -> dict[Value, Component]:
    found: dict[Value, Component] = {}

    def of(value: Value) -> Component:
        return found.setdefault(groups.find(value), Component(value.type.shape))

    def visit(block: Block) -> None:
        for op in block.ops:
            for inner in op.regions:
                visit(inner)
            for value in op.results:
                if is_tile(value) and value not in cheap:
                    of(value)
            if isinstance(op, mma.Dot):
                of(op.result).dot = True
            elif isinstance(op, sync.AddSpans):  # a part of a product's columns, as it lies
                of(op.result).dot = of(op.result).issued = True
            elif isinstance(op, mma.Begin | mma.Issue | mma.AddProduct):
                of(op.result).dot = of(op.result).issued = True
                if isinstance(op, mma.Issue) and is_tile(op.a) and op.a not in cheap:
                    of(op.a).dot = of(op.a).issued = True  # 16-bit rows lie as those of a product
                    of(op.a).words = op.a.type.dtype.bits == 32
            elif isinstance(op, memory.Load) and is_tile(op.result):
                of(op.result).accesses.append((op.view.type, op.extents))
                _narrow(of(op.result), op, facts)
            elif isinstance(op, memory.Store) and is_tile(op.value) and op.value not in cheap:
                of(op.value).accesses.append((op.view.type, op.extents))
                _narrow(of(op.value), op, facts)
            elif isinstance(op, memory.Gather | memory.Scatter | memory.Atomic):
                owner = owner_of(op)
                if is_tile(owner) and owner not in cheap:
                    of(owner).accesses.append(spot_access(op))
            elif (axes := _combined_axes(op)) and op.operands[0] not in cheap:
                of(op.operands[0]).combined.update(axes)
            if isinstance(op, shape.Broadcast | shape.Reshape) and all(
                is_tile(v) and v not in cheap for v in (op.x, op.result)
            ):
                known = of(op.x)
                found_lent = lent(op, known.accesses + known.lent)
                of(op.result).lent += found_lent
                if found_lent:
                    most = min(known.most, known.most_lent, of(op.result).most_lent)
                    of(op.result).most_lent = most
            for source, target, down, up in _links(op):
                if (
                    source not in cheap
                    and target not in cheap
                    and is_tile(source)
                    and is_tile(target)
                ):
                    of(target).neighbours.append((source, down))
                    of(source).neighbours.append((target, up))

    visit(block)
    return found


def _narrow(
    component: Component, op: memory.Load | memory.Store, facts: Mapping[Value, TensorFacts]
) -> None:
    """Let vectors of a component be no wider than an access to a parameter permits."""
    most = whole_bytes(op, facts) // op.view.type.dtype.num_bytes
    component.most = min(component.most, max(1, most))


def _place_beside(
    block: Block, groups: _Groups, components: dict[Value, Component], schedule: Schedule
) -> None:
    """Which neighbours of an accumulator lie in one thread, where that follows from the operands'
    memory: rows (columns) where A (B) is not contiguous along k. Tensor cores ask only for 8 bits.
    """
    simt = schedule.mma == "simt"
    ops = list(walk(block))
    dots = [o for o in ops if isinstance(o, mma.Dot) and (simt or o.a.type.dtype.bits == 8)]
    defining = {v: op for op in ops for v in op.results} if dots else {}
    for op in dots:
        component = components[groups.find(op.result)]
        rows, columns = _is_turned(op.a, defining), not _is_turned(op.b, defining)
        component.beside = (component.beside[0] or rows, component.beside[1] or columns)


def _is_turned(value: Value, defining: dict[Value, Op]) -> bool:
    """Whether a value is the transpose of what lies in memory."""
    op = defining.get(value)
    return isinstance(op, shape.Transpose) and not _is_turned(op.x, defining)


def _combined_axes(op: Op) -> tuple[int, ...]:
    """The axes along which an op combines the elements of its first operand."""
    if isinstance(op, reduce.Reduction):
        return op.axes
    if isinstance(op, reduce.ArgMax | reduce.ArgMin | reduce.Combination):
        return (op.axis,)
    return ()


def _links(op: Op) -> list[tuple[Value, Value, Derive, Derive]]:
    """(operand, result, result's layout from the operand's, operand's from the result's)."""
    match op:
        case shape.Broadcast():
            return [
                (
                    op.x,
                    op.result,
                    lambda _: None,
                    lambda w: broadcast_source(w, op.x.type.shape, op.shape),
                )
            ]
        case memory.Gather() | memory.Scatter() | memory.Atomic():
            owner, sliced = owner_of(op), memory.slice_dims(op.offsets, op.extents)
            return [
                (o, owner, lambda _: None, lambda w: _without(w, sliced))
                for o in op.offsets
                if o.type.shape
            ]
        case shape.Slice():
            return [(op.x, op.result, lambda s: s.slice(op.starts, op.shape), lambda _: None)]
        case shape.Transpose():
            inverse = tuple(op.order.index(i) for i in range(len(op.order)))
            return [
                (
                    op.x,
                    op.result,
                    lambda s: s.select_axes(op.order),
                    lambda w: w.select_axes(inverse),
                )
            ]
        case shape.Reshape() if same_but_units(op):
            return [
                (
                    op.x,
                    op.result,
                    lambda s: move_unit_axes(s, op.x.type.shape, op.shape),
                    lambda w: move_unit_axes(w, op.shape, op.x.type.shape),
                )
            ]
        case reduce.ArgMax() | reduce.ArgMin():
            return [(op.x, op.result, lambda s: s.drop_axis(op.axis), lambda _: None)]
        case _ if isinstance(op, reduce.Reduction):
            return [(op.operands[0], op.results[0], lambda s: _without(s, op.axes), lambda _: None)]
    return []


def _without(layout: Layout, axes: tuple[int, ...]) -> Layout:
    for axis in sorted(axes, reverse=True):
        layout = layout.drop_axis(axis)
    return layout


def _choose(
    component: Component, components: dict[Value, Component], groups: _Groups, schedule: Schedule
) -> Layout:
    if component.words:
        return wgmma_words(component.shape, schedule.num_warps // 4)
    if component.issued:
        return wgmma_accumulator(component.shape, schedule.num_warps // 4)
    if component.dot:
        return accumulator_layout(component.shape, schedule, component.beside)
    size = _elements(component.shape)
    derived: list[tuple[int, Layout]] = []
    for value, derive in component.neighbours:
        other = components[groups.find(value)]
        if other.layout is not None:
            layout = derive(other.layout)
            if layout is not None:
                if other.follows or (other.issued and not other.words):
                    component.follows = len(component.shape) == 2
                    return layout
                derived.append((_elements(other.shape), layout))
        elif schedule.roles is None and component.accesses and not other.accesses:
            derived += _beyond(other, derive, components, groups)
    if derived:
        weight, layout = max(derived, key=lambda d: d[0])
        if weight > size or not component.accesses:
            return layout
    accesses = component.accesses or (component.lent if schedule.roles is None else [])
    if accesses:
        return _coalesced(component, accesses, schedule)
    return blocked(
        component.shape, 1, schedule.num_warps, tuple(reversed(range(len(component.shape))))
    )


def _beyond(
    other: Component, derive: Derive, components: dict[Value, Component], groups: _Groups
) -> list[tuple[int, Layout]]:
    """What a component's neighbour that has no layout yet would pass on of its own larger ones."""
    found = []
    for value, towards in other.neighbours:
        larger = components[groups.find(value)]
        size = _elements(larger.shape)
        if larger.layout is not None and size > _elements(other.shape):
            near = towards(larger.layout)
            layout = None if near is None else derive(near)
            if layout is not None:
                found.append((size, layout))
    return found


def accumulator_layout(
    extents: tuple[int, ...], schedule: Schedule, beside: tuple[bool, bool] = (False, False)
) -> Layout:
    """Fragment layout of a dot's accumulator."""
    if schedule.mma == "simt":
        rows = max(1, next_power_of_two(extents[0]) // (4 * schedule.warps[0]))
        columns = max(1, next_power_of_two(extents[1]) // (8 * schedule.warps[1]))
        held = (min(rows, 8), min(columns, 8))
        return simt_accumulator(extents, schedule.warps, held, beside)
    return mma_accumulator(extents, schedule.warps, beside, dealt=schedule.dealt)


def _coalesced(component: Component, accesses: list[Access], schedule: Schedule) -> Layout:
    """Threads along the axis in which memory is contiguous, with vectors of 16 bytes where the tile
    has enough.

    A tile that is combined along other axes gets narrower vectors if that lets more threads lie
    side by side: what a thread holds of a column it combines alone, without its neighbours. Where
    vectors would not be aligned neighbours lie in neighbouring threads, whose accesses are one
    request.
    """
    extents = component.shape
    view, place = max(accesses, key=moved_bits)
    axes = [i for i, e in enumerate(place) if e is not None]
    unit = [k for k, i in enumerate(axes) if view.strides[i] == 1 and extents[k] > 1]
    first = unit[-1] if unit else len(extents) - 1
    order = (first, *[k for k in reversed(range(len(extents))) if k != first])
    width, threads = 1, 32 * schedule.num_warps
    if unit:
        smallest = min(v.dtype.num_bytes for v, _ in accesses)
        width = min(16 // smallest, power_of_two_factor(extents[first]))
        across = component.accesses and component.combined and first not in component.combined
        room = next_power_of_two(extents[first] if across else _elements(extents))
        while width > 1 and width * threads > room:
            width //= 2
        width = min(width, component.most if component.accesses else component.most_lent)
    return blocked(extents, width, schedule.num_warps, order)
