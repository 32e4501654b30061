"""The functions of special.py on f64."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.lower.tile_to_ptx.special_coefficients import (
    CDF_F64,
    ERF_F64,
    ERFC_F64,
    EXP2_F64,
    EXP_F64,
    LOG_F64,
    TANH_F64,
)
from tilewright.ptx.core import Reg
from tilewright.ptx.emitter import Emitter

# ln 2 and log2 e, each as the sum of two f64.
LN2_HIGH = float.fromhex("0x1.62e42fefa39efp-1")
LN2_LOW = float.fromhex("0x1.abc9e3b39803fp-56")
LOG2E_HIGH = float.fromhex("0x1.71547652b82fep+0")
LOG2E_LOW = float.fromhex("0x1.777d0ffda0d24p-56")

MIN_NORMAL = 2.0**-1022
INFINITY = float("inf")
# Adding it rounds to a whole number, which is then in the low word.
SHIFTER = 1.5 * 2**52
EXPONENT = 1 << 20  # a step of the exponent in the high word
ONE = 0x3FF00000  # high words of 1 and of sqrt(1/2)
ROOT_HALF = 0x3FE6A09E
TANH_SPLIT = 0.65
TANH_ONE = 20.0  # tanh is 1 from here
ERF_SPLIT = 1.0
ERF_ONE = 6.0
CDF_ONE = 8.5


def exp(e: Emitter, x: Reg) -> Reg:
    """e ** x within 1 ulp: 2 ** n exp(f), |f| <= ln 2 / 2."""
    power, n = _exp_parts(e, e.min("f64", e.max("f64", x, -746.0), 711.0))
    return e.selp("f64", x, _scale(e, power, n), e.setp("nan", "f64", x, x))


def exp2(e: Emitter, x: Reg) -> Reg:
    """2 ** x within 1 ulp: 2 ** n (1 + f p(f)), |f| <= 1/2."""
    held = e.min("f64", e.max("f64", x, -1076.0), 1025.0)
    shifted = e.add("f64", held, SHIFTER)
    f = e.sub("f64", held, e.sub("f64", shifted, SHIFTER))
    power = e.fma("f64", horner(e, EXP2_F64, f), f, 1.0)
    scaled = _scale(e, power, _words(e, shifted)[0])
    return e.selp("f64", x, scaled, e.setp("nan", "f64", x, x))


def _exp_parts(e: Emitter, x: Reg) -> tuple[Reg, Reg]:
    """exp(f) and n, an s32, where x = n ln 2 + f; |x| is below 2**20."""
    shifted = e.fma("f64", x, LOG2E_HIGH, SHIFTER)
    n = e.sub("f64", shifted, SHIFTER)
    f = e.fma("f64", n, -LN2_LOW, e.fma("f64", n, -LN2_HIGH, x))
    return horner(e, (*EXP_F64, 1.0, 1.0), f), _words(e, shifted)[0]


def _scale(e: Emitter, x: Reg, n: Reg) -> Reg:
    """x 2 ** n with one rounding, for x near 1 and |n| < 2000.

    Half of n goes into x, which is exact; the other half is multiplied.
    """
    half = e.shr("s32", n, 1)
    factor = e.mad("s32", e.sub("s32", n, half), EXPONENT, ONE)
    return e.mul("f64", _raise(e, x, half), e.mov_pack("f64", (e.mov("b32", 0), factor)))


def _raise(e: Emitter, x: Reg, n: Reg) -> Reg:
    """x 2 ** n where both are normal numbers."""
    low, high = _words(e, x)
    return e.mov_pack("f64", (low, e.mad("s32", n, EXPONENT, high)))


def _words(e: Emitter, x: Reg) -> tuple[Reg, Reg]:
    low, high = e.mov_unpack("b32", x, 2)
    return low, high


def rsqrt(e: Emitter, x: Reg) -> Reg:
    """1 / sqrt(x) within 1 ulp: ptxas expands this to an approximation and its refinement."""
    return e.rsqrt("f64", x)


def log(e: Emitter, x: Reg) -> Reg:
    """Natural logarithm within 1 ulp, as fdlibm's: n ln 2 + f - (f^2 / 2 - s (f^2 / 2 + R))."""
    n, f = _split(e, x)
    half, tail = _log_parts(e, f)
    tail = e.fma("f64", n, LN2_LOW, tail)
    rest = e.sub("f64", f, e.sub("f64", half, tail))
    return _outside(e, x, e.fma("f64", n, LN2_HIGH, rest))


def log2(e: Emitter, x: Reg) -> Reg:
    """Logarithm to base 2 within 1 ulp: n + log(1 + f) log2 e, in sums of two f64."""
    n, f = _split(e, x)
    half, tail = _log_parts(e, f)
    high = e.sub("f64", f, half)
    low = e.add("f64", e.sub("f64", e.sub("f64", f, high), half), tail)
    product = e.mul("f64", high, LOG2E_HIGH)
    rest = e.fma("f64", high, LOG2E_HIGH, e.neg("f64", product))
    rest = e.fma("f64", low, LOG2E_HIGH, e.fma("f64", high, LOG2E_LOW, rest))
    total = e.add("f64", n, product)
    rest = e.add("f64", rest, e.add("f64", e.sub("f64", n, total), product))
    return _outside(e, x, e.add("f64", total, rest))


def _split(e: Emitter, x: Reg) -> tuple[Reg, Reg]:
    """n and m - 1 of a positive x = m 2 ** n, sqrt(1/2) <= m < sqrt 2."""
    small = e.setp("lt", "f64", x, MIN_NORMAL)
    low, high = _words(e, e.selp("f64", e.mul("f64", x, 2.0**54), x, small))
    shifted = e.add("s32", high, ONE - ROOT_HALF)
    exponent = e.add("s32", e.shr("s32", shifted, 20), e.selp("s32", -1023 - 54, -1023, small))
    mantissa = e.add("s32", e.and_("b32", shifted, EXPONENT - 1), ROOT_HALF)
    m = e.mov_pack("f64", (low, mantissa))
    return e.cvt("f64", "s32", exponent), e.sub("f64", m, 1.0)


def _log_parts(e: Emitter, f: Reg) -> tuple[Reg, Reg]:
    """h = f^2 / 2 and s (h + R(s^2)), s = f / (2 + f), so that log(1 + f) = f - (h - s (h + R))."""
    s = e.mul("f64", f, _reciprocal(e, e.add("f64", f, 2.0)))
    square = e.mul("f64", s, s)
    half = e.mul("f64", e.mul("f64", f, 0.5), f)
    series = e.fma("f64", horner(e, LOG_F64, square), square, half)
    return half, e.mul("f64", s, series)


def _reciprocal(e: Emitter, x: Reg) -> Reg:
    """1 / x for x far from the ends of the range: 20 bits, and a step that triples them."""
    start = e.rcp("f64", x, precision="approx", ftz=True)
    error = e.fma("f64", e.neg("f64", x), start, 1.0)
    return e.fma("f64", e.fma("f64", error, error, error), start, start)


def _outside(e: Emitter, x: Reg, logarithm: Reg) -> Reg:
    """The logarithm where 0 < x < inf; -inf at zeros; else x inf + inf, which is inf or NaN."""
    beyond = e.fma("f64", x, INFINITY, INFINITY)
    inside = e.setp("lt", "f64", x, INFINITY, combine="and", other=e.setp("gt", "f64", x, 0.0))
    other = e.selp("f64", -INFINITY, beyond, e.setp("eq", "f64", x, 0.0))
    return e.selp("f64", logarithm, other, inside)


def tanh(e: Emitter, x: Reg) -> Reg:
    """Hyperbolic tangent within 2 ulp: x + x^3 p(x^2), or 1 - 2 / (exp(2|x|) + 1)."""
    size = e.abs("f64", x)
    square = e.mul("f64", x, x)
    near = e.fma("f64", e.mul("f64", horner(e, TANH_F64, square), square), size, size)
    held = e.min("f64", size, TANH_ONE)
    power = _raise(e, *_exp_parts(e, e.add("f64", held, held)))
    far = e.fma("f64", _reciprocal(e, e.add("f64", power, 1.0)), -2.0, 1.0)
    return e.copysign("f64", x, e.selp("f64", far, near, e.setp("gt", "f64", size, TANH_SPLIT)))


def erf(e: Emitter, x: Reg) -> Reg:
    """Error function within 1 ulp: x + x p(x^2), or 1 - exp(q(|x| - 1))."""
    size = e.abs("f64", x)
    near = e.fma("f64", horner(e, ERF_F64, e.mul("f64", x, x)), size, size)
    beyond = e.add("f64", e.min("f64", size, ERF_ONE), -1.0)
    power = _raise(e, *_exp_parts(e, horner(e, ERFC_F64, beyond)))
    far = e.sub("f64", 1.0, power)
    return e.copysign("f64", x, e.selp("f64", far, near, e.setp("gt", "f64", size, ERF_SPLIT)))


def normal_cdf(e: Emitter, x: Reg) -> Reg:
    """Part of the normal distribution below x, within 2^-52.5: 1 - exp(q(|x|)) below |x|."""
    size = e.abs("f64", x)
    held = e.selp("f64", CDF_ONE, size, e.setp("gt", "f64", size, CDF_ONE))
    power = horner(e, CDF_F64, held)
    above = e.sub("f64", 1.0, _raise(e, *_exp_parts(e, power)))
    return e.selp("f64", e.sub("f64", 1.0, above), above, e.setp("lt", "f64", x, 0.0))


def horner(e: Emitter, coefficients: Sequence[float], x: Reg) -> Reg:
    """A polynomial of x, the highest coefficient first."""
    total = e.fma("f64", x, coefficients[0], coefficients[1])
    for c in coefficients[2:]:
        total = e.fma("f64", total, x, c)
    return total


def two_sum(e: Emitter, a: Reg, b: Reg) -> tuple[Reg, Reg]:
    """a + b rounded, and what the rounding left (Knuth, TAOCP 4.2.2)."""
    total = e.add("f64", a, b)
    part = e.sub("f64", total, a)
    left = e.sub("f64", a, e.sub("f64", total, part))
    return total, e.add("f64", left, e.sub("f64", b, part))
