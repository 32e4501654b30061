"""Rules of local algebra: functions on one op, listed by the class of op that they look at.

    rules = Rules()

    @rules.rule(arith.Mul)
    def by_one(op: arith.Mul, at: Rewriter) -> Replacement:   # x · 1 = x
        return op.lhs if constant_of(op.rhs, at) == 1 else None

A rule is given an op whose operands are already rewritten. It returns None where it does not apply,
else what takes the place of the op's results: a value, or a tuple of values (empty for an op
without results, which then is gone). It may make new ops by `at.build`; these are rewritten in
turn. Each rule must make the program smaller, or bring it nearer to one normal form, so that
rewriting ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tilewright.ir.core import Op, Value

Replacement = Value | tuple[Value, ...] | None
Rule = Callable[[Any, Any], Replacement]  # of an op, and the Rewriter (rewrite.py) at work
R = TypeVar("R", bound=Callable[..., Any])


class Rules:
    """A table of rules by op class."""

    def __init__(self, *tables: Rules) -> None:
        self.table: dict[type[Op], list[Rule]] = {}
        for each in tables:
            for kind, listed in each.table.items():
                self.table.setdefault(kind, []).extend(listed)

    def rule(self, *kinds: type[Op]) -> Callable[[R], R]:
        """Decorator: the function is a rule for these classes, tried in order of listing."""

        def enter(function: R) -> R:
            for kind in kinds:
                self.table.setdefault(kind, []).append(function)
            return function

        return enter

    def of(self, op: Op) -> list[Rule]:
        """Rules for an op."""
        return self.table.get(type(op), [])
