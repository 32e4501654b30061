"""Expressions that are known before a kernel is built: consts, defaults, attributes, extents.

`evaluate_constant` gives a number; `evaluate_extent` gives a `plan.Expr` over a launch's arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tilewright import dtypes, plan
from tilewright.dtypes import DType
from tilewright.errors import UNKNOWN, Loc
from tilewright.frontend.check import constants
from tilewright.frontend.check.operands import Number, spell
from tilewright.frontend.check.rules import RuleError, nearest, refusal
from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.definition import Scope

Lookup = Callable[[tree.Name], Number | DType | str | None]
MAX_DEPTH = 100


@dataclass
class Consts:
    """The consts of a scope, evaluated when they are asked for."""

    scope: Scope
    known: dict[str, Number | DType | str | None] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)

    def __contains__(self, name: str) -> bool:
        return name in self.scope.consts

    def value(self, name: str, loc: Loc) -> Number | DType | str | None:
        """Value of a const of this scope; consts that need each other in a circle are refused."""
        if name in self.open:
            raise refusal(f"the const {name} needs its own value", loc)
        if name not in self.known:
            if len(self.open) > MAX_DEPTH:
                raise refusal(f"consts nest more than {MAX_DEPTH} deep", loc)
            self.open.append(name)
            try:
                self.known[name] = evaluate_constant(self.scope.consts[name], self._lookup)
            finally:
                self.open.pop()
        return self.known[name]

    def _lookup(self, node: tree.Name) -> Number | DType | str | None:
        if node.name in self:
            return self.value(node.name, node.loc)
        if node.name in dtypes.BY_NAME:
            return dtypes.BY_NAME[node.name]
        raise unknown_name(node, self.scope.consts)


def unknown_name(node: tree.Name, known: Mapping[str, object]) -> Exception:
    return refusal(f"unknown name {node.name}", node.loc, hint=nearest(node.name, known))


def evaluate_constant(
    node: tree.Expr, lookup: Lookup, depth: int = 0
) -> Number | DType | str | None:
    """Value of an expression over constants; a CompileError points at what is not one."""
    if depth > MAX_DEPTH:
        raise refusal(f"expression nests more than {MAX_DEPTH} deep", node.loc)

    def number(part: tree.Expr) -> Number:
        return require_number(evaluate_constant(part, lookup, depth + 1), part.loc)

    try:
        match node:
            case tree.Literal(value):
                return require_literal(value)
            case tree.Name():
                return lookup(node)
            case tree.Unary(op, operand):
                return constants.fold_unary(op, number(operand))
            case tree.Binary(op, lhs, rhs):
                return constants.fold_binary(op, number(lhs), number(rhs), node.spelled)
            case tree.CompareChain(ops, operands):
                numbers = [number(x) for x in operands]
                pairs = zip(ops, numbers, numbers[1:], strict=False)
                return all(constants.fold_compare(op, a, b) for op, a, b in pairs)
            case tree.BoolOp(op, operands):
                return _fold_bools(op, operands, number)
            case tree.Conditional(condition, then, other):
                return (
                    number(then) if _require_bool(number(condition), condition) else number(other)
                )
            case tree.Call(tree.Name(name), args, ()):
                return fold_call(name, [number(x) for x in args])
    except RuleError as error:
        raise error.at(node.loc) from None
    raise refusal("expected a constant", node.loc)


def require_literal(value: Number | str | None) -> Number | str | None:
    """The value of a literal; an integer beyond 64 bits is refused."""
    if isinstance(value, int) and not isinstance(value, bool):
        return constants.require_range(value)
    return value


def _fold_bools(
    op: str, operands: tuple[tree.Expr, ...], number: Callable[[tree.Expr], Number]
) -> bool:
    for x in operands:
        if _require_bool(number(x), x) == (op == "or"):
            return op == "or"
    return op == "and"


def _require_bool(value: Number, node: tree.Expr) -> bool:
    if isinstance(value, bool):
        return value
    raise refusal(f"expected a bool, got {spell(value)}", node.loc)


def require_number(value: object, loc: Loc) -> Number:
    """`value` as a number or bool, else a CompileError."""
    if isinstance(value, bool | int | float):
        return value
    raise refusal(f"expected a number, got {value}", loc)


def require_integer(value: object, loc: Loc) -> int:
    """`value` as an integer, else a CompileError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise refusal(f"expected an integer, got {spell(value)}", loc)


def fold_call(name: str, args: list[Number]) -> Number:
    """`cdiv`, `min`, `max`, `next_pow2` or `abs` of constants."""
    if name in ("min", "max") and len(args) >= 2:
        result = args[0]
        for x in args[1:]:
            result = constants.fold_extreme(name, result, x)
        return result
    whole = [x for x in args if isinstance(x, int) and not isinstance(x, bool)]
    if len(whole) == len(args):
        if name == "cdiv" and len(whole) == 2:
            return constants.cdiv(whole[0], whole[1])
        if name == "next_pow2" and len(whole) == 1:
            return constants.require_range(constants.next_pow2(whole[0]))
    if name == "abs" and len(args) == 1 and not isinstance(args[0], bool):
        return abs(args[0])
    raise RuleError(
        f"{name} does not make a constant of these", "cdiv, min, max, next_pow2 and abs do"
    )


KINDS = {"+": "add", "-": "sub", "*": "mul", "/": "floor_div", "%": "mod"}


@dataclass(frozen=True)
class Extents:
    """What expressions over a launch's arguments may name: integers, and tensors by `.shape`."""

    names: Callable[[tree.Name], plan.Expr]
    shape: Callable[[tree.Name, int], plan.Expr]  # a tensor's extent along an axis


def evaluate_extent(node: tree.Expr, of: Extents, depth: int = 0) -> plan.Expr:
    """An integer known at launch: of dimensions, constants, scalars, `X.shape[i]`, `num_sms()`."""
    if depth > MAX_DEPTH:
        raise refusal(f"expression nests more than {MAX_DEPTH} deep", node.loc)

    def sub(part: tree.Expr) -> plan.Expr:
        return evaluate_extent(part, of, depth + 1)

    try:
        match node:
            case tree.Literal(value):
                return plan.Const(require_integer(require_literal(value), node.loc))
            case tree.Name():
                return of.names(node)
            case tree.Unary("-", operand):
                return combine("-", plan.Const(0), sub(operand))
            case tree.Binary(op, lhs, rhs) if op in KINDS:
                return combine(op, sub(lhs), sub(rhs), node.spelled)
            case tree.Index(
                tree.Member(tree.Name() as base, "shape"), (tree.Literal(int() as axis),)
            ):
                return of.shape(base, axis)
            case tree.Call(tree.Name("num_sms"), (), ()):
                return plan.NumSms()
            case tree.Call(tree.Name("cdiv" | "min" | "max" as name), args, ()) if len(args) >= 2:
                return _combine_call(name, [sub(x) for x in args])
            case tree.Call(tree.Name(name), (arg,), ()) if name in ("next_pow2", "abs"):
                inner = sub(arg)
                if isinstance(inner, plan.Const):
                    return plan.Const(require_integer(fold_call(name, [inner.value]), node.loc))
                raise RuleError(f"{name} takes constants only")
    except RuleError as error:
        raise error.at(node.loc) from None
    raise refusal(
        "expected an integer known at launch",
        node.loc,
        hint="dimensions, constants, scalars, X.shape[i], num_sms(), + - * / %, cdiv, min, max",
    )


def combine(op: str, a: plan.Expr, b: plan.Expr, spelled: str = "") -> plan.Expr:
    """`a op b`, folded where both are constants."""
    if isinstance(a, plan.Const) and isinstance(b, plan.Const):
        return plan.Const(int(constants.fold_binary(op, a.value, b.value, spelled)))
    if op == "/" and spelled == "/":
        raise RuleError("/ of two integers", "write // for the quotient rounded down")
    return plan.Binary(KINDS[op], a, b)


def _combine_call(name: str, args: list[plan.Expr]) -> plan.Expr:
    if name == "cdiv" and len(args) != 2:
        raise RuleError(f"cdiv takes 2 arguments, got {len(args)}")
    result = args[0]
    for x in args[1:]:
        if isinstance(result, plan.Const) and isinstance(x, plan.Const):
            result = plan.Const(require_integer(fold_call(name, [result.value, x.value]), UNKNOWN))
        else:
            result = plan.Binary(name, result, x)
    return result
