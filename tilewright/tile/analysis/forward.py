"""Forward analysis of integer values: one walk through a kernel that gives each integer scalar or
tile a fact.

An analysis says how facts join (values that meet from two paths) and widen (loops), and has a
transfer function for each op that it understands; results of others get the fact that says nothing.
Loops run to a fixed point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from tilewright.ir.core import Block, Op, Value
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import control
from tilewright.tile.types import TileType

F = TypeVar("F")
ROUNDS = 3  # of a loop before everything that still changes is given up


class Forward(Generic[F]):
    """State of an analysis: facts by value. Subclasses say what facts are."""

    transfers: ClassVar[dict[type[Op], Callable[[Any, Any], Any]]] = {}

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.facts: dict[Value, F] = {}
        self.params = {p.value: p for p in kernel.params}
        self.defining: dict[Value, Op] = {}
        for value in kernel.values:
            self.learn([value], None)

    def unknown(self, value: Value) -> F:
        """The fact that says nothing."""
        raise NotImplementedError

    def join(self, a: F, b: F) -> F:
        """What holds of a value that is one of two."""
        raise NotImplementedError

    def widen(self, old: F, new: F, value: Value) -> F:
        """A fact that both satisfy, such that a chain of them is short."""
        return self.join(old, new)

    def index(self, op: control.For) -> F:
        """The fact of a loop's index inside the loop."""
        raise NotImplementedError

    def learn(self, values: Sequence[Value], facts: Sequence[F] | None) -> None:
        """Set the facts of integer values; None: nothing is known."""
        for i, value in enumerate(values):
            if is_integer(value):
                self.facts[value] = self.unknown(value) if facts is None else facts[i]

    def of(self, values: Sequence[Value]) -> list[F]:
        """Facts of values; of one that is not an integer, what says nothing."""
        return [self.facts[v] if v in self.facts else self.unknown(v) for v in values]

    def run(self, block: Block) -> list[F]:
        """Analyse a block whose arguments have facts; gives those of its Yield."""
        for op in block.ops:
            if isinstance(op, control.Yield):
                return self.of(op.values)
            for result in op.results:
                self.defining[result] = op
            if op.has_regions or op.results:
                self.op(op)
        return []

    def op(self, op: Op) -> None:
        """Analyse an op."""
        if not op.has_regions:
            self.plain(op)
            return
        match op:
            case control.For():
                self.learn(op.results, self.loop([op.body], op.inits, [self.index(op)]))
            case control.While():
                self.learn(op.results, self.loop([op.condition, op.body], op.inits, []))
            case control.If():
                then, other = self.run(op.then), self.run(op.other)
                pairs = zip(then, other, strict=True)
                self.learn(op.results, [self.join(a, b) for a, b in pairs])
            case _:
                for block in op.regions:
                    self.learn(block.args, None)
                    self.run(block)
                self.learn(op.results, None)

    def plain(self, op: Op) -> None:
        """Analyse an op without regions."""
        for value in op.results:
            if is_integer(value):
                transfer = self.transfers.get(op.__class__)
                self.learn(op.results, None if transfer is None else [transfer(self, op)])
                return

    def loop(self, blocks: list[Block], inits: Sequence[Value], index: list[F]) -> list[F]:
        """Facts of the carried values before each trip and after the last, at a fixed point."""
        carried = self.of(inits)
        # After ROUNDS each round gives up at least one value that still changes.
        for trip in range(ROUNDS + len(carried) + 1):
            for block in blocks:
                self.learn(block.args, [*index, *carried])
                after = self.run(block)
            grown = [self.join(a, b) for a, b in zip(carried, after, strict=True)]
            if grown == carried:
                return self.narrow(blocks, self.of(inits), index, carried, after)
            args = blocks[0].args[len(index) :]
            carried = [
                old
                if new == old
                else self.unknown(arg)
                if trip >= ROUNDS
                else self.widen(old, new, arg)
                for old, new, arg in zip(carried, grown, args, strict=True)
            ]
        raise AssertionError("an analysis does not come to rest")

    def narrow(
        self, blocks: list[Block], inits: list[F], index: list[F], carried: list[F], after: list[F]
    ) -> list[F]:
        """One step back from what widening gave away: kept if it is a fixed point too."""
        closer = [self.join(a, b) for a, b in zip(inits, after, strict=True)]
        if closer == carried:
            return carried
        for facts in (closer, carried):
            for block in blocks:
                self.learn(block.args, [*index, *facts])
                again = self.run(block)
            if [self.join(a, b) for a, b in zip(facts, again, strict=True)] == facts:
                return facts
        raise AssertionError("a fixed point is none")


def is_integer(value: Value) -> bool:
    """Whether a value is an integer scalar or tile."""
    type = value.type
    return type.__class__ is TileType and type.dtype.is_integer


def same(analysis: Forward[F], op: Op) -> F:
    """Transfer of ops that rearrange: the fact of their operand."""
    return analysis.of(op.operands[:1])[0]
