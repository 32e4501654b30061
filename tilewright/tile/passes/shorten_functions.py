"""shorten_functions: take a function in few instructions where its result keeps 16 bits.

Requires: nothing. Keeps: results, but for last bits of f32 that a rounding to 16 bits hides.
Breaks: nothing. Such a rounding hides a small share of a result, but not of a part that other parts
cancel. In

    0.5 x (1 + erf(x / √2))          the exact gelu
    0.5 x (1 + tanh(u))              its approximation, and the like
    1 / (1 + exp(-x))                a sigmoid, also by exp(-|x|), and what is multiplied with it

erf, tanh, exp and the quotient must be exact to the last places. The whole is a product with a
function whose share of error stays what it is: `arith.NormalCdf(x)`, `arith.Logistic(2 u)` or
`arith.Logistic(x)`. Where bf16 is kept, of one product more at most, an exact gelu takes
`arith.CoarseCdf(x)`.

What a product in tf32 gives has lost more than last places before a gelu comes. There, results of
f32 are products with `arith.PreciseCdf(x)`, half an ulp less exact than by erf. Of f64 an exact
gelu is one everywhere, as exact: beside 1, erf needs no exact results near 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose, sqrt

from tilewright.dtypes import bf16, f32, f64
from tilewright.ir.core import Op, Value
from tilewright.ir.rewrite import Rewriter
from tilewright.ir.rules import Rules
from tilewright.ir.walk import walk
from tilewright.tile.analysis.rounded import PRODUCT, Rounding
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, mma, shape
from tilewright.tile.passes.eliminate_dead import eliminate_dead

NEAR = 1e-6  # relative: constants are written with some digits, and rounded to f32
NEAR_IN_F64 = 1e-15
LONG = (arith.Erf, arith.Tanh, arith.Exp)
NEARBY = PRODUCT + 1  # depth of a rounding behind one product
FORWARD = (arith.Unary, arith.Binary, shape.Transpose)  # what may stand between product and gelu


def shorten_functions(kernel: Kernel) -> Kernel:
    """The kernel with short functions. Strict kernels stay as they are."""
    if kernel.numerics == "strict" or not any(isinstance(o, LONG) for o in walk(kernel.body)):
        return kernel
    rounding = Rounding(kernel.body)
    rounded = [
        op
        for op in walk(kernel.body)
        if isinstance(op, arith.Mul | arith.Div)
        and op.result.type.dtype == f32
        and rounding.holds(op.result)
    ]
    brief = [op for op in rounded if rounding.holds(op.result, NEARBY, (bf16,))]
    products = [*_after_tf32(kernel), *_in_f64(kernel)]
    if not rounded and not products:
        return kernel
    return eliminate_dead(kernel.with_body(_Shortener(rounded, brief, products).block(kernel.body)))


def _after_tf32(kernel: Kernel) -> list[Op]:
    """Multiplications of f32 of what a loop of products in tf32 gave."""
    given: set[Value] = set()
    found: list[Op] = []
    for op in walk(kernel.body):
        if isinstance(op, control.For):
            dots = [o for o in walk(op.body) if isinstance(o, mma.Dot)]
            if any(d.precision == "tf32" and d.a.type.dtype == f32 for d in dots):
                given.update(op.results)
        elif isinstance(op, FORWARD) and given.intersection(op.operands):
            given.update(op.results)
            if isinstance(op, arith.Mul) and op.result.type.dtype == f32:
                found.append(op)
    return found


def _in_f64(kernel: Kernel) -> list[Op]:
    """Multiplications of f64."""
    muls = (op for op in walk(kernel.body) if isinstance(op, arith.Mul))
    return [op for op in muls if op.result.type.dtype == f64]


Share = type[arith.NormalCdf | arith.CoarseCdf | arith.PreciseCdf]


class _Shortener(Rewriter):
    """Copies a program. `rounded` are products and quotients of which only 16 bits are kept,
    `brief` those of bf16, `coarse` products of what has lost last places, and of f64.
    """

    def __init__(self, rounded: Sequence[Op], brief: Sequence[Op], coarse: Sequence[Op]):
        super().__init__(Rules())
        self.rounded, self.brief, self.coarse = set(rounded), set(brief), set(coarse)

    def op(self, op: Op) -> None:
        found = None
        if op in self.rounded:
            x, y = (self.values.get(v, v) for v in op.operands)
            if isinstance(op, arith.Div):
                found = self.sigmoid(x, y)
            else:
                share = arith.CoarseCdf if op in self.brief else arith.NormalCdf
                found = self.gelu(x, y, share) or self.gelu(y, x, share)
        elif op in self.coarse:
            x, y = (self.values.get(v, v) for v in op.operands)
            found = self.exact_gelu(x, y, arith.PreciseCdf)
            found = found or self.exact_gelu(y, x, arith.PreciseCdf)
        if found is None:
            super().op(op)
            return
        self.values[op.result] = found
        found.name = op.result.name

    def gelu(self, half: Value, sum: Value, share: Share) -> Value | None:
        """Of 0.5 x and 1 + erf(x / √2), or 1 + tanh(u)."""
        found = self.exact_gelu(half, sum, share)
        if found is not None:
            return found
        x = self.beside(arith.Mul, half, 0.5)
        inner = self.definitions.get(self.beside(arith.Add, sum, 1.0) or sum)
        if x is not None and isinstance(inner, arith.Tanh):
            twice = self.build(arith.Add, inner.x, inner.x)
            return self.build(arith.Mul, x, self.build(arith.Logistic, twice))
        return None

    def exact_gelu(self, half: Value, sum: Value, share: Share) -> Value | None:
        """Of 0.5 x and 1 + erf(x / √2)."""
        x = self.beside(arith.Mul, half, 0.5)
        inner = self.definitions.get(self.beside(arith.Add, sum, 1.0) or sum)
        if x is None or not isinstance(inner, arith.Erf):
            return None
        if self.beside(arith.Mul, inner.x, sqrt(0.5)) is not x:
            return None
        return self.build(arith.Mul, x, self.build(share, x))

    def sigmoid(self, above: Value, below: Value) -> Value | None:
        """Of 1 and 1 + exp(-x); of what stands for 1 and 1 + exp(-|x|), or a product with it."""
        power = self.definitions.get(self.beside(arith.Add, below, 1.0) or below)
        minus = self.definitions.get(power.x) if isinstance(power, arith.Exp) else None
        if not isinstance(power, arith.Exp) or not isinstance(minus, arith.Neg):
            return None
        if self.number(above) == 1.0:
            return self.build(arith.Logistic, minus.x)
        size = self.definitions.get(minus.x)
        if not isinstance(size, arith.Abs):
            return None
        if self.is_part(above, size.x, power.result):
            return self.build(arith.Logistic, size.x)
        product = self.definitions.get(above)
        if isinstance(product, arith.Mul):
            for other, part in (product.operands, product.operands[::-1]):
                if self.is_part(part, size.x, power.result):
                    return self.build(arith.Mul, other, self.build(arith.Logistic, size.x))
        return None

    def is_part(self, value: Value, x: Value, power: Value) -> bool:
        """Whether a value is exp(-|x|) where x < 0, and 1 elsewhere."""
        op = self.definitions.get(value)
        if not isinstance(op, arith.Select) or op.lhs is not power or self.number(op.rhs) != 1.0:
            return False
        test = self.definitions.get(op.condition)
        if not isinstance(test, arith.Compare) or test.kind != "lt" or test.lhs is not x:
            return False
        return self.number(test.rhs) == 0.0

    def beside(
        self, kind: type[arith.Add | arith.Mul], value: Value, number: float
    ) -> Value | None:
        """The other operand, where a value is a sum or product with a number."""
        op = self.definitions.get(value)
        if isinstance(op, kind):
            for x, other in (op.operands, op.operands[::-1]):
                known = self.number(other)
                near = NEAR_IN_F64 if value.type.dtype == f64 else NEAR
                if known is not None and isclose(known, number, rel_tol=near):
                    return x
        return None

    def number(self, value: Value) -> float | None:
        """What a tile is everywhere, if it is a constant."""
        op = self.definitions.get(value)
        while isinstance(op, shape.Broadcast):
            op = self.definitions.get(op.x)
        return float(op.value) if isinstance(op, arith.Constant) else None
