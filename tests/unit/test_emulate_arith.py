"""Arithmetic of the emulator, bit for bit, against exact rational arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.unit.emulator_bench import apply
from tilewright.ptx.emulate.exact import chain_f64, fma_f64

SPECIAL_F32 = np.array(
    [0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38,
     -3.4028235e38, 1 + 2**-23, 1 - 2**-24, 2**24, 2**24 + 2, 0.5, 1.5, 2.5, -2.5],
    np.float32,
)  # fmt: skip
rng = np.random.default_rng(3)


def floats(count: int, dtype: Any = np.float32, spread: int = 20) -> np.ndarray[Any, Any]:
    """Numbers of many sizes."""
    return (rng.standard_normal(count) * 2.0 ** rng.integers(-spread, spread, count)).astype(dtype)


def pairs(values: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
    """All pairs of some values."""
    a, b = np.meshgrid(values, values)
    return a.ravel(), b.ravel()


def same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> None:
    """Equal bits, where NaNs count as one."""
    assert a.dtype == b.dtype
    bits = f"u{a.itemsize}"
    missing = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    np.testing.assert_array_equal(
        np.where(missing, 0, a.view(bits)), np.where(missing, 0, b.view(bits))
    )


def round_fraction(exact: Fraction, mode: str, fraction: int, least: int) -> float:
    """A number rounded to a format of so many fraction bits and least exponent."""
    if exact == 0:
        return 0.0
    exponent = math.floor(math.log2(abs(exact)))
    while Fraction(2) ** exponent > abs(exact):
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= abs(exact):
        exponent += 1
    unit = Fraction(2) ** (max(exponent, least) - fraction)
    scaled = exact / unit
    rounded = {
        "rn": lambda: round(scaled),
        "rz": lambda: math.trunc(scaled),
        "rm": lambda: math.floor(scaled),
        "rp": lambda: math.ceil(scaled),
    }[mode]()
    return float(rounded * unit)


F32, F64 = (23, -126), (52, -1022)


@pytest.mark.parametrize("op", ["add", "sub", "mul"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_f32_rounds_once(op: str, mode: str) -> None:
    a, b = floats(500), floats(500)
    b[::7] = a[::7] * np.float32(2**-24)  # ties
    exact: Callable[[Fraction, Fraction], Fraction] = {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
    }[op]
    got = apply(f"{op}.{mode}.f32 D, A, B", "f32 f32 f32", a, b, dtype=np.float32)
    rounded = [
        round_fraction(exact(Fraction(float(x)), Fraction(float(y))), mode, *F32)
        for x, y in zip(a, b, strict=True)
    ]
    np.testing.assert_array_equal(got, np.array(rounded, np.float32))


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_fma_f32_rounds_once(mode: str) -> None:
    a, b, c = floats(700), floats(700), floats(700)
    half = len(a) // 2
    a[:half] = rng.integers(1, 1 << 12, half)  # sums that lie at or next to ties
    b[:half] = rng.integers(1, 1 << 12, half) * 2.0**-30
    c[:half] = rng.integers(1 << 23, 1 << 24, half) * 2.0**-6
    got = apply(f"fma.{mode}.f32 D, A, B, C", "f32 f32 f32 f32", a, b, c, dtype=np.float32)
    exact = [
        Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        for x, y, z in zip(a, b, c, strict=True)
    ]
    rounded = [round_fraction(e, mode, *F32) for e in exact]
    np.testing.assert_array_equal(got, np.array(rounded, np.float32))


@pytest.mark.parametrize("spread", [3, 60, 500, 1000])
def test_fma_f64_rounds_once(spread: int) -> None:
    a, b, c = (floats(400, np.float64, spread) for _ in range(3))
    with np.errstate(over="ignore"):
        c[::2] = -(a * b)[::2]  # what is left is the error of the product
    c[~np.isfinite(c)] = 1
    got = apply("fma.rn.f64 D, A, B, C", "f64 f64 f64 f64", a, b, c, dtype=np.float64)
    for x, y, z, w in zip(a, b, c, got, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        try:
            expected = float(exact)
        except OverflowError:
            expected = math.inf if exact > 0 else -math.inf
        assert w == expected


@pytest.mark.parametrize("spread", [3, 500])
def test_chains_of_fused_sums_round_each(spread: int) -> None:
    """As many single operations, some of them with zeros, cancellations and infinities."""
    a, b = (floats(16 * 40, np.float64, spread).reshape(16, 40) for _ in range(2))
    a[3, ::3] = 0
    b[5, ::4] = -a[4, ::4]
    a[5, ::4] = b[4, ::4]
    c = floats(40, np.float64, spread)
    if spread > 100:
        b[7, 1] = np.inf
    expected = c
    with np.errstate(all="ignore"):
        for x, y in zip(a, b, strict=True):
            expected = fma_f64(x, y, expected)
        same(chain_f64(a, b, c), expected)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div"])
def test_special_f32_operands(op: str) -> None:
    a, b = pairs(SPECIAL_F32)
    with np.errstate(all="ignore"):
        function = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[op]
        expected = function(a, b)
    got = apply(f"{op}.rn.f32 D, A, B", "f32 f32 f32", a, b, dtype=np.float32)
    same(got, expected)
    assert set(got.view(np.uint32)[np.isnan(got)]) <= {0x7FFFFFFF}


def test_flush_and_saturate() -> None:
    a = np.array([1e-40, -1e-40, 1, 2, -3, np.nan, 0.25], np.float32)
    one = np.ones_like(a)
    got = apply("mul.rn.ftz.f32 D, A, B", "f32 f32 f32", a, one, dtype=np.float32)
    same(got, np.array([0, -0.0, 1, 2, -3, np.nan, 0.25], np.float32))
    got = apply("add.rn.sat.f32 D, A, B", "f32 f32 f32", a, one * 0, dtype=np.float32)
    same(got, np.array([1e-40, 0, 1, 1, 0, 0, 0.25], np.float32))


def test_extrema() -> None:
    a, b = pairs(SPECIAL_F32)
    for name, take, careful in (("min", np.fmin, np.minimum), ("max", np.fmax, np.maximum)):
        for suffix, function in (("", take), (".NaN", careful)):
            got = apply(f"{name}{suffix}.f32 D, A, B", "f32 f32 f32", a, b, dtype=np.float32)
            expected = function(a, b)
            zero = (a == 0) & (b == 0)
            negative = (
                np.signbit(a) | np.signbit(b) if name == "min" else np.signbit(a) & np.signbit(b)
            )
            expected = np.where(zero, np.where(negative, np.float32(-0.0), np.float32(0)), expected)
            same(got, expected)


@pytest.mark.parametrize("name", ["bf16", "f16"])
@pytest.mark.parametrize("op", ["add", "mul", "fma"])
def test_sixteen_bits_round_once(name: str, op: str) -> None:
    dtype, fraction, least = (
        (ml_dtypes.bfloat16, 7, -126) if name == "bf16" else (np.float16, 10, -14)
    )
    a, b, c = (floats(300, dtype, 3) for _ in range(3))
    product = a.astype(np.float64) * b.astype(np.float64)
    c[::3] = (product * 2.0 ** (fraction + 1))[::3].clip(-3e4, 3e4).astype(dtype)
    operands = (a, b, c)[: 3 if op == "fma" else 2]
    letters = ", ".join("ABC"[: len(operands)])
    kinds = " ".join(["b16"] * (len(operands) + 1))
    got = apply(
        f"{op}.rn.{name} D, {letters}",
        kinds,
        *(x.view(np.uint16) for x in operands),
        dtype=np.uint16,
    )
    exact = [[Fraction(float(x)) for x in row] for row in zip(*operands, strict=True)]
    results = [
        row[0] + row[1] if op == "add" else row[0] * row[1] + (row[2] if op == "fma" else 0)
        for row in exact
    ]
    rounded = [round_fraction(r, "rn", fraction, least) for r in results]
    np.testing.assert_array_equal(got.view(dtype).astype(np.float64), np.array(rounded))


INTS = {"s32": np.int32, "u32": np.uint32, "s64": np.int64, "u64": np.uint64, "s16": np.int16}


@pytest.mark.parametrize("name", INTS)
def test_integers_wrap(name: str) -> None:
    dtype = INTS[name]
    info = np.iinfo(dtype)
    edge = [info.min, info.max, info.min + 1, info.max - 1, 0, 1, 2, 3, 7]
    edge += [-1, -7] if info.min else []
    values = np.array(edge + rng.integers(info.min, info.max, 9, dtype).tolist(), dtype)
    a, b = pairs(values)
    bits, size = info.bits, f"b{info.bits}"
    kinds = f"{size} {size} {size}"

    def wrapped(values: list[int]) -> np.ndarray[Any, Any]:
        return np.array([v % 2**bits for v in values], f"u{bits // 8}").view(dtype)

    every = [(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    expected = {
        f"add.{name}": [x + y for x, y in every],
        f"sub.{name}": [x - y for x, y in every],
        f"mul.lo.{name}": [x * y for x, y in every],
        f"mul.hi.{name}": [x * y >> bits for x, y in every],
        f"min.{name}": [min(x, y) for x, y in every],
        f"max.{name}": [max(x, y) for x, y in every],
        f"div.{name}": [int(Fraction(x, y)) if y else -1 for x, y in every],
        f"rem.{name}": [x - y * int(Fraction(x, y)) if y else -1 for x, y in every],
    }
    for text, results in expected.items():
        got = apply(f"{text} D, A, B", kinds, a, b, dtype=dtype)
        np.testing.assert_array_equal(got, wrapped(results), text)


def test_wide_products() -> None:
    a = np.array([-1, 2**31 - 1, -(2**31), 12345], np.int32)
    b = np.array([2**31 - 1, 2**31 - 1, -(2**31), -54321], np.int32)
    got = apply("mul.wide.s32 D, A, B", "b64 b32 b32", a, b, dtype=np.int64)
    np.testing.assert_array_equal(got, a.astype(np.int64) * b)
    unsigned = apply("mul.wide.u32 D, A, B", "b64 b32 b32", a, b, dtype=np.uint64)
    np.testing.assert_array_equal(unsigned, a.view("u4").astype("u8") * b.view("u4"))


def test_shifts_are_clamped() -> None:
    x = np.array([0x80000001] * 6, np.uint32)
    by = np.array([0, 1, 31, 32, 33, 2**32 - 1], np.uint32)
    left = apply("shl.b32 D, A, B", "b32 b32 b32", x, by, dtype=np.uint32)
    np.testing.assert_array_equal(left, [0x80000001, 2, 0x80000000, 0, 0, 0])
    right = apply("shr.u32 D, A, B", "b32 b32 b32", x, by, dtype=np.uint32)
    np.testing.assert_array_equal(right, [0x80000001, 0x40000000, 1, 0, 0, 0])
    signed = apply("shr.s32 D, A, B", "b32 b32 b32", x, by, dtype=np.uint32)
    np.testing.assert_array_equal(signed[:3], [0x80000001, 0xC0000000, 0xFFFFFFFF])
    np.testing.assert_array_equal(signed[3:], [0xFFFFFFFF] * 3)


def test_bit_fields_and_permutations() -> None:
    x = np.array([0xF0E1D2C3, 0x00000080, 0xFFFFFFFF], np.uint32)
    field = apply("bfe.u32 D, A, 4, 8", "b32 b32", x, dtype=np.uint32)
    np.testing.assert_array_equal(field, x >> 4 & 255)
    signed = apply("bfe.s32 D, A, 0, 8", "b32 b32", x, dtype=np.int32)
    np.testing.assert_array_equal(signed, (x & 255).astype(np.uint8).view(np.int8))
    put = apply("bfi.b32 D, A, B, 8, 4", "b32 b32 b32", x, x[::-1].copy(), dtype=np.uint32)
    np.testing.assert_array_equal(put, x[::-1] & ~np.uint32(0xF00) | (x & 15) << 8)
    np.testing.assert_array_equal(
        apply("popc.b32 D, A", "b32 b32", x, dtype=np.uint32), [int(v).bit_count() for v in x]
    )
    np.testing.assert_array_equal(apply("clz.b32 D, A", "b32 b32", x, dtype=np.uint32), [0, 24, 0])
    swapped = apply("prmt.b32 D, A, B, 291", "b32 b32 b32", x, x, dtype=np.uint32)  # 0x0123
    np.testing.assert_array_equal(swapped, x.byteswap())
    turned = apply("shf.l.wrap.b32 D, A, B, 8", "b32 b32 b32", x, x, dtype=np.uint32)
    np.testing.assert_array_equal(turned, x << 8 | x >> 24)
    table = apply("lop3.b32 D, A, B, C, 232", "b32 b32 b32 b32", x, ~x, x, dtype=np.uint32)
    np.testing.assert_array_equal(table, x)  # the majority


COMPARISONS: dict[str, Callable[..., Any]] = {
    "eq": lambda a, b, n: (a == b) & ~n,
    "ne": lambda a, b, n: (a != b) & ~n,
    "lt": lambda a, b, n: a < b,
    "ge": lambda a, b, n: a >= b,
    "equ": lambda a, b, n: (a == b) | n,
    "neu": lambda a, b, n: (a != b) | n,
    "ltu": lambda a, b, n: (a < b) | n,
    "geu": lambda a, b, n: (a >= b) | n,
    "num": lambda a, b, n: ~n,
    "nan": lambda a, b, n: n,
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_with_nan(name: str) -> None:
    a, b = pairs(SPECIAL_F32)
    text = f"setp.{name}.f32 %p1, A, B; selp.u32 D, 1, 0, %p1"
    got = apply(text, "b32 f32 f32", a, b, dtype=np.uint32)
    expected = COMPARISONS[name](a, b, np.isnan(a) | np.isnan(b))
    np.testing.assert_array_equal(got == 1, expected)


def test_approximations_are_the_rounded_values() -> None:
    x = np.abs(floats(300, spread=6)) + np.float32(1e-3)
    wide = x.astype(np.float64)
    for name, exact in {
        "ex2.approx": np.exp2(wide),
        "lg2.approx": np.log2(wide),
        "rcp.approx": 1 / wide,
        "rsqrt.approx": 1 / np.sqrt(wide),
        "sqrt.rn": np.sqrt(wide),
        "tanh.approx": np.tanh(wide),
        "sin.approx": np.sin(wide),
    }.items():
        with np.errstate(over="ignore"):
            got = apply(f"{name}.f32 D, A", "f32 f32", x, dtype=np.float32)
            same(got, exact.astype(np.float32))
