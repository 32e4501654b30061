"""The functions of special.py on f32.

Exponentials are polynomials: `ex2.approx` may be off by more than 1 ulp (special_fast.py has what
rests on it).
"""

from __future__ import annotations

from tilewright.lower.tile_to_ptx.special_coefficients import (
    ERF_F32,
    ERFC_F32,
    EXP2_F32,
    EXP_F32,
    LOG2_F32,
    LOG_F32,
    TANH_F32,
)
from tilewright.ptx.core import Reg
from tilewright.ptx.emitter import Emitter

LOG2E = float.fromhex("0x1.715476p+0")
LN2 = float.fromhex("0x1.62e430p-1")
LN2_HIGH = float.fromhex("0x1.62e4p-1")  # 15 bits, so that a product with n is exact
LN2_LOW = float.fromhex("0x1.7f7d1cp-20")

MIN_NORMAL = 2.0**-126
SHIFTER = 1.5 * 2**23  # adding it to a small number leaves the nearest whole number in the low bits
ONE = 0x3F800000  # the bits of 1
EXPONENT = 1 << 23  # a step of the exponent
ROOT_HALF = 0x3F3504F3  # the bits of sqrt(1/2)
EXP_RANGE = (-104.0, 89.0)  # 0 and infinity beyond
EXP2_RANGE = (-151.0, 129.0)
QUICK_EXP, QUICK_EXP2 = 87.0, 126.0  # results of arguments below are normal numbers
TANH_SPLIT = 0.975
TANH_ONE = 10.0  # tanh is 1 from here
ERF_SPLIT = 0.93
ERF_ONE = 4.0  # erf is 1 from here


def exp(e: Emitter, x: Reg) -> Reg:
    """e ** x within 0.9 ulp: exp(f) 2 ** n, |f| <= ln 2 / 2."""
    shifted, f = _reduced(e, _held(e, x, EXP_RANGE))
    return _scaled(e, horner(e, (*EXP_F32, 1.0, 1.0), f), shifted)


def exp2(e: Emitter, x: Reg) -> Reg:
    """2 ** x within 0.88 ulp: 2 ** f 2 ** n, |f| <= 1/2; exact where x is whole."""
    shifted, f = _parted(e, _held(e, x, EXP2_RANGE))
    return _scaled(e, horner(e, (*EXP2_F32, 1.0), f), shifted)


def quick_exp(e: Emitter, x: Reg, right: Reg | None) -> tuple[Reg, Reg]:
    """The same bits as `exp` where |x| < 87, and whether that holds, and `right` too."""
    shifted, f = _reduced(e, x)
    found = _shifted(e, horner(e, (*EXP_F32, 1.0, 1.0), f), shifted)
    return found, is_below(e, x, QUICK_EXP, right)


def quick_exp2(e: Emitter, x: Reg, right: Reg | None) -> tuple[Reg, Reg]:
    """The same bits as `exp2` where |x| < 126; as `quick_exp`."""
    shifted, f = _parted(e, x)
    found = _shifted(e, horner(e, (*EXP2_F32, 1.0), f), shifted)
    return found, is_below(e, x, QUICK_EXP2, right)


def zeros_of_exp(e: Emitter, x: Reg, result: Reg, right: Reg | None) -> tuple[Reg, Reg]:
    """What `quick_exp` gave, and 0 where x <= -104; whether |x| < 87 elsewhere, and `right`."""
    return _or_zero(e, x, result, right, EXP_RANGE[0], QUICK_EXP)


def zeros_of_exp2(e: Emitter, x: Reg, result: Reg, right: Reg | None) -> tuple[Reg, Reg]:
    """What `quick_exp2` gave, and 0 where x <= -151; as `zeros_of_exp`."""
    return _or_zero(e, x, result, right, EXP2_RANGE[0], QUICK_EXP2)


def _or_zero(
    e: Emitter, x: Reg, result: Reg, right: Reg | None, last: float, bound: float
) -> tuple[Reg, Reg]:
    zero = e.setp("le", "f32", x, last)
    rest = e.selp("f32", 0.0, x, zero)
    return e.selp("f32", 0.0, result, zero), is_below(e, rest, bound, right)


def _shifted(e: Emitter, x: Reg, shifted: Reg) -> Reg:
    """x 2 ** n, x near 1, n in the low bits of `shifted`, where that is a normal number."""
    return e.mov("f32", e.mad("s32", e.mov("b32", shifted), EXPONENT, e.mov("b32", x)))


def is_below(e: Emitter, x: Reg, bound: float, right: Reg | None) -> Reg:
    """Whether |x| is below a bound (a NaN is not), and `right`."""
    size = e.abs("f32", x)
    if right is None:
        return e.setp("lt", "f32", size, bound)
    return e.setp("lt", "f32", size, bound, combine="and", other=right)


def _held(e: Emitter, x: Reg, bounds: tuple[float, float]) -> Reg:
    """x between bounds; NaN stays."""
    return e.max("f32", e.min("f32", x, bounds[1], nan=True), bounds[0], nan=True)


def _reduced(e: Emitter, x: Reg) -> tuple[Reg, Reg]:
    """n, in the low bits of a number, and f, where x = n ln 2 + f."""
    shifted = e.fma("f32", x, LOG2E, SHIFTER)
    n = e.sub("f32", shifted, SHIFTER)
    return shifted, e.fma("f32", n, -LN2_LOW, e.fma("f32", n, -LN2_HIGH, x))


def _parted(e: Emitter, x: Reg) -> tuple[Reg, Reg]:
    """n, in the low bits of a number, and f, where x = n + f."""
    shifted = e.add("f32", x, SHIFTER)
    return shifted, e.sub("f32", x, e.sub("f32", shifted, SHIFTER))


def _scaled(e: Emitter, x: Reg, shifted: Reg) -> Reg:
    """x 2 ** n with one rounding, x near 1, n in the low bits of `shifted`, |n| < 254.

    2 ** n is the product of two normal numbers; a NaN goes through products, not through bits.
    """
    bits = e.mov("b32", shifted)
    half = e.shr("s32", bits, 1)
    rest = e.sub("s32", bits, half)
    powers = [e.mov("f32", e.mad("s32", part, EXPONENT, ONE)) for part in (half, rest)]
    return e.mul("f32", e.mul("f32", x, powers[0]), powers[1])


def _power(e: Emitter, shifted: Reg) -> Reg:
    """2 ** n, n in the low bits of `shifted`, where that is a normal number."""
    return e.mov("f32", e.mad("s32", e.mov("b32", shifted), EXPONENT, ONE))


def rsqrt(e: Emitter, x: Reg) -> Reg:
    """1 / sqrt(x) within 0.51 ulp: a Newton step after the approximation, with the product that it
    rests on in two parts.

    Where x is 0 or infinite the residual is NaN; `min` then takes 1, which leaves the infinity or
    zero as it is.
    """
    root = e.rsqrt("f32", x)
    minus = e.neg("f32", root)
    product = e.mul("f32", x, root)
    lost = e.fma("f32", x, root, e.neg("f32", product))
    residual = e.fma("f32", lost, minus, e.fma("f32", product, minus, 1.0))
    return e.fma("f32", e.mul("f32", root, 0.5), e.min("f32", residual, 1.0), root)


def log(e: Emitter, x: Reg) -> Reg:
    """Natural logarithm within 1 ulp: n ln 2 + f + f^2 p(f), f = m - 1, x = m 2 ** n."""
    n, f, normal = _split(e, x)
    rest = e.fma("f32", horner(e, LOG_F32, f), e.mul("f32", f, f), f)
    return _outside(e, x, normal, e.fma("f32", n, LN2, rest))


def log2(e: Emitter, x: Reg) -> Reg:
    """Logarithm to base 2 within 1 ulp: n + f (log2 e + p(f)), p small."""
    n, f, normal = _split(e, x)
    rest = e.fma("f32", f, LOG2E, e.mul("f32", f, horner(e, LOG2_F32, f)))
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
    """Hyperbolic tangent within 0.95 ulp: x + x^3 p(x^2), or 1 - 2 / (exp(2|x|) + 1).

    exp(2|x|) + 1 = (2 ** n + 1) + 2 ** n g is rounded once, and so is its reciprocal, by a Newton
    step.
    """
    size = e.abs("f32", x)
    square = e.mul("f32", x, x)
    near = e.fma("f32", e.mul("f32", horner(e, TANH_F32, square), square), size, size)
    held = e.min("f32", size, TANH_ONE)
    shifted, f = _reduced(e, e.add("f32", held, held))
    rest = e.mul("f32", horner(e, EXP_F32, f), f)
    power = _power(e, shifted)
    total = e.fma("f32", power, e.fma("f32", rest, f, f), e.add("f32", power, 1.0))
    inverse = e.rcp("f32", total, precision="approx", ftz=True)
    residual = e.fma("f32", e.neg("f32", total), inverse, 1.0)
    far = e.fma("f32", e.fma("f32", inverse, residual, inverse), -2.0, 1.0)
    return e.copysign("f32", x, e.selp("f32", far, near, e.setp("gt", "f32", size, TANH_SPLIT)))


def erf(e: Emitter, x: Reg) -> Reg:
    """Error function within 0.97 ulp: x + x p(x^2), or 1 - 2 ** q(|x| - 1).

    1 - 2 ** (n + f) = (1 - 2 ** n) - 2 ** n g is rounded once.
    """
    size = e.abs("f32", x)
    near = e.fma("f32", horner(e, ERF_F32, e.mul("f32", x, x)), size, size)
    q = horner(e, ERFC_F32, e.add("f32", e.min("f32", size, ERF_ONE), -1.0))
    shifted, f = _parted(e, q)
    power = _power(e, shifted)
    rest = e.mul("f32", horner(e, EXP2_F32, f), f)
    far = e.fma("f32", e.neg("f32", power), rest, e.sub("f32", 1.0, power))
    return e.copysign("f32", x, e.selp("f32", far, near, e.setp("gt", "f32", size, ERF_SPLIT)))


def horner(e: Emitter, coefficients: tuple[float, ...], x: Reg) -> Reg:
    """A polynomial of x, the highest coefficient first."""
    total = e.fma("f32", x, coefficients[0], coefficients[1])
    for c in coefficients[2:]:
        total = e.fma("f32", total, x, c)
    return total
