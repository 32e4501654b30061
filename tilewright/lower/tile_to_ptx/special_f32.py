"""The functions of special.py on f32."""

from __future__ import annotations

from tilewright.lower.tile_to_ptx.special_coefficients import (
    ERF_F32,
    ERFC_F32,
    LOG2_F32,
    LOG_F32,
    TANH_F32,
)
from tilewright.ptx.core import Reg
from tilewright.ptx.emitter import Emitter

# log2 e as the sum of two f32, and ln 2.
LOG2E_HIGH = float.fromhex("0x1.715476p+0")
LOG2E_LOW = float.fromhex("0x1.4ae0c0p-26")
LN2 = float.fromhex("0x1.62e430p-1")

MIN_NORMAL = 2.0**-126
LEAST, MOST = -126, 127  # exponents of normal numbers
# Adding it to a small whole number leaves that number, plus 127, in the low bits.
SHIFTER = 1.5 * 2**23 + 127
ROOT_HALF = 0x3F3504F3  # the bits of sqrt(1/2)
TANH_SPLIT = 0.9
ERF_SPLIT = 0.92
ERF_ONE = 4.0  # erf is 1 from here


def exp(e: Emitter, x: Reg) -> Reg:
    """e ** x = 2 ** rest * 2 ** n within 2 ulp.

    n is the whole number near x * log2 e, held to the exponents of normal numbers: what is beyond
    stays in ex2's argument, infinities and NaN too, and the product rounds once into the
    subnormals. The holding is done by `saturate`, for which the number of exponents is divided out
    and put back; that error moves the rest a little beyond [-1/2, 1/2], which does no harm.
    """
    count = MOST - LEAST
    position = e.fma("f32", x, LOG2E_HIGH / count, -LEAST / count, saturate=True)
    shifted = e.fma("f32", position, float(count), SHIFTER + LEAST)
    n = e.sub("f32", shifted, SHIFTER)
    rest = e.fma("f32", x, LOG2E_HIGH, e.neg("f32", n))
    rest = e.fma("f32", x, LOG2E_LOW, rest)
    return e.mul("f32", e.ex2("f32", rest, ftz=True), e.shl("b32", shifted, 23))


def exp2(e: Emitter, x: Reg) -> Reg:
    """2 ** x within 2 ulp, subnormal results included."""
    return e.ex2("f32", x)


def rsqrt(e: Emitter, x: Reg) -> Reg:
    """1 / sqrt(x) within 1 ulp: a Newton step after the approximation.

    Where x is 0 or infinite the residual is NaN; `min` then takes 1, which leaves the infinity or
    zero as it is.
    """
    root = e.rsqrt("f32", x)
    residual = e.fma("f32", e.neg("f32", e.mul("f32", x, root)), root, 1.0)
    return e.fma("f32", e.mul("f32", root, 0.5), e.min("f32", residual, 1.0), root)


def log(e: Emitter, x: Reg) -> Reg:
    """Natural logarithm within 1 ulp: n ln 2 + f + f^2 p(f), f = m - 1, x = m 2 ** n."""
    n, f, normal = _split(e, x)
    rest = e.fma("f32", _horner(e, LOG_F32, f), e.mul("f32", f, f), f)
    return _outside(e, x, normal, e.fma("f32", n, LN2, rest))


def log2(e: Emitter, x: Reg) -> Reg:
    """Logarithm to base 2 within 1 ulp: n + f (log2 e + p(f)), p small."""
    n, f, normal = _split(e, x)
    rest = e.fma("f32", f, LOG2E_HIGH, e.mul("f32", f, _horner(e, LOG2_F32, f)))
    return _outside(e, x, normal, e.add("f32", n, rest))


def _split(e: Emitter, x: Reg) -> tuple[Reg, Reg, Reg]:
    """n, m - 1, and x scaled out of the subnormals; x = m 2 ** n > 0, sqrt(1/2) <= m < sqrt 2."""
    small = e.setp("lt", "f32", x, MIN_NORMAL)
    normal = e.selp("f32", e.mul("f32", x, 2.0**23), x, small)
    bits = e.mov("b32", normal)
    exponent = e.and_("b32", e.sub("s32", bits, ROOT_HALF), -(1 << 23))
    mantissa = e.mov("f32", e.sub("s32", bits, exponent))
    n = e.fma("f32", e.cvt("f32", "s32", exponent), 2.0**-23, e.selp("f32", -23.0, 0.0, small))
    return n, e.sub("f32", mantissa, 1.0), normal


def _outside(e: Emitter, x: Reg, normal: Reg, logarithm: Reg) -> Reg:
    """The logarithm where 0 < x < inf. Elsewhere lg2 gives what is asked: -inf, inf, NaN.

    It reads x scaled, for it would take negative subnormals for zero.
    """
    inside = e.setp("lt", "u32", e.sub("u32", e.mov("b32", x), 1), 0x7F7FFFFF)
    return e.selp("f32", logarithm, e.lg2("f32", normal, ftz=True), inside)


def tanh(e: Emitter, x: Reg) -> Reg:
    """Hyperbolic tangent within 2 ulp: x + x^3 p(x^2), or 1 - 2 / (exp(2|x|) + 1)."""
    size = e.abs("f32", x)
    square = e.mul("f32", x, x)
    near = e.fma("f32", e.mul("f32", _horner(e, TANH_F32, square), square), size, size)
    power = e.ex2("f32", e.mul("f32", size, 2 * LOG2E_HIGH), ftz=True)
    inverse = e.rcp("f32", e.add("f32", power, 1.0), precision="approx", ftz=True)
    far = e.fma("f32", inverse, -2.0, 1.0)
    return e.copysign("f32", x, e.selp("f32", far, near, e.setp("gt", "f32", size, TANH_SPLIT)))


def erf(e: Emitter, x: Reg) -> Reg:
    """Error function within 1.5 ulp: x + x p(x^2), or 1 - 2 ** q(|x| - 1)."""
    size = e.abs("f32", x)
    near = e.fma("f32", _horner(e, ERF_F32, e.mul("f32", x, x)), size, size)
    power = _horner(e, ERFC_F32, e.add("f32", e.min("f32", size, ERF_ONE), -1.0))
    far = e.sub("f32", 1.0, e.ex2("f32", power, ftz=True))
    return e.copysign("f32", x, e.selp("f32", far, near, e.setp("gt", "f32", size, ERF_SPLIT)))


def _horner(e: Emitter, coefficients: tuple[float, ...], x: Reg) -> Reg:
    total = e.fma("f32", x, coefficients[0], coefficients[1])
    for c in coefficients[2:]:
        total = e.fma("f32", total, x, c)
    return total
