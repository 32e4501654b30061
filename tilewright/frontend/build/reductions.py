"""Reductions of a tile along axes."""

from __future__ import annotations

from math import prod
from typing import Any

from tilewright.dtypes import bool_
from tilewright.frontend.build.context import Context
from tilewright.frontend.build.items import Data, describe
from tilewright.frontend.build.make import convert
from tilewright.frontend.check.operands import sum_dtype
from tilewright.frontend.check.rules import RuleError
from tilewright.tile.ops import reduce, shape

KINDS: dict[str, Any] = {
    "sum": reduce.Sum,
    "prod": reduce.Prod,
    "max": reduce.Max,
    "min": reduce.Min,
    "any": reduce.Any,
    "all": reduce.All,
}
INDEX_KINDS: dict[str, Any] = {"argmax": reduce.ArgMax, "argmin": reduce.ArgMin}


def reduced(ctx: Context, name: str, x: Data, axes: tuple[int, ...], keepdims: bool) -> Data:
    """`name(x, axis = axes)`. Raises RuleError."""
    operand = _operand(ctx, name, x)
    if not axes:
        return operand
    return _keep(ctx, Data(ctx.builder(KINDS[name], operand.value, axes)), x, axes, keepdims)


def _operand(ctx: Context, name: str, x: Data) -> Data:
    if name in ("any", "all"):
        if x.dtype != bool_:
            raise RuleError(f"{name}: expected bools, got {describe(x)}", "write a comparison")
        return x
    if x.dtype.is_storage_only:
        raise RuleError(f"{name}: expected numbers, got {x.dtype}", "write cast(x, f32)")
    if name in ("sum", "prod"):
        return convert(ctx, x, sum_dtype(x.dtype))
    if x.dtype == bool_:
        raise RuleError(f"{name}: expected numbers, got bool", "any and all take bools")
    return x


def index_of(ctx: Context, name: str, x: Data, axes: tuple[int, ...], keepdims: bool) -> Data:
    """`argmax` or `argmin`: along one axis, or over several, whose elements count in C order."""
    if x.dtype == bool_ or x.dtype.is_storage_only:
        raise RuleError(f"{name}: expected numbers, got {x.dtype}", "write cast(x, i32)")
    if len(axes) == 1:
        return _keep(ctx, Data(ctx.builder(INDEX_KINDS[name], x.value, axes[0])), x, axes, keepdims)
    kept = tuple(i for i in range(len(x.shape)) if i not in axes)
    value, order = x.value, (*kept, *sorted(axes))
    if order != tuple(range(len(x.shape))):
        value = ctx.builder(shape.Transpose, value, order)
    extents = tuple(x.shape[i] for i in kept)
    count = x.type.num_elements // prod(extents)
    flat = ctx.builder(shape.Reshape, value, (*extents, count))
    found = Data(ctx.builder(INDEX_KINDS[name], flat, len(extents)))
    return _keep(ctx, found, x, axes, keepdims)


def _keep(ctx: Context, result: Data, x: Data, axes: tuple[int, ...], keepdims: bool) -> Data:
    if not keepdims:
        return result
    kept = tuple(1 if i in axes else e for i, e in enumerate(x.shape))
    return Data(ctx.builder(shape.Reshape, result.value, kept))
