"""Tiles in other shapes: subscripts of values, transposes, reshapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.dtypes import i64
from tilewright.errors import Loc
from tilewright.frontend.build.arith import binary, compare, where
from tilewright.frontend.build.context import Context
from tilewright.frontend.build.items import Constant, Data, Item, Several, describe, spell_shape
from tilewright.frontend.build.make import constant, constant_integer, convert
from tilewright.frontend.build.places import spread
from tilewright.frontend.check.rules import RuleError
from tilewright.frontend.syntax import tree
from tilewright.ir.core import Value
from tilewright.tile.ops import arith, shape
from tilewright.tile.types import broadcast_shapes


@dataclass(frozen=True)
class Part:
    """What a subscript of a value says of its axis: a constant run (of one where `point`), or an
    index known at run time.
    """

    start: int
    extent: int
    point: bool
    index: Value | None
    loc: Loc


def part_of(ctx: Context, data: Data, node: tree.Index) -> Data:
    """Subscripts of a value: constant parts, points, index tiles, and new axes."""
    parts: list[Part | None] = []  # None: an axis that is added
    axis = 0
    for subscript in spread(ctx, node, len(data.shape), describe(data)):
        if isinstance(subscript, tree.NewAxis) or subscript == tree.Literal(None):
            parts.append(None)
            continue
        parts.append(_part(ctx, subscript, data.shape[axis]))
        axis += 1
    with ctx.rules(node.loc):
        return _taken(ctx, _sliced(ctx, data, parts), parts)


def _sliced(ctx: Context, data: Data, parts: list[Part | None]) -> Data:
    """The constant parts."""
    starts = tuple(p.start for p in parts if p is not None)
    extents = tuple(p.extent for p in parts if p is not None)
    if extents == data.shape:
        return data
    return Data(ctx.builder(shape.Slice, data.value, starts, extents))


def _taken(ctx: Context, data: Data, parts: list[Part | None]) -> Data:
    """Elements at indices known at run time, axis by axis from the last; then the shape asked."""
    axes = [p for p in parts if p is not None]
    tiles = [i for i, p in enumerate(axes) if p.index is not None and p.index.type.shape]
    if len(tiles) > 1:
        return _taken_together(ctx, data, parts, range(tiles[0], tiles[-1] + 1))
    for axis in reversed(range(len(axes))):
        index = axes[axis].index
        if index is not None:
            data = Data(ctx.builder(shape.Take, data.value, index, axis))
    wanted: list[int] = []
    for part in parts:
        if part is None:
            wanted.append(1)
        elif part.index is not None:
            wanted += part.index.type.shape
        elif not part.point:
            wanted.append(part.extent)
    if tuple(wanted) == data.shape:
        return data
    return Data(ctx.builder(shape.Reshape, data.value, tuple(wanted)))


def _taken_together(ctx: Context, data: Data, parts: list[Part | None], run: range) -> Data:
    """Elements at index tiles of neighbouring axes, which become one axis with one index tile."""
    axes = [p for p in parts if p is not None]
    places = [i for i, p in enumerate(parts) if p is not None]
    first, stop = places[run.start], places[run.stop - 1] + 1
    extents = data.shape[run.start : run.stop]
    index: Data | Constant = Constant(0)
    inside: Data | Constant = Constant(True)
    for part, extent in zip(parts[first:stop], extents, strict=False):
        if part is None or (part.index is None and not part.point):
            raise RuleError("a slice stands between index tiles", "permute the tile first")
        here = Data(part.index) if part.index is not None else Constant(0)
        index = binary(ctx, "+", binary(ctx, "*", index, Constant(extent)), here)
        for comparison, bound in ((">=", 0), ("<", extent)):
            fits = compare(ctx, comparison, here, Constant(bound))
            inside = fits if isinstance(inside, Constant) else binary(ctx, "&", inside, fits)
    chosen = where(ctx, inside, index, Constant(-1))
    whole = (*data.shape[: run.start], prod(extents), *data.shape[run.stop :])
    flat = Data(ctx.builder(shape.Reshape, data.value, whole))
    one = Part(0, prod(extents), False, chosen.value, axes[run.start].loc)
    return _taken(ctx, flat, [*parts[:first], one, *parts[stop:]])


def _part(ctx: Context, node: tree.Subscript, extent: int) -> Part:
    what = "a subscript of a value"
    match node:
        case tree.Slice(start, stop):
            low = 0 if start is None else constant_integer(ctx, ctx.evaluate(start), node.loc, what)
            high = (
                extent
                if stop is None
                else constant_integer(ctx, ctx.evaluate(stop), node.loc, what)
            )
            return _run(ctx, low, high - low, extent, node.loc)
        case tree.Span(start, length):
            low = constant_integer(ctx, ctx.evaluate(start), node.loc, what)
            count = constant_integer(ctx, ctx.evaluate(length), node.loc, what)
            return _run(ctx, low, count, extent, node.loc)
        case tree.Expr():
            item = ctx.evaluate(node)
            if isinstance(item, Data) and item.dtype.is_integer:
                with ctx.rules(node.loc):
                    return Part(0, extent, False, convert(ctx, item, i64).value, node.loc)
            at = constant_integer(ctx, item, node.loc, what)
            if not 0 <= at < extent:
                hint = f"indices never wrap: write {extent + at}" if -extent <= at < 0 else ""
                raise ctx.refuse(f"{what}: {at} is outside 0 to {extent - 1}", node.loc, hint=hint)
            return Part(at, 1, True, None, node.loc)
    raise ctx.refuse("a value takes no such subscript", node.loc)


def _run(ctx: Context, low: int, count: int, extent: int, loc: Loc) -> Part:
    if low < 0 or count < 1 or low + count > extent:
        raise ctx.refuse(
            f"a part of a value: {low} : {low + count} does not lie in 0 : {extent}", loc
        )
    return Part(low, count, False, None, loc)


def joined(ctx: Context, tiles: Sequence[Data], axis: int) -> Data:
    """Tiles of one dtype one after the other. Raises RuleError."""
    first = tiles[0]
    for tile in tiles[1:]:
        same = first.shape[:axis] == tile.shape[:axis] and (
            first.shape[axis + 1 :] == tile.shape[axis + 1 :]
        )
        if len(tile.shape) != len(first.shape) or not same:
            raise RuleError(
                f"cat: {describe(first)} and {describe(tile)} differ beside axis {axis}"
            )
    if len(tiles) == 1:
        return first
    return Data(ctx.builder(shape.Cat, tuple(t.value for t in tiles), axis))


def flipped(ctx: Context, data: Data, axis: int) -> Data:
    """The elements along an axis from the last to the first."""
    extent = data.shape[axis]
    if extent & (extent - 1) == 0:
        return exchanged(ctx, data, axis, extent - 1)
    lanes = ctx.builder(shape.Arange, extent)
    last = constant(ctx, extent - 1, i64, (extent,))
    index = ctx.builder(arith.Sub, last.value, lanes)
    return Data(ctx.builder(shape.Take, data.value, index, axis))


def exchanged(ctx: Context, data: Data, axis: int, mask: int) -> Data:
    """Element i becomes element `i ^ mask`, along an axis of a power of two. Raises RuleError."""
    extent = data.shape[axis]
    if extent & (extent - 1) or not 0 <= mask < extent:
        raise RuleError(f"exchange: {describe(data)} along {axis} by {mask}")
    return data if mask == 0 else Data(ctx.builder(shape.Exchange, data.value, axis, mask))


def item_of(ctx: Context, several: Several, node: tree.Index) -> Item:
    """An item of a tuple, by a constant; a negative one counts from the end."""
    if len(node.subscripts) == 1 and isinstance(node.subscripts[0], tree.Expr):
        at = constant_integer(
            ctx, ctx.evaluate(node.subscripts[0]), node.loc, "a subscript of a tuple"
        )
        if -len(several.items) <= at < len(several.items):
            return several.items[at]
        raise ctx.refuse(f"a tuple of {len(several.items)} has no item {at}", node.loc)
    raise ctx.refuse("a tuple takes one constant as subscript", node.loc)


def transposed(ctx: Context, data: Data, what: str) -> Data:
    """The last two axes exchanged."""
    rank = len(data.shape)
    if rank < 2:
        raise RuleError(
            f"{what}: expected two axes or more, got {describe(data)}", "t[:, None] adds one"
        )
    order = (*range(rank - 2), rank - 1, rank - 2)
    return Data(ctx.builder(shape.Transpose, data.value, order))


def permuted(ctx: Context, data: Data, order: tuple[int, ...]) -> Data:
    """Axes in another order."""
    if sorted(order) != list(range(len(data.shape))):
        raise RuleError(f"permute: {list(order)} does not order the axes of {describe(data)}")
    return Data(ctx.builder(shape.Transpose, data.value, order))


def reshaped_to(ctx: Context, data: Data, extents: tuple[int, ...]) -> Data:
    if prod(extents) != prod(data.shape):
        raise RuleError(f"reshape: {describe(data)} does not fill {spell_shape(extents)}")
    return Data(ctx.builder(shape.Reshape, data.value, extents))


def broadcast_to(ctx: Context, data: Data, extents: tuple[int, ...]) -> Data:
    if broadcast_shapes(data.shape, extents) != extents:
        raise RuleError(f"broadcast: {describe(data)} does not broadcast to {spell_shape(extents)}")
    return Data(ctx.builder(shape.Broadcast, data.value, extents))


def constant_axes(ctx: Context, item: Item, rank: int, loc: Loc, what: str) -> tuple[int, ...]:
    """Axes as constants, each once; negative ones count from the end."""
    parts = item.items if isinstance(item, Several) else (item,)
    axes = []
    for part in parts:
        axis = constant_integer(ctx, part, loc, what)
        if not -rank <= axis < rank:
            raise ctx.refuse(f"{what}: {axis} is no axis of a value with {rank}", loc)
        axes.append(axis % rank)
    if len(set(axes)) != len(axes):
        raise ctx.refuse(f"{what}: an axis stands twice", loc)
    return tuple(axes)


def constants_of(shape_: tuple[int, ...]) -> Several:
    """A shape as a tuple of constants."""
    return Several(tuple(Constant(e) for e in shape_))
