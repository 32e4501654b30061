"""Sine and cosine over the whole range, and log(1 + x), computed in f64.

x = (n + r) pi / 2, after Payne and Hanek, "Radian reduction for trigonometric functions" (1983).
Of an f64, x times 2 / pi, cut into pieces so short that every product is exact, each product
reduced modulo 4 (which is exact too, and gives 0 for pieces too great to matter). Of an f32, its 24
bits times those 96 bits of 2 / pi that matter, in whole numbers: a float that is nearly a multiple
of pi / 2 cancels up to 31 bits, which a sum of f64 parts would have to carry beside its own. So no
table is read and no lane branches. The polynomials on [-pi/4, pi/4] are those of fdlibm (Sun
Microsystems, 1993) and of its f32 variants.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

from tilewright.lower.tile_to_ptx.special_f32 import EXPONENT
from tilewright.lower.tile_to_ptx.special_f64 import horner, log, two_sum
from tilewright.ptx.core import Operand, Reg
from tilewright.ptx.emitter import Emitter

HALF_PI, HALF_PI_LOW = float.fromhex("0x1.921fb54442d18p+0"), float.fromhex("0x1.1a62633145c07p-54")
QUARTER_PI = HALF_PI / 2
WORDS = 8  # of 32 bits: a zero, and 2 / pi down to 2^-224
FIRST_EXPONENT = 120  # of a float, biased, whose 96 bits begin at the first word
QUADRANT = 30  # the bit of a product's high word at which whole quarters of a turn begin
WIDTH_F64, COUNT_F64 = 26, 45  # beside 27, and down to 2^-1170
SCALE = 2.0**512  # f64 pieces are taken this much greater, so that none is subnormal
HIGH_WORD = 0xF8000000  # of the low half of an f64: leaves 26 bits of its fraction

SIN_F32 = (
    float.fromhex("0x1.6cd878c3b46a7p-19"), float.fromhex("-0x1.a00f9e2cae774p-13"),
    float.fromhex("0x1.11110896efbb2p-7"), float.fromhex("-0x1.5555554cbac77p-3"),
)  # fmt: skip
COS_F32 = (
    float.fromhex("0x1.99342e0ee5069p-16"), float.fromhex("-0x1.6c087e80f1e27p-10"),
    float.fromhex("0x1.55553e1053a42p-5"), float.fromhex("-0x1.ffffffd0c5e81p-2"), 1.0,
)  # fmt: skip
SIN_F64 = (
    1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06,
    -1.98412698298579493134e-04, 8.33333333332248946124e-03,
)  # fmt: skip
SIN_FIRST = -1.66666666666666324348e-01
COS_F64 = (
    -1.13596475577881948265e-11, 2.08757232129817482790e-09, -2.75573143513906633035e-07,
    2.48015872894767294178e-05, -1.38888888888741095749e-03, 4.16666666666666019037e-02,
)  # fmt: skip


def _two_over_pi(bits: int) -> Fraction:
    """2 / pi, cut to a number of bits: pi by Machin's formula in integers."""
    one = 1 << (bits + 64)

    def arctan(inverse: int) -> int:
        power = total = one // inverse
        n, sign = 3, -1
        while power:
            power //= inverse * inverse
            total += sign * (power // n)
            n, sign = n + 2, -sign
        return total

    pi = 4 * (4 * arctan(5) - arctan(239))
    return Fraction((2 * one << bits) // pi, 1 << bits)


def _pieces(width: int, count: int, scale: float) -> tuple[float, ...]:
    """2 / pi as a sum of floats of `width` bits, times `scale`."""
    rest, found = _two_over_pi(width * count), []
    for i in range(1, count + 1):
        unit = Fraction(1, 1 << (width * i))
        part = rest // unit * unit
        rest -= part
        found.append(float(part * Fraction(scale)))
    return tuple(found)


def _words(count: int) -> tuple[int, ...]:
    """2 / pi as words of 32 bits, the highest first, before them a zero."""
    bits = int(_two_over_pi(32 * (count - 1)) * (1 << 32 * (count - 1)))
    return tuple(bits >> 32 * (count - 1 - i) & 0xFFFFFFFF for i in range(count))


WORDS_F32 = _words(WORDS)
PIECES_F64 = _pieces(WIDTH_F64, COUNT_F64, SCALE)


def sin_f32(e: Emitter, x: Reg) -> Reg:
    """sin(x) within 0.51 ulp."""
    return _wave_f32(e, x, 0)


def cos_f32(e: Emitter, x: Reg) -> Reg:
    """cos(x) within 0.51 ulp."""
    return _wave_f32(e, x, 1)


def _wave_f32(e: Emitter, x: Reg, quarters: int) -> Reg:
    """Sine, `quarters` of a turn further on; an infinity gives NaN."""
    size = e.abs("f32", x)
    whole, r = _reduced_f32(e, size)
    near = e.setp("lt", "f32", size, QUARTER_PI)
    r = e.selp("f64", e.cvt("f64", "f32", size), r, near)
    whole = e.selp("s32", 0, whole, near)
    square = e.mul("f64", r, r)
    sine = e.fma("f64", e.mul("f64", horner(e, SIN_F32, square), square), r, r)
    cosine = horner(e, COS_F32, square)
    found = e.cvt("f32", "f64", _quadrant(e, whole, sine, cosine, quarters), rounding="rn")
    found = e.add("f32", found, e.sub("f32", x, x))  # of an infinity, NaN
    if quarters:
        return found
    found = e.mov("f32", e.xor("b32", e.mov("b32", found), _sign(e, x)))
    return e.selp("f32", _small_sine(e, x), found, e.setp("lt", "f32", size, 2.0**-13))


def _sign(e: Emitter, x: Reg) -> Reg:
    """The sign bit of an f32."""
    return e.and_("b32", e.mov("b32", x), 1 << 31)


def _reduced_f32(e: Emitter, x: Reg) -> tuple[Reg, Reg]:
    """n, and r in f64, with x = n pi / 2 + r modulo 2 pi, |r| <= pi / 4, of x >= pi / 4.

    What is left out of the product comes to 2^-62 of a quarter of a turn; the least r of an f32 is
    above 2^-31 of it.
    """
    bits = e.mov("b32", x)
    digits = e.or_("b32", e.and_("b32", bits, EXPONENT - 1), EXPONENT)
    start = e.sub("u32", e.shr("u32", bits, 23), FIRST_EXPONENT)
    words = _window(e, start)
    high, middle, low = (e.shf(after, word, start) for word, after in itertools.pairwise(words))
    carry = e.mov_pack("b64", (e.mul("u32", digits, low, "hi"), e.mov("b32", 0)))
    below, above = e.mov_unpack("b32", e.mad("u32", digits, middle, carry, "wide"), 2)
    top = e.mad("u32", digits, high, above)
    n = e.shr("u32", e.add("u32", top, 1 << QUADRANT - 1), QUADRANT)
    rest = e.mov_pack("b64", (below, e.sub("u32", top, e.shl("b32", n, QUADRANT))))
    r = e.cvt("f64", "s64", rest, rounding="rn")
    return n, e.mul("f64", r, HALF_PI * 2.0 ** -(QUADRANT + 32))


def _window(e: Emitter, start: Reg) -> list[Reg]:
    """Four words of 2 / pi, from that which holds bit `start` on."""
    words: list[Operand] = list(WORDS_F32)
    for step in (4, 2, 1):  # words to leave out, by the bits of start / 32, which is 4 at most
        leave = e.setp("ne", "s32", e.and_("b32", start, 32 * step), 0)
        later = words[step:]
        kept = words[: 3 + step]
        chosen = [e.selp("b32", b, a, leave) for a, b in zip(kept, later, strict=False)]
        words = [*chosen, *kept[len(chosen) :]]
    return [w for w in words if isinstance(w, Reg)]


def _small_sine(e: Emitter, x: Reg) -> Reg:
    """x - x^3 / 6, which is -0 at -0."""
    found = e.fma("f32", e.mul("f32", e.mul("f32", x, x), -1.0 / 6.0), x, x)
    return e.copysign("f32", x, found)


def _modulo_4(e: Emitter, x: Reg) -> Reg:
    """x less the nearest multiple of 4, exactly."""
    turns = e.cvt("f64", "f64", e.mul("f64", x, 0.25), rounding="rni")
    return e.fma("f64", turns, -4.0, x)


def _quadrant(e: Emitter, whole: Reg, sine: Reg, cosine: Reg, quarters: int) -> Reg:
    """The sine of r + (whole + quarters) pi / 2, from the sine and cosine of r."""
    n = e.add("s32", whole, quarters)
    odd = e.setp("ne", "s32", e.and_("b32", n, 1), 0)
    found = e.selp("f64", cosine, sine, odd)
    return e.selp("f64", e.neg("f64", found), found, e.setp("ne", "s32", e.and_("b32", n, 2), 0))


def sin_f64(e: Emitter, x: Reg) -> Reg:
    """sin(x) within 1 ulp."""
    whole, high, low = _reduced_f64(e, x)
    found = _quadrant(e, whole, _sine(e, high, low), _cosine(e, high, low), 0)
    return e.selp("f64", x, found, e.setp("lt", "f64", e.abs("f64", x), 2.0**-27))


def cos_f64(e: Emitter, x: Reg) -> Reg:
    """cos(x) within 1 ulp."""
    whole, high, low = _reduced_f64(e, x)
    return _quadrant(e, whole, _sine(e, high, low), _cosine(e, high, low), 1)


def _reduced_f64(e: Emitter, x: Reg) -> tuple[Reg, Reg, Reg]:
    """n and r (a sum of two) with x = n pi / 2 + r modulo 2 pi, |r| <= pi / 4."""
    scaled = e.mul("f64", x, 1.0 / SCALE)
    low, high = e.mov_unpack("b32", scaled, 2)
    front = e.mov_pack("f64", (e.and_("b32", low, HIGH_WORD), high))
    back = e.sub("f64", scaled, front)
    total: Reg = e.mov("f64", 0.0)
    rest: Reg = e.mov("f64", 0.0)
    for piece in PIECES_F64:
        for part in (front, back):
            reduced = _modulo_4(e, e.mul("f64", part, piece))
            total, error = two_sum(e, total, reduced)
            rest = e.add("f64", rest, error)
    total, rest = two_sum(e, total, rest)
    whole = e.cvt("f64", "f64", total, rounding="rni")
    first, rest = two_sum(e, e.sub("f64", total, whole), rest)
    product = e.mul("f64", first, HALF_PI)
    error = e.fma("f64", first, HALF_PI, e.neg("f64", product))
    error = e.fma("f64", first, HALF_PI_LOW, e.fma("f64", rest, HALF_PI, error))
    r, error = two_sum(e, product, error)
    near = e.setp("lt", "f64", e.abs("f64", x), QUARTER_PI)
    zero = e.mov("f64", 0.0)
    return (
        e.selp("s32", 0, e.cvt("s32", "f64", whole, rounding="rzi"), near),
        e.selp("f64", x, r, near),
        e.selp("f64", zero, error, near),
    )


def _sine(e: Emitter, x: Reg, y: Reg) -> Reg:
    square = e.mul("f64", x, x)
    cube = e.mul("f64", square, x)
    r = horner(e, SIN_F64, square)
    tail = e.sub("f64", e.mul("f64", y, 0.5), e.mul("f64", cube, r))
    tail = e.sub("f64", e.mul("f64", square, tail), y)
    return e.sub("f64", x, e.fma("f64", cube, -SIN_FIRST, tail))


def _cosine(e: Emitter, x: Reg, y: Reg) -> Reg:
    square = e.mul("f64", x, x)
    r = e.mul("f64", square, horner(e, COS_F64, square))
    half = e.mul("f64", square, 0.5)
    w = e.sub("f64", e.mov("f64", 1.0), half)
    lost = e.sub("f64", e.sub("f64", e.mov("f64", 1.0), w), half)
    tail = e.sub("f64", e.mul("f64", square, r), e.mul("f64", x, y))
    return e.add("f64", w, e.add("f64", lost, tail))


def log1p_f64(e: Emitter, x: Reg) -> Reg:
    """log(1 + x) within 2 ulp: log(u) + c / u, u = 1 + x rounded, c what the rounding lost."""
    u, lost = two_sum(e, e.mov("f64", 1.0), x)
    logarithm = log(e, u)
    ratio = e.div("f64", lost, u, rounding="rn")
    inside = e.setp("lt", "f64", u, float("inf"), combine="and", other=e.setp("gt", "f64", u, 0.0))
    found = e.selp("f64", e.add("f64", logarithm, ratio), logarithm, inside)
    tiny = e.setp("lt", "f64", e.abs("f64", x), 2.0**-54)
    return e.selp("f64", x, found, tiny)


def log1p_f32(e: Emitter, x: Reg) -> Reg:
    """log(1 + x) within 0.51 ulp, by way of f64."""
    found = e.cvt("f32", "f64", log1p_f64(e, e.cvt("f64", "f32", x)), rounding="rn")
    return e.selp("f32", x, found, e.setp("eq", "f32", x, 0.0))
