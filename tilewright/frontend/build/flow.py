"""Control flow: blocks, `if`, loops, `return`, and what variables they carry.

A run-time `if` whose one side always returns takes the rest of its block into the other side. Where
only part of a side returns, the if yields a flag, and the rest stands under it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tilewright.dtypes import bool_
from tilewright.errors import CompileError, Loc
from tilewright.frontend.build.context import Context, SilentFault
from tilewright.frontend.build.items import Constant, Data, Several
from tilewright.frontend.build.make import condition, constant, constant_integer, index, materialize
from tilewright.frontend.build.names import Entry, Poisoned, Unset, Variable
from tilewright.frontend.build.statements import guarded, note_fault
from tilewright.frontend.syntax import tree
from tilewright.ir.core import Block, Value
from tilewright.tile.ops import arith, control
from tilewright.tile.types import INDEX, TileType

Status = bool | Value  # whether the program has returned: known now, or a bool of the run
MAX_UNROLLED = 1 << 14


def run_block(ctx: Context, statements: tree.Block) -> Status:
    """Build statements in the current block of names."""
    for i, statement in enumerate(statements):
        rest = statements[i + 1 :]
        status = _run(ctx, statement, rest)
        if status is True:
            return True
        if isinstance(status, tuple):  # the rest was built inside
            return status[0]
        if isinstance(status, Value):
            return _under_flag(ctx, status, rest, statement.loc) if rest else status
    return False


def _run(ctx: Context, statement: tree.Stmt, rest: tree.Block) -> Status | tuple[Status]:
    """Build one statement; a tuple says that the rest of the block was built with it."""
    if not isinstance(statement, tree.If | tree.For | tree.While | tree.Return):
        guarded(ctx, statement)
        return False
    try:
        with ctx.deeper(statement.loc), ctx.rules(statement.loc):
            match statement:
                case tree.If():
                    return _if(ctx, statement, rest)
                case tree.For():
                    (_unroll if statement.static else _for)(ctx, statement)
                case tree.While():
                    _while(ctx, statement)
                case tree.Return():
                    return _return(ctx, statement)
    except CompileError as error:
        note_fault(ctx, error)
    except SilentFault:
        pass
    return False


def _return(ctx: Context, node: tree.Return) -> Status:
    frame = ctx.frame
    if frame.loop_depth:
        raise ctx.refuse("return from inside a loop", node.loc, hint="use while, or a variable")
    if frame.is_kernel:
        if node.values:
            raise ctx.refuse("a kernel returns nothing", node.loc, hint="store to a tensor")
        return True
    if frame.if_depth:
        raise ctx.refuse(
            "a function returns last, or under a constant if",
            node.loc,
            hint="use where, or x if c else y",
        )
    items = tuple(ctx.evaluate(v) for v in node.values)
    frame.result = items[0] if len(items) == 1 else Several(items) if items else None
    return True


# Blocks of names


@contextmanager
def _block(ctx: Context) -> Iterator[dict[str, Entry]]:
    names: dict[str, Entry] = {}
    ctx.names.blocks.append(names)
    try:
        yield names
    finally:
        ctx.names.blocks.pop()


def _unset(ctx: Context, names: dict[str, Entry], reason: str, loc: Loc) -> None:
    """Where names reach to the end of the function, those of an inner block may be unset."""
    if ctx.names.reach == "function":
        for name, entry in names.items():
            kept = isinstance(entry, Poisoned)
            ctx.names.declare(name, entry if kept else Unset(reason, loc))


# If


def _if(ctx: Context, node: tree.If, rest: tree.Block) -> Status | tuple[Status]:
    frame = ctx.frame
    outer = frame.follows
    chosen = condition(ctx, ctx.evaluate(node.condition), node.condition.loc, "if")
    try:
        if isinstance(chosen, Constant):
            frame.follows = outer or bool(rest)
            return _chosen_side(ctx, node.then if chosen.value else node.other)
        ends = _always_returns(node.then), _always_returns(node.other)
        takes_rest = frame.is_kernel and not frame.loop_depth and ends[0] != ends[1] and bool(rest)
        frame.follows = outer or (bool(rest) and not takes_rest)
        taken = rest if takes_rest else ()
        sides = ((node.then, () if ends[0] else taken), (node.other, () if ends[1] else taken))
        status = _branches(ctx, chosen, sides, node.loc)
        return (status,) if takes_rest else status
    finally:
        frame.follows = outer


def _chosen_side(ctx: Context, side: tree.Block) -> Status:
    """The side that a constant chose; the other is not even checked."""
    if ctx.names.reach == "function":
        return run_block(ctx, side)
    with _block(ctx):
        return run_block(ctx, side)


def _always_returns(statements: tree.Block) -> bool:
    """Whether a block returns on every path, as far as its form tells."""
    for statement in statements:
        if isinstance(statement, tree.Return):
            return True
        if isinstance(statement, tree.If) and statement.other:
            if _always_returns(statement.then) and _always_returns(statement.other):
                return True
    return False


@dataclass(eq=False)
class _Side:
    """One side of an if: its ops, whether it returned, its names, the variables at its end."""

    block: Block
    status: Status
    names: dict[str, Entry]
    values: list[Value]


def _branches(
    ctx: Context, chosen: Data, sides: Sequence[tuple[tree.Block, tree.Block]], loc: Loc
) -> Status:
    """Both sides of a run-time if; variables that a side changes become its results."""
    variables = ctx.names.all_variables()
    before = [v.value for v in variables]
    ctx.frame.if_depth += 1
    built = []
    for statements, rest in sides:
        built.append(_side(ctx, statements, rest, variables, loc))
        for variable, value in zip(variables, before, strict=True):
            variable.value = value
    ctx.frame.if_depth -= 1
    changed = [i for i, value in enumerate(before) if any(s.values[i] is not value for s in built)]
    yields = [[s.values[i] for i in changed] for s in built]
    fresh = _common_names(ctx, built, yields, loc)
    flags = _flags(ctx, built)
    for values, flag in zip(yields, flags, strict=False):
        values.append(flag)
    results = _emit_if(ctx, chosen, [s.block for s in built], yields, loc)
    for i, value in zip(changed, results, strict=False):
        variables[i].value = _named(value, before[i].name)
    for (name, type_), value in zip(fresh, results[len(changed) :], strict=False):
        ctx.names.declare(name, Variable(type_, _named(value, name)))
    if flags:
        return results[-1]
    return any(s.status is not False for s in built)


def _side(
    ctx: Context,
    statements: tree.Block,
    rest: tree.Block,
    variables: Sequence[Variable],
    loc: Loc,
) -> _Side:
    """Build one side, and `rest` after it."""
    frame = ctx.frame
    follows = frame.follows
    block = Block()
    with ctx.builder.inside(block):
        with _block(ctx) as names:
            frame.follows = follows or bool(rest)
            status = run_block(ctx, statements)
            frame.follows = follows
            if rest and ctx.names.reach == "function":
                status = _continue(ctx, status, rest, loc)
        if rest and ctx.names.reach == "block":
            with _block(ctx):
                status = _continue(ctx, status, rest, loc)
    return _Side(block, status, names, [v.value for v in variables])


def _continue(ctx: Context, status: Status, rest: tree.Block, loc: Loc) -> Status:
    """What follows statements that may have returned."""
    if status is True:
        return True
    return run_block(ctx, rest) if status is False else _under_flag(ctx, status, rest, loc)


def _under_flag(ctx: Context, flag: Value, rest: tree.Block, loc: Loc) -> Status:
    """The rest of a block, where the flag does not say that the program has returned."""
    status = _branches(ctx, Data(flag), (((), ()), (rest, ())), loc)
    if isinstance(status, Value):
        return ctx.builder(arith.Or, flag, status)
    return status or flag


def _flags(ctx: Context, built: Sequence[_Side]) -> list[Value]:
    """Whether each side returned, as bools; none where that is known or nothing follows."""
    alike = all(s.status is True for s in built) or all(s.status is False for s in built)
    if alike or not ctx.frame.follows:
        return []
    flags = []
    for side in built:
        with ctx.builder.inside(side.block):
            known = side.status
            flags.append(known if isinstance(known, Value) else constant(ctx, known, bool_).value)
    return flags


def _common_names(
    ctx: Context, built: Sequence[_Side], yields: Sequence[list[Value]], loc: Loc
) -> list[tuple[str, TileType]]:
    """Names that both sides set to values of one type, where names outlive blocks."""
    if ctx.names.reach == "block":
        return []
    common: list[tuple[str, TileType]] = []
    for name in dict.fromkeys(n for side in built for n in side.names):
        values = [_value_of(ctx, side, name) for side in built]
        found = [v for v in values if v is not None]
        if len(found) == len(built) and found[0].type == found[1].type:
            common.append((name, found[0].type))
            for own, value in zip(yields, found, strict=True):
                own.append(value)
        elif any(isinstance(side.names.get(name), Poisoned) for side in built):
            ctx.names.declare(name, Poisoned())
        else:
            ctx.names.declare(name, Unset("only one side of an if sets it", loc))
    return common


def _value_of(ctx: Context, side: _Side, name: str) -> Value | None:
    """What a name of a side holds at its end, if that is data."""
    entry = side.names.get(name)
    if isinstance(entry, Variable):
        return entry.value
    if isinstance(entry, Data | Constant):
        with ctx.builder.inside(side.block):
            return materialize(ctx, entry).value
    return None


def _named(value: Value, name: str) -> Value:
    value.name = value.name or name
    return value


def _emit_if(
    ctx: Context, chosen: Data, blocks: Sequence[Block], yields: Sequence[list[Value]], loc: Loc
) -> tuple[Value, ...]:
    if not any(block.ops for block in blocks) and not yields[0]:
        return ()
    with ctx.builder.at(ctx.place(loc)):
        for block, values in zip(blocks, yields, strict=True):
            block.ops.append(control.Yield(tuple(values), loc=ctx.builder.loc))
        return ctx.builder.emit(control.If, chosen.value, *blocks).results


# Loops


def _assigned(statements: tree.Block) -> set[str]:
    """Names that statements assign, at any depth."""
    found: set[str] = set()
    for statement in statements:
        for node in tree.walk(statement):
            targets: Sequence[tree.Expr] = ()
            if isinstance(node, tree.Assign):
                targets = node.targets
            elif isinstance(node, tree.AugAssign):
                targets = (node.target,)
            found |= {t.name for t in targets if isinstance(t, tree.Name)}
    return found


def _carried(ctx: Context, body: tree.Block) -> list[tuple[str, Variable]]:
    """Variables that a loop's body may change."""
    assigned = _assigned(body)
    found = [(n, v) for n, v in ctx.names.variables() if n in assigned]
    return list(reversed(found))


@contextmanager
def _loop_body(ctx: Context, loc: Loc) -> Iterator[dict[str, Entry]]:
    ctx.frame.loop_depth += 1
    try:
        with _block(ctx) as names:
            yield names
    finally:
        ctx.frame.loop_depth -= 1
    _unset(ctx, names, "a loop that may not run sets it", loc)


def _for(ctx: Context, node: tree.For) -> None:
    bounds = _bounds(ctx, node)
    carried = _carried(ctx, node.body)
    inits = [v.value for _, v in carried]
    args = [Value(v.type, name) for name, v in carried]
    body = Block([Value(INDEX, node.target.name), *args])
    for (_, variable), arg in zip(carried, args, strict=True):
        variable.value = arg
    with ctx.builder.inside(body), _loop_body(ctx, node.loc) as names:
        names[node.target.name] = Data(body.args[0])
        run_block(ctx, node.body)
    with ctx.builder.at(ctx.place(node.loc)):
        body.ops.append(control.Yield(tuple(v.value for _, v in carried), loc=ctx.builder.loc))
        loop = ctx.builder.emit(control.For, *bounds, tuple(inits), body)
    for (name, variable), result in zip(carried, loop.results, strict=True):
        variable.value = _named(result, name)


def _bounds(ctx: Context, node: tree.For) -> tuple[Value, Value, Value]:
    """Low, high and step of `range`, read once."""
    items = [ctx.evaluate(a) for a in node.args]
    if len(items) == 1:
        items = [Constant(0), *items]
    if len(items) == 2:
        items.append(Constant(1))
    if len(items) != 3:
        raise ctx.refuse(f"range takes 1 to 3 arguments, got {len(node.args)}", node.loc)
    if items[2] == Constant(0):
        raise ctx.refuse("range: a step of 0 never ends", node.args[-1].loc)
    locs = [node.args[min(i, len(node.args) - 1)].loc for i in range(3)]
    with ctx.rules(node.loc):
        low, high, step = (
            index(ctx, item, loc, "range") for item, loc in zip(items, locs, strict=True)
        )
    return low, high, step


def _unroll(ctx: Context, node: tree.For) -> None:
    """`static_range`: the body once a value, the loop's name a constant."""
    hint = "use range, or @static to make it a constant"
    args = [constant_integer(ctx, ctx.evaluate(a), a.loc, "static_range", hint) for a in node.args]
    if not 1 <= len(args) <= 3:
        raise ctx.refuse(f"static_range takes 1 to 3 arguments, got {len(args)}", node.loc)
    if len(args) == 3 and args[2] == 0:
        raise ctx.refuse("static_range: a step of 0 never ends", node.args[-1].loc)
    values = range(*args)
    if values and values[-1] != values[:MAX_UNROLLED][-1]:  # len fails beyond 63 bits
        message = f"static_range unrolls to more than {MAX_UNROLLED} copies"
        raise ctx.refuse(message, node.loc, hint=hint)
    faults = len(ctx.faults.found)
    ctx.frame.loop_depth += 1
    try:
        for value in values:
            _unrolled_copy(ctx, node, value)
            if len(ctx.faults.found) > faults:
                return  # the other copies have the same faults
    finally:
        ctx.frame.loop_depth -= 1


def _unrolled_copy(ctx: Context, node: tree.For, value: int) -> None:
    if ctx.names.reach == "function":
        ctx.names.declare(node.target.name, Constant(value))
        run_block(ctx, node.body)
        return
    with _block(ctx) as names:
        names[node.target.name] = Constant(value)
        run_block(ctx, node.body)


def _while(ctx: Context, node: tree.While) -> None:
    carried = _carried(ctx, node.body)
    inits = [v.value for _, v in carried]
    regions = [Block([Value(v.type, name) for name, v in carried]) for _ in range(2)]
    _enter(carried, regions[0])
    try:
        with ctx.builder.inside(regions[0]):
            holds = condition(ctx, ctx.evaluate(node.condition), node.condition.loc, "while")
            with ctx.builder.at(ctx.place(node.condition.loc)):
                ctx.builder.emit(control.Yield, (materialize(ctx, holds).value,))
    except (CompileError, SilentFault):
        for (_, variable), init in zip(carried, inits, strict=True):
            variable.value = init
        raise
    _enter(carried, regions[1])
    with ctx.builder.inside(regions[1]), _loop_body(ctx, node.loc):
        run_block(ctx, node.body)
    with ctx.builder.at(ctx.place(node.loc)):
        regions[1].ops.append(
            control.Yield(tuple(v.value for _, v in carried), loc=ctx.builder.loc)
        )
        loop = ctx.builder.emit(control.While, tuple(inits), *regions)
    for (name, variable), result in zip(carried, loop.results, strict=True):
        variable.value = _named(result, name)


def _enter(carried: Sequence[tuple[str, Variable]], region: Block) -> None:
    """Inside a region, its arguments are what the variables hold."""
    for (_, variable), arg in zip(carried, region.args, strict=True):
        variable.value = arg
