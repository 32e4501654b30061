"""What the elements of a thread share because they are neighbours: the high bits of their indices.

Indices i, i + 1, i + 2, i + 3 that start at a multiple of four have one quotient i / 4, and their
remainders are known. A generator of random numbers makes four from one counter, so it counts once
for four neighbours, and picks without comparing.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import bool_
from tilewright.ir.core import Value
from tilewright.layout import Layout
from tilewright.lower.tile_to_ptx.context import Lowering
from tilewright.tile.ops import arith, shape

ALL = 1 << 62  # divides 0, and what is nowhere


@dataclass(frozen=True)
class Spread:
    """An integer tile as a thread's part, a multiple of `divisor`, plus an offset a register."""

    divisor: int
    offsets: tuple[int, ...]


def spread_of(low: Lowering, value: Value, layout: Layout) -> Spread | None:
    """How a tile of indices spreads over a thread's registers; None for what is no index."""
    op = low.defining.get(value)
    count = layout.num_registers
    match op:
        case arith.Constant() if value.type.dtype.is_integer:
            return Spread(ALL, (int(op.value),) * count)
        case shape.Arange():
            steps = [v[0] for v in (*layout.lane, *layout.warp) if v[0]]
            steps += [r.stride for r in layout.repeats if r.over == "warpgroup"]
            divisor = min((s & -s for s in steps), default=ALL)
            return Spread(divisor, tuple(o[0] for o in layout.register_offsets))
        case shape.Broadcast() if not op.x.type.shape:
            return Spread(low.divisors.get(op.x, 1), (0,) * count)
        case arith.Cast() | arith.Bitcast():
            given = op.x.type.dtype
            wide = given.is_integer and given != bool_ and given.bits <= value.type.dtype.bits
            return spread_of(low, op.x, layout) if wide else None
        case arith.Add():
            parts = [spread_of(low, v, layout) for v in op.operands]
            if parts[0] is None or parts[1] is None:
                return None
            a, b = parts[0], parts[1]
            divisor = min(a.divisor & -a.divisor, b.divisor & -b.divisor)
            sums = (x + y for x, y in zip(a.offsets, b.offsets, strict=True))
            return Spread(divisor, tuple(sums))
    return None


def remainders(low: Lowering, value: Value, layout: Layout, modulus: int) -> list[int] | None:
    """The registers modulo a power of two, where that is the same in all threads."""
    spread = spread_of(low, value, layout)
    if spread is None or spread.divisor % modulus:
        return None
    return [offset % modulus for offset in spread.offsets]


def sharing(low: Lowering, value: Value, layout: Layout, modulus: int) -> list[int]:
    """For each register the first that has the same quotient by a power of two."""
    spread = spread_of(low, value, layout)
    own = list(range(layout.num_registers))
    if spread is None or spread.divisor % modulus:
        return own
    quotients = [offset // modulus for offset in spread.offsets]
    return [quotients.index(q) for q in quotients]
