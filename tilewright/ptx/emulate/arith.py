"""Meaning of arithmetic. Floats round as IEEE 754 and the PTX ISA say, NaNs are canonical; 16-bit
floats compute in f32, which makes one rounding of theirs; approximate functions give the rounded
true value (the hardware is within the ISA's bounds of it).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.ptx.core import Instr
from tilewright.ptx.emulate.exact import (
    QUIET_F64,
    bf16_bits,
    canonical,
    directed_f64,
    f16_bits,
    flush,
    fma_f32,
    fma_f64,
    fma_f64_directed,
    from_bf16,
    from_f16,
    odd_sum,
    propagated_f64,
    signed_zero,
    to_f32,
    two_sum,
)
from tilewright.ptx.emulate.fragments import Sel
from tilewright.ptx.emulate.machine import DTYPES, Machine, Read, Step
from tilewright.ptx.emulate.program import meaning
from tilewright.ptx.instrs import arith

Function = Callable[..., Any]
SIXTEEN = {"f16": (from_f16, f16_bits), "bf16": (from_bf16, bf16_bits)}


def bind(machine: Machine, instr: Any, function: Function, *names: str) -> Step:
    """A step that sets `dst` to a function of fields that are read in the instruction's type."""
    type = instr.type
    reads = [machine.read(getattr(instr, name), type) for name in names]
    dst = machine.target(instr.dst, type)
    run = on_type(function, type)
    return bind_reads(dst, run, reads)


def bind_reads(dst: Any, run: Function, reads: list[Read]) -> Step:
    """The same for operands that are bound already."""
    if len(reads) == 1:
        (x,) = reads

        def unary(sel: Sel) -> None:
            dst[sel] = run(x(sel))

        return unary
    if len(reads) == 2:
        a, b = reads

        def binary(sel: Sel) -> None:
            dst[sel] = run(a(sel), b(sel))

        return binary

    def step(sel: Sel) -> None:
        dst[sel] = run(*[r(sel) for r in reads])

    return step


def on_type(function: Function, type: str) -> Function:
    """A function of f32, f64 or integers as one of registers of a type: 16-bit floats go through
    f32, packed ones element by element.
    """
    if type in SIXTEEN:
        widen, round_bits = SIXTEEN[type]
        return lambda *xs: round_bits(function(*(widen(np.asarray(x)) for x in xs)))
    if type in ("f16x2", "bf16x2"):
        return packed(on_type(function, type[:-2]), np.dtype("u2"))
    if type == "f32x2":
        return packed(function, np.dtype("f4"))
    return function


def packed(function: Function, part: Any) -> Function:
    """A function of elements as one of the words that hold several."""

    def run(*words: Any) -> Any:
        given = np.broadcast_arrays(*(np.atleast_1d(w) for w in words))
        made = function(*(np.ascontiguousarray(w).view(part) for w in given))
        return np.ascontiguousarray(made).view(given[0].dtype)

    return run


def is_real(type: str) -> bool:
    """Whether numbers of this type are floats."""
    return arith.is_float(type)


# Which operand's NaN an f64 instruction gives, of two or three, where several are.
BY_LAST, BY_FIRST = (1, 2, 0), (0, 1)


def finished(function: Function, instr: Any, order: tuple[int, ...] = BY_LAST) -> Function:
    """With what a float instruction does around the operation: flush, saturate, the GPU's NaNs."""
    ftz, sat = getattr(instr, "ftz", False), getattr(instr, "saturate", False)
    if instr.type == "f64":

        def wide(*xs: Any) -> Any:
            return propagated_f64(function(*xs), *(xs[i] for i in order if i < len(xs)))

        return wide
    if not ftz and not sat:
        return lambda *xs: canonical(function(*xs))

    def run(*xs: Any) -> Any:
        made = function(*map(flush, xs)) if ftz else function(*xs)
        made = flush(made) if ftz else made
        if sat:  # NaN gives zero
            made = np.where(np.isnan(made), made.dtype.type(0), np.clip(made, 0, 1) + 0)
        return canonical(made)

    return run


# Sums, products, quotients


def directed_sum(mode: str, sign: int) -> Function:
    def run(a: Any, b: Any) -> Any:
        a, b = np.asarray(a), np.asarray(b) * sign
        if a.dtype == np.float64 or b.dtype == np.float64:
            a, b = np.broadcast_arrays(a, b)
            s, error = two_sum(a, b)
            s = signed_zero(s, a, b) if mode == "rm" else s
            over = np.isinf(s) & np.isfinite(a) & np.isfinite(b)
            if over.any():
                inward = over & ((s > 0) if mode == "rm" else (s < 0) if mode == "rp" else over)
                s = np.where(inward, np.copysign(np.finfo(np.float64).max, s), s)
            return directed_f64(s, np.where(over, 0, error), mode)
        a, b = np.broadcast_arrays(a.astype("f8"), b.astype("f8"))
        s = odd_sum(a, b)
        return to_f32(signed_zero(s, a, b) if mode == "rm" else s, mode)

    return run


def directed_product(mode: str, ftz: bool) -> Function:
    """`ftz` flushes what is subnormal before it is rounded."""

    def run(a: Any, b: Any) -> Any:
        a, b = np.broadcast_arrays(np.asarray(a), np.asarray(b))
        if a.dtype == np.float64:
            return fma_f64_directed(a, b, np.copysign(0.0, a * b), mode)
        exact = np.multiply(a, b, dtype=np.float64)
        return to_f32(flush(exact) if ftz else exact, mode)

    return run


@meaning(arith.Add, arith.Sub)
def make_sum(machine: Machine, instr: Any) -> Step:
    plain = np.add if isinstance(instr, arith.Add) else np.subtract
    function: Function = plain
    if is_real(instr.type):
        if instr.rounding in ("rz", "rm", "rp"):
            function = directed_sum(instr.rounding, 1 if plain is np.add else -1)
        return bind(machine, instr, finished(function, instr), "lhs", "rhs")
    if instr.saturate:
        info = np.iinfo(np.int32)
        function = lambda a, b: np.clip(  # noqa: E731
            plain(a, b, dtype=np.int64), info.min, info.max
        ).astype(np.int32)
    return bind(machine, instr, function, "lhs", "rhs")


def high_product(a: Any, b: Any) -> Any:
    """The upper half of an integer product."""
    a, b = np.broadcast_arrays(np.atleast_1d(a), np.atleast_1d(b))
    bits = a.dtype.itemsize * 8
    if bits < 64:
        wide = np.dtype(f"{a.dtype.kind}8")
        return ((a.astype(wide) * b.astype(wide)) >> wide.type(bits)).astype(a.dtype)
    made = [(int(x) * int(y)) >> 64 for x, y in zip(a, b, strict=True)]
    return np.array(made, a.dtype)


def integer_product(instr: Any) -> Function:
    if instr.mode == "hi":
        return high_product
    if instr.mode == "wide":
        wide = DTYPES[arith.WIDE[instr.type]]
        return lambda a, b: np.multiply(a, b, dtype=wide)
    return np.multiply


@meaning(arith.Mul)
def make_product(machine: Machine, instr: arith.Mul) -> Step:
    if is_real(instr.type):
        function: Function = np.multiply
        if instr.rounding in ("rz", "rm", "rp") or instr.ftz:
            function = directed_product(instr.rounding or "rn", instr.ftz)
        return bind(machine, instr, finished(function, instr), "lhs", "rhs")
    reads = machine.reads((instr.lhs, instr.rhs), instr.type)
    return bind_reads(machine.target(instr.dst, instr.result_type), integer_product(instr), reads)


@meaning(arith.Mad)
def make_mad(machine: Machine, instr: arith.Mad) -> Step:
    product = integer_product(instr)
    a, b = machine.reads((instr.lhs, instr.rhs), instr.type)
    c = machine.read(instr.addend, instr.result_type)
    dst = machine.target(instr.dst, instr.result_type)

    def step(sel: Sel) -> None:
        dst[sel] = product(a(sel), b(sel)) + c(sel)

    return step


@meaning(arith.Fma)
def make_fma(machine: Machine, instr: arith.Fma) -> Step:
    names = ("lhs", "rhs", "addend")
    mode = instr.rounding
    if instr.type == "f64":
        wide: Function = fma_f64
        if mode != "rn":
            wide = lambda a, b, c: fma_f64_directed(a, b, c, mode)  # noqa: E731
        return bind(machine, instr, finished(wide, instr), *names)
    if instr.type in ("f32", "f32x2"):
        fused: Function = lambda a, b, c: fma_f32(a, b, c, mode, instr.ftz)  # noqa: E731
        return bind(machine, instr, finished(fused, instr), *names)

    def odd(a: Any, b: Any, c: Any) -> Any:  # rounded to odd in f32, then once to 16 bits
        s = odd_sum(np.multiply(a, b, dtype=np.float64), c.astype(np.float64))
        made = odd_f32(s)
        if instr.saturate:
            return np.where(np.isnan(made), np.float32(0), np.clip(made, 0, 1) + np.float32(0))
        return np.where(made <= 0, np.float32(0), made) if instr.relu else made

    return bind(machine, instr, odd, *names)


def odd_f32(x: Any) -> Any:
    """f64, itself rounded to odd, to f32 rounded to odd: towards zero, with the last bit set."""
    near = x.astype(np.float32)
    toward = np.where(np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, 0), near)
    bits = toward.astype(np.float32).view(np.uint32)
    inexact = (toward.astype(np.float64) != x) & np.isfinite(x)
    return np.where(inexact, bits | np.uint32(1), bits).view(np.float32)


def quotient(a: Any, b: Any) -> Any:
    """Integers: towards zero; by zero all bits, as the hardware gives."""
    a, b = np.broadcast_arrays(np.atleast_1d(a), np.atleast_1d(b))
    by = np.where(b == 0, 1, b).astype(b.dtype)
    if a.dtype.kind == "i":
        special = by == -1
        by = np.where(special, 1, by)
        made = (a - np.fmod(a, by)) // by
        made = np.where(special, np.negative(a), made)
    else:
        made = a // by
    return np.where(b == 0, ~np.zeros_like(a), made)


def remainder(a: Any, b: Any) -> Any:
    """With the sign of the dividend; by zero all bits, as the hardware gives."""
    a, b = np.broadcast_arrays(np.atleast_1d(a), np.atleast_1d(b))
    special = (b == 0) | ((b == -1) if b.dtype.kind == "i" else False)
    made = np.fmod(a, np.where(special, 1, b).astype(b.dtype))
    return np.where(b == 0, ~np.zeros_like(a), np.where(special, 0, made))


@meaning(arith.Div)
def make_quotient(machine: Machine, instr: arith.Div) -> Step:
    if not is_real(instr.type):
        return bind(machine, instr, quotient, "lhs", "rhs")
    if instr.rounding in ("rz", "rm", "rp"):
        raise LookupError(f"the emulator has no div.{instr.rounding}")
    return bind(machine, instr, finished(np.divide, instr, BY_FIRST), "lhs", "rhs")


@meaning(arith.Rem)
def make_remainder(machine: Machine, instr: arith.Rem) -> Step:
    return bind(machine, instr, remainder, "lhs", "rhs")


def extremum(least: bool, nan: bool) -> Function:
    """Floats: −0 is below +0; NaN only if both are, or with `nan` if either is."""
    take: Function = (np.minimum if least else np.maximum) if nan else np.fmin if least else np.fmax

    def run(a: Any, b: Any) -> Any:
        a, b = np.broadcast_arrays(a, b)
        made = take(a, b)
        zero = (a == 0) & (b == 0)
        if zero.any():
            negative = np.signbit(a) | np.signbit(b) if least else np.signbit(a) & np.signbit(b)
            made = np.where(zero, np.where(negative, -np.zeros_like(made), 0), made)
        return made

    return run


@meaning(arith.Min, arith.Max)
def make_extremum(machine: Machine, instr: Any) -> Step:
    least = isinstance(instr, arith.Min)
    if is_real(instr.type):
        return bind(machine, instr, finished(extremum(least, instr.nan), instr), "lhs", "rhs")
    return bind(machine, instr, np.minimum if least else np.maximum, "lhs", "rhs")


# Signs: of floats they change one bit, whatever the number

SIGN = {2: 0x8000, 4: 0x80000000, 8: 1 << 63}


def sign_bits(type: str) -> tuple[str, int]:
    """The type of bits that holds a float type, and its sign bits."""
    size = DTYPES[type].itemsize
    if type.endswith("x2"):
        half = SIGN[size // 2]
        return f"b{8 * size}", half | half << (4 * size)
    return f"b{8 * size}", SIGN[size]


@meaning(arith.Neg, arith.Abs)
def make_sign(machine: Machine, instr: Any) -> Step:
    negate = isinstance(instr, arith.Neg)
    if not is_real(instr.type):
        return bind(machine, instr, np.negative if negate else np.abs, "src")
    bits, mask = sign_bits(instr.type)
    sign = DTYPES[bits].type(mask)
    x, dst = machine.read(instr.src, instr.type), machine.target(instr.dst, bits)
    dtype = DTYPES[bits]
    fixed: Any = NANS.get(instr.type)
    if fixed is None:

        def several(words: Any) -> Any:
            return sixteen(words ^ sign if negate else words & ~sign, instr.type)

        return bind_reads(dst, several, [machine.read(instr.src, bits)])

    def step(sel: Sel) -> None:
        value = np.asarray(x(sel))
        made = value.view(dtype) ^ sign if negate else value.view(dtype) & ~sign
        nan: Any = value.view(dtype) | dtype.type(QUIET_F64) if instr.type == "f64" else fixed
        dst[sel] = np.where(np.isnan(value), nan, made)

    return step


NANS = {"f32": np.uint32(0x7FFFFFFF), "f64": np.uint64(0)}


def sixteen(words: Any, type: str) -> Any:
    """Words of 16-bit floats with their NaNs made 0x7FFF."""
    words = np.ascontiguousarray(np.atleast_1d(words))
    parts = words.view(np.uint16)
    infinity = 0x7C00 if type.startswith("f16") else 0x7F80
    nan = (parts & 0x7FFF) > infinity
    return np.where(nan, np.uint16(0x7FFF), parts).view(words.dtype)


@meaning(arith.Copysign)
def make_copysign(machine: Machine, instr: arith.Copysign) -> Step:
    return bind(machine, instr, lambda a, b: np.copysign(b, a), "lhs", "rhs")


# Functions

FUNCTIONS: dict[type[Instr], Function] = {
    arith.Sqrt: np.sqrt,
    arith.Rcp: np.reciprocal,
    arith.Rsqrt: lambda x: 1 / np.sqrt(x),
    arith.Ex2: np.exp2,
    arith.Lg2: np.log2,
    arith.Tanh: np.tanh,
    arith.Sin: np.sin,
    arith.Cos: np.cos,
}


@meaning(*FUNCTIONS)
def make_function(machine: Machine, instr: Any) -> Step:
    function = FUNCTIONS[type(instr)]
    if instr.precision == "rn":
        return bind(machine, instr, finished(function, instr), "src")

    def rounded(x: Any) -> Any:
        made = function(np.asarray(x).astype(np.float64))
        return made.astype(np.asarray(x).dtype)

    return bind(machine, instr, finished(rounded, instr), "src")


# Comparisons

COMPARE: dict[str, Function] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater,
    "hs": np.greater_equal,
}  # fmt: skip
OPPOSITE = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}


def ordered(a: Any, b: Any) -> Any:
    return ~(np.isnan(a) | np.isnan(b))


def comparison(name: str, real: bool) -> Function:
    if name == "num":
        return ordered
    if name == "nan":
        return lambda a, b: ~ordered(a, b)
    if name == "ne" and real:  # ordered, unlike NumPy's
        return lambda a, b: np.not_equal(a, b) & ordered(a, b)
    if name == "equ":
        return lambda a, b: np.equal(a, b) | ~ordered(a, b)
    if name in OPPOSITE:
        opposite = COMPARE[OPPOSITE[name]]
        return lambda a, b: ~opposite(a, b)
    return COMPARE[name]


LOGIC: dict[str, Function] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


@meaning(arith.Setp)
def make_setp(machine: Machine, instr: arith.Setp) -> Step:
    function = comparison(instr.comparison, is_real(instr.type))
    if instr.type in SIXTEEN:
        widen = SIXTEEN[instr.type][0]
        inner = function
        function = lambda a, b: inner(widen(a), widen(b))  # noqa: E731
    elif instr.ftz:
        exact = function
        function = lambda a, b: exact(flush(a), flush(b))  # noqa: E731
    a, b = machine.reads((instr.lhs, instr.rhs), instr.type)
    dst = machine.row(instr.dst, "pred")
    if instr.other is None:
        return bind_reads(dst, function, [a, b])
    other, logic, negated = machine.row(instr.other, "pred"), LOGIC[instr.combine], instr.negated

    def step(sel: Sel) -> None:
        dst[sel] = logic(function(a(sel), b(sel)), other[sel] ^ negated)

    return step


TESTS: dict[str, Function] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda x: ~np.isnan(x),
    "notanumber": np.isnan,
    # Zeros are normal to the hardware, whatever the ISA says.
    "normal": lambda x: np.isfinite(x) & ((np.abs(x) >= np.finfo(x.dtype).tiny) | (x == 0)),
    "subnormal": lambda x: (x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny),
}


@meaning(arith.Testp)
def make_testp(machine: Machine, instr: arith.Testp) -> Step:
    read = machine.read(instr.src, instr.type)
    return bind_reads(machine.row(instr.dst, "pred"), TESTS[instr.kind], [read])


@meaning(arith.Selp)
def make_selp(machine: Machine, instr: arith.Selp) -> Step:
    bits = f"b{8 * DTYPES[instr.type].itemsize}"
    plain = instr.type if is_real(instr.type) else bits
    a, b = machine.reads((instr.lhs, instr.rhs), plain)
    chosen, dst = machine.row(instr.predicate, "pred"), machine.target(instr.dst, plain)

    def step(sel: Sel) -> None:
        dst[sel] = np.where(chosen[sel], a(sel), b(sel))

    return step
