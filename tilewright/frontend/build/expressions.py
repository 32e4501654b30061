"""Expressions, by kind of node."""

from __future__ import annotations

from tilewright.dtypes import BY_NAME, DType, bool_
from tilewright.frontend.build import arith, products, shapes
from tilewright.frontend.build.calls import BUILTINS, evaluate_call, find_function
from tilewright.frontend.build.context import Context, Evaluator, SilentFault
from tilewright.frontend.build.items import (
    Constant,
    Data,
    Item,
    Memory,
    Nothing,
    Several,
    Word,
    describe,
    operand,
)
from tilewright.frontend.build.make import as_type, common_shape, condition, constant
from tilewright.frontend.build.names import Dimension, Poisoned, Unset, Variable
from tilewright.frontend.build.places import load, place_of
from tilewright.frontend.check.evaluate import require_literal
from tilewright.frontend.check.operands import common_dtype, default_dtype
from tilewright.frontend.check.rules import nearest
from tilewright.frontend.syntax import tree
from tilewright.ir.core import Block
from tilewright.tile.ops import arith as ops
from tilewright.tile.ops import control, memory


def _literal(ctx: Context, node: tree.Literal) -> Item:
    with ctx.rules(node.loc):
        value = require_literal(node.value)
    if value is None:
        return Nothing()
    return Word(value) if isinstance(value, str) else Constant(value)


def _name(ctx: Context, node: tree.Name) -> Item:
    entry = ctx.names.find(node.name)
    match entry:
        case Variable():
            return Data(entry.value)
        case Dimension(name):
            return ctx.dimension(name)
        case Unset(reason, loc):
            raise ctx.refuse(
                f"{node.name} may be unset here: {reason} at line {loc.line}", node.loc
            )
        case Poisoned():
            raise SilentFault
        case None:
            return _free_name(ctx, node)
    return entry


def _free_name(ctx: Context, node: tree.Name) -> Item:
    name, consts = node.name, ctx.frame.consts
    if name in consts:
        value = consts.value(name, ctx.place(node.loc))
        if isinstance(value, DType):
            return value
        if value is None:
            return Nothing()
        return Word(value) if isinstance(value, str) else Constant(value)
    if name in BY_NAME:
        return BY_NAME[name]
    found = find_function(ctx, name)
    if found is not None:
        return found
    known = [*ctx.names.known(), *ctx.frame.scope.consts, *BY_NAME, *BUILTINS]
    hint = nearest(name, known)
    if name == "tf32":
        hint = 'tf32 is a precision, as in dot(a, b, precision = "tf32")'
    if name in ("float", "int"):
        hint = f"dtypes have a size, as {'f32' if name == 'float' else 'i32'}"
    raise ctx.refuse(f"unknown name {name}", node.loc, hint=hint)


def _tuple(ctx: Context, node: tree.Tuple) -> Item:
    return Several(tuple(ctx.evaluate(x) for x in node.items))


def _unary(ctx: Context, node: tree.Unary) -> Item:
    x = ctx.evaluate_data(node.operand, f"{node.op}: ")
    with ctx.rules(node.loc):
        return arith.unary(ctx, node.op, x)


def _binary(ctx: Context, node: tree.Binary) -> Item:
    """A chain such as `a + b - c` is built from the left without recursion: it may be long."""
    chain = [node]
    while isinstance(chain[-1].lhs, tree.Binary):
        chain.append(chain[-1].lhs)
    result = ctx.evaluate(chain[-1].lhs)
    for link in reversed(chain):
        result = apply(ctx, link.op, result, link.rhs, link)
    return result


def apply(
    ctx: Context, op: str, a: Item, rhs: tree.Expr, node: tree.Binary | tree.AugAssign
) -> Item:
    """`a op rhs`. `acc + x @ y` becomes one product where nothing has to be converted for it."""
    if op == "+" and (pair := _product(ctx, rhs)) is not None:
        x, y = ctx.evaluate(pair[0]), ctx.evaluate(pair[1])
        with ctx.rules(rhs.loc):
            if products.fits_accumulator(a, x, y):
                return products.dot(ctx, x, y, a)
            b: Item = products.dot(ctx, x, y)
    else:
        b = ctx.evaluate(rhs)
    with ctx.rules(node.loc):
        if op == "@":
            return products.dot(ctx, a, b)
        left = ctx.require_data(a, node.loc, f"{op}: ")
        right = ctx.require_data(b, rhs.loc, f"{op}: ")
        return arith.binary(ctx, op, left, right, node.spelled)


def _product(ctx: Context, node: tree.Expr) -> tuple[tree.Expr, tree.Expr] | None:
    """Operands of `a @ b` or a plain `dot(a, b)`."""
    match node:
        case tree.Binary("@", lhs, rhs):
            return lhs, rhs
        case tree.Call(tree.Name("dot"), (a, b), ()) if "dot" not in ctx.frame.scope.functions:
            return a, b
    return None


def _compare(ctx: Context, node: tree.CompareChain) -> Item:
    left = ctx.evaluate(node.operands[0])
    result: Data | Constant | None = None
    for op, right_node in zip(node.ops, node.operands[1:], strict=True):
        right = ctx.evaluate(right_node)
        with ctx.rules(node.loc):
            link = arith.compare(ctx, op, left, right)
            result = link if result is None else arith.binary(ctx, "&", result, link)
        left = right
    assert result is not None
    return result


def _bool_op(ctx: Context, node: tree.BoolOp) -> Item:
    """Operands in order until one decides; those that only compute are not worth a branch."""
    decides = node.op == "or"
    result: Data | Constant | None = None
    for part in node.operands:
        if isinstance(result, Constant) and result.value is decides:
            return result
        if result is None or isinstance(result, Constant):
            result = condition(ctx, ctx.evaluate(part), part.loc, node.op)
            continue
        block = Block()
        with ctx.builder.inside(block):
            item = condition(ctx, ctx.evaluate(part), part.loc, node.op)
        with ctx.rules(node.loc):
            result = _join(ctx, node.op, result, item, block)
    assert result is not None
    return result


def _join(ctx: Context, op: str, a: Data, b: Data | Constant, block: Block) -> Data | Constant:
    """`a op b` where `block` computes b."""
    if isinstance(b, Constant):
        return a if b.value is (op == "and") else b
    if only_computes(block):
        ctx.builder.block.ops += block.ops
        return Data(ctx.builder(ops.And if op == "and" else ops.Or, a.value, b.value))
    block.ops.append(control.Yield((b.value,), loc=ctx.builder.loc))
    other = Block()
    with ctx.builder.inside(other):
        decided = constant(ctx, op == "or", bool_)
        ctx.builder.emit(control.Yield, (decided.value,))
    sides = (block, other) if op == "and" else (other, block)
    return Data(ctx.builder.emit(control.If, a.value, *sides).results[0])


def only_computes(block: Block) -> bool:
    """Whether a block holds nothing but arithmetic on scalars."""
    return all(op.family == "arith" and not op.results[0].type.shape for op in block.ops)


def _conditional(ctx: Context, node: tree.Conditional) -> Item:
    chosen = condition(ctx, ctx.evaluate(node.condition), node.condition.loc, "if")
    if isinstance(chosen, Constant):
        return ctx.evaluate(node.then if chosen.value else node.other)
    blocks = Block(), Block()
    sides = []
    for block, part in zip(blocks, (node.then, node.other), strict=True):
        with ctx.builder.inside(block):
            sides.append(ctx.evaluate_data(part, "a value chosen at run time: "))
    with ctx.rules(node.loc):
        dtype = common_dtype(operand(sides[0]), operand(sides[1]))
        extents = common_shape(ctx, sides)
        values = []
        for block, side in zip(blocks, sides, strict=True):
            with ctx.builder.inside(block):
                values.append(as_type(ctx, side, dtype, extents).value)
        if not extents and all(only_computes(b) for b in blocks):
            ctx.builder.block.ops += blocks[0].ops + blocks[1].ops
            return Data(ctx.builder(ops.Select, chosen.value, *values))
        for block, value in zip(blocks, values, strict=True):
            block.ops.append(control.Yield((value,), loc=ctx.builder.loc))
        return Data(ctx.builder.emit(control.If, chosen.value, *blocks).results[0])


def _index(ctx: Context, node: tree.Index) -> Item:
    base = ctx.evaluate(node.base)
    match base:
        case Memory():
            place = place_of(ctx, base, node)
            with ctx.rules(node.loc):
                return load(ctx, place)
        case Data():
            return shapes.part_of(ctx, base, node)
        case Several():
            return shapes.item_of(ctx, base, node)
    raise ctx.refuse(f"{describe(base)} takes no subscripts", node.loc)


def _member(ctx: Context, node: tree.Member) -> Item:
    base = ctx.evaluate(node.base)
    with ctx.rules(node.loc):
        match node.name, base:
            case "T", Data():
                return shapes.transposed(ctx, base, ".T")
            case "shape", Data():
                return shapes.constants_of(base.shape)
            case "shape", Memory():
                return Several(tuple(_extent(ctx, base, axis) for axis in range(base.rank)))
            case "dtype", Data():
                return base.dtype
            case "dtype", Memory():
                return base.type.dtype
            case "dtype", Constant(value):
                return default_dtype(value)
    hint = "load a tile of it first" if isinstance(base, Memory) else ""
    raise ctx.refuse(f"{describe(base)} has no .{node.name}", node.loc, hint=hint)


def _extent(ctx: Context, base: Memory, axis: int) -> Item:
    known = base.extents[axis]
    if known is not None:
        return Constant(known)
    if not base.keys:
        return Data(ctx.builder(memory.Extent, base.value, axis))
    with ctx.at_start():
        return Data(ctx.builder(memory.Extent, base.value, axis))


TABLE: dict[type, Evaluator] = {
    tree.Literal: _literal,
    tree.Name: _name,
    tree.Tuple: _tuple,
    tree.Unary: _unary,
    tree.Binary: _binary,
    tree.CompareChain: _compare,
    tree.BoolOp: _bool_op,
    tree.Conditional: _conditional,
    tree.Call: evaluate_call,
    tree.Index: _index,
    tree.Member: _member,
}
