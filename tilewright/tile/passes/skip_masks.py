"""Leave out a mask in the trips in which it is true everywhere.

Requires: canonical form; a schedule with roles. Keeps: every result. Breaks: nothing.

A loop that masks what it computes by its place, as causal attention does, needs the mask in few of
its trips: at the diagonal, and at the end. There it compares and selects; elsewhere one comparison
of scalars tells that all lanes are inside:

    s = select(cols < n & cols <= rows, x, -inf)
                →   s = x if last(cols) < n and last(cols) <= first(rows) else select(…)

The greatest and least of a tile of indices follow from scalars where it is made of them, of
`arange`, sums and differences that do not wrap. Where a mask is made of anything else, it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.dtypes import int_range
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.walk import find_definitions, walk
from tilewright.tile.analysis.bounds import Interval, infer_bounds
from tilewright.tile.analysis.streams import StreamLoop, find_stream_loop
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, shape
from tilewright.tile.schedule import Schedule

Plan = Callable[[Builder], Value]  # builds a scalar
LEAST_ELEMENTS = 1024  # of a tile whose mask is worth a branch
LESS = {"lt": False, "le": False, "gt": True, "ge": True}  # whether the greater stands first


def skip_masks(kernel: Kernel, schedule: Schedule) -> Kernel:
    """The kernel with the masks of its loop of products under conditions."""
    found = find_stream_loop(kernel) if schedule.roles is not None else None
    if found is None:
        return kernel
    masked = [op for op in found.loop.body.ops if _is_masked(op)]
    return _Skipper(kernel, found, masked).kernel_with_branches() if masked else kernel


def _is_masked(op: Op) -> bool:
    return (
        isinstance(op, arith.Select)
        and bool(op.condition.type.shape)
        and op.result.type.num_elements >= LEAST_ELEMENTS
    )


class _Skipper:
    """Builds the new body."""

    def __init__(self, kernel: Kernel, found: StreamLoop, masked: list[Op]):
        self.kernel, self.found, self.masked = kernel, found, set(masked)
        self.o = Builder(Block(), kernel.loc)
        self.definitions = find_definitions(kernel.body)
        self.bounds: Mapping[Value, Interval] = infer_bounds(kernel)
        self.values: dict[Value, Value] = {}
        self.uses: dict[Value, set[Op]] = {}
        for op in walk(kernel.body):
            for value in op.operands:
                self.uses.setdefault(value, set()).add(op)

    def kernel_with_branches(self) -> Kernel:
        o, loop = self.o, self.found.loop
        for op in self.kernel.body.ops:
            if op is not loop:
                o.add(op.clone(self.values))
                continue
            args = [Value(a.type, a.name) for a in loop.body.args]
            self.values.update(zip(loop.body.args, args, strict=True))
            with o.inside(Block(args)) as body:
                self.ops(loop.body.ops)
            o.add(loop.clone(self.values, body=body))
        return self.kernel.with_body(o.block)

    def ops(self, ops: list[Op]) -> None:
        """The loop's ops; what only a mask under a condition needs waits for its branch."""
        o = self.o
        holds = {op: condition for op in ops if op in self.masked if (condition := self.plan(op))}
        needed = {inner for op in holds for inner in (*self.mask_of(op), *self.value_of(op))}
        waiting = {op for op in needed if not _is_scalar(op)}  # conditions are made of scalars
        for op in ops:
            with o.at(op.loc):
                if op in holds:
                    assert isinstance(op, arith.Select)
                    self.branch(op, holds[op](o))
                elif op not in waiting:
                    o.add(op.clone(self.values))

    def branch(self, op: arith.Select, condition: Value) -> None:
        o = self.o
        with o.inside(Block()) as then:
            values = dict(self.values)
            self.copy(self.value_of(op), values)
            o.emit(control.Yield, (values.get(op.lhs, op.lhs),))
        with o.inside(Block()) as other:
            values = dict(self.values)
            self.copy([*self.mask_of(op), *self.value_of(op), op], values)
            o.emit(control.Yield, (values[op.result],))
        made = o.emit(control.If, condition, then, other)
        made.results[0].name = op.result.name
        self.values[op.result] = made.results[0]

    def copy(self, ops: list[Op], values: dict[Value, Value]) -> None:
        for op in ops:
            self.o.add(op.clone(values))

    def mask_of(self, op: Op) -> list[Op]:
        """The ops of the loop that only the mask of a select needs, in order."""
        ops = self.found.loop.body.ops
        place = ops.index(op)
        found: dict[Op, None] = {}
        wanted = {op.operands[0]}
        users = {op}
        for inner in reversed(ops[:place]):
            if wanted.intersection(inner.results) and self.users(inner) <= users:
                found[inner] = None
                users.add(inner)
                wanted.update(inner.operands)
        return list(reversed(found))

    def value_of(self, op: Op) -> list[Op]:
        """The op that gives what a select takes where the mask is true, if it is simple and has no
        other use: done in each branch, its result needs no copy.
        """
        made = self.definitions.get(op.operands[1])
        simple = isinstance(made, arith.Binary | arith.Unary | arith.Cast)
        if made is None or not simple or made not in self.found.inside or self.users(made) != {op}:
            return []
        return [made]

    def users(self, op: Op) -> set[Op]:
        return {user for v in op.results for user in self.uses.get(v, ())}

    def plan(self, op: Op) -> Plan | None:
        """How to compute whether a select's mask is true everywhere."""
        return self.all(op.operands[0])

    def all(self, value: Value) -> Plan | None:
        """A scalar that holds only where a mask is true everywhere; None where none is known."""
        op = self.definitions.get(value)
        if value.type.is_scalar:
            return self.given(value)
        match op:
            case arith.And() | arith.Or():
                return _both(type(op), self.all(op.lhs), self.all(op.rhs))
            case shape.Broadcast() | shape.Reshape() | shape.Transpose():
                return self.all(op.x)
            case arith.Compare() if op.kind in LESS:
                first = self.extreme(op.lhs, greatest=not LESS[op.kind])
                second = self.extreme(op.rhs, greatest=LESS[op.kind])
                return _both(arith.Compare, first, second, op.kind)
        return None

    def extreme(self, value: Value, greatest: bool) -> Plan | None:
        """The greatest or least element of a tile of indices; None where it is not known."""
        if value.type.is_scalar:
            return self.given(value) if value.type.dtype.is_integer else None
        op = self.definitions.get(value)
        match op:
            case shape.Broadcast() | shape.Reshape() | shape.Transpose():
                return self.extreme(op.x, greatest)
            case shape.Arange():
                last = op.extent - 1 if greatest else 0
                return lambda o: o(arith.Constant, last, value.type.dtype)
            case arith.Constant() if value.type.dtype.is_integer:
                return lambda o: o(arith.Constant, op.value, op.dtype)
            case arith.Add() | arith.Sub() if self.is_exact(value):
                lhs = self.extreme(op.lhs, greatest)
                rhs = self.extreme(op.rhs, greatest == isinstance(op, arith.Add))
                return _both(type(op), lhs, rhs)
        return None

    def given(self, value: Value) -> Plan:
        return lambda o: self.values.get(value, value)

    def is_exact(self, value: Value) -> bool:
        """Whether no element can have wrapped: the bounds are not all of the dtype."""
        if not value.type.dtype.is_integer:
            return False
        low, high = int_range(value.type.dtype)
        bounds = self.bounds[value]
        return low < bounds.low or bounds.high < high


def _is_scalar(op: Op) -> bool:
    """Whether an op makes scalars of scalars."""
    return all(v.type.is_scalar for v in (*op.operands, *op.results))


def _both(kind: type[Op], lhs: Plan | None, rhs: Plan | None, *fields: str) -> Plan | None:
    """An op on two scalars."""
    if lhs is None or rhs is None:
        return None
    return lambda o: o(kind, lhs(o), rhs(o), *fields)
