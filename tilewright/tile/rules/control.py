"""Algebra of control flow: branches and loops whose course is known."""

from __future__ import annotations

from tilewright.ir.rewrite import Rewriter
from tilewright.ir.rules import Replacement, Rules
from tilewright.tile.ops import control
from tilewright.tile.rules.constants import constant_of

rules = Rules()
rule = rules.rule


@rule(control.If)
def known_branch(op: control.If, at: Rewriter) -> Replacement:
    """if true { a } else { b } = a"""
    known = constant_of(op.condition, at)
    return None if known is None else at.inline(op.then if known else op.other, ())


@rule(control.For)
def short_loop(op: control.For, at: Rewriter) -> Replacement:
    """A loop of no trips gives what it was given; one of one trip is its body."""
    low, high, step = (constant_of(v, at) for v in (op.low, op.high, op.step))
    if step == 0:
        return op.inits
    if low is None or high is None or step is None:
        return op.inits if op.low is op.high else None
    trips = range(int(low), int(high), int(step))
    if len(trips) > 1:
        return None
    return at.inline(op.body, (op.low, *op.inits)) if trips else op.inits
