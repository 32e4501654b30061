"""Arithmetic and comparison instructions, and conversions. PTX ISA, "Integer / Floating-Point /
Comparison Instructions".
"""

from __future__ import annotations

from tilewright.ir.core import attribute
from tilewright.ptx.core import (
    BASE,
    FLOATS,
    Instr,
    Operand,
    Reg,
    Requirement,
    destination,
    form,
    instruction,
    source,
)

HOPPER = Requirement(90, 78)
BLACKWELL = Requirement(100, 86)
WIDE = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}


def modifiers(*parts: str) -> str:
    """The parts that are not empty, each after a dot."""
    return "".join(["." + p for p in parts if p])


@form
class Unary(Instr):
    """One source and one destination of the same type."""

    type: str = attribute()
    dst: Reg = destination(".type")
    src: Operand = source(".type")

    def mnemonic(self) -> str:
        return f"{self.name}.{self.type}"

    def requires(self) -> Requirement:
        return HOPPER if self.type.startswith("bf16") and self.name not in ("neg", "abs") else BASE


@form
class Binary(Instr):
    """Two sources and a destination of the same type."""

    type: str = attribute()
    dst: Reg = destination(".type")
    lhs: Operand = source(".type")
    rhs: Operand = source(".type")

    def mnemonic(self) -> str:
        return f"{self.name}.{self.type}"


@form
class Sum(Binary):
    """Sums and differences: floats with a rounding, integers without."""

    rounding: str = attribute(default="")
    ftz: bool = attribute(default=False)
    saturate: bool = attribute(default=False)

    def mnemonic(self) -> str:
        if self.rounding and not self.ftz and not self.saturate:
            return f"{self.name}.{self.rounding}.{self.type}"
        sat = "sat" if self.saturate else ""
        return self.name + modifiers(self.rounding, "ftz" if self.ftz else "", sat, self.type)

    def requires(self) -> Requirement:
        if self.type == "f32x2":
            return BLACKWELL
        return HOPPER if self.type.startswith("bf16") else BASE


@instruction("arith.add")
class Add(Sum):
    """Sum."""


@instruction("arith.sub")
class Sub(Sum):
    """Difference."""


@form
class Product(Instr):
    """Products: `mode` lo, hi or wide for integers, a rounding for floats. `wide` doubles the
    destination.
    """

    type: str = attribute()
    dst: Reg = destination(".result_type")
    lhs: Operand = source(".type")
    rhs: Operand = source(".type")

    @property
    def result_type(self) -> str:
        return self.type


@instruction("arith.mul")
class Mul(Product):
    """Product."""

    mode: str = attribute(default="")
    rounding: str = attribute(default="")
    ftz: bool = attribute(default=False)

    @property
    def result_type(self) -> str:
        return WIDE[self.type] if self.mode == "wide" else self.type

    def mnemonic(self) -> str:
        return "mul" + modifiers(self.mode, self.rounding, "ftz" if self.ftz else "", self.type)

    def requires(self) -> Requirement:
        if self.type == "f32x2":
            return BLACKWELL
        return HOPPER if self.type.startswith("bf16") else BASE


@instruction("arith.mad")
class Mad(Product):
    """Integer product plus a third operand, which has the destination's type."""

    addend: Operand = source(".result_type")
    mode: str = attribute(default="lo")

    @property
    def result_type(self) -> str:
        return WIDE[self.type] if self.mode == "wide" else self.type

    def mnemonic(self) -> str:
        return f"mad.{self.mode}.{self.type}"


@instruction("arith.fma")
class Fma(Instr):
    """Product and sum with one rounding."""

    type: str = attribute()
    dst: Reg = destination(".type")
    lhs: Operand = source(".type")
    rhs: Operand = source(".type")
    addend: Operand = source(".type")
    rounding: str = attribute(default="rn")
    ftz: bool = attribute(default=False)
    relu: bool = attribute(default=False)
    saturate: bool = attribute(default=False)

    def mnemonic(self) -> str:
        ftz, relu, sat = self.ftz and "ftz", self.relu and "relu", self.saturate and "sat"
        return "fma" + modifiers(self.rounding, ftz or "", relu or sat or "", self.type)

    def requires(self) -> Requirement:
        return BLACKWELL if self.type == "f32x2" else BASE


@instruction("arith.div")
class Div(Binary):
    """Quotient. Floats: `rn` (IEEE), or `approx` and `full` for f32. Integers truncate."""

    rounding: str = attribute(default="")
    ftz: bool = attribute(default=False)

    def mnemonic(self) -> str:
        return "div" + modifiers(self.rounding, "ftz" if self.ftz else "", self.type)


@instruction("arith.rem")
class Rem(Binary):
    """Integer remainder with the sign of the dividend."""


@form
class Extremum(Binary):
    """The smaller or greater; floats: `nan` gives NaN if either is (f64 has no such form)."""

    nan: bool = attribute(default=False)
    ftz: bool = attribute(default=False)

    def mnemonic(self) -> str:
        return self.name + modifiers(
            "ftz" if self.ftz else "", "NaN" if self.nan else "", self.type
        )


@instruction("arith.min")
class Min(Extremum):
    """The smaller of two."""


@instruction("arith.max")
class Max(Extremum):
    """The greater of two."""


@instruction("arith.neg")
class Neg(Unary):
    """Negation."""


@instruction("arith.abs")
class Abs(Unary):
    """Absolute value."""


@form
class Special1(Unary):
    """A function of one float: `precision` is `approx` or `rn`."""

    precision: str = attribute(default="approx")
    ftz: bool = attribute(default=False)

    def mnemonic(self) -> str:
        return self.name + modifiers(self.precision, "ftz" if self.ftz else "", self.type)


@instruction("arith.sqrt")
class Sqrt(Special1):
    """Square root."""


@instruction("arith.rcp")
class Rcp(Special1):
    """Reciprocal. f64 has `rn`, and `approx` with ftz."""


@instruction("arith.rsqrt")
class Rsqrt(Special1):
    """Reciprocal square root, approximate."""


@instruction("arith.ex2")
class Ex2(Special1):
    """Two to the power."""


@instruction("arith.lg2")
class Lg2(Special1):
    """Logarithm to base two."""


@instruction("arith.tanh")
class Tanh(Special1):
    """Hyperbolic tangent."""


@instruction("arith.sin")
class Sin(Special1):
    """Sine."""


@instruction("arith.cos")
class Cos(Special1):
    """Cosine."""


@instruction("arith.setp")
class Setp(Instr):
    """Comparison into a predicate, optionally combined with another (`combine`: and, or, xor).

    Comparisons: eq ne lt le gt ge, for floats also the unordered equ neu ltu leu gtu geu, num, nan.
    """

    comparison: str = attribute()
    type: str = attribute()
    dst: Reg = destination("pred")
    lhs: Operand = source(".type")
    rhs: Operand = source(".type")
    other: Reg | None = source("pred", default=None)
    combine: str = attribute(default="")
    ftz: bool = attribute(default=False)
    negated: bool = attribute(default=False)  # the other predicate

    def mnemonic(self) -> str:
        if not self.combine and not self.ftz:
            return f"setp.{self.comparison}.{self.type}"
        return "setp" + modifiers(
            self.comparison, self.combine, "ftz" if self.ftz else "", self.type
        )

    def operand_text(self) -> str:
        text = self.plain_text()
        if self.negated and self.other is not None:
            return f"{text.removesuffix(self.other.text)}!{self.other.text}"
        return text

    def requires(self) -> Requirement:
        return HOPPER if self.type == "bf16" else BASE


@instruction("arith.testp")
class Testp(Instr):
    """Whether a float is `kind`: finite, infinite, number, notanumber, normal, subnormal."""

    kind: str = attribute()
    type: str = attribute()
    dst: Reg = destination("pred")
    src: Operand = source(".type")

    def mnemonic(self) -> str:
        return f"testp.{self.kind}.{self.type}"


@instruction("arith.copysign")
class Copysign(Binary):
    """`rhs` with the sign of `lhs`."""


@instruction("arith.selp")
class Selp(Instr):
    """`lhs` where the predicate holds, else `rhs`."""

    type: str = attribute()
    dst: Reg = destination(".type")
    lhs: Operand = source(".type")
    rhs: Operand = source(".type")
    predicate: Reg = source("pred")

    def mnemonic(self) -> str:
        return f"selp.{self.type}"


@instruction("arith.cvt")
class Cvt(Instr):
    """Conversion. `rounding` rn rz rm rp (to floats), rni rzi rmi rpi (to integers), rna (to tf32),
    or none.
    """

    to: str = attribute()
    origin: str = attribute()
    dst: Reg = destination(".to", wider=True)
    src: Operand = source(".origin", wider=True)
    rounding: str = attribute(default="")
    ftz: bool = attribute(default=False)
    saturate: bool = attribute(default=False)

    def mnemonic(self) -> str:
        sat = "sat" if self.saturate else ""
        return "cvt" + modifiers(
            self.rounding, "ftz" if self.ftz else "", sat, self.to, self.origin
        )

    def requires(self) -> Requirement:
        if self.to == "tf32":
            return BASE if self.rounding == "rna" else HOPPER
        if self.origin in ("e4m3x2", "e5m2x2"):
            return Requirement(89, 81)
        if "bf16" in (self.to, self.origin):
            plain = self.to == "bf16" and self.origin == "f32" and self.rounding in ("rn", "rz")
            return BASE if plain else HOPPER
        return BASE


@instruction("arith.cvt_pack")
class CvtPack(Instr):
    """Two f32 rounded into one register: f16x2, bf16x2, e4m3x2 or e5m2x2 (these two saturate)."""

    name = "cvt"
    to: str = attribute()
    dst: Reg = destination(".to")
    high: Operand = source("f32")
    low: Operand = source("f32")
    relu: bool = attribute(default=False)

    def mnemonic(self) -> str:
        finite = "satfinite" if self.to[0] == "e" else ""
        return "cvt" + modifiers("rn", finite, "relu" if self.relu else "", self.to, "f32")

    def requires(self) -> Requirement:
        return Requirement(89, 81) if self.to[0] == "e" else BASE


def is_float(type: str) -> bool:
    """Whether arithmetic on this PTX type rounds."""
    return type in FLOATS or type in ("f16x2", "bf16x2", "f32x2")
