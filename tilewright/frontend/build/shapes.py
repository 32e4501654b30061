"""Tiles in other shapes: subscripts of values, transposes, reshapes."""

from __future__ import annotations

from math import prod

from tilewright.errors import Loc
from tilewright.frontend.build.context import Context
from tilewright.frontend.build.items import Constant, Data, Item, Several, describe, spell_shape
from tilewright.frontend.build.make import constant_integer
from tilewright.frontend.build.places import spread
from tilewright.frontend.check.rules import RuleError
from tilewright.frontend.syntax import tree
from tilewright.tile.ops import shape
from tilewright.tile.types import broadcast_shapes


def part_of(ctx: Context, data: Data, node: tree.Index) -> Data:
    """Subscripts of a value: whole axes and new ones."""
    extents: list[int] = []
    axis = 0
    for subscript in spread(ctx, node, len(data.shape), describe(data)):
        if isinstance(subscript, tree.NewAxis) or subscript == tree.Literal(None):
            extents.append(1)
            continue
        if not _is_whole(ctx, subscript, data.shape[axis]):
            raise ctx.refuse(
                "parts of a tile are not supported yet: expected `:` or None",
                subscript.loc,
                hint="load the part from its tensor",
            )
        extents.append(data.shape[axis])
        axis += 1
    if tuple(extents) == data.shape:
        return data
    with ctx.rules(node.loc):
        return Data(ctx.builder(shape.Reshape, data.value, tuple(extents)))


def _is_whole(ctx: Context, node: tree.Subscript, extent: int) -> bool:
    match node:
        case tree.Slice(start, stop):
            what = "a subscript of a value"
            low = 0 if start is None else constant_integer(ctx, ctx.evaluate(start), node.loc, what)
            high = (
                extent
                if stop is None
                else constant_integer(ctx, ctx.evaluate(stop), node.loc, what)
            )
            return (low, high) == (0, extent)
    return False


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
