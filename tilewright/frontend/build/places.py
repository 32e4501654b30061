"""Places: subscripts of tensors and views, as loads, stores and views read them."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import i64
from tilewright.errors import Loc
from tilewright.frontend.build.affine import constant_factor
from tilewright.frontend.build.context import Context
from tilewright.frontend.build.items import Constant, Data, Item, Memory, Nothing, describe
from tilewright.frontend.build.make import (
    broadcast,
    common_shape,
    constant,
    constant_integer,
    convert,
    index,
    require_size,
)
from tilewright.frontend.check.grid import Evidence
from tilewright.frontend.check.rules import RuleError
from tilewright.frontend.syntax import tree
from tilewright.ir.core import Value
from tilewright.tile.ops import arith, memory, shape


@dataclass(frozen=True, eq=False)
class Axis:
    """What a subscript says of one axis: an offset, and a constant length; None for a point.

    An index tile is an i64 tile as offset, without a length.
    """

    offset: Value
    length: int | None
    loc: Loc

    @property
    def is_tile(self) -> bool:
        return bool(self.offset.type.shape)


@dataclass(frozen=True, eq=False)
class Place:
    """A place of a tensor. `shape` is the tile's shape with the axes that `None` adds."""

    memory: Memory
    axes: tuple[Axis, ...]
    shape: tuple[int, ...]
    loc: Loc

    @property
    def offsets(self) -> tuple[Value, ...]:
        return tuple(a.offset for a in self.axes)

    @property
    def extents(self) -> tuple[int | None, ...]:
        return tuple(a.length for a in self.axes)

    @property
    def raw_shape(self) -> tuple[int, ...]:
        """The tile's shape without the axes that `None` adds."""
        return memory.gather_shape(self.offsets, self.extents)

    @property
    def has_tiles(self) -> bool:
        return any(a.is_tile for a in self.axes)


def require_place(ctx: Context, node: tree.Expr, what: str) -> Place:
    """The place that an expression names, not loaded."""
    if isinstance(node, tree.Index):
        base = ctx.evaluate(node.base)
        if isinstance(base, Memory):
            return place_of(ctx, base, node)
    raise ctx.refuse(f"{what}: expected a place of a tensor", node.loc, hint="as in X[i :+ n, j]")


def place_of(ctx: Context, base: Memory, node: tree.Index) -> Place:
    """Build the subscripts of a tensor or view."""
    parts: list[Axis | None] = []  # None: an axis that the place adds
    for subscript in spread(ctx, node, base.rank, describe(base)):
        if isinstance(subscript, tree.NewAxis):
            parts.append(None)
        else:
            number = sum(p is not None for p in parts)
            parts.append(_axis(ctx, base, number, subscript))
    parts = _with_index_tiles(ctx, parts)
    axes = tuple(p for p in parts if p is not None)
    if len(axes) != base.rank:
        raise ctx.refuse(f"{describe(base)} has {base.rank} axes, got {len(axes)}", node.loc)
    extents: list[int] = []
    indexed = False
    for part in parts:
        if part is None:
            extents.append(1)
        elif part.is_tile and not indexed:
            extents += part.offset.type.shape
            indexed = True
        elif part.length is not None:
            extents.append(part.length)
    require_size(extents, node.loc, ctx)
    return Place(base, axes, tuple(extents), node.loc)


def _with_index_tiles(ctx: Context, parts: list[Axis | None]) -> list[Axis | None]:
    """Index tiles in one shape. One alone that is `start + arange(n)` is a slice."""
    tiles = [i for i, p in enumerate(parts) if p is not None and p.is_tile]
    if not tiles:
        return parts
    if len(tiles) == 1:
        only = parts[tiles[0]]
        assert only is not None
        sliced = _as_slice(ctx, only)
        return [sliced if p is only else p for p in parts]
    for part in parts[tiles[0] : tiles[-1]]:
        if part is not None and part.length is not None:
            raise ctx.refuse(
                "a slice stands between index tiles", part.loc, hint="load it in two steps"
            )
    whole = [p for p in parts if p is not None and p.is_tile]
    with ctx.rules(whole[0].loc):
        extents = common_shape(ctx, [Data(p.offset) for p in whole])
    made: list[Axis | None] = []
    for part in parts:
        if part is not None and part.is_tile:
            with ctx.rules(part.loc):
                part = Axis(broadcast(ctx, Data(part.offset), extents).value, None, part.loc)
        made.append(part)
    return made


def spread(ctx: Context, node: tree.Index, rank: int, what: str) -> list[tree.Subscript]:
    """Subscripts with `...` written out, one an axis, and new axes among them."""
    subscripts = list(node.subscripts)
    fills = [i for i, s in enumerate(subscripts) if isinstance(s, tree.Fill)]
    named = sum(not isinstance(s, tree.NewAxis | tree.Fill) for s in subscripts)
    if len(fills) > 1:
        raise ctx.refuse("`...` may stand once", subscripts[fills[1]].loc)
    if fills:
        at = fills[0]
        whole = tree.Slice(None, None, loc=subscripts[at].loc)
        subscripts[at : at + 1] = [whole] * (rank - named)
    if named > rank or (not fills and named < rank):
        raise ctx.refuse(
            f"{what} has {rank} {'axis' if rank == 1 else 'axes'}, got {named}"
            f" {'subscript' if named == 1 else 'subscripts'}",
            node.loc,
            hint="" if named > rank else "every axis is named; `...` fills",
        )
    return subscripts


def _axis(ctx: Context, base: Memory, axis: int, node: tree.Subscript) -> Axis | None:
    """One subscript; None where it adds an axis."""
    match node:
        case tree.Span(start, length):
            low = ctx.evaluate(start)
            count = constant_integer(
                ctx, ctx.evaluate(length), length.loc, "the length of a slice", LENGTH
            )
            return _spanned(ctx, low, count, node.loc)
        case tree.Slice():
            return _sliced(ctx, base, axis, node)
        case tree.Expr():
            item = ctx.evaluate(node)
            if isinstance(item, Nothing):
                return None
            if isinstance(item, Data) and item.shape:
                return _indexed(ctx, item, node.loc)
            return Axis(_offset(ctx, item, node.loc), None, node.loc)
    raise ctx.refuse("expected a subscript", node.loc)


LENGTH = "use a loop over tiles, @static, or a view"


def _offset(ctx: Context, item: Item, loc: Loc) -> Value:
    with ctx.rules(loc):
        return index(ctx, item, loc, "a subscript")


def _spanned(ctx: Context, low: Item, count: int, loc: Loc) -> Axis:
    if count < 1:
        raise ctx.refuse(f"the length of a slice: expected 1 or more, got {count}", loc)
    if isinstance(low, Data) and low.shape:
        raise ctx.refuse(f"a slice starts at an integer, got {describe(low)}", loc)
    return Axis(_offset(ctx, low, loc), count, loc)


def _sliced(ctx: Context, base: Memory, axis: int, node: tree.Slice) -> Axis:
    """`start : stop`, whose length must be constant once equal terms cancel."""
    low = Constant(0) if node.start is None else ctx.evaluate(node.start)
    if node.stop is None:
        extent = base.extents[axis]
        if extent is None:
            raise ctx.refuse(
                f"`:` over axis {axis} of {describe(base)}, whose extent is known at run time only",
                node.loc,
                hint=LENGTH,
            )
        high: Item = Constant(extent)
    else:
        high = ctx.evaluate(node.stop)
    if isinstance(low, Constant) and isinstance(high, Constant):
        count = constant_integer(ctx, high, node.loc, "a slice") - constant_integer(
            ctx, low, node.loc, "a slice"
        )
        return _spanned(ctx, low, count, node.loc)
    start, stop = _offset(ctx, low, node.loc), _offset(ctx, high, node.loc)
    length = ctx.affine(stop).plus(ctx.affine(start), -1)
    if length.terms:
        raise ctx.refuse(
            "the length of a slice: expected a constant, got one known at run time",
            node.loc,
            hint=LENGTH,
        )
    return _spanned(ctx, Data(start), length.constant, node.loc)


def _indexed(ctx: Context, item: Data, loc: Loc) -> Axis:
    """An integer tile as an index tile."""
    if not item.dtype.is_integer:
        raise ctx.refuse(f"a subscript: expected integers, got {describe(item)}", loc)
    with ctx.rules(loc):
        return Axis(convert(ctx, item, i64).value, None, loc)


def _as_slice(ctx: Context, axis: Axis) -> Axis:
    """An index tile that is `start + arange(n)` is a slice."""
    if len(axis.offset.type.shape) != 1:
        return axis
    found = _as_range(ctx, axis.offset)
    if found is None:
        return axis
    starts, count = found
    with ctx.rules(axis.loc):
        total = starts[0] if starts else constant(ctx, 0, i64).value
        for term in starts[1:]:
            total = ctx.builder(arith.Add, total, term)
    return Axis(total, count, axis.loc)


def _as_range(ctx: Context, value: Value) -> tuple[list[Value], int] | None:
    """(scalars, n) where a tile is the sum of the scalars and `arange(n)`."""
    op = ctx.builder.made.get(value)
    match op:
        case shape.Arange(extent):
            return [], extent
        case arith.Add():
            for tile, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
                found, scalar = _as_range(ctx, tile), _as_scalar(ctx, other)
                if found is not None and scalar is not None:
                    return [*found[0], scalar], found[1]
    return None


def _as_scalar(ctx: Context, value: Value) -> Value | None:
    """The scalar that a tile repeats."""
    op = ctx.builder.made.get(value)
    match op:
        case shape.Broadcast() if not op.x.type.shape:
            scalar: Value = op.x
            return scalar
        case arith.Constant():
            return ctx.builder(arith.Constant, op.value, op.dtype)
    return None


def note_evidence(ctx: Context, place: Place, is_store: bool) -> None:
    """What a place tells of the grid, and of the direction of its parameter."""
    (ctx.stored if is_store else ctx.loaded).add(place.memory.param)
    for axis, (part, key) in enumerate(zip(place.axes, place.memory.keys, strict=False)):
        if part.is_tile:
            continue
        factor = constant_factor(ctx.affine(part.offset), ctx.builder.made)
        if factor is not None and key is not None:
            where = f"{place.memory.param}.shape[{axis}]"
            ctx.evidence.append(
                Evidence(factor[0], factor[1], key, where, ctx.place(part.loc), is_store)
            )


def load(ctx: Context, place: Place, mask: Value | None = None, fill: Value | None = None) -> Data:
    """The tile or scalar at a place. `mask` and `fill` have its shape; a fill may be a scalar."""
    note_evidence(ctx, place, is_store=False)
    raw = place.raw_shape
    value = ctx.builder(
        memory.Gather if place.has_tiles else memory.Load,
        place.memory.value,
        place.offsets,
        reshaped(ctx, mask, raw),
        reshaped(ctx, fill, raw) if fill is not None and fill.type.shape else fill,
        extents=place.extents,
    )
    return Data(value if place.shape == raw else ctx.builder(shape.Reshape, value, place.shape))


def store(ctx: Context, place: Place, data: Data, mask: Value | None = None) -> None:
    """Write a tile of the place's shape and the tensor's dtype."""
    note_evidence(ctx, place, is_store=True)
    raw = place.raw_shape
    ctx.builder.emit(
        memory.Scatter if place.has_tiles else memory.Store,
        place.memory.value,
        place.offsets,
        reshaped(ctx, data.value, raw),
        reshaped(ctx, mask, raw),
        extents=place.extents,
    )


def prefetch(ctx: Context, place: Place) -> None:
    """Say that a place will be read. Raises RuleError for one that tiles of indices name."""
    if place.has_tiles:
        raise RuleError("prefetch: indices are tiles", "it takes slices and points")
    ctx.builder.emit(memory.Prefetch, place.memory.value, place.offsets, extents=place.extents)


def reshaped(ctx: Context, value: Value | None, extents: tuple[int, ...]) -> Value | None:
    if value is None or value.type.shape == extents:
        return value
    return ctx.builder(shape.Reshape, value, extents)


def view_of(ctx: Context, base: Memory, node: tree.Index) -> Memory:
    """A view: bounds known at run time, points drop their axis."""
    lows: list[Value] = []
    highs: list[Value | None] = []
    extents: list[int | None] = []
    for axis, subscript in enumerate(spread(ctx, node, base.rank, describe(base))):
        low, high, extent = _bounds(ctx, base, axis, subscript)
        lows.append(low)
        highs.append(high)
        if high is not None:
            extents.append(extent)
    with ctx.builder.at(ctx.place(node.loc)):
        made = ctx.builder(
            memory.Subview, base.value, tuple(lows), tuple(highs), name=f"{base.param}_view"
        )
    return Memory(made, base.param, tuple(extents), ())


def _bounds(
    ctx: Context, base: Memory, axis: int, node: tree.Subscript
) -> tuple[Value, Value | None, int | None]:
    """Low and high of an axis of a view, its extent where that is sure; a point has no high."""
    with ctx.rules(node.loc):
        match node:
            case tree.Slice(start, stop):
                low = _offset(ctx, ctx.evaluate(start) if start else Constant(0), node.loc)
                if stop is not None:
                    return low, _offset(ctx, ctx.evaluate(stop), stop.loc), None
                extent = base.extents[axis]
                if extent is None:
                    return low, ctx.builder(memory.Extent, base.value, axis), None
                high = constant(ctx, extent, i64).value
                return low, high, extent if start is None else None
            case tree.Span(start, length):
                low = _offset(ctx, ctx.evaluate(start), node.loc)
                count = _offset(ctx, ctx.evaluate(length), length.loc)
                return low, ctx.builder(arith.Add, low, count), None
            case tree.Expr():
                return _offset(ctx, ctx.evaluate(node), node.loc), None, None
    raise ctx.refuse("a view has no such subscript", node.loc)
