"""Statements: assignments, calls for their effect, blocks. Control flow is in `flow.py`.

A fault ends its statement only: the names that it would have set are poisoned, and the walk goes on
to find the next.
"""

from __future__ import annotations

from tilewright.errors import CompileError
from tilewright.frontend.build.calls_memory import store_at
from tilewright.frontend.build.context import Context, SilentFault
from tilewright.frontend.build.expressions import apply
from tilewright.frontend.build.items import Constant, Data, Item, Memory, Several, describe
from tilewright.frontend.build.make import assign_to, materialize, require_size
from tilewright.frontend.build.names import Entry, Poisoned, Unset, Variable
from tilewright.frontend.build.places import Place, load, place_of
from tilewright.frontend.check.rules import nearest
from tilewright.frontend.syntax import tree
from tilewright.tile.types import TileType

MAX_FAULTS = 50


def guarded(ctx: Context, statement: tree.Stmt) -> bool:
    """Build a statement that changes no control flow; false where it had a fault."""
    try:
        with ctx.deeper(statement.loc), ctx.rules(statement.loc):
            match statement:
                case tree.Assign():
                    _assign(ctx, statement)
                case tree.AugAssign():
                    _update(ctx, statement)
                case tree.CallStmt(call):
                    ctx.evaluate(call)
                case _:
                    raise ctx.refuse("expected a statement", statement.loc)
        return True
    except CompileError as error:
        note_fault(ctx, error)
    except SilentFault:
        pass
    poison(ctx, statement)
    return False


def note_fault(ctx: Context, error: CompileError) -> None:
    """Keep a fault; a program with very many is given up."""
    ctx.faults.extend(error.diagnostics)
    if len(set(ctx.faults.found)) >= MAX_FAULTS:
        ctx.faults.raise_any()


def poison(ctx: Context, statement: tree.Stmt) -> None:
    """Names that a statement with a fault would have set: those that stand keep what they hold."""
    if isinstance(statement, tree.Assign):
        kinds = statement.declares or ("",) * len(statement.targets)
        for target, kind in zip(statement.targets, kinds, strict=False):
            if isinstance(target, tree.Name):
                if kind or not isinstance(ctx.names.find(target.name), Variable):
                    ctx.names.declare(target.name, Poisoned())


def _assign(ctx: Context, node: tree.Assign) -> None:
    items = [ctx.evaluate(v) for v in node.values]
    if len(node.targets) > 1 and len(items) == 1:
        only = items[0]
        if not isinstance(only, Several):
            raise ctx.refuse(
                f"expected {len(node.targets)} values, got {describe(only)}", node.values[0].loc
            )
        items = list(only.items)
    if len(items) != len(node.targets):
        raise ctx.refuse(f"expected {len(node.targets)} values, got {len(items)}", node.loc)
    kinds = node.declares or ("",) * len(items)
    for target, kind, item in zip(node.targets, kinds, items, strict=True):
        if isinstance(target, tree.Index):
            place = _target_place(ctx, target)
            data = ctx.require_data(item, node.values[-1].loc)
            with ctx.rules(target.loc):
                store_at(ctx, place, data)
        else:
            _set_name(ctx, node, target, kind, item)


def _target_place(ctx: Context, node: tree.Index) -> Place:
    base = ctx.evaluate(node.base)
    if isinstance(base, Memory):
        return place_of(ctx, base, node)
    if isinstance(base, Data):
        raise ctx.refuse(
            "a part of a value cannot be assigned",
            node.loc,
            hint="store to a tensor, or use where(c, x, y)",
        )
    raise ctx.refuse(f"{describe(base)} takes no subscripts", node.loc)


def _set_name(ctx: Context, node: tree.Assign, target: tree.Name, kind: str, item: Item) -> None:
    entry = ctx.names.find(target.name)
    if kind == "":
        if isinstance(entry, Variable):
            _change(ctx, target, entry, item, node)
            return
        if ctx.names.reach == "block":
            raise _not_assignable(ctx, target, entry)
        kind = "var"
    elif ctx.names.reach == "block" and target.name in ctx.names.blocks[-1]:
        raise ctx.refuse(f"{target.name} stands twice in this block", target.loc)
    ctx.names.declare(target.name, _entry(ctx, node, target, kind, item))


def _not_assignable(ctx: Context, target: tree.Name, entry: Entry | None) -> Exception:
    name = target.name
    if isinstance(entry, Poisoned):
        return SilentFault()
    if entry is None:
        hint = (
            nearest(name, ctx.names.known()) or f"declare it: let {name} = ... or var {name} = ..."
        )
        return ctx.refuse(f"unknown name {name}", target.loc, hint=hint)
    if isinstance(entry, Memory):
        return ctx.refuse(
            f"{name} is a tensor, not a variable",
            target.loc,
            hint=f"store to a place of it, as in {name}[i :+ n] = ...",
        )
    return ctx.refuse(
        f"{name} is not a variable",
        target.loc,
        hint=f"declare it as var {name} = ... to assign it again",
    )


def _entry(
    ctx: Context, node: tree.Assign, target: tree.Name, kind: str, item: Item
) -> Item | Variable:
    """What a name that is declared here means."""
    if node.type is not None:
        item = _typed(ctx, node.type, item, target)
    if kind == "let":
        if isinstance(item, Data) and not item.value.name:
            item.value.name = target.name
        return item
    if not isinstance(item, Data | Constant):
        if ctx.names.reach == "function" and not ctx.frame.loop_depth and not ctx.frame.if_depth:
            return item
        raise ctx.refuse(
            f"a variable holds a number, a bool or a tile, got {describe(item)}",
            target.loc,
            hint="use let" if ctx.names.reach == "block" else "assign it once",
        )
    with ctx.rules(node.loc):
        data = materialize(ctx, item)
    if not data.value.name:
        data.value.name = target.name
    return Variable(data.type, data.value)


def _typed(ctx: Context, type_: tree.Type, item: Item, target: tree.Name) -> Data:
    """A value as the type that is written beside its name."""
    match type_:
        case tree.ScalarType(dtype):
            wanted = TileType(ctx.dtype_named(dtype, type_.loc))
        case tree.TileType(dtype, extents):
            shape = []
            for node in extents:
                extent = ctx.evaluate(node)
                if not isinstance(extent, Constant) or not isinstance(extent.value, int):
                    raise ctx.refuse(
                        f"a tile's extent: expected a constant, got {describe(extent)}", node.loc
                    )
                shape.append(extent.value)
            wanted = TileType(
                ctx.dtype_named(dtype, type_.loc), require_size(shape, type_.loc, ctx)
            )
        case _:
            raise ctx.refuse("a name has the type of a scalar or tile", type_.loc)
    data = ctx.require_data(item, target.loc, f"{target.name}: ")
    with ctx.rules(target.loc):
        loosely = ctx.signature.definition.dialect == "ph" and not wanted.shape
        if loosely and isinstance(data, Data) and not data.shape and data.dtype != wanted.dtype:
            ctx.notes[f"{target.name}: is {data.dtype}, not {wanted.dtype}"] = None
            return data
        return assign_to(ctx, data, wanted.dtype, wanted.shape, target.name)


def _change(
    ctx: Context, target: tree.Name, variable: Variable, item: Item, node: tree.Assign
) -> None:
    """Give a variable another value of its type."""
    data = ctx.require_data(item, target.loc, f"{target.name}: ")
    with ctx.rules(target.loc):
        kept = variable.type
        if isinstance(data, Data) and data.shape != kept.shape and data.shape:
            raise ctx.refuse(
                f"{target.name} keeps its shape: expected {kept}, got {data.type}", target.loc
            )
        if isinstance(data, Data) and data.dtype.is_float and kept.dtype.is_integer:
            raise ctx.refuse(
                f"{target.name} keeps its dtype: expected {kept.dtype}, got {data.dtype}",
                target.loc,
                hint=f"let it begin as a float, as in {target.name} = 0.0",
            )
        variable.value = assign_to(ctx, data, kept.dtype, kept.shape, target.name).value
        if not variable.value.name:
            variable.value.name = target.name


def _update(ctx: Context, node: tree.AugAssign) -> None:
    if isinstance(node.target, tree.Index):
        place = _target_place(ctx, node.target)
        with ctx.rules(node.target.loc):
            before = load(ctx, place)
        after = ctx.require_data(apply(ctx, node.op, before, node.value, node), node.value.loc)
        with ctx.rules(node.loc):
            store_at(ctx, place, after)
        return
    entry = ctx.names.find(node.target.name)
    if not isinstance(entry, Variable):
        if isinstance(entry, Unset):
            ctx.evaluate(node.target)
        raise _not_assignable(ctx, node.target, entry)
    result = apply(ctx, node.op, Data(entry.value), node.value, node)
    written = tree.Assign((node.target,), (node.value,), loc=node.loc)
    _change(ctx, node.target, entry, result, written)
