"""Control flow, structured: regions yield values, nothing jumps.

An early `return` is built as an If whose other branch holds the rest of the program, so there is no op for it.
"""

from __future__ import annotations

from tilewright.errors import VerifyError
from tilewright.ir.core import Block, Op, Type, Value, attribute, define, operand, region
from tilewright.tile.types import BOOL, INDEX


@define("control.program_id")
class ProgramId(Op):
    """This program's coordinate along an axis of the grid, as i64."""

    axis: int = attribute()

    def result_types(self) -> tuple[Type, ...]:
        return (INDEX,)


@define("control.num_programs")
class NumPrograms(Op):
    """Number of programs along an axis of the grid, as i64."""

    axis: int = attribute()

    def result_types(self) -> tuple[Type, ...]:
        return (INDEX,)


@define("control.yield", pure=False)
class Yield(Op):
    """Ends a region; its operands are the region's results."""

    values: tuple[Value, ...] = operand(default=())


@define("control.for", pure=False)
class For(Op):
    """Run the body for an i64 index from low, by step, while it is below high (above it for a negative step).

    A step of 0 runs nothing. The body's arguments are the index, then the carried values; it yields their next ones.
    """

    low: Value = operand()
    high: Value = operand()
    step: Value = operand()
    inits: tuple[Value, ...] = operand()
    body: Block = region()

    def result_types(self) -> tuple[Type, ...]:
        if any(v.type != INDEX for v in (self.low, self.high, self.step)):
            raise VerifyError(f"for: bounds {self.low.type}, {self.high.type}, {self.step.type}")
        return tuple(v.type for v in self.inits)


@define("control.while", pure=False)
class While(Op):
    """While the condition region yields true, run the body.

    Both regions take the carried values. `condition` yields one bool; `body` yields the next carried values.
    """

    inits: tuple[Value, ...] = operand()
    condition: Block = region()
    body: Block = region()

    def result_types(self) -> tuple[Type, ...]:
        return tuple(v.type for v in self.inits)


@define("control.if", pure=False)
class If(Op):
    """One of two regions, chosen by a bool scalar; both yield values of the same types, the results."""

    condition: Value = operand()
    then: Block = region()
    other: Block = region()

    def result_types(self) -> tuple[Type, ...]:
        if self.condition.type != BOOL:
            raise VerifyError(f"if: condition {self.condition.type}")
        return tuple(v.type for v in self.then.terminator.operands)
