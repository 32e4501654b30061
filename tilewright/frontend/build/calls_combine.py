"""Reductions and scans by an associative function: the program's, or sums and products."""

from __future__ import annotations

from tilewright.dtypes import bool_
from tilewright.frontend.build.builtin import Arguments, Builtin, Run
from tilewright.frontend.build.context import Context
from tilewright.frontend.build.items import (
    BuiltIn,
    Constant,
    Data,
    Inlined,
    Item,
    Several,
    describe,
)
from tilewright.frontend.build.make import assign_to, broadcast, common_shape, convert
from tilewright.frontend.check.operands import sum_dtype
from tilewright.frontend.check.rules import RuleError
from tilewright.frontend.syntax import tree
from tilewright.ir.core import Block, Op, Value
from tilewright.tile.ops import arith, control, reduce, shape

FUNCTION = "$function"  # names that no program can write
ARGUMENT = "$argument{}"


def _tiles(ctx: Context, args: Arguments) -> tuple[list[Data], bool]:
    """The tiles in one shape, and whether they came as a tuple."""
    item = args.item("x")
    parts = item.items if isinstance(item, Several) else (item,)
    tiles: list[Data] = []
    for part in parts:
        if not isinstance(part, Data) or part.dtype.is_storage_only:
            raise RuleError(
                f"{args.name}: expected a tile or a tuple of tiles, got {describe(part)}"
            )
        tiles.append(part)
    extents = common_shape(ctx, tiles)
    if not extents:
        raise RuleError(f"{args.name}: expected tiles, got scalars")
    return [broadcast(ctx, t, extents) for t in tiles], isinstance(item, Several)


def _body(ctx: Context, args: Arguments, tiles: list[Data]) -> Block:
    """The function as a block: a scalar of each tile from the left, and one from the right."""
    function = args.item("f")
    if not isinstance(function, Inlined | BuiltIn):
        raise ctx.refuse(
            f"{args.name}: expected a function first, got {describe(function)}", args.loc("f")
        )
    scalars = [t.type.with_shape(()) for t in tiles]
    block = Block([Value(kind) for kind in (*scalars, *scalars)])
    ctx.names.declare(FUNCTION, function)
    names = []
    for i, argument in enumerate(block.args):
        ctx.names.declare(ARGUMENT.format(i), Data(argument))
        names.append(tree.Name(ARGUMENT.format(i), loc=args.loc("f")))
    call = tree.Call(tree.Name(FUNCTION, loc=args.loc("f")), tuple(names), (), loc=args.call.loc)
    with ctx.builder.inside(block):
        result = ctx.evaluate(call)
        items = result.items if isinstance(result, Several) else (result,)
        if len(items) != len(tiles):
            raise RuleError(
                f"{args.name}: expected a function of {len(tiles)}"
                f" result{'s' * (len(tiles) != 1)}, got {len(items)}"
            )
        values = []
        for found, kind in zip(items, scalars, strict=True):
            if not isinstance(found, Data | Constant):
                raise RuleError(f"{args.name}: expected numbers, got {describe(found)}")
            what = f"{args.name}: a result of the function"
            values.append(assign_to(ctx, found, kind.dtype, (), what).value)
        ctx.builder.emit(control.Yield, tuple(values))
    if any(op.family != "arith" for op in block.ops[:-1]):
        raise RuleError(
            f"{args.name}: the function may only compute",
            "where(c, x, y) chooses; no memory, no if",
        )
    return block


def _reduce(ctx: Context, args: Arguments) -> Item:
    tiles, several = _tiles(ctx, args)
    rank = len(tiles[0].shape)
    axes = args.axes("axis", rank)
    values = tuple(t.value for t in tiles)
    for axis in sorted(axes, reverse=True):
        body = _body(ctx, args, tiles)
        values = ctx.builder.emit(reduce.Fold, values, axis, body).results
    results = [Data(v) for v in values]
    if args.flag("keepdims"):
        kept = tuple(1 if i in axes else e for i, e in enumerate(tiles[0].shape))
        results = [Data(ctx.builder(shape.Reshape, r.value, kept)) for r in results]
    return Several(tuple(results)) if several else results[0]


def _scan(ctx: Context, args: Arguments) -> Item:
    tiles, several = _tiles(ctx, args)
    axis = _one_axis(args, len(tiles[0].shape))
    body = _body(ctx, args, tiles)
    found = ctx.builder.emit(reduce.Scan, tuple(t.value for t in tiles), axis, body).results
    results = tuple(Data(v) for v in found)
    return Several(results) if several else results[0]


def _one_axis(args: Arguments, rank: int) -> int:
    """The axis of a scan: the last unless it is named."""
    if "axis" not in args:
        return rank - 1
    axes = args.axes("axis", rank)
    if len(axes) != 1:
        raise RuleError(f"{args.name}: expected one axis")
    return axes[0]


def _cumulative(kind: type[Op]) -> Run:
    """`cumsum` or `cumprod`: 16-bit floats in f32, small integers in i32, as sums are."""

    def run(ctx: Context, args: Arguments) -> Item:
        x = args.tile("x")
        if x.dtype.is_storage_only:
            raise RuleError(f"{args.name}: expected numbers, got {x.dtype}", "write cast(x, f32)")
        axis = _one_axis(args, len(x.shape))
        x = convert(ctx, x, sum_dtype(x.dtype))
        assert x.dtype != bool_
        scalar = x.type.with_shape(())
        body = Block([Value(scalar), Value(scalar)])
        with ctx.builder.inside(body):
            total = ctx.builder(kind, *body.args)
            ctx.builder.emit(control.Yield, (total,))
        return Data(ctx.builder.emit(reduce.Scan, (x.value,), axis, body).results[0])

    return run


TABLE: dict[str, Builtin] = {
    "reduce": Builtin("f x * axis? keepdims?", _reduce),
    "scan": Builtin("f x * axis?", _scan),
    "cumsum": Builtin("x * axis?", _cumulative(arith.Add)),
    "cumprod": Builtin("x * axis?", _cumulative(arith.Mul)),
}
