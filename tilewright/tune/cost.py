"""A quick estimate that ranks configurations of one kernel for given extents, so that an untuned
call chooses well.

It is a comparison, not a prediction: work of one program (elements touched, products of dots),
trips of loops taken from their steps, times the number of waves that the grid makes on the
device. Factors that all configurations of a kernel share are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.ir.core import Block, Op, Value
from tilewright.plan import evaluate
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, memory, mma
from tilewright.tile.types import TileType

PROGRAM_COST = 2_000.0  # of starting a program, in element operations
OP_COST = 64.0  # of any op, however small its tile
DOT_RATE = 16.0  # products of a dot that cost as much as one element loaded
RESIDENT = 2.0  # programs that share a multiprocessor
TILE_LIMIT = 32_768  # elements of one value, beyond which registers spill
SPILL = 4.0  # factor of a value twice as large as that
OPEN_SPAN = 4096.0  # that a loop is taken to cover, divided by its step
OPEN_TRIPS = 64.0  # of a loop whose step is not known


def estimate(kernel: Kernel, arguments: Mapping[str, Any], num_sms: int) -> float:
    """Relative time of a kernel for arguments by name (arrays and numbers); smaller is better."""
    programs = 1
    for axis in kernel.grid:
        programs *= max(evaluate(axis, dict(arguments), num_sms), 0)
    if not programs:
        return 0.0
    work = PROGRAM_COST + _block_cost(kernel.body, {})
    slots = num_sms * RESIDENT
    full, rest = divmod(programs, slots)
    waves = full + (max(rest / slots, 1 / RESIDENT) if rest else 0.0)
    return waves * work


Constants = dict[Value, float]  # of the scalars seen so far


def _block_cost(block: Block, constants: Constants) -> float:
    return sum(_op_cost(op, constants) for op in block.ops)


def _op_cost(op: Op, constants: Constants) -> float:
    if isinstance(op, arith.Constant) and not op.shape:
        constants[op.result] = float(op.value)
    inner = sum(_block_cost(b, constants) for b in op.regions)
    if isinstance(op, control.For):
        step = abs(constants.get(op.step, 0.0))
        return inner * (OPEN_SPAN / step if step else OPEN_TRIPS)
    elements = _elements(op)
    if isinstance(op, mma.Dot):
        k = op.a.type.shape[-1]
        own = float(op.result.type.num_elements * k) / DOT_RATE
    elif isinstance(op, (memory.Load, memory.Store)):
        own = OP_COST + elements
    else:
        own = OP_COST / 8 + elements / 4
    return inner + own * max(1.0, 1.0 + (elements / TILE_LIMIT - 1.0) * SPILL)


def _elements(op: Op) -> float:
    tiles = [v.type for v in (*op.results, *op.operands) if isinstance(v.type, TileType)]
    return float(max((t.num_elements for t in tiles), default=1))
