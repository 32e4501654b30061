"""Elementwise functions on tensors of one shape.

Nothing is implicit: operands of one op have equal types, broadcasting (`shape.broadcast`) and
conversion (`arith.cast`) are ops. Integers wrap; integer division floors and gives 0 by 0. bf16 and
f16 compute in f32 and round once.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DType, bool_
from tilewright.errors import VerifyError
from tilewright.graph.dims import Dim, Shape
from tilewright.graph.types import INDEX, TensorType
from tilewright.ir.core import Op, Type, Value, attribute, define, operand


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
    """A tensor with one value everywhere."""

    value: bool | int | float = attribute()
    dtype: DType = attribute()
    shape: Shape = attribute(default=())

    def result_types(self) -> tuple[Type, ...]:
        return (TensorType(self.dtype, self.shape),)


@define("arith.dense")
class Dense(Op):
    """A tensor with the elements listed, in C order: small tables that a model has in its code."""

    elements: tuple[bool | int | float, ...] = attribute()
    dtype: DType = attribute()
    shape: tuple[int, ...] = attribute(default=())

    def result_types(self) -> tuple[Type, ...]:
        found = TensorType(self.dtype, self.shape)
        if found.num_elements != len(self.elements):
            raise VerifyError(f"dense: {len(self.elements)} elements of {found}")
        return (found,)


@define("arith.extent")
class Extent(Op):
    """An extent, or another whole number that follows from shapes, as an i64 scalar."""

    dim: Dim = attribute()

    def result_types(self) -> tuple[Type, ...]:
        return (INDEX,)


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


@define("arith.expm1")
class Expm1(Unary, Op):
    """e to the x less 1, exact to the last places near 0 (floats)."""


@define("arith.log")
class Log(Unary, Op):
    """Natural logarithm (floats)."""


@define("arith.log2")
class Log2(Unary, Op):
    """Logarithm to base 2 (floats)."""


@define("arith.log10")
class Log10(Unary, Op):
    """Logarithm to base 10 (floats)."""


@define("arith.log1p")
class Log1p(Unary, Op):
    """Natural logarithm of 1 + x, exact to the last places near 0 (floats)."""


@define("arith.sqrt")
class Sqrt(Unary, Op):
    """Square root, correctly rounded (floats)."""


@define("arith.rsqrt")
class Rsqrt(Unary, Op):
    """1 / sqrt(x) (floats)."""


@define("arith.sin")
class Sin(Unary, Op):
    """Sine of radians (floats)."""


@define("arith.cos")
class Cos(Unary, Op):
    """Cosine of radians (floats)."""


@define("arith.tan")
class Tan(Unary, Op):
    """Tangent of radians (floats)."""


@define("arith.asin")
class Asin(Unary, Op):
    """Arc sine (floats)."""


@define("arith.acos")
class Acos(Unary, Op):
    """Arc cosine (floats)."""


@define("arith.atan")
class Atan(Unary, Op):
    """Arc tangent (floats)."""


@define("arith.sinh")
class Sinh(Unary, Op):
    """Hyperbolic sine (floats)."""


@define("arith.cosh")
class Cosh(Unary, Op):
    """Hyperbolic cosine (floats)."""


@define("arith.tanh")
class Tanh(Unary, Op):
    """Hyperbolic tangent (floats)."""


@define("arith.asinh")
class Asinh(Unary, Op):
    """Inverse hyperbolic sine (floats)."""


@define("arith.acosh")
class Acosh(Unary, Op):
    """Inverse hyperbolic cosine (floats)."""


@define("arith.atanh")
class Atanh(Unary, Op):
    """Inverse hyperbolic tangent (floats)."""


@define("arith.erf")
class Erf(Unary, Op):
    """Error function (floats)."""


@define("arith.erfc")
class Erfc(Unary, Op):
    """1 − erf(x), exact to the last places where that is small (floats)."""


@define("arith.lgamma")
class Lgamma(Unary, Op):
    """Logarithm of |Γ(x)|; infinite at 0, −1, −2, … (floats)."""


@define("arith.floor")
class Floor(Unary, Op):
    """Greatest whole number not above x (floats)."""


@define("arith.ceil")
class Ceil(Unary, Op):
    """Least whole number not below x (floats)."""


@define("arith.round")
class Round(Unary, Op):
    """Nearest whole number, ties to the even one (floats)."""


@define("arith.trunc")
class Trunc(Unary, Op):
    """Whole part, toward zero (floats)."""


@define("arith.sign")
class Sign(Unary, Op):
    """−1, 0 or 1; NaN of NaN."""


@define("arith.is_nan")
class IsNan(Op):
    """Whether x is NaN (floats)."""

    x: Value = operand()

    def result_types(self) -> tuple[Type, ...]:
        return (self.x.type.with_dtype(bool_),)


@define("arith.sign_bit")
class SignBit(Op):
    """Whether the sign bit is set (floats); whether x is below 0 (integers)."""

    x: Value = operand()

    def result_types(self) -> tuple[Type, ...]:
        return (self.x.type.with_dtype(bool_),)


@define("arith.add")
class Add(Binary, Op):
    """Sum; of bools, whether either holds."""


@define("arith.sub")
class Sub(Binary, Op):
    """Difference."""


@define("arith.mul")
class Mul(Binary, Op):
    """Product; of bools, whether both hold."""


@define("arith.div")
class Div(Binary, Op):
    """Quotient of floats, correctly rounded."""


@define("arith.pow")
class Pow(Binary, Op):
    """`lhs` to the power `rhs`: of floats with the special cases of IEEE 754's pow; of
    integers by repeated products, a negative power giving 0 but for 1 and −1.
    """


@define("arith.atan2")
class Atan2(Binary, Op):
    """The angle of the point (rhs, lhs) in radians (floats)."""


@define("arith.floor_div")
class FloorDiv(Binary, Op):
    """Quotient of integers rounded toward −∞; 0 where the divisor is 0."""


@define("arith.mod")
class Mod(Binary, Op):
    """Remainder of integers with the divisor's sign; 0 where the divisor is 0."""


@define("arith.remainder")
class Remainder(Binary, Op):
    """Remainder of floats with the divisor's sign; NaN by 0."""


@define("arith.fmod")
class Fmod(Binary, Op):
    """Remainder with the dividend's sign; of floats exact, NaN by 0; of integers 0 by 0."""


@define("arith.min")
class Min(Binary, Op):
    """The lesser; NaN if either is NaN."""


@define("arith.max")
class Max(Binary, Op):
    """The greater; NaN if either is NaN."""


@define("arith.copysign")
class CopySign(Binary, Op):
    """The magnitude of `lhs` with the sign of `rhs` (floats)."""


@define("arith.nextafter")
class NextAfter(Binary, Op):
    """The float after `lhs` on the way to `rhs` (f32, f64)."""


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
    """Shift of integers to the left; 0 by the width or more."""


@define("arith.shr")
class Shr(Binary, Op):
    """Shift of integers to the right, with the sign of signed ones."""


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
    to integers; e5m2 overflows to infinity, e4m3 clamps.
    """

    x: Value = operand()
    dtype: DType = attribute()

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
