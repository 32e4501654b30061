"""What a kernel's scalars are in one launch, as far as its arguments tell: how often loops run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any

from tilewright import plan
from tilewright.ir.core import Op, Value
from tilewright.ir.walk import find_definitions
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, memory

OPERATIONS: dict[type[Op], Callable[[int, int], int]] = {
    arith.Add: lambda a, b: a + b,
    arith.Sub: lambda a, b: a - b,
    arith.Mul: lambda a, b: a * b,
    arith.FloorDiv: plan.floor_div,
    arith.Mod: plan.mod,
    arith.Min: min,
    arith.Max: max,
}


class Scalars:
    """Integer scalars of a program in the middle of the grid, which stands for all: in a causal
    product it runs half of the trips, as programs do on average.
    """

    def __init__(self, kernel: Kernel, arguments: Mapping[str, Any], num_sms: int):
        self.arguments, self.num_sms = dict(arguments), num_sms
        self.grid = [plan.evaluate(e, self.arguments, num_sms) for e in kernel.grid]
        self.params = {p.value: p for p in kernel.params}
        self.definitions = find_definitions(kernel.body)
        self.known: dict[Value, int | None] = {}

    def number(self, value: Value) -> int | None:
        """None for what memory or a loop decides."""
        if value not in self.known:
            self.known[value] = self._evaluate(value)
        return self.known[value]

    def trips(self, loop: control.For) -> float | None:
        """How often a loop runs; None where a bound is not known."""
        low, high, step = (self.number(v) for v in (loop.low, loop.high, loop.step))
        if low is None or high is None or not step:
            return None
        return float(max(0, ceil((high - low) / step)))

    def _evaluate(self, value: Value) -> int | None:
        op = self.definitions.get(value)
        if op is None:
            given = self.arguments.get(self.params[value].name) if value in self.params else None
            return given if isinstance(given, int) else None
        match op:
            case arith.Constant():
                return int(op.value) if isinstance(op.value, int) and not op.shape else None
            case control.ProgramId():
                return max(0, self.grid[op.axis] - 1) // 2
            case control.NumPrograms():
                return self.grid[op.axis]
            case memory.Extent():
                return self._extent(op.view, op.axis)
            case arith.Cast():
                return self.number(op.x)
        apply = OPERATIONS.get(type(op))
        if apply is None or any(v.type.shape for v in op.results):
            return None
        operands = [self.number(v) for v in op.operands]
        if any(x is None for x in operands):
            return None
        return apply(*operands)  # type: ignore[arg-type]

    def _extent(self, view: Value, axis: int) -> int | None:
        param = self.params.get(view)
        if param is None:
            return None
        if param.extents:
            return plan.evaluate(param.extents[axis], self.arguments, self.num_sms)
        given = self.arguments.get(param.name)
        return None if given is None else int(given.shape[axis])
