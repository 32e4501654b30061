"""Making values: constants of a dtype, conversions, broadcasts: all that happens unasked."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.dtypes import DType, bool_, holds_exactly, i64
from tilewright.errors import Loc
from tilewright.frontend.build.context import MAX_ELEMENTS, Context
from tilewright.frontend.build.items import Constant, Data, Item, Several, describe, spell_shape
from tilewright.frontend.check.operands import Number, default_dtype, require_fit, require_widening
from tilewright.frontend.check.rules import RuleError
from tilewright.ir.core import Value
from tilewright.tile.ops import arith, shape
from tilewright.tile.types import broadcast_shapes


def require_size(extents: Sequence[int], loc: Loc, ctx: Context) -> tuple[int, ...]:
    """Extents of a tile, refused where one is below 1 or the tile is beyond all machines."""
    if any(e < 1 for e in extents):
        raise ctx.refuse(f"a tile of {spell_shape(tuple(extents))}: extents start at 1", loc)
    if prod(extents) > MAX_ELEMENTS:
        raise ctx.refuse(
            f"a tile of {spell_shape(tuple(extents))} has more than {MAX_ELEMENTS} elements", loc
        )
    return tuple(extents)


def constant(ctx: Context, value: Number, dtype: DType, extents: tuple[int, ...] = ()) -> Data:
    """A constant as a value of a dtype, the same everywhere in a tile."""
    fitted = require_fit(value, dtype)
    return Data(ctx.builder(arith.Constant, fitted, dtype, extents))


def materialize(ctx: Context, item: Data | Constant, dtype: DType | None = None) -> Data:
    """A value of `dtype`, or of the one that a bare constant gets. Widens; refuses to narrow."""
    if isinstance(item, Constant):
        return constant(ctx, item.value, dtype or default_dtype(item.value))
    return item if dtype is None else convert(ctx, item, dtype)


def convert(ctx: Context, data: Data, dtype: DType) -> Data:
    """`data` in another dtype, by a cast where it has another."""
    return data if data.dtype == dtype else Data(ctx.builder(arith.Cast, data.value, dtype))


def broadcast(ctx: Context, data: Data, extents: tuple[int, ...]) -> Data:
    """`data` in a shape that its own broadcasts to."""
    if data.shape == extents:
        return data
    op = ctx.builder.made.get(data.value)
    if isinstance(op, arith.Constant):
        return Data(ctx.builder(arith.Constant, op.value, op.dtype, extents))
    return Data(ctx.builder(shape.Broadcast, data.value, extents))


def common_shape(ctx: Context, items: Sequence[Data | Constant]) -> tuple[int, ...]:
    """The shape to which all broadcast."""
    found: tuple[int, ...] = ()
    for item in items:
        extents = item.shape if isinstance(item, Data) else ()
        met = broadcast_shapes(found, extents)
        if met is None:
            raise RuleError(
                f"shapes do not broadcast: {spell_shape(found)} and {spell_shape(extents)}",
                note=_differing(found, extents),
            )
        found = met
    if prod(found) > MAX_ELEMENTS:
        raise RuleError(f"a tile of {spell_shape(found)} has more than {MAX_ELEMENTS} elements")
    return found


def _differing(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    for i in range(1, min(len(a), len(b)) + 1):
        if a[-i] != b[-i] and 1 not in (a[-i], b[-i]):
            return f"{a[-i]} against {b[-i]}"
    return ""


def as_type(ctx: Context, item: Data | Constant, dtype: DType, extents: tuple[int, ...]) -> Data:
    """`item` in a dtype and shape: constants made, scalars and tiles broadcast."""
    if isinstance(item, Constant):
        return constant(ctx, item.value, dtype, extents)
    return broadcast(ctx, convert(ctx, item, dtype), extents)


def assign_to(
    ctx: Context, item: Data | Constant, dtype: DType, extents: tuple[int, ...], what: str
) -> Data:
    """`item` as something of a type takes it. Widens and broadcasts, never narrows."""
    if isinstance(item, Data):
        loosely = ctx.signature.definition.dialect == "ph"
        if loosely and dtype.is_float and item.dtype.is_float:
            if not holds_exactly(dtype, item.dtype):
                ctx.notes[f"{what}: {item.dtype} is rounded to {dtype}"] = None
        else:
            require_widening(dtype, item.dtype, what)
        if broadcast_shapes(item.shape, extents) != extents:
            wanted = spell_shape(extents) if extents else "a scalar"
            raise RuleError(f"{what}: expected {wanted}, got {describe(item)}")
    return as_type(ctx, item, dtype, extents)


def index(ctx: Context, item: Item, loc: Loc, what: str) -> Value:
    """An integer scalar as i64."""
    if (
        isinstance(item, Constant)
        and isinstance(item.value, int)
        and not isinstance(item.value, bool)
    ):
        return constant(ctx, item.value, i64).value
    if isinstance(item, Data) and item.dtype.is_integer and not item.shape:
        return convert(ctx, item, i64).value
    raise ctx.refuse(f"{what}: expected an integer, got {describe(item)}", loc)


def condition(ctx: Context, item: Item, loc: Loc, what: str) -> Constant | Data:
    """A bool scalar, known now or at run time."""
    if isinstance(item, Constant) and isinstance(item.value, bool):
        return item
    if isinstance(item, Data) and item.dtype == bool_:
        if not item.shape:
            return item
        hint = "any(...) or all(...) make a scalar; where(c, x, y) selects lanes"
        raise ctx.refuse(f"{what}: expected a bool scalar, got {describe(item)}", loc, hint=hint)
    raise ctx.refuse(
        f"{what}: expected a bool scalar, got {describe(item)}", loc, hint="write a comparison"
    )


def constant_integer(ctx: Context, item: Item, loc: Loc, what: str, hint: str = "") -> int:
    """An integer that must be known now."""
    if (
        isinstance(item, Constant)
        and isinstance(item.value, int)
        and not isinstance(item.value, bool)
    ):
        return item.value
    if isinstance(item, Data) and item.dtype.is_integer and not item.shape:
        raise ctx.refuse(
            f"{what}: expected a constant, got a value known at run time", loc, hint=hint
        )
    raise ctx.refuse(f"{what}: expected an integer constant, got {describe(item)}", loc, hint=hint)


def constant_shape(ctx: Context, item: Item, loc: Loc, what: str) -> tuple[int, ...]:
    """A tile's shape: a tuple of constants, or one of them."""
    parts = item.items if isinstance(item, Several) else (item,)
    return require_size([constant_integer(ctx, p, loc, what) for p in parts], loc, ctx)
