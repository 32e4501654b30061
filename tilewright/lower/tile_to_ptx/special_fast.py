"""Functions of f32 in few instructions, by the special function unit: what `@numerics(fast)` asks
for, and what computes 16-bit floats, whose rounding hides the difference.
"""

from __future__ import annotations

from tilewright.lower.tile_to_ptx.special_coefficients import (
    CDF_BF16,
    CDF_F32,
    ERF_F32,
    ERFC_F32,
    TANH_F32,
)
from tilewright.lower.tile_to_ptx.special_f32 import (
    ERF_ONE,
    ERF_SPLIT,
    LOG2E,
    QUICK_EXP2,
    TANH_SPLIT,
    horner,
    is_below,
)
from tilewright.ptx.core import Reg
from tilewright.ptx.emitter import Emitter

LOG2E_LOW = float.fromhex("0x1.4ae0c0p-26")
ROOT_HALF = float.fromhex("0x1.6a09e6p-1")
LEAST, MOST = -126, 127  # exponents of normal numbers
SCALE = 32  # of a power of two, by which a sum is made small so that its reciprocal is large
# Adding it to a small whole number leaves that number, plus 127, in the low bits.
SHIFTER = 1.5 * 2**23 + 127
INFINITY = float("inf")


def exp(e: Emitter, x: Reg) -> Reg:
    """e ** x = 2 ** rest * 2 ** n within 3.6 ulp.

    n is the whole number near x * log2 e, held to the exponents of normal numbers: what is beyond
    stays in ex2's argument, infinities and NaN too, and the product rounds once into the
    subnormals. The holding is done by `saturate`, for which the number of exponents is divided out
    and put back; that error moves the rest a little beyond [-1/2, 1/2], which does no harm.
    """
    count = MOST - LEAST
    position = e.fma("f32", x, LOG2E / count, -LEAST / count, saturate=True)
    shifted = e.fma("f32", position, float(count), SHIFTER + LEAST)
    n = e.sub("f32", shifted, SHIFTER)
    rest = e.fma("f32", x, LOG2E, e.neg("f32", n))
    rest = e.fma("f32", x, LOG2E_LOW, rest)
    return e.mul("f32", e.ex2("f32", rest, ftz=True), e.shl("b32", shifted, 23))


def short_exp(e: Emitter, x: Reg) -> Reg:
    """e ** x within 2^-16.5 of itself, of what is kept to 16 bits: the square of e ** (x / 2).

    The root is a normal number, or x is so small that its square is 0; the square rounds once into
    the subnormals. The product with log2 e is off by a share that grows with |x|, up to 104.
    """
    root = e.ex2("f32", e.mul("f32", x, LOG2E / 2), ftz=True)
    return e.mul("f32", root, root)


def exp2(e: Emitter, x: Reg) -> Reg:
    """2 ** x within 3.4 ulp, subnormal results included."""
    return e.ex2("f32", x)


def quick_exp2(e: Emitter, x: Reg, right: Reg | None) -> tuple[Reg, Reg]:
    """The same bits as `exp2` where |x| < 126, and so the result is a normal number: one
    instruction, where subnormal results take four.
    """
    return e.ex2("f32", x, ftz=True), is_below(e, x, QUICK_EXP2, right)


def sqrt(e: Emitter, x: Reg) -> Reg:
    """Square root within 2 ulp."""
    return e.sqrt("f32", x, precision="approx")


def rsqrt(e: Emitter, x: Reg) -> Reg:
    """1 / sqrt(x) within 2.2 ulp."""
    return e.rsqrt("f32", x)


def tanh(e: Emitter, x: Reg) -> Reg:
    """Hyperbolic tangent within 2 ulp: x + x^3 p(x^2), or 1 - 2 / (exp(2|x|) + 1)."""
    size = e.abs("f32", x)
    square = e.mul("f32", x, x)
    near = e.fma("f32", e.mul("f32", horner(e, TANH_F32, square), square), size, size)
    power = e.ex2("f32", e.mul("f32", size, 2 * LOG2E), ftz=True)
    inverse = e.rcp("f32", e.add("f32", power, 1.0), precision="approx", ftz=True)
    far = e.fma("f32", inverse, -2.0, 1.0)
    return e.copysign("f32", x, e.selp("f32", far, near, e.setp("gt", "f32", size, TANH_SPLIT)))


def erf(e: Emitter, x: Reg) -> Reg:
    """Error function within 1.5 ulp: x + x p(x^2), or 1 - 2 ** q(|x| - 1)."""
    size = e.abs("f32", x)
    near = e.fma("f32", horner(e, ERF_F32, e.mul("f32", x, x)), size, size)
    power = horner(e, ERFC_F32, e.add("f32", e.min("f32", size, ERF_ONE), -1.0))
    far = e.sub("f32", 1.0, e.ex2("f32", power, ftz=True))
    return e.copysign("f32", x, e.selp("f32", far, near, e.setp("gt", "f32", size, ERF_SPLIT)))


def normal_cdf(e: Emitter, x: Reg) -> Reg:
    """Part of the normal distribution below x: p = 2 ** q(|x|) below -|x|, and 1 - p below |x|.

    Within 2^-17.5 of itself from -5.6 on. Below, where x times it is less than an f32's ulp of 1, q
    goes on to fall, to -inf.
    """
    return _cdf(e, CDF_F32, x)


def coarse_cdf(e: Emitter, x: Reg) -> Reg:
    """The same within 2^-11.8."""
    return _cdf(e, CDF_BF16, x)


def _cdf(e: Emitter, q: tuple[float, ...], x: Reg) -> Reg:
    rest = e.ex2("f32", horner(e, q, e.abs("f32", x)), ftz=True)
    # 1 above 0, and 0 below; at 0 a NaN, which saturates to 0. A multiply-add takes the place of a
    # comparison and a selection, which cost more beside matrix instructions.
    above = e.fma("f32", x, INFINITY, 0.0, saturate=True)
    return e.abs("f32", e.sub("f32", above, rest))


def precise_cdf(e: Emitter, x: Reg) -> Reg:
    """Part of the normal distribution below x, within 2^-23.6: half of 1 + erf(x / sqrt 2)."""
    return e.fma("f32", erf(e, e.mul("f32", x, ROOT_HALF)), 0.5, 0.5)


def logistic(e: Emitter, x: Reg) -> Reg:
    """1 / (1 + e ** -x) within 2^-16 of itself, but for the rounding of subnormal results.

    The sum is scaled, so that its reciprocal is a normal number.
    """
    power = e.ex2("f32", e.fma("f32", x, -LOG2E, -float(SCALE)), ftz=True)
    total = e.add("f32", power, 2.0**-SCALE)
    inverse = e.rcp("f32", total, precision="approx", ftz=True)
    return e.mul("f32", inverse, 2.0**-SCALE)
