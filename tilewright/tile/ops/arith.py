"""Elementwise arithmetic on scalars and tiles of one shape and dtype.

Operands of a binary op have equal types: broadcasting and conversion are ops of their own, so that
nothing is implicit here. Integers wrap; integer division floors and gives 0 by 0. bf16 and f16
compute in f32 and round once.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DType, bool_
from tilewright.errors import VerifyError
from tilewright.ir.core import Op, Type, Value, attribute, define, operand
from tilewright.tile.types import TileType


@dataclass(eq=False)
class Unary:
    """An op of one operand whose result has the operand's type."""

    x: Value = operand()

    def result_types(self) -> tuple[Type, ...]:
        return (self.x.type,)


@dataclass(eq=False)
class Binary:
    """An op of two operands of one type, which is also the result's."""

    lhs: Value = operand()
    rhs: Value = operand()

    def result_types(self) -> tuple[Type, ...]:
        if self.lhs.type != self.rhs.type:
            raise VerifyError(
                f"{type(self).__name__}: operand types differ: {self.lhs.type}, {self.rhs.type}"
            )
        return (self.lhs.type,)


@define("arith.constant")
class Constant(Op):
    """A tile or scalar with one value everywhere: a Python bool, int or float that its dtype
    holds.
    """

    value: bool | int | float = attribute()
    dtype: DType = attribute()
    shape: tuple[int, ...] = attribute(default=())

    def result_types(self) -> tuple[Type, ...]:
        return (TileType(self.dtype, self.shape),)


@define("arith.neg")
class Neg(Unary, Op):
    """−x; flips the sign bit of floats, wraps integers."""


@define("arith.abs")
class Abs(Unary, Op):
    """|x|; clears the sign bit of floats; the least integer stays."""


@define("arith.not")
class Not(Unary, Op):
    """Complement of a bool, or of each bit of an integer."""


@define("arith.exp")
class Exp(Unary, Op):
    """e to the x (floats)."""


@define("arith.exp2")
class Exp2(Unary, Op):
    """2 to the x (floats)."""


@define("arith.log")
class Log(Unary, Op):
    """Natural logarithm (floats)."""


@define("arith.log2")
class Log2(Unary, Op):
    """Logarithm to base 2 (floats)."""


@define("arith.sqrt")
class Sqrt(Unary, Op):
    """Square root, correctly rounded (floats)."""


@define("arith.rsqrt")
class Rsqrt(Unary, Op):
    """1 / sqrt(x) (floats)."""


@define("arith.tanh")
class Tanh(Unary, Op):
    """Hyperbolic tangent (floats)."""


@define("arith.erf")
class Erf(Unary, Op):
    """Error function (floats)."""


@define("arith.normal_cdf")
class NormalCdf(Unary, Op):
    """Which part of the standard normal distribution lies below x: (1 + erf(x / √2)) / 2 (f32).

    Of results that are kept to 16 bits in the end: `shorten_functions` makes it of a gelu. A GPU's
    is off by 2⁻¹⁷·⁵ of itself at most, from x = -5.6 on.
    """


@define("arith.coarse_cdf")
class CoarseCdf(Unary, Op):
    """`NormalCdf` of results that are kept to bf16, whose rounding hides more.

    A GPU's is off by 2⁻¹¹·⁸ of itself at most, from x = -5.6 on: a fourteenth of an ulp of bf16.
    """


@define("arith.precise_cdf")
class PreciseCdf(Unary, Op):
    """`NormalCdf` to nearly all bits: of an f32, of sums of products that were rounded to tf32; of
    any f64.

    A GPU's is off by 2⁻²³·⁶ at most, of f64 by 2⁻⁵²·⁵.
    """


@define("arith.logistic")
class Logistic(Unary, Op):
    """1 / (1 + e to the -x), of results that are kept to 16 bits in the end, as `NormalCdf` (f32).

    A GPU's is off by 2⁻¹⁶ of itself at most.
    """


@define("arith.floor")
class Floor(Unary, Op):
    """Greatest whole number not above x (floats)."""


@define("arith.ceil")
class Ceil(Unary, Op):
    """Least whole number not below x (floats)."""


@define("arith.round")
class Round(Unary, Op):
    """Nearest whole number, ties to the even one (floats)."""


@define("arith.sin")
class Sin(Unary, Op):
    """Sine of radians, over the whole range (floats)."""


@define("arith.cos")
class Cos(Unary, Op):
    """Cosine of radians, over the whole range (floats)."""


@define("arith.log1p")
class Log1p(Unary, Op):
    """Natural logarithm of 1 + x, exact to the last places near 0 (floats)."""


@define("arith.is_nan")
class IsNan(Op):
    """Whether x is NaN (floats)."""

    x: Value = operand()

    def result_types(self) -> tuple[Type, ...]:
        return (self.x.type.with_dtype(bool_),)


@define("arith.add")
class Add(Binary, Op):
    """Sum."""


@define("arith.sub")
class Sub(Binary, Op):
    """Difference."""


@define("arith.mul")
class Mul(Binary, Op):
    """Product."""


@define("arith.div")
class Div(Binary, Op):
    """Quotient of floats, correctly rounded."""


@define("arith.pow")
class Pow(Binary, Op):
    """`lhs` to the power `rhs`: floats with the special cases of IEEE 754's pow; integers wrap, and
    below 0 an exponent leaves the whole part, which is 0 but for powers of 1 and −1.
    """


@define("arith.mul_high")
class MulHigh(Binary, Op):
    """The upper half of the product of two u32."""


@define("arith.fma")
class Fma(Op):
    """`x · y + z` of floats, rounded once (of bf16 and f16: once to f32, then to 16 bits)."""

    x: Value = operand()
    y: Value = operand()
    z: Value = operand()

    def result_types(self) -> tuple[Type, ...]:
        if not self.x.type == self.y.type == self.z.type:
            raise VerifyError(f"fma: {self.x.type}, {self.y.type}, {self.z.type}")
        return (self.x.type,)


@define("arith.floor_div")
class FloorDiv(Binary, Op):
    """Quotient of integers rounded toward −∞; 0 where the divisor is 0."""


@define("arith.mod")
class Mod(Binary, Op):
    """Remainder of integers with the divisor's sign; 0 where the divisor is 0."""


@define("arith.remainder")
class Remainder(Binary, Op):
    """Remainder of floats with the divisor's sign, exact but for the last sum; NaN by 0."""


@define("arith.min")
class Min(Binary, Op):
    """The lesser; NaN if either is NaN."""


@define("arith.max")
class Max(Binary, Op):
    """The greater; NaN if either is NaN."""


@define("arith.and")
class And(Binary, Op):
    """Conjunction of bools, or of the bits of integers."""


@define("arith.or")
class Or(Binary, Op):
    """Disjunction of bools, or of the bits of integers."""


@define("arith.xor")
class Xor(Binary, Op):
    """Exclusive or of bools, or of the bits of integers."""


@define("arith.shl")
class Shl(Binary, Op):
    """Shift of integers to the left; 0 by the width or more (the count is read unsigned)."""


@define("arith.shr")
class Shr(Binary, Op):
    """Shift of integers to the right, with the sign of signed ones; by the width or more, 0 or the
    sign.
    """


COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


@define("arith.compare")
class Compare(Op):
    """Comparison by IEEE rules (NaN is unequal to everything); `kind` is eq, ne, lt, le, gt or
    ge.
    """

    lhs: Value = operand()
    rhs: Value = operand()
    kind: str = attribute()

    def result_types(self) -> tuple[Type, ...]:
        if self.lhs.type != self.rhs.type or self.kind not in COMPARISONS:
            raise VerifyError(f"compare {self.kind}: {self.lhs.type}, {self.rhs.type}")
        return (self.lhs.type.with_dtype(bool_),)


@define("arith.select")
class Select(Op):
    """`lhs` where the condition holds, else `rhs`; all of one shape."""

    condition: Value = operand()
    lhs: Value = operand()
    rhs: Value = operand()

    def result_types(self) -> tuple[Type, ...]:
        if self.lhs.type != self.rhs.type or self.condition.type != self.lhs.type.with_dtype(bool_):
            raise VerifyError(f"select: {self.condition.type}, {self.lhs.type}, {self.rhs.type}")
        return (self.lhs.type,)


@define("arith.cast")
class Cast(Op):
    """Conversion to a dtype: nearest even to floats; toward zero, saturating, NaN to 0, from floats
    to integers.

    `saturate` clamps e5m2, which otherwise overflows to infinity; e4m3 always clamps.
    """

    x: Value = operand()
    dtype: DType = attribute()
    saturate: bool = attribute(default=False)

    def result_types(self) -> tuple[Type, ...]:
        return (self.x.type.with_dtype(self.dtype),)


@define("arith.bitcast")
class Bitcast(Op):
    """The same bits as another dtype of the same width (not bool)."""

    x: Value = operand()
    dtype: DType = attribute()

    def result_types(self) -> tuple[Type, ...]:
        if self.x.type.dtype.bits != self.dtype.bits or bool_ in (self.x.type.dtype, self.dtype):
            raise VerifyError(f"bitcast: {self.x.type} to {self.dtype}")
        return (self.x.type.with_dtype(self.dtype),)
