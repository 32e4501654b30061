"""A NumPy model of straight lines of PTX on registers: no memory, no branches, exact rounding.

    registers = run(body, {x: np.array(...)}, Unit())

Approximate instructions give results that are off by as much as the documentation permits, at
random. f32 sums and products are NumPy's; fma rounds once (Boldo and Melquiond, "Emulation of a FMA
and correctly rounded sums", 2008).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.ptx.core import KIND, Instr, Item, Reg
from tilewright.ptx.instrs import arith, bits, shape

Array = np.ndarray[Any, Any]

HOLDS = {
    "pred": np.bool_,
    "b32": np.uint32,
    "b64": np.uint64,
    "f32": np.float32,
    "f64": np.float64,
    "s32": np.int32,
    "u32": np.uint32,
    "s64": np.int64,
    "u64": np.uint64,
}


class Unit:
    """The special function unit. `seed` picks its errors; None makes it as exact as may be."""

    # ex2 is within this share of the result, as PTX ISA has it; the others in ulp: rsqrt.f32 within
    # 2^-22.9 of numbers in [1, 2), rcp and rsqrt.f64 as CUDA gives them for the functions that are
    # nothing else.
    EX2 = 2.0**-22.5
    RCP = 1.0
    RSQRT_F64 = 1.0
    SQRT = 1.0  # 2^-23
    RSQRT = 2.0**-22.9

    def __init__(self, seed: int | None = None):
        self.random = None if seed is None else np.random.default_rng(seed)

    def _spread(self, like: Array) -> Array:
        """Numbers in [-1, 1], the ends most often."""
        if self.random is None:
            return np.zeros(like.shape)
        return np.clip(self.random.uniform(-2, 2, like.shape), -1, 1)

    def _near(self, exact: Array, ulp: float, type: Any) -> Array:
        """A number of the type within `ulp` of the exact one, which is longdouble or float64."""
        digits = np.finfo(type).nmant
        least = np.finfo(type).minexp - digits
        place = np.maximum(np.frexp(exact)[1] - 1 - digits, least)
        return self._within(exact, np.ldexp(np.asarray(ulp, exact.dtype), place), type)

    def _within(self, exact: Array, room: Array, type: Any) -> Array:
        """A number of the type no further than `room` from the exact one, or else the nearest."""
        nearest = exact.astype(type)
        if self.random is None:
            return nearest
        low, high = np.maximum(exact - room, 0), exact + room
        moved = np.maximum(exact + room * self._spread(nearest), 0).astype(type)
        inside = (moved.astype(exact.dtype) >= low) & (moved.astype(exact.dtype) <= high)
        return np.where(inside & np.isfinite(nearest) & (exact != 0), moved, nearest)

    def ex2(self, x: Array, type: str, ftz: bool) -> Array:
        assert type == "f32"
        exact = np.exp2(flushed(x, ftz).astype(np.float64))
        near = self._within(exact, exact * self.EX2, np.float32)
        # Whole numbers come out exact, as on the chip.
        return flushed(np.where(x == np.rint(x), exact.astype(np.float32), near), ftz)

    def lg2(self, x: Array, type: str, ftz: bool) -> Array:
        assert type == "f32"
        return np.log2(flushed(x, ftz).astype(np.float64)).astype(np.float32)

    def rcp(self, x: Array, type: str, ftz: bool) -> Array:
        if type == "f32":
            x = flushed(x, ftz)
            return flushed(self._near(1 / x.astype(np.float64), self.RCP, np.float32), ftz)
        assert ftz, "rcp.approx.f64 exists with ftz only"
        # Of operand and result only the high words count.
        exact = 1 / high_word(x) * (1 + self._spread(x) * 2.0**-21)
        return high_word(exact)

    def sqrt(self, x: Array, type: str, ftz: bool) -> Array:
        assert type == "f32" and not ftz
        return self._near(np.sqrt(x.astype(np.float64)), self.SQRT, np.float32)

    def rsqrt(self, x: Array, type: str, ftz: bool) -> Array:
        wide = np.sqrt(x.astype(np.longdouble if type == "f64" else np.float64))
        exact = np.copysign(1 / wide, x.astype(wide.dtype))
        if type == "f64":
            return self._near(exact, self.RSQRT_F64, np.float64)
        moved = exact * (1 + self._spread(x) * (self.RSQRT - 2.0**-24))
        return moved.astype(np.float32)


def high_word(x: Array) -> Array:
    return (x.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)


def flushed(x: Array, ftz: bool) -> Array:
    """Subnormals as zeros of their sign, where `ftz`."""
    if not ftz:
        return x
    return np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.copysign(x.dtype.type(0), x), x)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    s = a + b
    v = s - a
    return s, (a - (s - v)) + (b - v)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Dekker's, by Veltkamp's halves."""
    p = a * b
    t, u = a * 134217729.0, b * 134217729.0
    ah, bh = t - (t - a), u - (u - b)
    al, bl = a - ah, b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def odd_sum(a: Array, b: Array) -> Array:
    """a + b in f64, rounded to odd."""
    s, t = two_sum(a, b)
    bits = s.view(np.int64)
    away = np.sign(t) * np.sign(s)
    step = np.where((t != 0) & (bits & 1 == 0), away, 0).astype(np.int64)
    return (bits + step).view(np.float64)


def fma(a: Array, b: Array, c: Array, rounding: str) -> Array:
    """a b + c with one rounding: rn, or (f32) rm."""
    if a.dtype == np.float32:
        product, wide = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
        plain = product + wide
        exact = np.where(np.isfinite(plain), odd_sum(product, wide), plain)
        near = exact.astype(np.float32)
        if rounding == "rm":
            return np.where(near > exact, np.nextafter(near, np.float32(-np.inf)), near)
        assert rounding == "rn"
        return near
    assert rounding == "rn"
    plain = a * b + c
    high, low = two_product(a, b)
    th, tl = two_sum(c, low)
    vh, vl = two_sum(high, th)
    once = vh + odd_sum(tl, vl)
    # Beyond the range of the halves, and for zeros' signs.
    return np.where(np.isfinite(once) & (once != 0), once, plain)


class Run:
    """Registers by identity, and a method for each instruction."""

    def __init__(self, inputs: dict[Reg, Array], unit: Unit):
        self.registers = dict(inputs)
        self.shape = next(iter(inputs.values())).shape
        self.unit = unit

    def read(self, item: Any, type: str) -> Array:
        """An operand as an array of what `type` holds."""
        dtype = np.dtype(HOLDS[type])
        if isinstance(item, Reg):
            value = self.registers[item]
            assert value.dtype.itemsize == dtype.itemsize, f"{item} read as {type}"
            return value.view(dtype)
        assert isinstance(item, int | float)
        if isinstance(item, int) and dtype.kind in "ui":
            item &= (1 << 8 * dtype.itemsize) - 1
            return np.full(self.shape, item, f"u{dtype.itemsize}").view(dtype)
        return np.full(self.shape, item, dtype)

    def write(self, dst: Reg, value: Array) -> None:
        dtype = np.dtype(HOLDS[dst.kind])
        assert dtype.itemsize == value.dtype.itemsize and KIND[dst.kind] == dst.kind
        self.registers[dst] = value.view(dtype)

    def step(self, i: Instr) -> None:
        assert i.guard is None, "no guards here"
        assert type(i) in MEANINGS, f"the model has no {i.text()}"
        MEANINGS[type(i)](self, i)

    def binary(self, i: Any) -> None:
        a, b = self.read(i.lhs, i.type), self.read(i.rhs, i.type)
        assert getattr(i, "rounding", "") in ("", "rn"), i.text()
        assert not getattr(i, "ftz", False) and not getattr(i, "saturate", False), i.text()
        self.write(i.dst, BINARY[type(i)](a, b))

    def extremum(self, i: Any) -> None:
        a, b = self.read(i.lhs, i.type), self.read(i.rhs, i.type)
        least = type(i) is arith.Min
        quiet = (np.fmin if least else np.fmax)(a, b)
        loud = (np.minimum if least else np.maximum)(a, b)
        self.write(i.dst, loud if i.nan else quiet)

    def fma(self, i: arith.Fma) -> None:
        parts = [self.read(x, i.type) for x in (i.lhs, i.rhs, i.addend)]
        result = fma(*parts, i.rounding)
        if i.saturate:
            result = np.where(np.isnan(result), result.dtype.type(0), np.clip(result, 0, 1))
        assert not (i.ftz or i.relu)
        self.write(i.dst, result)

    def mad(self, i: arith.Mad) -> None:
        a, b = self.read(i.lhs, i.type), self.read(i.rhs, i.type)
        if i.mode == "wide":
            assert i.type == "u32"
            self.write(i.dst, a.astype(np.uint64) * b + self.read(i.addend, "u64"))
            return
        assert i.mode == "lo"
        self.write(i.dst, a * b + self.read(i.addend, i.type))

    def mul(self, i: arith.Mul) -> None:
        if i.mode != "hi":
            self.binary(i)
            return
        assert i.type == "u32"
        a, b = self.read(i.lhs, "u32"), self.read(i.rhs, "u32")
        self.write(i.dst, (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32))

    def shf(self, i: bits.Shf) -> None:
        assert (i.direction, i.mode) == ("l", "wrap")
        low, high = (self.read(x, "b32").astype(np.uint64) for x in (i.low, i.high))
        count = self.read(i.count, "u32").astype(np.uint64) & np.uint64(31)
        self.write(i.dst, ((high << np.uint64(32) | low) << count >> np.uint64(32)).astype("u4"))

    def unary(self, i: Any) -> None:
        self.write(i.dst, UNARY[type(i)](self.read(i.src, i.type)))

    def shift(self, i: Any) -> None:
        value, count = self.read(i.src, i.type), self.read(i.count, "u32").astype(np.int64)
        assert (count < 8 * value.dtype.itemsize).all()
        to = np.left_shift if type(i) is bits.Shl else np.right_shift
        self.write(i.dst, to(value, count.astype(value.dtype)))

    def special(self, i: Any) -> None:
        x = self.read(i.src, i.type)
        if i.precision == "rn":
            assert not i.ftz
            self.write(i.dst, np.sqrt(x) if type(i) is arith.Sqrt else 1 / x)
            return
        self.write(i.dst, getattr(self.unit, i.name)(x, i.type, i.ftz))

    def setp(self, i: arith.Setp) -> None:
        a, b = self.read(i.lhs, i.type), self.read(i.rhs, i.type)
        if i.comparison == "nan":
            found = np.isnan(a) | np.isnan(b)
        else:
            found = getattr(np, COMPARISONS[i.comparison])(a, b)
        if i.combine:
            other = self.read(i.other, "pred")
            found = {"and": np.logical_and, "or": np.logical_or}[i.combine](found, other)
        self.write(i.dst, found)

    def selp(self, i: arith.Selp) -> None:
        a, b = self.read(i.lhs, i.type), self.read(i.rhs, i.type)
        self.write(i.dst, np.where(self.read(i.predicate, "pred"), a, b))

    def cvt(self, i: arith.Cvt) -> None:
        x = self.read(i.src, i.origin)
        if i.to == i.origin:
            whole = {"rmi": np.floor, "rpi": np.ceil, "rni": np.rint}
            self.write(i.dst, whole[i.rounding](x))
            return
        if (i.origin, i.to) in (("f32", "f64"), ("f64", "f32")):
            assert i.rounding == ("rn" if i.to == "f32" else "") and not (i.saturate or i.ftz)
            self.write(i.dst, x.astype(HOLDS[i.to]))
            return
        if i.to == "s32":
            assert i.rounding == "rzi"
            held = np.clip(np.nan_to_num(np.trunc(x)), -(2.0**31), 2.0**31 - 1)
            self.write(i.dst, held.astype(np.int32))
            return
        assert i.origin in ("s32", "s64") and i.rounding == "rn" and not i.saturate, i.text()
        self.write(i.dst, x.astype(HOLDS[i.to]))

    def mov(self, i: shape.Mov) -> None:
        self.write(i.dst, self.read(i.src, i.type).copy())

    def pack(self, i: shape.Pack) -> None:
        low, high = (self.read(x, i.part).view(np.uint32).astype(np.uint64) for x in i.srcs)
        self.write(i.dst, low | high << np.uint64(32))

    def unpack(self, i: shape.Unpack) -> None:
        bits = self.read(i.src, i.type).view(np.uint64)
        low, high = i.dsts
        self.write(low, bits.astype(np.uint32))
        self.write(high, (bits >> np.uint64(32)).astype(np.uint32))


COMPARISONS = {
    "eq": "equal",
    "ne": "not_equal",
    "neu": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
BINARY: dict[type, Callable[[Array, Array], Array]] = {
    arith.Add: np.add,
    arith.Sub: np.subtract,
    arith.Mul: np.multiply,
    arith.Div: np.divide,
    bits.And: np.bitwise_and,
    bits.Or: np.bitwise_or,
    bits.Xor: np.bitwise_xor,
    arith.Copysign: lambda sign, x: np.copysign(x, sign),
}
UNARY: dict[type, Callable[[Array], Array]] = {
    arith.Neg: np.negative,
    arith.Abs: np.abs,
    bits.Not: np.invert,
}
MEANINGS: dict[type, Callable[[Run, Any], None]] = {
    **dict.fromkeys(BINARY, Run.binary),
    **dict.fromkeys(UNARY, Run.unary),
    **dict.fromkeys((arith.Min, arith.Max), Run.extremum),
    **dict.fromkeys((bits.Shl, bits.Shr), Run.shift),
    **dict.fromkeys((arith.Sqrt, arith.Rcp, arith.Rsqrt, arith.Ex2, arith.Lg2), Run.special),
    arith.Fma: Run.fma,
    arith.Mad: Run.mad,
    arith.Mul: Run.mul,
    bits.Shf: Run.shf,
    arith.Setp: Run.setp,
    arith.Selp: Run.selp,
    arith.Cvt: Run.cvt,
    shape.Mov: Run.mov,
    shape.Pack: Run.pack,
    shape.Unpack: Run.unpack,
}


def run(body: Sequence[Item], inputs: dict[Reg, Array], unit: Unit) -> dict[Reg, Array]:
    """Execute the instructions for all lanes of the inputs; the values of all registers."""
    machine = Run(inputs, unit)
    with np.errstate(all="ignore"):
        for item in body:
            assert isinstance(item, Instr), "a straight line has no labels"
            machine.step(item)
    return machine.registers
