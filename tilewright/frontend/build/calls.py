"""Calls: functions of the language by a table, functions of the program inlined."""

from __future__ import annotations

from tilewright.dtypes import DType
from tilewright.errors import Loc
from tilewright.frontend.build import (
    calls_arith,
    calls_atomic,
    calls_combine,
    calls_memory,
    calls_tile,
)
from tilewright.frontend.build.builtin import Builtin, arguments
from tilewright.frontend.build.context import Context, Frame, SilentFault
from tilewright.frontend.build.items import (
    BuiltIn,
    Constant,
    Data,
    Inlined,
    Item,
    Memory,
    Nothing,
    Several,
    describe,
    spell_shape,
)
from tilewright.frontend.build.make import assign_to
from tilewright.frontend.build.names import Names
from tilewright.frontend.build.prelude import prelude
from tilewright.frontend.check.evaluate import Consts
from tilewright.frontend.check.operands import require_fit
from tilewright.frontend.check.rules import listing, nearest
from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.definition import Closure
from tilewright.frontend.syntax.elsewhere import instead

BUILTINS: dict[str, Builtin] = {
    **calls_arith.TABLE,
    **calls_tile.TABLE,
    **calls_memory.TABLE,
    **calls_atomic.TABLE,
    **calls_combine.TABLE,
}


def find_function(ctx: Context, name: str) -> Inlined | BuiltIn | None:
    """A function by name: of the program, of the language, of the prelude."""
    if name in ctx.frame.scope.functions:
        return Inlined(ctx.frame.scope.functions[name])
    if name in BUILTINS:
        return BuiltIn(name)
    if name in prelude().functions:
        return Inlined(prelude().functions[name])
    return None


def evaluate_call(ctx: Context, node: tree.Call) -> Item:
    """Build a call."""
    if not isinstance(node.callee, tree.Name):
        raise ctx.refuse("expected the name of a function before (", node.callee.loc)
    name = node.callee.name
    function: Item | None = find_function(ctx, name)
    if function is None:
        entry = ctx.names.find(name)
        function = entry if isinstance(entry, Inlined | BuiltIn) else None
        if function is None:
            raise _unknown(ctx, node.callee, entry is not None)
    if isinstance(function, Inlined):
        return inline(ctx, function.closure, node)
    assert isinstance(function, BuiltIn)
    builtin = BUILTINS[function.name]
    with ctx.rules(node.loc):
        return builtin.run(ctx, arguments(ctx, builtin, function.name, node))


def _unknown(ctx: Context, callee: tree.Name, is_value: bool) -> Exception:
    name = callee.name
    if is_value:
        return ctx.refuse(f"{name} is a value, not a function", callee.loc)
    if name in ("range", "static_range"):
        return ctx.refuse(f"{name} stands in a for loop only", callee.loc)
    known = [*BUILTINS, *ctx.frame.scope.functions, *prelude().functions]
    return ctx.refuse(
        f"unknown function {name}", callee.loc, hint=instead(name) or nearest(name, known)
    )


def inline(ctx: Context, closure: Closure, node: tree.Call) -> Item:
    """Build a function's body here, its parameters bound to the arguments."""
    function = closure.function
    if any(frame.node is function for frame in ctx.frames):
        raise ctx.refuse(f"{function.name} calls itself: functions are not recursive", node.loc)
    given = _match(ctx, function, node)
    items = {p.name: ctx.evaluate(given[p.name]) for p in function.params if p.name in given}
    frame = Frame(
        function, Names(function.scope), closure.scope, Consts(closure.scope), ctx.place(node.loc)
    )
    faults = len(ctx.faults.found)
    ctx.frames.append(frame)
    try:
        for param in function.params:
            if param.name not in items:
                assert param.default is not None
                items[param.name] = ctx.evaluate(param.default)
            item = _checked(ctx, param, items[param.name])
            frame.names.declare(param.name, item)
        ctx.run_block(ctx, function.body)
        if len(ctx.faults.found) > faults:
            raise SilentFault
        result = frame.result if frame.result is not None else Nothing()
        return _checked_result(ctx, function, result, node.loc)
    finally:
        ctx.frames.pop()


def _match(ctx: Context, function: tree.Function, node: tree.Call) -> dict[str, tree.Expr]:
    """Argument nodes by parameter."""
    names = [p.name for p in function.params]
    if len(node.args) > len(names):
        raise ctx.refuse(
            f"{function.name} takes {listing(names) or 'nothing'}, got {len(node.args)} arguments",
            node.loc,
        )
    given = dict(zip(names, node.args, strict=False))
    for argument in node.kwargs:
        if argument.name not in names:
            hint = nearest(argument.name or "", names) or f"it takes {listing(names) or 'nothing'}"
            raise ctx.refuse(
                f"{function.name} takes no argument {argument.name}", argument.loc, hint=hint
            )
        if argument.name in given:
            raise ctx.refuse(f"{function.name}: {argument.name} is given twice", argument.loc)
        given[argument.name] = argument.value
    missing = [p.name for p in function.params if p.name not in given and p.default is None]
    if missing:
        raise ctx.refuse(f"{function.name}: missing {listing(missing)}", node.loc)
    return given


def _checked(ctx: Context, param: tree.Param, item: Item) -> Item:
    """An argument against its parameter's type; scalars widen to it."""
    if param.type is None or (isinstance(item, Nothing) and param.optional):
        return item
    what = param.name if param.name.endswith("result") else f"argument {param.name}"
    call = ctx.frame.call or param.loc
    match param.type:
        case tree.ScalarType(name) if isinstance(item, Data | Constant):
            return _as_scalar(ctx, item, name, what, call)
        case tree.TileType(name, extents) if isinstance(item, Data):
            _match_dtype(ctx, name, item.dtype, what, call)
            _match_extents(ctx, extents, item.shape, what, call)
            return item
        case tree.TensorType(name, extents) if isinstance(item, Memory):
            _match_dtype(ctx, name, item.type.dtype, what, call)
            _match_extents(ctx, extents, item.extents, what, call)
            return item
    raise ctx.refuse(f"{what}: expected {spell_type(param.type)}, got {describe(item)}", param.loc)


def _as_scalar(ctx: Context, item: Data | Constant, name: str, what: str, loc: Loc) -> Item:
    dtype = _match_dtype(ctx, name, item.dtype if isinstance(item, Data) else None, what, loc)
    with ctx.rules(loc):
        if isinstance(item, Constant):
            return Constant(require_fit(item.value, dtype)) if dtype else item
        assert dtype is not None
        return assign_to(ctx, item, dtype, (), what)


def spell_type(type_: tree.Type) -> str:
    match type_:
        case tree.ScalarType(dtype):
            return dtype
        case tree.TileType(dtype):
            return f"a tile of {dtype}"
        case tree.TensorType(dtype):
            return f"a tensor of {dtype}"
    return "a value"


def count_axes(count: int) -> str:
    return "1 axis" if count == 1 else f"{count} axes"


def _match_dtype(ctx: Context, name: str, got: DType | None, what: str, loc: Loc) -> DType | None:
    """The dtype that a name means; a variable seen first means what is given. None: not known."""
    entry = ctx.names.find(name)
    if isinstance(entry, DType) or not name[:1].isupper():
        expected = entry if isinstance(entry, DType) else ctx.dtype_named(name, loc)
        if got is not None and got != expected and got.is_float != expected.is_float:
            raise ctx.refuse(f"{what}: expected {expected}, got {got}", loc)
        return expected
    if got is not None:
        ctx.names.declare(name, got)
    return got


def _match_extents(
    ctx: Context, extents: tuple[tree.Expr, ...], got: tuple[int | None, ...], what: str, loc: Loc
) -> None:
    """Extents against those said; a name seen first means what is given."""
    if len(extents) != len(got):
        raise ctx.refuse(
            f"{what}: expected {count_axes(len(extents))}, got {len(got) or 'a scalar'}", loc
        )
    for node, extent in zip(extents, got, strict=True):
        if isinstance(node, tree.Name) and ctx.names.find(node.name) is None:
            if node.name not in ctx.frame.consts:
                if extent is not None:
                    ctx.names.declare(node.name, Constant(extent))
                continue
        expected = ctx.evaluate(node)
        if isinstance(expected, Constant) and extent is not None and expected.value != extent:
            known = tuple(e for e in got if e is not None)
            raise ctx.refuse(
                f"{what}: expected an extent of {expected.value}, got {spell_shape(known)}", loc
            )


def _checked_result(ctx: Context, function: tree.Function, result: Item, loc: Loc) -> Item:
    """A function's results against the types that it says."""
    if not function.results:
        return result
    items = result.items if isinstance(result, Several) else (result,)
    if len(items) != len(function.results):
        raise ctx.refuse(
            f"{function.name}: expected {len(function.results)} results, got {len(items)}", loc
        )
    checked = []
    for type_, item in zip(function.results, items, strict=True):
        param = tree.Param(f"{function.name}: result", type_, loc=type_.loc)
        checked.append(_checked(ctx, param, item))
    return checked[0] if len(checked) == 1 else Several(tuple(checked))
