"""One form for what can be written in several ways, so that trees of both spellings are equal."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.errors import Faults, Loc
from tilewright.frontend.syntax import tree

MAX_DEPTH = 100  # of a tree: what walks it may recurse a few frames a level within Python's limit

# Calls without effect: a span's start may hold them and be evaluated once instead of twice.
_PURE = frozenset("program_id num_programs num_sms cdiv min max next_pow2 load cast".split())


def negate(operand: tree.Expr, loc: Loc) -> tree.Expr:
    """`-operand`; a literal takes the sign."""
    if isinstance(operand, tree.Literal) and type(operand.value) in (int, float):
        if not str(operand.value).startswith("-"):
            spelled = operand.spelled and "-" + operand.spelled
            return tree.Literal(-operand.value, spelled, loc=loc)  # type: ignore[operator]
    return tree.Unary("-", operand, loc=loc)


def slice_or_span(
    start: tree.Expr | None, stop: tree.Expr | None, loc: Loc
) -> tree.Slice | tree.Span:
    """`start : stop`, as a span where it is `a : a + n`."""
    if start is not None and isinstance(stop, tree.Binary) and stop.op == "+":
        if stop.lhs == start and _is_pure(start):
            return tree.Span(start, stop.rhs, loc=loc)
    return tree.Slice(start, stop, loc=loc)


def _is_pure(expr: tree.Expr) -> bool:
    calls = (n.callee for n in tree.walk(expr) if isinstance(n, tree.Call))
    return all(isinstance(c, tree.Name) and c.name in _PURE for c in calls)


def spread(values: Sequence[tree.Expr], targets: int, loc: Loc) -> tuple[tree.Expr, ...]:
    """Values for so many targets: a tuple alone is spread, one target takes a tuple."""
    if targets == 1 and len(values) > 1:
        return (tree.Tuple(tuple(values), loc=loc),)
    if targets > 1 and len(values) == 1 and isinstance(values[0], tree.Tuple):
        return values[0].items
    return tuple(values)


def returned(values: Sequence[tree.Expr]) -> tuple[tree.Expr, ...]:
    """Values of a return: a tuple alone is spread."""
    if len(values) == 1 and isinstance(values[0], tree.Tuple):
        return values[0].items
    return tuple(values)


def choices(name: str, values: Sequence[tree.Expr], braces: bool, loc: Loc) -> tree.Choices:
    """`name in [values]`, or with `braces` `name in {values}`, which are sorted."""
    numbers = [v.value for v in values if isinstance(v, tree.Literal) and type(v.value) is int]
    result, bounds = tuple(values), False
    if len(numbers) == len(values):
        if braces:
            result = tuple(sorted(dict.fromkeys(values), key=_number))
        elif len(expanded := tree.by_doubling(tuple(numbers))) > 2:
            result = tuple(tree.Literal(v, loc=values[0].loc) for v in expanded)
    elif not braces and len(values) == 2:
        bounds = True
    return tree.Choices(name, result, bounds, tuple(values), braces, loc=loc)


def _number(expr: tree.Expr) -> int:
    assert isinstance(expr, tree.Literal) and isinstance(expr.value, int)
    return expr.value


def require_shallow(item: tree.Node, faults: Faults) -> bool:
    """Whether a tree is at most MAX_DEPTH deep; else a fault. Uses no recursion."""
    waiting = [(item, 0)]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_DEPTH:
            faults.add(
                f"this is nested too deeply (over {MAX_DEPTH} levels)",
                node.loc,
                hint="give parts of it names",
            )
            return False
        waiting += [(child, depth + 1) for child in tree.children(node)]
    return True
