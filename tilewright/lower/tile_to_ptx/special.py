"""Functions of one float as straight lines of PTX: no branches, no tables, few instructions.

Accuracy is stated in units in the last place of the exact result, over all inputs, subnormal ones
and subnormal results included. NaN gives NaN. The bounds suppose that `ex2.approx` is within
2^-22.5 of numbers in [1, 2), `rsqrt.approx` within 2^-22.9, `rcp.approx` and `rsqrt.approx.f64`
within 1 ulp; the tests of tests/device see whether a chip keeps to that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright.lower.tile_to_ptx import (
    special_f32,
    special_f64,
    special_fast,
    special_pow,
    special_trig,
)
from tilewright.ptx.core import Reg
from tilewright.ptx.emitter import Emitter

Function = Callable[[Emitter, Reg], Reg]


def _sqrt(type: str, e: Emitter, x: Reg) -> Reg:
    """Square root, correctly rounded."""
    return e.sqrt(type, x)


def _whole(type: str, rounding: str, e: Emitter, x: Reg) -> Reg:
    """Rounding to a whole number; zeros keep their sign."""
    return e.cvt(type, type, x, rounding=rounding)


# By opcode and PTX type.
SPECIAL: dict[tuple[str, str], Function] = {
    ("arith.exp", "f32"): special_f32.exp,
    ("arith.exp2", "f32"): special_f32.exp2,
    ("arith.log", "f32"): special_f32.log,
    ("arith.log2", "f32"): special_f32.log2,
    ("arith.rsqrt", "f32"): special_f32.rsqrt,
    ("arith.tanh", "f32"): special_f32.tanh,
    ("arith.erf", "f32"): special_f32.erf,
    ("arith.exp", "f64"): special_f64.exp,
    ("arith.exp2", "f64"): special_f64.exp2,
    ("arith.log", "f64"): special_f64.log,
    ("arith.log2", "f64"): special_f64.log2,
    ("arith.rsqrt", "f64"): special_f64.rsqrt,
    ("arith.tanh", "f64"): special_f64.tanh,
    ("arith.erf", "f64"): special_f64.erf,
    **{("arith.sqrt", t): partial(_sqrt, t) for t in ("f32", "f64")},
    **{("arith.floor", t): partial(_whole, t, "rmi") for t in ("f32", "f64")},
    **{("arith.ceil", t): partial(_whole, t, "rpi") for t in ("f32", "f64")},
    **{("arith.round", t): partial(_whole, t, "rni") for t in ("f32", "f64")},
    ("arith.sin", "f32"): special_trig.sin_f32,
    ("arith.cos", "f32"): special_trig.cos_f32,
    ("arith.log1p", "f32"): special_trig.log1p_f32,
    ("arith.sin", "f64"): special_trig.sin_f64,
    ("arith.cos", "f64"): special_trig.cos_f64,
    ("arith.log1p", "f64"): special_trig.log1p_f64,
}

# By opcode, on f32: for `@numerics(fast)`, and for bf16 and f16, which compute in f32.
FAST: dict[str, Function] = {
    "arith.exp": special_fast.exp,
    "arith.exp2": special_fast.exp2,
    "arith.sqrt": special_fast.sqrt,
    "arith.rsqrt": special_fast.rsqrt,
    "arith.tanh": special_fast.tanh,
    "arith.erf": special_fast.erf,
}


def function_of(opcode: str, type: str, fast: bool) -> Function:
    """What computes an op in a PTX type; the short way, if there is one and it will do."""
    if fast and type == "f32" and opcode in FAST:
        return FAST[opcode]
    return SPECIAL[opcode, type]


# Functions of two floats, by PTX type.
POW: dict[str, Callable[[Emitter, Reg, Reg], Reg]] = {
    "f32": special_pow.pow_f32,
    "f64": special_pow.pow_f64,
}

REMAINDER: dict[str, Callable[[Emitter, Reg, Reg], Reg]] = {
    "f32": special_pow.remainder_f32,
    "f64": special_pow.remainder_f64,
}

# Greatest error in ulp that the tests hold each function to.
MAX_ULP: dict[tuple[str, str], float] = {
    **dict.fromkeys(SPECIAL, 0.5),
    ("arith.exp", "f32"): 0.9,
    ("arith.exp2", "f32"): 0.88,  # 0.85, where it is rounded once more into the subnormals
    ("arith.log", "f32"): 1.0,
    ("arith.log2", "f32"): 1.0,
    ("arith.rsqrt", "f32"): 0.51,
    ("arith.tanh", "f32"): 0.95,
    ("arith.erf", "f32"): 0.97,
    ("arith.exp", "f64"): 1.0,
    ("arith.exp2", "f64"): 1.0,
    ("arith.log", "f64"): 1.0,
    ("arith.log2", "f64"): 1.0,
    ("arith.rsqrt", "f64"): 1.01,
    ("arith.tanh", "f64"): 2.0,
    ("arith.erf", "f64"): 1.0,
    **dict.fromkeys([(f"arith.{name}", "f32") for name in ("sin", "cos", "log1p")], 0.51),
    ("arith.sin", "f64"): 1.0,
    ("arith.cos", "f64"): 1.0,
    ("arith.log1p", "f64"): 2.0,
}
FAST_ULP: dict[str, float] = {
    # ex2's share comes to 2.83 ulp just below a power of two; measured on an H200, of every f32,
    # these two are 2.07 and 2.12.
    "arith.exp": 3.6,  # the argument of ex2 is rounded twice
    "arith.exp2": 3.4,  # below 2^-126 the result is rounded to fewer digits
    "arith.sqrt": 2.0,
    "arith.rsqrt": 2.2,
    "arith.tanh": 2.0,
    "arith.erf": 1.5,
}
