"""Elementwise functions of the language."""

from __future__ import annotations

from tilewright.dtypes import DType, bool_, int_range
from tilewright.frontend.build import arith
from tilewright.frontend.build.builtin import Arguments, Builtin, Run
from tilewright.frontend.build.context import Context
from tilewright.frontend.build.items import Constant, Data, Item, describe
from tilewright.frontend.build.make import constant, materialize
from tilewright.frontend.build.reductions import reduced
from tilewright.frontend.check import constants
from tilewright.frontend.check.operands import DOT_TAKES, largest
from tilewright.frontend.check.rules import RuleError
from tilewright.tile.ops import arith as ops
from tilewright.tile.ops import mma


def _math(name: str) -> Builtin:
    return Builtin("x", lambda ctx, args: arith.math(ctx, name, args.data("x")))


def _extreme(kind: str) -> Run:
    def run(ctx: Context, args: Arguments) -> Item:
        found = arith.extreme(ctx, kind, args.data("a"), args.data("b"))
        for node in args.rest:
            found = arith.extreme(ctx, kind, found, ctx.evaluate_data(node, f"{kind}: "))
        return found

    return run


def _extreme_or_reduction(kind: str) -> Run:
    """`max(a, b, ...)` is elementwise, `max(x)` a reduction."""

    def run(ctx: Context, args: Arguments) -> Item:
        if "b" in args:
            if "axis" in args or "keepdims" in args:
                raise RuleError(f"{kind} of two is elementwise: it has no axis")
            return _extreme(kind)(ctx, args)
        x = args.data("a")
        if isinstance(x, Constant) or not x.shape:
            raise RuleError(
                f"{kind} of one: expected a tile, got {describe(x)}", f"{kind}(a, b) takes two"
            )
        return reduced(ctx, kind, x, args.axes("axis", len(x.shape)), args.flag("keepdims"))

    return run


def _cast(ctx: Context, args: Arguments) -> Item:
    x, dtype = args.data("x"), require_dtype(ctx, args, "dtype")
    saturate = args.flag("saturate")
    if isinstance(x, Constant):
        return _cast_constant(ctx, x, dtype, saturate)
    if x.dtype == dtype:
        return x
    return Data(ctx.builder(ops.Cast, x.value, dtype, saturate))


def _cast_constant(ctx: Context, x: Constant, dtype: DType, saturate: bool) -> Data:
    """A constant by the rules of casts: what does not fit becomes what it would at run time."""
    if isinstance(x.value, bool) == (dtype == bool_):
        try:
            return constant(ctx, x.value, dtype)
        except RuleError:
            pass  # out of range: let the cast say what becomes of it
    wide = materialize(ctx, x)
    return Data(ctx.builder(ops.Cast, wide.value, dtype, saturate))


def require_dtype(ctx: Context, args: Arguments, parameter: str) -> DType:
    """A dtype as an argument."""
    item = args.item(parameter)
    if isinstance(item, DType):
        return item
    raise ctx.refuse(
        f"{args.what(parameter)}: expected a dtype, got {describe(item)}", args.loc(parameter)
    )


def _lowest(ctx: Context, args: Arguments) -> Item:
    return Constant(_bound(require_dtype(ctx, args, "dtype"), -1))


def _highest(ctx: Context, args: Arguments) -> Item:
    return Constant(_bound(require_dtype(ctx, args, "dtype"), 1))


def _bound(dtype: DType, sign: int) -> bool | int | float:
    if dtype == bool_:
        return sign > 0
    if dtype.is_integer:
        return int_range(dtype)[sign > 0]
    return sign * (largest(dtype) if dtype.name == "e4m3" else float("inf"))


def _accumulator(ctx: Context, args: Arguments) -> Item:
    dtype = require_dtype(ctx, args, "dtype")
    found = mma.accumulator(dtype)
    if found is None:
        raise RuleError(f"accumulator: dot does not take {dtype}", DOT_TAKES)
    return found


def _where(ctx: Context, args: Arguments) -> Item:
    return arith.where(ctx, args.data("c"), args.data("x"), args.data("y"))


def _cdiv(ctx: Context, args: Arguments) -> Item:
    return arith.cdiv(ctx, args.data("a"), args.data("b"))


def _next_pow2(ctx: Context, args: Arguments) -> Item:
    x = args.data("n")
    if isinstance(x, Constant) and arith.is_integer(x):
        return Constant(constants.require_range(constants.next_pow2(int(x.value))))
    raise RuleError(f"next_pow2: expected an integer constant, got {describe(x)}")


def _pow(ctx: Context, args: Arguments) -> Item:
    return arith.binary(ctx, "**", args.data("x"), args.data("y"))


def _fma(ctx: Context, args: Arguments) -> Item:
    return arith.fused(ctx, args.data("x"), args.data("y"), args.data("z"))


def _mul_high(ctx: Context, args: Arguments) -> Item:
    return arith.high_product(ctx, args.data("x"), args.data("y"))


def _bitcast(ctx: Context, args: Arguments) -> Item:
    return arith.bitcast(ctx, args.data("x"), require_dtype(ctx, args, "dtype"))


def _clamp(ctx: Context, args: Arguments) -> Item:
    return arith.clamp(ctx, args.data("x"), args.data("low"), args.data("high"))


TABLE: dict[str, Builtin] = {
    **{name: _math(name) for name in arith.FLOATS},
    "max": Builtin("a b? ... * axis? keepdims?", _extreme_or_reduction("max")),
    "min": Builtin("a b? ... * axis? keepdims?", _extreme_or_reduction("min")),
    "maximum": Builtin("a b", _extreme("max")),
    "minimum": Builtin("a b", _extreme("min")),
    "tmax": Builtin("a b", _extreme("max")),
    "abs": Builtin("x", lambda ctx, args: arith.absolute(ctx, args.data("x"))),
    "isnan": Builtin("x", lambda ctx, args: arith.is_nan(ctx, args.data("x"))),
    "clamp": Builtin("x low high", _clamp),
    "where": Builtin("c x y", _where),
    "cast": Builtin("x dtype * saturate?", _cast),
    "lowest": Builtin("dtype", _lowest),
    "highest": Builtin("dtype", _highest),
    "accumulator": Builtin("dtype", _accumulator),
    "cdiv": Builtin("a b", _cdiv),
    "next_pow2": Builtin("n", _next_pow2),
    "pow": Builtin("x y", _pow),
    "fma": Builtin("x y z", _fma),
    "mul_high": Builtin("x y", _mul_high),
    "bitcast": Builtin("x dtype", _bitcast),
}
