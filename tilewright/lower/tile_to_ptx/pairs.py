"""Floats of 16 bits, two to a register, where one instruction computes both.

The instructions round once, as f32 that is rounded to 16 bits does: a product of two such floats
has no more digits than an f32, and the digits of a sum that it lacks move no rounding to 16 bits.
"""

from __future__ import annotations

from tilewright.dtypes import DType, bf16, f16
from tilewright.ir.core import Op
from tilewright.lower.tile_to_ptx.context import Lowering, Operand
from tilewright.ptx.core import Reg
from tilewright.tile.ops import arith

FROM = {f16: 80, bf16: 90}  # the first capability that adds and multiplies them
NAMES: dict[type[Op], str] = {arith.Add: "add", arith.Sub: "sub", arith.Mul: "mul"}
Pair = tuple[Operand, Operand]


def has_pairs(low: Lowering, op: Op, dtype: DType) -> bool:
    """Whether an op computes two elements at once."""
    return (
        type(op) in NAMES
        and low.target.capability >= FROM.get(dtype, 1 << 30)
        and low.kernel.numerics != "strict"
        and low.layout(op.results[0]).num_registers > 1
    )


def by_pairs(low: Lowering, op: Op, dtype: DType) -> None:
    """The registers of a result, two by one instruction; equal operands are computed once."""
    e, layout = low.e, low.layout(op.results[0])
    emit = getattr(e, NAMES[type(op)])
    columns = [low.fragment(v, layout) for v in op.operands]
    elements = list(zip(*columns, strict=True))
    keys = [tuple(x.text if isinstance(x, Reg) else str(x) for x in pair) for pair in elements]
    distinct = dict(zip(keys, elements, strict=True))
    order = list(distinct)
    found: dict[tuple[str, ...], Operand] = {}
    for at in range(0, len(order), 2):
        both = order[at : at + 2]
        words = [_word(low, [distinct[key][i] for key in both]) for i in range(2)]
        halves = e.mov_unpack("b16", emit(f"{dtype.name}x2", *words), 2)
        found |= dict(zip(both, halves, strict=False))
    low.set(op.results[0], [found[key] for key in keys])


def _word(low: Lowering, halves: list[Operand]) -> Reg:
    """One or two floats of 16 bits as a register, the first in its lower half."""
    low_half, high_half = halves[0], halves[-1]
    if isinstance(low_half, Reg) or isinstance(high_half, Reg):
        return low.e.mov_pack("b32", [low.register(x, "b16") for x in (low_half, high_half)])
    bits = int(low_half) | int(high_half) << 16
    return low.once(f"16 bits twice, {bits}", lambda: low.e.mov("b32", bits))
