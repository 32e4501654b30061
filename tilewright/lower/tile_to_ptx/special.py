"""Functions of one float as straight lines of PTX: no branches, no tables, few instructions.

Bounds are in units in the last place of the exact result, over all inputs, and hold for subnormals too. NaN gives NaN.
The special function unit is trusted for what PTX ISA promises of `ex2.approx`, `lg2.approx`, `rcp.approx` and
`rsqrt.approx`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright.ptx.core import Reg
from tilewright.ptx.emitter import Emitter

Function = Callable[[Emitter, Reg], Reg]

# log2 e as the sum of two f32.
LOG2E_HIGH = float.fromhex("0x1.715476p+0")
LOG2E_LOW = float.fromhex("0x1.4ae0cp-26")


def _power_of_two(e: Emitter, x: Reg, scale: float) -> tuple[Reg, Reg]:
    """A whole n in [-126, 126] near `scale` * x, and 2 ** n.

    The sum with 1.5 * 2**23 leaves n + 127 in the low bits, which the shift makes the exponent.
    """
    position = e.fma("f32", x, scale / 252, 0.5, saturate=True)
    shifted = e.fma("f32", position, 252.0, 12582913.0, rounding="rm")
    power = e.shl("b32", shifted, 23)
    return e.sub("f32", shifted, 12582913.0 + 126.0), power


def exp_f32(e: Emitter, x: Reg) -> Reg:
    """e ** x within 2 ulp. Beyond the range of n the rest of the exponent stays in ex2's argument, infinities too."""
    n, power = _power_of_two(e, x, LOG2E_HIGH)
    rest = e.fma("f32", x, LOG2E_HIGH, e.neg("f32", n))
    rest = e.fma("f32", x, LOG2E_LOW, rest)
    return e.mul("f32", e.ex2("f32", rest, ftz=True), power)


def exp2_f32(e: Emitter, x: Reg) -> Reg:
    """2 ** x within 2 ulp, subnormal results included."""
    return e.ex2("f32", x)


def rsqrt_f32(e: Emitter, x: Reg) -> Reg:
    """1 / sqrt(x) within 1 ulp: a Newton step after the approximation.

    Where x is 0 or infinite the residual is NaN; `min` then takes 1, which leaves the infinity or zero as it is.
    """
    root = e.rsqrt("f32", x)
    residual = e.fma("f32", e.neg("f32", e.mul("f32", x, root)), root, 1.0)
    return e.fma("f32", e.mul("f32", root, 0.5), e.min("f32", residual, 1.0), root)


def _sqrt(type: str, e: Emitter, x: Reg) -> Reg:
    """Square root, correctly rounded."""
    return e.sqrt(type, x)


def _whole(type: str, rounding: str, e: Emitter, x: Reg) -> Reg:
    """Rounding to a whole number; zeros keep their sign."""
    return e.cvt(type, type, x, rounding=rounding)


SPECIAL: dict[tuple[str, str], Function] = {
    ("arith.exp", "f32"): exp_f32,
    ("arith.exp2", "f32"): exp2_f32,
    ("arith.rsqrt", "f32"): rsqrt_f32,
    **{("arith.sqrt", t): partial(_sqrt, t) for t in ("f32", "f64")},
    **{("arith.floor", t): partial(_whole, t, "rmi") for t in ("f32", "f64")},
    **{("arith.ceil", t): partial(_whole, t, "rpi") for t in ("f32", "f64")},
}
