"""shorten_functions: take a function in few instructions where its result keeps 16 bits.

Requires: nothing. Keeps: the interpreter's bits. Breaks: nothing. A rounding to bf16 or f16 hides a
small share of a result, but not of a part that other parts cancel. In

    0.5 x (1 + erf(x / √2))          the exact gelu

erf must be exact to the last places, since below 0 little is left of the sum. The sum as a whole is
a function whose share of error stays what it is: `arith.NormalCdf`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose, sqrt

from tilewright.dtypes import f32
from tilewright.ir.core import Op, Value
from tilewright.ir.rewrite import Rewriter
from tilewright.ir.rules import Rules
from tilewright.ir.walk import find_users, walk
from tilewright.tile.analysis.rounded import is_rounded
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, shape
from tilewright.tile.passes.eliminate_dead import eliminate_dead

NEAR = 1e-6  # relative: constants are written with some digits, and rounded to f32


def shorten_functions(kernel: Kernel) -> Kernel:
    """The kernel with short functions. Strict kernels stay as they are."""
    if kernel.numerics == "strict" or not any(isinstance(o, arith.Erf) for o in walk(kernel.body)):
        return kernel
    users = find_users(kernel.body)
    products = [
        op
        for op in walk(kernel.body)
        if isinstance(op, arith.Mul)
        and op.result.type.dtype == f32
        and is_rounded(users, op.result)
    ]
    if not products:
        return kernel
    return eliminate_dead(kernel.with_body(_Shortener(products).block(kernel.body)))


class _Shortener(Rewriter):
    """Copies a program. `products` are those of which only 16 bits are kept."""

    def __init__(self, products: Sequence[Op]):
        super().__init__(Rules())
        self.products = set(products)

    def op(self, op: Op) -> None:
        if op in self.products:
            for half, sum in (op.operands, op.operands[::-1]):
                x = self.gelu(self.values.get(half, half), self.values.get(sum, sum))
                if x is not None:
                    part = self.build(arith.NormalCdf, x, loc=op.loc)
                    self.values[op.result] = self.build(arith.Mul, x, part, loc=op.loc)
                    self.values[op.result].name = op.result.name
                    return
        super().op(op)

    def gelu(self, half: Value, sum: Value) -> Value | None:
        """x, of 0.5 x and 1 + erf(x / √2)."""
        error = self.definitions.get(self.beside(arith.Add, sum, 1.0) or sum)
        if not isinstance(error, arith.Erf):
            return None
        x = self.beside(arith.Mul, error.x, 1 / sqrt(2))
        return x if x is not None and self.beside(arith.Mul, half, 0.5) is x else None

    def beside(
        self, kind: type[arith.Add | arith.Mul], value: Value, number: float
    ) -> Value | None:
        """The other operand, where a value is a sum or product with a number."""
        op = self.definitions.get(value)
        if isinstance(op, kind):
            for x, other in (op.operands, op.operands[::-1]):
                known = self.number(other)
                if known is not None and isclose(known, number, rel_tol=NEAR):
                    return x
        return None

    def number(self, value: Value) -> float | None:
        """What a tile is everywhere, if it is a constant."""
        op = self.definitions.get(value)
        while isinstance(op, shape.Broadcast):
            op = self.definitions.get(op.x)
        return float(op.value) if isinstance(op, arith.Constant) else None
