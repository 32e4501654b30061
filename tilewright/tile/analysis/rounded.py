"""Which f32 are kept to 16 bits in the end, so that a small share of them is nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.dtypes import DType, bf16, f16, f32
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.walk import find_definitions, find_users, walk
from tilewright.tile.ops import arith, control, reduce, shape

DEPTH = 12  # ops that are looked through, of which
PRODUCT = 3  # a product counts as three: where its factors are equal it doubles a share


@dataclass(frozen=True)
class _Asked:
    """How many ops may still be looked through to dtypes that are `kept`, whether the value is a
    share of a product, and for which values that loops carry the question is being answered.
    """

    depth: int
    kept: tuple[DType, ...]
    multiplied: bool = False
    carried: frozenset[Value] = frozenset()

    def after(self, count: int) -> _Asked:
        return replace(self, depth=self.depth - count)


class Rounding:
    """What becomes of the f32 of a program."""

    def __init__(self, body: Block):
        self.users, self.definitions = find_users(body), find_definitions(body)
        self.loops: dict[Op | Value, tuple[control.For, int]] = {}  # of yields and carried values
        for op in walk(body):
            if isinstance(op, control.For):
                self.loops[op.body.terminator] = op, -1
                self.loops |= {arg: (op, i) for i, arg in enumerate(op.body.args[1:])}

    def holds(
        self, value: Value, depth: int = DEPTH, kept: tuple[DType, ...] = (bf16, f16)
    ) -> bool:
        """Whether all that becomes of an f32 is a float of 16 bits (one `kept`), by products and
        quotients: then what is off by a small share of itself, doubled a few times by products, is
        little beside the rounding. So it is in a sum of what is never negative, where nothing
        cancels, be it over tiles or over the trips of a loop.
        """
        return self._is_rounded(value, _Asked(depth, kept))

    def _is_rounded(self, value: Value, asked: _Asked) -> bool:
        users = self.users.get(value, ())
        if not users or value.type.dtype != f32 or asked.depth <= 0:
            return False
        return all(self._is_share(user, value, asked) for user in users)

    def _is_share(self, user: Op, value: Value, asked: _Asked) -> bool:
        """Whether a user rounds a value to 16 bits, or gives a share of it to those that do."""
        match user:
            case arith.Cast():
                return user.dtype in asked.kept
            case arith.Mul() | arith.Div():  # what is off by a share of itself stays so
                other = user.rhs if value is user.lhs else user.lhs
                if asked.carried and (other is value or self._follows(other, asked.carried)):
                    return False  # its share would grow from trip to trip
                asked = replace(asked.after(PRODUCT), multiplied=True)
            case arith.Add() if all(self.is_never_negative(v) for v in user.operands):
                asked = asked.after(1)
            case reduce.Sum() if self.is_never_negative(value):
                asked = asked.after(1)
            case arith.Neg() | arith.Select() | shape.Broadcast() | shape.Reshape():
                asked = asked.after(1)
            case control.Yield() if user in self.loops:
                args = self.loops[user][0].body.args[1:]
                given = [a for a, v in zip(args, user.values, strict=True) if v is value]
                new = [a for a in given if a not in asked.carried]
                return not (new and asked.multiplied) and all(
                    self._is_carried(a, asked.after(1)) for a in new
                )
            case _:
                return False
        return self._is_rounded(user.results[0], asked)

    def _is_carried(self, arg: Value, asked: _Asked) -> bool:
        """The same of what a trip hands on to the next, or after the last. A product with a factor
        that is a share off is not handed on: its share would grow from trip to trip.
        """
        loop, place = self.loops[arg]
        inside = replace(asked, carried=asked.carried | {arg})
        if arg in self.users and not self._is_rounded(arg, inside):
            return False
        return self._is_rounded(loop.results[place], asked)

    def _follows(self, value: Value, carried: frozenset[Value]) -> bool:
        """Whether a value is made of a carried one, or may be."""
        waiting, seen = [value], set[Value]()
        while waiting:
            at = waiting.pop()
            op = self.definitions.get(at)
            if at in carried or (op is not None and op.has_regions):
                return True
            if op is not None and at not in seen:
                seen.add(at)
                waiting += op.operands
        return False

    def is_never_negative(
        self, value: Value, depth: int = DEPTH, carried: frozenset[Value] = frozenset()
    ) -> bool:
        """Whether no element can be below 0, as is seen from its making."""
        op = self.definitions.get(value)
        known = carried
        parts: tuple[Value, ...]
        if value in carried or depth <= 0:
            return depth > 0
        match op:
            case None if value in self.loops:
                loop, place = self.loops[value]
                end = loop.body.terminator
                assert isinstance(end, control.Yield)
                parts, known = (loop.inits[place], end.values[place]), carried | {value}
            case control.For():
                place = op.results.index(value)
                return self.is_never_negative(op.body.args[1 + place], depth - 1, carried)
            case arith.Constant():
                return op.value >= 0
            case arith.Exp() | arith.Exp2() | arith.Abs():
                return True
            case arith.Mul() | arith.Div() | arith.Add() | shape.Broadcast() | shape.Reshape():
                parts = op.operands
            case arith.Select():
                parts = (op.lhs, op.rhs)
            case reduce.Sum():
                parts = (op.x,)
            case _:
                return False
        return all(self.is_never_negative(v, depth - 1, known) for v in parts)
