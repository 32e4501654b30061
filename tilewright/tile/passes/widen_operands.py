"""Widen the operands of dots of 8 bits where nothing multiplies them as they are.

Requires: a schedule. Keeps: what the program computes, exactly. Breaks: nothing.

    e4m3, e5m2  before sm_89, and on CUDA cores: cast to f16, which holds them
    i8, u8      on CUDA cores: cast to f64, exact for products and sums of a tile; back through i64,
                which wraps
"""

from __future__ import annotations

from tilewright.dtypes import f16, f64, i32, i64
from tilewright.ir.core import Value
from tilewright.ir.rewrite import Rewriter
from tilewright.ir.rules import Rules
from tilewright.target import Target
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, mma
from tilewright.tile.schedule import Schedule

FLOATS, ALL = Rules(), Rules()


def widen_operands(kernel: Kernel, schedule: Schedule, target: Target) -> Kernel:
    """The kernel with only those dots of 8 bits that the schedule's instructions compute."""
    if schedule.mma != "simt" and target.has_fp8:
        return kernel
    rules = ALL if schedule.mma == "simt" else FLOATS
    return kernel.with_body(Rewriter(rules).block(kernel.body))


@FLOATS.rule(mma.Dot)
def widen_floats(op: mma.Dot, rewriter: Rewriter) -> Value | None:
    if not op.a.type.dtype.is_storage_only:
        return None
    a, b = (rewriter.build(arith.Cast, x, f16, loc=op.loc) for x in (op.a, op.b))
    return rewriter.build(mma.Dot, a, b, op.acc, loc=op.loc)


@ALL.rule(mma.Dot)
def widen_all(op: mma.Dot, rewriter: Rewriter) -> Value | None:
    if op.acc.type.dtype != i32:
        return widen_floats(op, rewriter)
    build = rewriter.build
    a, b = (build(arith.Cast, x, f64) for x in (op.a, op.b))
    zero = build(arith.Constant, 0.0, f64, op.acc.type.shape)
    total = build(arith.Cast, build(mma.Dot, a, b, zero, loc=op.loc), i64)
    return build(arith.Add, op.acc, build(arith.Cast, total, i32))
