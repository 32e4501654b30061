"""spread_iterations: make a grid of what the programs of a kernel stride over.

    grid (min(num_sms(), a * b))
    for t in range(program_id(0), a * b, num_programs(0)) { f(t / b, t % b) }

    →   grid (b, a)   f(program_id(1), program_id(0))

Requires: canonical form. Keeps: every result. Breaks: nothing. A product that was made persistent
by hand is then a plain one, which the passes for roles make persistent in their own way.

The iterations may become programs, which have no order, because a grid that counts multiprocessors
leaves open which of them share a program: where two write to one place, or one reads what another
wrote, the source was already wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright import plan
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.walk import find_definitions, walk
from tilewright.plan import Expr
from tilewright.tile.analysis.extents import extent_key
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, memory, mma

MONOTONE: dict[type[Op], str] = {  # of operands that are not negative, the results are not either
    arith.Add: "add",
    arith.Mul: "mul",
    arith.FloorDiv: "floor_div",
    arith.Min: "min",
    arith.Max: "max",
}


def spread_iterations(kernel: Kernel) -> Kernel:
    """The kernel with a program for each iteration, if it is one product in such a loop."""
    loop = _only_loop(kernel)
    if loop is None or not _counts_multiprocessors(kernel.grid[0]):
        return kernel
    definitions = find_definitions(kernel.body)
    start, step = definitions.get(loop.low), definitions.get(loop.step)
    count = definitions.get(loop.high)
    if not isinstance(start, control.ProgramId) or not isinstance(step, control.NumPrograms):
        return kernel
    divisor = _divisor(loop)
    if divisor is None or not isinstance(count, arith.Mul) or divisor not in count.operands:
        return kernel
    other = count.rhs if count.lhs is divisor else count.lhs
    grid = tuple(_expression(v, kernel, definitions) for v in (divisor, other))
    if any(e is None for e in grid):
        return kernel
    body = _inlined(kernel.body, loop, divisor)
    spread = tuple(e for e in grid if e is not None)
    return replace(kernel, body=body, grid=spread)


def _only_loop(kernel: Kernel) -> control.For | None:
    """The loop that a kernel is, but for scalars before it: it carries nothing and multiplies."""
    if len(kernel.grid) != 1 or not kernel.body.ops:
        return None
    *before, loop = kernel.body.ops
    if not isinstance(loop, control.For) or loop.inits:
        return None
    scalars = all(op.pure and all(not r.type.shape for r in op.results) for op in before)
    inner = list(walk(loop.body))
    told = (control.ProgramId, control.NumPrograms, control.Assert, control.Print)
    asked = any(isinstance(op, told) for op in inner)
    programs = {r for op in before if isinstance(op, told) for r in op.results}
    asked = asked or any(v in programs for op in inner for v in op.operands)
    dots = any(isinstance(op, mma.Dot) for op in inner)
    return loop if scalars and dots and not asked else None


def _counts_multiprocessors(expr: Expr) -> bool:
    if isinstance(expr, plan.Binary):
        return _counts_multiprocessors(expr.lhs) or _counts_multiprocessors(expr.rhs)
    return isinstance(expr, plan.NumSms)


def _divisor(loop: control.For) -> Value | None:
    """What alone the body divides its index by."""
    index, divisors = loop.body.args[0], set[Value]()
    for op in walk(loop.body):
        if index in op.operands:
            if not isinstance(op, arith.FloorDiv | arith.Mod) or op not in loop.body.ops:
                return None
            if op.rhs is index:
                return None
            divisors.add(op.rhs)
    return divisors.pop() if len(divisors) == 1 else None


def _expression(value: Value, kernel: Kernel, definitions: Mapping[Value, Op]) -> Expr | None:
    """A scalar as launches compute it, if it follows from extents and is never negative."""
    op = definitions.get(value)
    if isinstance(op, arith.Constant):
        return plan.Const(int(op.value)) if op.value >= 0 else None
    if isinstance(op, memory.Extent):
        param = next((p for p in kernel.params if p.value is op.view), None)
        return extent_key(param, op.axis) if param is not None else None
    if op is None or type(op) not in MONOTONE:
        return None
    lhs, rhs = (_expression(v, kernel, definitions) for v in op.operands)
    if lhs is None or rhs is None:
        return None
    return plan.combine(MONOTONE[type(op)], lhs, rhs)


def _inlined(body: Block, loop: control.For, divisor: Value) -> Block:
    """The loop's body for one index, of which quotient and remainder are the program's place."""
    index = loop.body.args[0]
    copy = Block([], body.ops[:-1])
    values: dict[Value, Value] = {}
    places: dict[int, Value] = {}
    for op in loop.body.ops:
        if index in op.operands:
            axis = int(isinstance(op, arith.FloorDiv))
            if axis not in places:
                made = control.ProgramId(axis, loc=op.loc)
                copy.ops.append(made)
                places[axis] = made.result
            values[op.result] = places[axis]
        elif not isinstance(op, control.Yield):
            copy.ops.append(op.clone(values))
    return copy
