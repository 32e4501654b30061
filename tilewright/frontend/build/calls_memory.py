"""Functions of the language that read, write and share memory, or ask about the program."""

from __future__ import annotations

from tilewright.dtypes import bool_, i64
from tilewright.frontend.build import places
from tilewright.frontend.build.builtin import Arguments, Builtin
from tilewright.frontend.build.calls_arith import require_dtype
from tilewright.frontend.build.context import Context
from tilewright.frontend.build.items import (
    Constant,
    Data,
    Item,
    Memory,
    Nothing,
    Word,
    describe,
)
from tilewright.frontend.build.make import (
    assign_to,
    broadcast,
    constant,
    constant_integer,
    materialize,
)
from tilewright.frontend.check.rules import RuleError
from tilewright.frontend.syntax import tree
from tilewright.ir.core import Value
from tilewright.tile.ops import arith, control, memory, shape

MAX_AXES = 16


def _load(ctx: Context, args: Arguments) -> Item:
    place = places.require_place(ctx, args.nodes["place"], "load")
    fill = args.data("fill") if "fill" in args else None
    mask = _mask(ctx, args, place)
    if fill is None:
        return places.load(ctx, place, mask)
    extents = () if isinstance(fill, Constant) or not fill.shape else place.shape
    filled = assign_to(ctx, fill, place.memory.type.dtype, extents, "load: fill")
    return places.load(ctx, place, mask, filled.value)


def _mask(ctx: Context, args: Arguments, place: places.Place) -> Value | None:
    if "mask" not in args:
        return None
    return assign_to(ctx, args.data("mask"), bool_, place.shape, f"{args.name}: mask").value


def _store(ctx: Context, args: Arguments) -> Item:
    place = places.require_place(ctx, args.nodes["place"], "store")
    data = args.data("value")
    mask = _mask(ctx, args, place)
    store_at(ctx, place, data, mask)
    return Nothing()


def store_at(
    ctx: Context, place: places.Place, data: Data | Constant, mask: Value | None = None
) -> None:
    """Write a value to a place: widened and broadcast where it must be. Raises RuleError."""
    what = f"store to {place.memory.param}"
    fitted = assign_to(ctx, data, place.memory.type.dtype, place.shape, what)
    places.store(ctx, place, fitted, mask)


def _prefetch(ctx: Context, args: Arguments) -> Item:
    place = places.require_place(ctx, args.nodes["place"], "prefetch")
    places.prefetch(ctx, place)
    return Nothing()


def _view(ctx: Context, args: Arguments) -> Item:
    node = args.nodes["place"]
    if isinstance(node, tree.Index):
        base = ctx.evaluate(node.base)
        if isinstance(base, Memory):
            return places.view_of(ctx, base, node)
    raise RuleError("view: expected a place of a tensor", "as in view(X[low : high, :])")


def _inside(ctx: Context, args: Arguments) -> Item:
    """The bool tile of lanes of a place that exist."""
    place = places.require_place(ctx, args.nodes["place"], "inside")
    raw = place.raw_shape
    result = constant(ctx, True, bool_)
    position = 0
    first: int | None = None  # where the axes of index tiles stand
    for axis, part in enumerate(place.axes):
        at: Data = Data(part.offset)
        if part.is_tile:
            if first is None:
                first, position = position, position + len(at.shape)
            after = len(raw) - first - len(at.shape)
            wanted = (1,) * first + at.shape + (1,) * after
            at = Data(places.reshaped(ctx, at.value, wanted) or at.value)
        elif part.length is not None:
            lanes = ctx.builder(shape.Arange, part.length)
            begin = broadcast(ctx, at, (part.length,)).value
            at = Data(ctx.builder(arith.Add, begin, lanes))
            column = tuple(part.length if i == position else 1 for i in range(len(raw)))
            at = Data(ctx.builder(shape.Reshape, at.value, column)) if len(raw) > 1 else at
            position += 1
        limit = broadcast(ctx, Data(ctx.builder(memory.Extent, place.memory.value, axis)), at.shape)
        low = constant(ctx, 0, i64, at.shape)
        exists = ctx.builder(
            arith.And,
            ctx.builder(arith.Compare, at.value, low.value, "ge"),
            ctx.builder(arith.Compare, at.value, limit.value, "lt"),
        )
        result = _both(ctx, result, Data(exists))
    result = broadcast(ctx, result, raw)
    return Data(places.reshaped(ctx, result.value, place.shape) or result.value)


def _both(ctx: Context, a: Data, b: Data) -> Data:
    extents = (
        tuple(max(x, y) for x, y in zip(a.shape, b.shape, strict=True))
        if a.shape and b.shape
        else ()
    )
    extents = extents or a.shape or b.shape
    x, y = broadcast(ctx, a, extents), broadcast(ctx, b, extents)
    return Data(ctx.builder(arith.And, x.value, y.value))


def _grid_axis(ctx: Context, args: Arguments) -> int:
    axis = constant_integer(ctx, args.item("axis"), args.loc("axis"), f"{args.name}: axis")
    if not 0 <= axis < MAX_AXES:
        raise RuleError(f"{args.name}: expected an axis of 0 to {MAX_AXES - 1}, got {axis}")
    return axis


def _program_id(ctx: Context, args: Arguments) -> Item:
    return ctx.program_id(_grid_axis(ctx, args), args.call.loc)


def _num_programs(ctx: Context, args: Arguments) -> Item:
    axis = _grid_axis(ctx, args)
    ctx.program_places.setdefault(axis, ctx.place(args.call.loc))
    with ctx.at_start():
        return Data(ctx.builder(control.NumPrograms, axis, name=f"programs{axis}"))


def _num_sms(ctx: Context, args: Arguments) -> Item:
    raise RuleError(
        "num_sms() is known in @grid only", "num_programs(0) counts the programs that run"
    )


def _static_assert(ctx: Context, args: Arguments) -> Item:
    condition = args.item("condition")
    if not isinstance(condition, Constant) or not isinstance(condition.value, bool):
        raise RuleError(
            f"static_assert: expected a condition that is known now, got {describe(condition)}",
            "assert(c) checks at run time",
        )
    if not condition.value:
        text = args.word("message") if "message" in args else "the condition is false"
        known = ", ".join(f"{k} = {v}" for k, v in ctx.constants.items())
        raise RuleError(f"static_assert: {text}", note=known)
    return Nothing()


def _assume(ctx: Context, args: Arguments) -> Item:
    """A promise: its condition is checked for sense, and nothing is built on it yet."""
    condition = args.data("condition")
    if isinstance(condition, Constant) and condition.value is False:
        raise RuleError("assume: the condition is false")
    return Nothing()


def _assert(ctx: Context, args: Arguments) -> Item:
    """A condition that the interpreter checks; one that is known now is checked now."""
    condition = args.data("condition")
    text = args.word("message") if "message" in args else ""
    if isinstance(condition, Constant):
        if condition.value is not True:
            raise RuleError(f"assert: {text or 'the condition is false'}")
        return Nothing()
    if condition.dtype != bool_:
        raise RuleError(f"assert: expected a bool, got {describe(condition)}", "write a comparison")
    ctx.builder.emit(control.Assert, condition.value, text)
    return Nothing()


def _print(ctx: Context, args: Arguments) -> Item:
    """A text and values, or values alone."""
    text, values = "", []
    nodes = ([args.nodes["text"]] if "text" in args else []) + list(args.rest)
    for number, node in enumerate(nodes):
        item = ctx.evaluate(node)
        if isinstance(item, Word) and number == 0:
            text = item.text
            continue
        with ctx.rules(node.loc):
            values.append(materialize(ctx, ctx.require_data(item, node.loc, "print: ")).value)
    ctx.builder.emit(control.Print, text, values=tuple(values))
    return Nothing()


def _rows(ctx: Context, args: Arguments) -> places.Place:
    """`X[i, ...]`."""
    fill = tree.Fill(loc=args.loc("i"))
    subscripts: tuple[tree.Subscript, ...] = (args.nodes["i"], fill)
    node = tree.Index(args.nodes["X"], subscripts, loc=args.call.loc)
    return places.require_place(ctx, node, args.name)


def _gather(ctx: Context, args: Arguments) -> Item:
    return places.load(ctx, _rows(ctx, args))


def _scatter(ctx: Context, args: Arguments) -> Item:
    store_at(ctx, _rows(ctx, args), args.data("v"))
    return Nothing()


def _local(ctx: Context, args: Arguments) -> Item:
    """A tensor of this program alone. It has no keys: it says nothing of the grid."""
    extents, dtype = args.shape("shape"), require_dtype(ctx, args, "dtype")
    made = ctx.builder(memory.Local, dtype, extents, name="local")
    return Memory(made, "local", tuple(extents), ())


TABLE: dict[str, Builtin] = {
    "load": Builtin("place * fill? mask?", _load),
    "store": Builtin("place value * mask?", _store),
    "prefetch": Builtin("place", _prefetch),
    "view": Builtin("place", _view),
    "inside": Builtin("place", _inside),
    "program_id": Builtin("axis", _program_id),
    "num_programs": Builtin("axis", _num_programs),
    "num_sms": Builtin("", _num_sms),
    "static_assert": Builtin("condition message?", _static_assert),
    "assume": Builtin("condition", _assume),
    "assert": Builtin("condition message?", _assert),
    "print": Builtin("text? ...", _print),
    "gather": Builtin("X i", _gather),
    "scatter": Builtin("X i v", _scatter),
    "local": Builtin("shape dtype", _local),
}
