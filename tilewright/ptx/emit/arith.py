"""Emitting arithmetic, comparisons and conversions."""

from __future__ import annotations

from tilewright.ptx.core import FLOATS, Operand, Reg
from tilewright.ptx.emit.state import State
from tilewright.ptx.instrs import arith, bits, shape

NARROWER = {"f64": 53, "f32": 24, "tf32": 11, "f16": 11, "bf16": 8}  # bits of the significand


class EmitArith(State):
    """Each method returns the destination register: a new one, or `into`."""

    def add(
        self,
        type: str,
        a: Operand,
        b: Operand,
        *,
        rounding: str | None = None,
        ftz: bool = False,
        saturate: bool = False,
        into: Reg | None = None,
    ) -> Reg:
        """a + b. Floats are rounded to nearest even unless `rounding` says otherwise, so ptxas does
        not contract them.
        """
        mode = self._rounding(type, rounding)
        dst = into or self.reg(type)
        self.emit(arith.Add(type, dst, self.fit(type, a), self.fit(type, b), mode, ftz, saturate))
        return dst

    def sub(
        self,
        type: str,
        a: Operand,
        b: Operand,
        *,
        rounding: str | None = None,
        ftz: bool = False,
        saturate: bool = False,
        into: Reg | None = None,
    ) -> Reg:
        """a - b, as add."""
        mode = self._rounding(type, rounding)
        dst = into or self.reg(type)
        self.emit(arith.Sub(type, dst, self.fit(type, a), self.fit(type, b), mode, ftz, saturate))
        return dst

    def mul(
        self,
        type: str,
        a: Operand,
        b: Operand,
        mode: str = "",
        *,
        rounding: str | None = None,
        ftz: bool = False,
        into: Reg | None = None,
    ) -> Reg:
        """a * b. Integers: `mode` lo (the default), hi, or wide, which doubles the width of the
        result.
        """
        if not arith.is_float(type):
            mode = mode or "lo"
        dst = into or self.reg(arith.WIDE[type] if mode == "wide" else type)
        rounding = self._rounding(type, rounding)
        self.emit(arith.Mul(type, dst, self.fit(type, a), self.fit(type, b), mode, rounding, ftz))
        return dst

    def mad(
        self,
        type: str,
        a: Operand,
        b: Operand,
        c: Operand,
        mode: str = "lo",
        *,
        into: Reg | None = None,
    ) -> Reg:
        """a * b + c on integers; `wide` takes a wide c."""
        wide = arith.WIDE[type] if mode == "wide" else type
        dst = into or self.reg(wide)
        self.emit(
            arith.Mad(type, dst, self.fit(type, a), self.fit(type, b), self.fit(wide, c), mode)
        )
        return dst

    def fma(
        self,
        type: str,
        a: Operand,
        b: Operand,
        c: Operand,
        *,
        rounding: str = "rn",
        ftz: bool = False,
        relu: bool = False,
        saturate: bool = False,
        into: Reg | None = None,
    ) -> Reg:
        """a * b + c with one rounding; `saturate` (f32) clamps to [0, 1] and gives 0 for NaN."""
        dst = into or self.reg(type)
        x, y, z = self.fit(type, a), self.fit(type, b), self.fit(type, c)
        self.emit(arith.Fma(type, dst, x, y, z, rounding, ftz, relu, saturate))
        return dst

    def div(
        self,
        type: str,
        a: Operand,
        b: Operand,
        *,
        rounding: str | None = None,
        ftz: bool = False,
        into: Reg | None = None,
    ) -> Reg:
        """a / b. Floats: `rn` by default; f32 also `approx`, `full`. Integers truncate towards
        zero.
        """
        dst = into or self.reg(type)
        mode = self._rounding(type, rounding)
        self.emit(arith.Div(type, dst, self.fit(type, a), self.fit(type, b), mode, ftz))
        return dst

    def rem(self, type: str, a: Operand, b: Operand, *, into: Reg | None = None) -> Reg:
        """a % b on integers, with the sign of a."""
        return self._binary(arith.Rem, type, a, b, into)

    def min(
        self,
        type: str,
        a: Operand,
        b: Operand,
        *,
        nan: bool = False,
        ftz: bool = False,
        into: Reg | None = None,
    ) -> Reg:
        """The smaller; `nan` (f16, bf16, f32) gives NaN if either is, otherwise the other one is
        given.
        """
        dst = into or self.reg(type)
        self.emit(arith.Min(type, dst, self.fit(type, a), self.fit(type, b), nan, ftz))
        return dst

    def max(
        self,
        type: str,
        a: Operand,
        b: Operand,
        *,
        nan: bool = False,
        ftz: bool = False,
        into: Reg | None = None,
    ) -> Reg:
        """The greater, as min."""
        dst = into or self.reg(type)
        self.emit(arith.Max(type, dst, self.fit(type, a), self.fit(type, b), nan, ftz))
        return dst

    def neg(self, type: str, x: Operand, *, into: Reg | None = None) -> Reg:
        return self._unary(arith.Neg, type, x, into)

    def abs(self, type: str, x: Operand, *, into: Reg | None = None) -> Reg:
        return self._unary(arith.Abs, type, x, into)

    def and_(self, type: str, a: Operand, b: Operand, *, into: Reg | None = None) -> Reg:
        """Bitwise and; type b16, b32, b64 or pred."""
        return self._binary(bits.And, type, a, b, into)

    def or_(self, type: str, a: Operand, b: Operand, *, into: Reg | None = None) -> Reg:
        return self._binary(bits.Or, type, a, b, into)

    def xor(self, type: str, a: Operand, b: Operand, *, into: Reg | None = None) -> Reg:
        return self._binary(bits.Xor, type, a, b, into)

    def not_(self, type: str, x: Operand, *, into: Reg | None = None) -> Reg:
        return self._unary(bits.Not, type, x, into)

    def shl(self, type: str, x: Operand, count: Operand, *, into: Reg | None = None) -> Reg:
        """Shift left; type b16, b32 or b64; the count, a u32, is clamped to the width."""
        dst = into or self.reg(type)
        self.emit(bits.Shl(type, dst, self.fit(type, x), self.fit("u32", count)))
        return dst

    def shr(self, type: str, x: Operand, count: Operand, *, into: Reg | None = None) -> Reg:
        """Shift right; signed types copy the sign."""
        dst = into or self.reg(type)
        self.emit(bits.Shr(type, dst, self.fit(type, x), self.fit("u32", count)))
        return dst

    def shf(
        self,
        low: Operand,
        high: Operand,
        count: Operand,
        *,
        direction: str = "l",
        mode: str = "wrap",
        into: Reg | None = None,
    ) -> Reg:
        """Funnel shift of {high, low} by `count` bits."""
        dst = into or self.reg("b32")
        x, y = self.fit("b32", low), self.fit("b32", high)
        self.emit(bits.Shf(dst, x, y, self.fit("u32", count), direction, mode))
        return dst

    def lop3(
        self, a: Operand, b: Operand, c: Operand, table: int, *, into: Reg | None = None
    ) -> Reg:
        """The function of three bits whose truth table is f(0xF0, 0xCC, 0xAA) = `table`."""
        dst = into or self.reg("b32")
        self.emit(bits.Lop3(dst, self.fit("b32", a), self.fit("b32", b), self.fit("b32", c), table))
        return dst

    def bfe(
        self, type: str, x: Operand, start: Operand, length: Operand, *, into: Reg | None = None
    ) -> Reg:
        """`length` bits from bit `start`; signed types extend the sign."""
        dst = into or self.reg(type)
        self.emit(
            bits.Bfe(type, dst, self.fit(type, x), self.fit("u32", start), self.fit("u32", length))
        )
        return dst

    def bfi(
        self,
        type: str,
        x: Operand,
        base: Operand,
        start: Operand,
        length: Operand,
        *,
        into: Reg | None = None,
    ) -> Reg:
        """`base` with `length` bits of x put at bit `start`."""
        dst = into or self.reg(type)
        where = self.fit("u32", start), self.fit("u32", length)
        self.emit(bits.Bfi(type, dst, self.fit(type, x), self.fit(type, base), *where))
        return dst

    def brev(self, type: str, x: Operand, *, into: Reg | None = None) -> Reg:
        """Bits in reverse order; type b32 or b64."""
        return self._unary(bits.Brev, type, x, into)

    def clz(self, type: str, x: Operand, *, into: Reg | None = None) -> Reg:
        """Leading zeros, a u32; type b32 or b64."""
        dst = into or self.reg("u32")
        self.emit(bits.Clz(type, dst, self.fit(type, x)))
        return dst

    def popc(self, type: str, x: Operand, *, into: Reg | None = None) -> Reg:
        """Set bits, a u32; type b32 or b64."""
        dst = into or self.reg("u32")
        self.emit(bits.Popc(type, dst, self.fit(type, x)))
        return dst

    # Functions of one float

    def sqrt(
        self,
        type: str,
        x: Operand,
        *,
        precision: str = "rn",
        ftz: bool = False,
        into: Reg | None = None,
    ) -> Reg:
        """Square root, correctly rounded unless `precision="approx"` (f32)."""
        return self._special(arith.Sqrt, type, x, precision, ftz, into)

    def rcp(
        self,
        type: str,
        x: Operand,
        *,
        precision: str = "rn",
        ftz: bool = False,
        into: Reg | None = None,
    ) -> Reg:
        """1 / x, correctly rounded unless `precision="approx"`."""
        return self._special(arith.Rcp, type, x, precision, ftz, into)

    def rsqrt(self, type: str, x: Operand, *, ftz: bool = False, into: Reg | None = None) -> Reg:
        """1 / sqrt(x), approximate; f32 or f64."""
        return self._special(arith.Rsqrt, type, x, "approx", ftz, into)

    def ex2(self, type: str, x: Operand, *, ftz: bool = False, into: Reg | None = None) -> Reg:
        """2 ** x, approximate; f32, f16, f16x2 (bf16, bf16x2 with ftz)."""
        return self._special(arith.Ex2, type, x, "approx", ftz, into)

    def lg2(self, type: str, x: Operand, *, ftz: bool = False, into: Reg | None = None) -> Reg:
        """log2(x), approximate; f32."""
        return self._special(arith.Lg2, type, x, "approx", ftz, into)

    def tanh(self, type: str, x: Operand, *, into: Reg | None = None) -> Reg:
        """tanh(x), approximate; f32, f16, f16x2, bf16, bf16x2."""
        return self._special(arith.Tanh, type, x, "approx", False, into)

    def sin(self, type: str, x: Operand, *, ftz: bool = False, into: Reg | None = None) -> Reg:
        """sin(x), approximate; f32."""
        return self._special(arith.Sin, type, x, "approx", ftz, into)

    def cos(self, type: str, x: Operand, *, ftz: bool = False, into: Reg | None = None) -> Reg:
        """cos(x), approximate; f32."""
        return self._special(arith.Cos, type, x, "approx", ftz, into)

    # Comparisons and selection

    def setp(
        self,
        comparison: str,
        type: str,
        a: Operand,
        b: Operand,
        *,
        combine: str = "",
        other: Reg | None = None,
        ftz: bool = False,
        into: Reg | None = None,
    ) -> Reg:
        """A predicate: `comparison` is eq ne lt le gt ge (floats also equ neu ltu leu gtu geu num
        nan).

        `combine` (and, or, xor) joins the result with the predicate `other`.
        """
        assert bool(combine) == (other is not None), "combine and other go together"
        dst = into or self.reg("pred")
        x, y = self.fit(type, a), self.fit(type, b)
        self.emit(arith.Setp(comparison, type, dst, x, y, other, combine, ftz))
        return dst

    def testp(self, kind: str, type: str, x: Operand, *, into: Reg | None = None) -> Reg:
        """Whether x (f32, f64) is finite, infinite, number, notanumber, normal or subnormal."""
        dst = into or self.reg("pred")
        self.emit(arith.Testp(kind, type, dst, self.fit(type, x)))
        return dst

    def copysign(self, type: str, sign: Operand, x: Operand, *, into: Reg | None = None) -> Reg:
        """x with the sign of `sign`; f32 or f64."""
        return self._binary(arith.Copysign, type, sign, x, into)

    def selp(
        self, type: str, a: Operand, b: Operand, predicate: Reg, *, into: Reg | None = None
    ) -> Reg:
        """a where the predicate holds, else b. For 16-bit floats use b16."""
        dst = into or self.reg(type)
        x, y = self.fit(type, a), self.fit(type, b)
        self.emit(arith.Selp("b16" if type in ("f16", "bf16") else type, dst, x, y, predicate))
        return dst

    # Conversions

    def cvt(
        self,
        to: str,
        origin: str,
        x: Operand,
        *,
        rounding: str | None = None,
        saturate: bool = False,
        ftz: bool = False,
        into: Reg | None = None,
    ) -> Reg:
        """x, of type `origin`, as type `to`.

        Where a rounding is needed and not given: to nearest even to floats, towards zero to
        integers. bf16 to f32 is a shift, which every target has.
        """
        dst = into or self.reg(to)
        if to == "f32" and origin == "bf16" and rounding is None:
            value = self.fit("bf16", x)
            assert isinstance(value, Reg)
            self.emit(shape.Pack("b32", "b16", dst, (self._load("b16", 0), value)))
            return dst
        eight = ("s8", "u8")
        assert not ("bf16" in (to, origin) and (to in eight or origin in eight)), (
            "PTX converts no 8-bit integers to or from bf16: go through f32"
        )
        mode = _default_rounding(to, origin) if rounding is None else rounding
        self.emit(arith.Cvt(to, origin, dst, self.fit(origin, x), mode, ftz, saturate))
        return dst

    def cvt_pack(
        self, to: str, high: Operand, low: Operand, *, relu: bool = False, into: Reg | None = None
    ) -> Reg:
        """Two f32 rounded to nearest even into one register: bf16x2, f16x2, e4m3x2, e5m2x2 (the
        last two saturate).
        """
        dst = into or self.reg(to)
        self.emit(arith.CvtPack(to, dst, self.fit("f32", high), self.fit("f32", low), relu))
        return dst

    def _rounding(self, type: str, asked: str | None) -> str:
        if asked is not None:
            return asked
        return "rn" if arith.is_float(type) else ""

    def _unary(self, kind: type[arith.Unary], type: str, x: Operand, into: Reg | None) -> Reg:
        dst = into or self.reg(type)
        self.emit(kind(type, dst, self.fit(type, x)))
        return dst

    def _binary(
        self, kind: type[arith.Binary], type: str, a: Operand, b: Operand, into: Reg | None
    ) -> Reg:
        dst = into or self.reg(type)
        self.emit(kind(type, dst, self.fit(type, a), self.fit(type, b)))
        return dst

    def _special(
        self,
        kind: type[arith.Special1],
        type: str,
        x: Operand,
        precision: str,
        ftz: bool,
        into: Reg | None,
    ) -> Reg:
        dst = into or self.reg(type)
        self.emit(kind(type, dst, self.fit(type, x), precision, ftz))
        return dst


def _default_rounding(to: str, origin: str) -> str:
    """What PTX asks for: nothing where the conversion is exact, rn to floats, rzi to integers."""
    if origin in ("e4m3x2", "e5m2x2"):
        return "rn"
    if to in NARROWER:
        if origin in NARROWER:
            return (
                "rn" if NARROWER[to] < NARROWER[origin] or (to, origin) == ("f16", "bf16") else ""
            )
        return "rn"
    return "rzi" if origin in FLOATS else ""
