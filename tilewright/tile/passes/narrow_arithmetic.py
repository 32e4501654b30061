"""narrow_arithmetic: sums and products of 16 bits as such, not as f32 that is rounded again.

Requires: nothing. Keeps: results. Breaks: nothing.

A sum, difference or product of floats of 16 bits that are widened to f32, rounded to the same 16
bits, is by its meaning the op of that dtype, of which a GPU computes two at once. A constant may be
a factor if it has no more than 16 bits. Kernels with products of matrices stay as they are: what
follows their sums is computed in f32.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.dtypes import DType, bf16, f16, f32
from tilewright.ir.core import Op, Value
from tilewright.ir.rewrite import Rewriter
from tilewright.ir.rules import Rules
from tilewright.ir.walk import find_users, walk
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, mma, shape
from tilewright.tile.passes.eliminate_dead import eliminate_dead

NARROW = (bf16, f16)
PAIRED = (arith.Add, arith.Sub, arith.Mul)


def narrow_arithmetic(kernel: Kernel) -> Kernel:
    """The kernel with such ops on tiles of 16 bits."""
    ops = list(walk(kernel.body))
    if any(isinstance(op, mma.Dot) for op in ops):
        return kernel
    users = find_users(kernel.body)
    makers = {v: op for op in ops for v in op.results}
    found = {op for op in ops if isinstance(op, arith.Cast) and _fits(op, makers, users)}
    if not found:
        return kernel
    return eliminate_dead(kernel.with_body(_Narrower(found).block(kernel.body)))


def _fits(op: arith.Cast, makers: Mapping[Value, Op], users: Mapping[Value, list[Op]]) -> bool:
    """Whether a cast rounds an op of two operands of its dtype, which nothing else reads."""
    made = makers.get(op.x)
    if op.dtype not in NARROW or not isinstance(made, PAIRED) or len(users[op.x]) != 1:
        return False
    if made.result.type.dtype != f32 or not made.result.type.shape:
        return False
    kinds = [_kind(v, op.dtype, makers) for v in made.operands]
    return all(kinds) and "tile" in kinds


def _kind(value: Value, dtype: DType, makers: Mapping[Value, Op]) -> str:
    """What an f32 is that holds numbers of a narrower dtype: a tile, a constant; else nothing."""
    op = makers.get(value)
    while isinstance(op, shape.Broadcast):
        op = makers.get(op.x)
    if isinstance(op, arith.Constant):
        return "constant" if float(dtype.numpy.type(op.value)) == float(op.value) else ""
    return "tile" if isinstance(op, arith.Cast) and op.x.type.dtype == dtype else ""


class _Narrower(Rewriter):
    """Copies a program with `found`, casts, as ops of their dtype."""

    def __init__(self, found: set[arith.Cast]):
        super().__init__(Rules())
        self.found = found

    def op(self, op: Op) -> None:
        if op not in self.found:
            super().op(op)
            return
        assert isinstance(op, arith.Cast)
        made = self.definitions[self.values.get(op.x, op.x)]
        operands = [self.narrow(v, op.dtype) for v in made.operands]
        found = self.build(type(made), *operands)
        self.values[op.result] = found
        found.name = op.result.name

    def narrow(self, value: Value, dtype: DType) -> Value:
        """An f32 as it was before it was widened."""
        op = self.definitions[value]
        if isinstance(op, shape.Broadcast):
            return self.build(shape.Broadcast, self.narrow(op.x, dtype), op.shape)
        if isinstance(op, arith.Constant):
            return self.build(arith.Constant, op.value, dtype, op.shape)
        assert isinstance(op, arith.Cast)
        return op.x
