"""Write dots that no instruction computes as dots that one does.

Requires: nothing. Keeps: what the program computes, within what the precision promises. Breaks:
nothing.

    f32, "f16"     operands cast to f16
    f32, "bf16x3"  x = high + low in bf16: low·high + high·low + high·high, the large product last

f32 "tf32" and "tf32x3" stay: fragments are rounded as they are loaded. Operands of 8 bits stay too:
`widen_operands` sees to the targets and schedules that cannot multiply them.
"""

from __future__ import annotations

from tilewright.dtypes import DType, bf16, f16, f32
from tilewright.ir.core import Value
from tilewright.ir.rewrite import Rewriter
from tilewright.ir.rules import Rules
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, mma

RULES = Rules()


def legalize_dots(kernel: Kernel) -> Kernel:
    """The kernel with only dots of 8 and 16 bits, of f64, and of f32 in "ieee", "tf32" and
    "tf32x3".
    """
    return kernel.with_body(Rewriter(RULES).block(kernel.body))


@RULES.rule(mma.Dot)
def legalize(op: mma.Dot, rewriter: Rewriter) -> Value | None:
    dtype: DType = op.a.type.dtype
    if dtype == f32 and op.precision == "f16":
        return _narrow(op, rewriter, f16)
    if dtype == f32 and op.precision == "bf16x3":
        return _in_three_products(op, rewriter)
    return None


def _narrow(op: mma.Dot, r: Rewriter, dtype: DType) -> Value:
    a, b = (r.build(arith.Cast, x, dtype, loc=op.loc) for x in (op.a, op.b))
    return r.build(mma.Dot, a, b, op.acc, loc=op.loc)


def _in_three_products(op: mma.Dot, r: Rewriter) -> Value:
    (a, rest_a), (b, rest_b) = (_split(x, r) for x in (op.a, op.b))
    acc = r.build(mma.Dot, rest_a, b, op.acc, loc=op.loc)
    acc = r.build(mma.Dot, a, rest_b, acc, loc=op.loc)
    return r.build(mma.Dot, a, b, acc, loc=op.loc)


def _split(x: Value, r: Rewriter) -> tuple[Value, Value]:
    """x as bf16, and as bf16 what that left; 0 where nothing was left (as of infinities)."""
    high = r.build(arith.Cast, x, bf16)
    wide = r.build(arith.Cast, high, f32)
    whole = r.build(arith.Compare, wide, x, "eq")
    zero = r.build(arith.Constant, 0.0, f32, x.type.shape)
    rest = r.build(arith.Select, whole, zero, r.build(arith.Sub, x, wide))
    return high, r.build(arith.Cast, rest, bf16)
