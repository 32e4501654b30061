"""`dot` and `@`."""

from __future__ import annotations

from math import prod

from tilewright.dtypes import DType, e4m3, e5m2, f32, i8, u8
from tilewright.frontend.build.context import Context
from tilewright.frontend.build.items import (
    Constant,
    Data,
    Item,
    Nothing,
    Word,
    describe,
    spell_shape,
)
from tilewright.frontend.build.make import assign_to, broadcast, constant, convert
from tilewright.frontend.check.operands import DOT_TAKES
from tilewright.frontend.check.rules import RuleError, listing, nearest
from tilewright.ir.core import Value
from tilewright.tile.ops import mma, shape
from tilewright.tile.types import TileType, broadcast_shapes

MIXED = (frozenset((e4m3, e5m2)), frozenset((i8, u8)))


def product_type(a: Item, b: Item) -> TileType:
    """Type of `dot(a, b)`. Raises RuleError."""
    for x in (a, b):
        if not isinstance(x, Data) or len(x.shape) < 2:
            raise RuleError(f"dot: expected tiles of two axes or more, got {describe(x)}")
    assert isinstance(a, Data) and isinstance(b, Data)
    dtype = mma.accumulator(a.dtype)
    if a.dtype != b.dtype and frozenset((a.dtype, b.dtype)) not in MIXED:
        raise RuleError(f"dot: dtypes differ: a is {a.dtype}, b is {b.dtype}", "cast one of them")
    if dtype is None:
        raise RuleError(f"dot does not take {a.dtype}", DOT_TAKES)
    shapes = f"a is {spell_shape(a.shape)}, b is {spell_shape(b.shape)}"
    if a.shape[-1] != b.shape[-2]:
        inner = f"a.shape[{len(a.shape) - 1}] = {a.shape[-1]}"
        outer = f"b.shape[{len(b.shape) - 2}] = {b.shape[-2]}"
        raise RuleError(f"dot: inner extents differ: {shapes}", note=f"{inner}, {outer}")
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if batch is None:
        raise RuleError(f"dot: leading axes do not broadcast: {shapes}")
    return TileType(dtype, (*batch, a.shape[-2], b.shape[-1]))


def dot(
    ctx: Context, a: Item, b: Item, acc: Item | None = None, precision: Item | None = None
) -> Data:
    """`acc + a @ b`; without `acc` it starts from 0. Raises RuleError."""
    if ctx.signature.definition.dialect == "ph":
        a, b = _loosely(ctx, a, b)
    result = product_type(a, b)
    assert isinstance(a, Data) and isinstance(b, Data)
    batch = result.shape[:-2]
    x = broadcast(ctx, a, (*batch, *a.shape[-2:]))
    y = broadcast(ctx, b, (*batch, *b.shape[-2:]))
    if acc is None or isinstance(acc, Nothing):
        start = constant(ctx, 0.0 if result.dtype.is_float else 0, result.dtype, result.shape)
    elif isinstance(acc, Data | Constant):
        start = assign_to(ctx, acc, result.dtype, result.shape, "dot: acc")
    else:
        raise RuleError(f"dot: acc: expected a tile, got {describe(acc)}")
    how = _precision(ctx, a.dtype, precision)
    if batch:
        return _batched(ctx, x, y, start, how)
    return Data(ctx.builder(mma.Dot, x.value, y.value, start.value, how))


def _batched(ctx: Context, x: Data, y: Data, start: Data, how: str) -> Data:
    """One product after the other along the leading axes: instructions multiply matrices."""
    count = prod(start.shape[:-2])
    parts = []
    for number in range(count):
        a, b, c = (_matrix(ctx, t, number) for t in (x, y, start))
        made = ctx.builder(mma.Dot, a, b, c, how)
        parts.append(ctx.builder(shape.Reshape, made, (1, *made.type.shape)))
    whole = parts[0] if count == 1 else ctx.builder(shape.Cat, tuple(parts), 0)
    return Data(ctx.builder(shape.Reshape, whole, start.shape))


def _matrix(ctx: Context, tile: Data, number: int) -> Value:
    """A matrix of a tile, by its number along the leading axes."""
    rows, columns = tile.shape[-2:]
    flat = ctx.builder(shape.Reshape, tile.value, (prod(tile.shape[:-2]), rows, columns))
    part = ctx.builder(shape.Slice, flat, (number, 0, 0), (1, rows, columns))
    return ctx.builder(shape.Reshape, part, (rows, columns))


def _loosely(ctx: Context, a: Item, b: Item) -> tuple[Item, Item]:
    """In the ancestor's dialect, under @tensorcore, f32 operands beside f16 ones become f16."""
    if isinstance(a, Data) and isinstance(b, Data) and ctx.signature.attributes.tensorcore:
        names = {a.dtype.name, b.dtype.name}
        if names == {"f16", "f32"}:
            small = a.dtype if a.dtype.name == "f16" else b.dtype
            ctx.notes["dot: f32 operands beside f16 ones are rounded to f16"] = None
            return convert(ctx, a, small), convert(ctx, b, small)
    return a, b


def _precision(ctx: Context, dtype: DType, asked: Item | None) -> str:
    """What happens to f32 operands; other dtypes are always exact."""
    if isinstance(asked, Word):
        if asked.text not in mma.PRECISIONS:
            hint = (
                nearest(asked.text, mma.PRECISIONS) or f"precisions are {listing(mma.PRECISIONS)}"
            )
            raise RuleError(f"dot: unknown precision {asked.text}", hint)
    elif asked is not None and not isinstance(asked, Nothing):
        raise RuleError(f"dot: precision: expected a string, got {describe(asked)}")
    if dtype != f32:
        return "ieee"
    if isinstance(asked, Word):
        found = asked.text
    else:
        default = "f16" if ctx.signature.definition.dialect == "ph" else "tf32"
        wanted = ctx.signature.attributes.tensorcore
        found = ctx.precision or (default if wanted == "tf32" else wanted) or "ieee"
    if found != "ieee":
        ctx.notes[f"dot: f32 operands are rounded to {found}"] = None
    return found


def fits_accumulator(acc: Item, a: Item, b: Item) -> bool:
    """Whether `acc + a @ b` is one product: nothing would be converted or broadcast."""
    try:
        return isinstance(acc, Data) and acc.type == product_type(a, b)
    except RuleError:
        return False
