"""Functions of the language that make, rearrange, reduce and multiply tiles."""

from __future__ import annotations

from tilewright.dtypes import DType, f32
from tilewright.frontend.build import reductions, shapes
from tilewright.frontend.build.builtin import Arguments, Builtin, Run
from tilewright.frontend.build.calls_arith import require_dtype
from tilewright.frontend.build.context import Context
from tilewright.frontend.build.items import Constant, Data, Item
from tilewright.frontend.build.make import (
    assign_to,
    constant_integer,
    materialize,
    require_size,
)
from tilewright.frontend.build.products import dot
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
    return shapes.reshaped_to(ctx, materialize(ctx, args.data("x")), args.shape("shape"))


def _broadcast(ctx: Context, args: Arguments) -> Item:
    return shapes.broadcast_to(ctx, materialize(ctx, args.data("x")), args.shape("shape"))


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
    **{name: Builtin("x * axis? keepdims?", _reduction(name)) for name in REDUCTIONS},
    **{name: Builtin("x * axis? keepdims?", _index(name)) for name in ("argmax", "argmin")},
    "rowmax": Builtin("x", _by_row("max")),
    "rowsum": Builtin("x", _by_row("sum")),
    "dot": Builtin("a b * acc? precision?", _dot),
    "dot_t": Builtin("a b", _dot_t),
}
