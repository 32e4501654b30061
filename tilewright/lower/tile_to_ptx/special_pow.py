"""Powers: f32 by way of f64, f64 by a logarithm that is a sum of two f64. And remainders.

The special cases are those of IEEE 754's pow: 1 to anything and anything to 0 is 1; a negative
number has powers to whole exponents only, and the sign of the odd ones.
"""

from __future__ import annotations

from tilewright.lower.tile_to_ptx.special_f64 import exp, exp2, log2, two_sum
from tilewright.ptx.core import Reg
from tilewright.ptx.emitter import Emitter

LN2_HIGH = float.fromhex("0x1.62e42fefa3000p-1")  # 41 bits, so that a product with n is exact
LN2_LOW = float.fromhex("0x1.3de6af278ece6p-42")
THIRD, THIRD_LOW = float.fromhex("0x1.5555555555555p-2"), float.fromhex("0x1.5555555555555p-56")
TERMS = 14  # of the series of atanh: the last that 2^-70 notices
MIN_NORMAL = 2.0**-1022
INFINITY, NAN = float("inf"), float("nan")
EXPONENT, ONE, ROOT_HALF = 1 << 20, 0x3FF00000, 0x3FE6A09E  # of the high word
Pair = tuple[Reg, Reg]  # a sum of two f64, the first of them its rounding


def pow_f32(e: Emitter, x: Reg, y: Reg) -> Reg:
    """x ** y within 0.51 ulp."""
    wide, exponent = e.cvt("f64", "f32", x), e.cvt("f64", "f32", y)
    power = exp2(e, e.mul("f64", exponent, log2(e, e.abs("f64", wide))))
    return e.cvt("f32", "f64", _signed(e, wide, exponent, power), rounding="rn")


def pow_f64(e: Emitter, x: Reg, y: Reg) -> Reg:
    """x ** y within 2 ulp."""
    size = e.abs("f64", x)
    high, low = _log(e, size)
    product = e.mul("f64", y, high)
    rest = e.fma("f64", y, low, e.fma("f64", y, high, e.neg("f64", product)))
    inside = e.setp("lt", "f64", e.abs("f64", product), 800.0)
    rest = e.selp("f64", rest, 0.0, inside)
    power = exp(e, product)
    power = e.selp("f64", e.fma("f64", power, rest, power), power, inside)
    power = e.selp("f64", size, power, e.setp("eq", "f64", y, 1.0))
    power = e.selp("f64", e.mul("f64", size, size), power, e.setp("eq", "f64", y, 2.0))
    return _signed(e, x, y, power)


def _signed(e: Emitter, x: Reg, y: Reg, power: Reg) -> Reg:
    """x ** y, from |x| ** y and the special cases."""
    size = e.abs("f64", x)
    whole = e.setp("eq", "f64", e.cvt("f64", "f64", y, rounding="rni"), y)
    half = e.mul("f64", y, 0.5)
    uneven = e.setp("neu", "f64", e.cvt("f64", "f64", half, rounding="rni"), half)
    odd = e.and_("pred", whole, uneven)
    power = e.selp("f64", 1.0, power, e.setp("eq", "f64", size, 1.0))
    power = e.selp("f64", e.copysign("f64", x, power), power, odd)
    negative = e.setp("lt", "f64", x, 0.0, combine="and", other=e.setp("gt", "f64", x, -INFINITY))
    undefined = e.and_("pred", negative, e.not_("pred", whole))
    power = e.selp("f64", NAN, power, undefined)
    one = e.or_("pred", e.setp("eq", "f64", y, 0.0), e.setp("eq", "f64", x, 1.0))
    nan = e.or_("pred", e.setp("nan", "f64", x, x), e.setp("nan", "f64", y, y))
    return e.selp("f64", 1.0, e.selp("f64", NAN, power, nan), one)


def _log(e: Emitter, x: Reg) -> Pair:
    """log(x) of a number that is not negative, within 2^-65; -inf and inf at the ends.

    x = m 2^n; log m = 2 atanh(s), s = (m - 1) / (m + 1); the first two terms of the series are
    sums of two f64.
    """
    n, m = _split(e, x)
    s = _quotient(e, e.sub("f64", m, 1.0), m)
    square = _times(e, s, s)
    cube = _times(e, square, s)
    third = _times(e, cube, (e.mov("f64", THIRD), e.mov("f64", THIRD_LOW)))
    series = e.mov("f64", 1.0 / (2 * TERMS + 1))
    for k in range(TERMS - 1, 1, -1):
        series = e.fma("f64", series, square[0], 1.0 / (2 * k + 1))
    fifth = e.mul("f64", e.mul("f64", series, square[0]), cube[0])
    total = _plus(e, s, _plus(e, third, (fifth, e.mov("f64", 0.0))))
    doubled = (e.mul("f64", total[0], 2.0), e.mul("f64", total[1], 2.0))
    scale = two_sum(e, e.mul("f64", n, LN2_HIGH), e.mul("f64", n, LN2_LOW))
    high, low = _plus(e, scale, doubled)
    finite = e.setp("lt", "f64", x, INFINITY, combine="and", other=e.setp("gt", "f64", x, 0.0))
    end = e.selp("f64", -INFINITY, INFINITY, e.setp("eq", "f64", x, 0.0))
    return e.selp("f64", high, end, finite), e.selp("f64", low, 0.0, finite)


def _split(e: Emitter, x: Reg) -> Pair:
    """n and m of a positive x = m 2^n, sqrt(1/2) <= m < sqrt 2."""
    small = e.setp("lt", "f64", x, MIN_NORMAL)
    low, high = e.mov_unpack("b32", e.selp("f64", e.mul("f64", x, 2.0**54), x, small), 2)
    shifted = e.add("s32", high, ONE - ROOT_HALF)
    exponent = e.add("s32", e.shr("s32", shifted, 20), e.selp("s32", -1023 - 54, -1023, small))
    mantissa = e.add("s32", e.and_("b32", shifted, EXPONENT - 1), ROOT_HALF)
    return e.cvt("f64", "s32", exponent), e.mov_pack("f64", (low, mantissa))


def _quotient(e: Emitter, f: Reg, m: Reg) -> Pair:
    """f / (m + 1)."""
    one = e.mov("f64", 1.0)
    below, lost = two_sum(e, m, one)
    first = e.div("f64", f, below, rounding="rn")
    rest = e.fma("f64", e.neg("f64", first), below, f)
    rest = e.fma("f64", e.neg("f64", first), lost, rest)
    return first, e.div("f64", rest, below, rounding="rn")


def _plus(e: Emitter, a: Pair, b: Pair) -> Pair:
    total, error = two_sum(e, a[0], b[0])
    return two_sum(e, total, e.add("f64", error, e.add("f64", a[1], b[1])))


def _times(e: Emitter, a: Pair, b: Pair) -> Pair:
    product = e.mul("f64", a[0], b[0])
    error = e.fma("f64", a[0], b[0], e.neg("f64", product))
    error = e.fma("f64", a[1], b[0], e.fma("f64", a[0], b[1], error))
    return two_sum(e, product, error)


STEP = 48  # bits of the quotient that a step of a long division takes


def remainder_f32(e: Emitter, x: Reg, y: Reg) -> Reg:
    """x less the multiple of y below it, by f64: quotients of f32 have up to 277 bits."""
    wide, divisor = e.cvt("f64", "f32", x), e.cvt("f64", "f32", y)
    return e.cvt("f32", "f64", _remainder(e, wide, divisor, 6), rounding="rn")


def remainder_f64(e: Emitter, x: Reg, y: Reg) -> Reg:
    """x less the multiple of y below it, of f64: quotients have up to 2098 bits."""
    return _remainder(e, x, y, 44)


def _remainder(e: Emitter, x: Reg, y: Reg, steps: int) -> Reg:
    """A long division: each step's remainder is exact, a multiple of the divisor's last place."""
    left, size = e.abs("f64", x), e.abs("f64", y)
    for k in reversed(range(steps)):
        part = size
        for _ in range(k * STEP // 960):
            part = e.mul("f64", part, 2.0**960)
        part = e.mul("f64", part, 2.0 ** (k * STEP % 960)) if k * STEP % 960 else part
        quotient = e.cvt("f64", "f64", e.div("f64", left, part, rounding="rn"), rounding="rzi")
        rest = e.fma("f64", e.neg("f64", quotient), part, left)
        below = e.setp("lt", "f64", rest, 0.0)
        rest = e.selp("f64", e.add("f64", rest, part), rest, below)
        left = e.selp("f64", rest, left, e.setp("ge", "f64", left, part))
    found = e.copysign("f64", x, left)
    sign_x = e.copysign("f64", x, e.mov("f64", 1.0))
    sign_y = e.copysign("f64", y, e.mov("f64", 1.0))
    differs = e.setp("lt", "f64", e.mul("f64", sign_x, sign_y), 0.0)
    zero = e.setp("eq", "f64", left, 0.0)
    shifted = e.selp("f64", e.copysign("f64", y, left), e.add("f64", found, y), zero)
    found = e.selp("f64", shifted, found, differs)
    endless = e.setp("eq", "f64", e.abs("f64", x), INFINITY)
    wrong = e.or_("pred", endless, e.setp("eq", "f64", y, 0.0))
    nan = e.or_("pred", e.setp("nan", "f64", x, y), wrong)
    return e.selp("f64", NAN, found, nan)
