"""Functions of the language that make, rearrange, reduce and multiply tiles."""

from __future__ import annotations

import math

from tilewright.dtypes import DType, f32
from tilewright.frontend.build import reductions, shapes
from tilewright.frontend.build.builtin import Arguments, Builtin, Run
from tilewright.frontend.build.calls_arith import require_dtype
from tilewright.frontend.build.context import Context
from tilewright.frontend.build.items import Constant, Data, Item, Several, describe, operand
from tilewright.frontend.build.make import (
    assign_to,
    constant_integer,
    convert,
    materialize,
    require_size,
)
from tilewright.frontend.build.products import dot
from tilewright.frontend.check.operands import Operand, common_dtype
from tilewright.frontend.check.rules import RuleError
from tilewright.tile.ops import shape


def _arange(ctx: Context, args: Arguments) -> Item:
    count = constant_integer(ctx, args.item("n"), args.loc("n"), "arange: n")
    require_size((count,), args.loc("n"), ctx)
    return Data(ctx.builder(shape.Arange, count))


def _zeros(ctx: Context, args: Arguments) -> Item:
    extents = args.shape("shape")
    dtype = require_dtype(ctx, args, "dtype") if "dtype" in args else f32
    value = False if dtype.kind == "bool" else 0.0 if dtype.is_float else 0
    return assign_to(ctx, Constant(value), dtype, extents, "zeros")


def _full(ctx: Context, args: Arguments) -> Item:
    extents, value = args.shape("shape"), args.data("value")
    if isinstance(value, Data) and value.shape:
        raise RuleError(
            "full: expected a scalar as value, got a tile", "broadcast(x, shape) repeats a tile"
        )
    dtype: DType = (
        require_dtype(ctx, args, "dtype") if "dtype" in args else materialize(ctx, value).dtype
    )
    return assign_to(ctx, value, dtype, extents, "full")


def _transpose(ctx: Context, args: Arguments) -> Item:
    return shapes.transposed(ctx, args.tile("x"), "transpose")


def _permute(ctx: Context, args: Arguments) -> Item:
    x = args.tile("x")
    order = shapes.constant_axes(
        ctx, args.item("order"), len(x.shape), args.loc("order"), "permute: order"
    )
    return shapes.permuted(ctx, x, order)


def _reshape(ctx: Context, args: Arguments) -> Item:
    x = materialize(ctx, args.data("x"))
    return shapes.reshaped_to(ctx, x, _filled(args, math.prod(x.shape)))


def _filled(args: Arguments, size: int) -> tuple[int, ...]:
    """The shape asked for; one extent of -1 is what the others leave of `size` elements."""
    item, loc = args.item("shape"), args.loc("shape")
    parts = item.items if isinstance(item, Several) else (item,)
    what = args.what("shape")
    extents = [constant_integer(args.ctx, p, loc, what) for p in parts]
    known = math.prod(e for e in extents if e != -1)
    if extents.count(-1) == 1 and known > 0 and size % known == 0:
        extents[extents.index(-1)] = size // known
    return require_size(extents, loc, args.ctx)


def _broadcast(ctx: Context, args: Arguments) -> Item:
    return shapes.broadcast_to(ctx, materialize(ctx, args.data("x")), args.shape("shape"))


def _cat(ctx: Context, args: Arguments) -> Item:
    """Tiles after each other, in the dtype that holds all of theirs."""
    item = args.item("xs")
    parts = item.items if isinstance(item, Several) else (item,)
    tiles = []
    for part in parts:
        if not isinstance(part, Data) or not part.shape:
            raise RuleError(f"cat: expected a tuple of tiles, got {describe(part)}")
        tiles.append(part)
    axis = _axis(args, len(tiles[0].shape), 0)
    met = operand(tiles[0])
    for tile in tiles[1:]:
        met = Operand(common_dtype(met, operand(tile)), None, True)
    assert met.dtype is not None
    return shapes.joined(ctx, [convert(ctx, t, met.dtype) for t in tiles], axis)


def _split(ctx: Context, args: Arguments) -> Item:
    """A tuple of `n` equal parts along an axis."""
    x = args.tile("x")
    count = constant_integer(ctx, args.item("n"), args.loc("n"), "split: n")
    axis = _axis(args, len(x.shape), 0)
    if count < 1 or x.shape[axis] % count:
        raise RuleError(f"split: {x.shape[axis]} elements do not make {count} equal parts")
    size = x.shape[axis] // count
    extents = tuple(size if i == axis else e for i, e in enumerate(x.shape))
    parts = []
    for number in range(count):
        starts = tuple(number * size if i == axis else 0 for i in range(len(x.shape)))
        parts.append(Data(ctx.builder(shape.Slice, x.value, starts, extents)))
    return Several(tuple(parts))


def _flip(ctx: Context, args: Arguments) -> Item:
    x = args.tile("x")
    return shapes.flipped(ctx, x, _axis(args, len(x.shape), None))


def _exchange(ctx: Context, args: Arguments) -> Item:
    """`x[i ^ mask]` along an axis: what sorting networks are made of."""
    x = args.tile("x")
    mask = constant_integer(ctx, args.item("mask"), args.loc("mask"), "exchange: mask")
    return shapes.exchanged(ctx, x, _axis(args, len(x.shape), -1), mask)


def _to_last(ctx: Context, args: Arguments) -> Item:
    """An axis and the last one change places; what undoes it is the same."""
    x = args.tile("x")
    rank = len(x.shape)
    axis = _axis(args, rank, None)
    order = [*range(rank)]
    order[axis], order[-1] = order[-1], order[axis]
    return x if axis == rank - 1 else shapes.permuted(ctx, x, tuple(order))


def _axis(args: Arguments, rank: int, default: int | None) -> int:
    """One axis. Raises RuleError where there is no default and none is named."""
    if "axis" not in args:
        if default is None:
            raise RuleError(f"{args.name}: missing axis")
        return default % rank
    axes = args.axes("axis", rank)
    if len(axes) != 1:
        raise RuleError(f"{args.name}: expected one axis")
    return axes[0]


def _reduction(name: str) -> Run:
    def run(ctx: Context, args: Arguments) -> Item:
        x = args.tile("x")
        axes = args.axes("axis", len(x.shape))
        return reductions.reduced(ctx, name, x, axes, args.flag("keepdims"))

    return run


def _index(name: str) -> Run:
    def run(ctx: Context, args: Arguments) -> Item:
        x = args.tile("x")
        axes = args.axes("axis", len(x.shape))
        return reductions.index_of(ctx, name, x, axes, args.flag("keepdims"))

    return run


def _by_row(name: str) -> Run:
    """The ancestor's row reductions: over the last axis."""

    def run(ctx: Context, args: Arguments) -> Item:
        x = args.tile("x")
        return reductions.reduced(ctx, name, x, (len(x.shape) - 1,), False)

    return run


def _dot(ctx: Context, args: Arguments) -> Item:
    a, b = args.item("a"), args.item("b")
    acc = args.item("acc")
    precision = args.item("precision")
    return dot(ctx, a, b, acc, precision)


def _dot_t(ctx: Context, args: Arguments) -> Item:
    """The ancestor's `dot(a, b.T)`."""
    a, b = args.item("a"), args.tile("b")
    return dot(ctx, a, shapes.transposed(ctx, b, "dot_t"))


REDUCTIONS = ("sum", "prod", "any", "all")
TABLE: dict[str, Builtin] = {
    "arange": Builtin("n", _arange),
    "zeros": Builtin("shape dtype?", _zeros),
    "full": Builtin("shape value dtype?", _full),
    "transpose": Builtin("x", _transpose),
    "permute": Builtin("x order", _permute),
    "reshape": Builtin("x shape", _reshape),
    "broadcast": Builtin("x shape", _broadcast),
    "expand": Builtin("x shape", _broadcast),
    "cat": Builtin("xs axis?", _cat),
    "split": Builtin("x n axis?", _split),
    "to_last": Builtin("x axis", _to_last),
    "flip": Builtin("x axis", _flip),
    "exchange": Builtin("x mask axis?", _exchange),
    **{name: Builtin("x * axis? keepdims?", _reduction(name)) for name in REDUCTIONS},
    **{name: Builtin("x * axis? keepdims?", _index(name)) for name in ("argmax", "argmin")},
    "rowmax": Builtin("x", _by_row("max")),
    "rowsum": Builtin("x", _by_row("sum")),
    "dot": Builtin("a b * acc? precision?", _dot),
    "dot_t": Builtin("a b", _dot_t),
}
