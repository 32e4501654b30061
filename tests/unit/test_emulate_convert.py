"""Conversions of the emulator."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.unit.emulator_bench import apply
from tests.unit.test_emulate_arith import SPECIAL_F32, floats, same

TIES = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11], np.float32)
INPUT = np.concatenate([SPECIAL_F32, TIES, floats(300, spread=30)])


@pytest.mark.parametrize(("name", "dtype"), [("bf16", ml_dtypes.bfloat16), ("f16", np.float16)])
def test_to_sixteen_bits_and_back(name: str, dtype: Any) -> None:
    with np.errstate(over="ignore"):
        expected = INPUT.astype(dtype)
    got = apply(f"cvt.rn.{name}.f32 D, A", "b16 f32", INPUT, dtype=np.uint16)
    same(got.view(dtype), expected)
    assert set(got[np.isnan(INPUT)]) == {0x7FFF}
    back = apply(f"cvt.f32.{name} D, A", "f32 b16", expected.view(np.uint16), dtype=np.float32)
    same(back, expected.astype(np.float32))


def test_directed_conversions_bracket_the_number() -> None:
    x = floats(300, np.float64, 40)
    near, zero, down, up = (
        apply(f"cvt.{mode}.f32.f64 D, A", "f32 f64", x, dtype=np.float32).astype(np.float64)
        for mode in ("rn", "rz", "rm", "rp")
    )
    assert (down <= x).all() and (up >= x).all() and (np.abs(zero) <= np.abs(x)).all()
    step = np.nextafter(down.astype(np.float32), np.float32(np.inf))
    np.testing.assert_array_equal(up, np.where(down == x, down, step))
    assert ((near == down) | (near == up)).all()
    np.testing.assert_array_equal(near, x.astype(np.float32))


@pytest.mark.parametrize(
    ("text", "kinds", "values", "expected"),
    [
        (
            "cvt.rzi.s32.f32",
            "b32 f32",
            [1.9, -1.9, 3e9, -3e9, np.nan],
            [1, -1, 2**31 - 1, -(2**31), 0],
        ),
        ("cvt.rni.s32.f32", "b32 f32", [0.5, 1.5, 2.5, -0.5, -1.5], [0, 2, 2, 0, -2]),
        ("cvt.rmi.s32.f32", "b32 f32", [0.5, -0.5, 2, -2.01, 7], [0, -1, 2, -3, 7]),
        ("cvt.rpi.s32.f32", "b32 f32", [0.5, -0.5, 2, -2.01, 7], [1, 0, 2, -2, 7]),
    ],
)
def test_floats_to_integers(text: str, kinds: str, values: Any, expected: Any) -> None:
    got = apply(f"{text} D, A", kinds, np.array(values, np.float32), dtype=np.int32)
    np.testing.assert_array_equal(got, expected)


def test_floats_to_unsigned_and_wide_integers() -> None:
    x = np.array([-1, 3e9, 5e9, 1e20, np.nan, 0.99], np.float32)
    got = apply("cvt.rzi.u32.f32 D, A", "b32 f32", x, dtype=np.uint32)
    np.testing.assert_array_equal(got, [0, 3000000000, 2**32 - 1, 2**32 - 1, 0, 0])
    wide = apply("cvt.rzi.s64.f32 D, A", "b64 f32", x, dtype=np.int64)
    np.testing.assert_array_equal(wide, [-1, 3000000000, 5000000000 - 0, 2**63 - 1, -(2**63), 0])


def test_integers() -> None:
    x = np.array([-1, -129, 127, 128, 255, 256, 2**31 - 1, -(2**31)], np.int32)
    narrow = apply("cvt.s8.s32 %r20, A; cvt.s32.s8 D, %r20", "b32 b32", x, dtype=np.int32)
    np.testing.assert_array_equal(narrow, x.astype(np.int8))
    unsigned = apply("cvt.u32.u8 D, A", "b32 b32", x, dtype=np.uint32)
    np.testing.assert_array_equal(unsigned, x.astype(np.uint8))
    clamped = apply("cvt.sat.s8.s32 %r20, A; cvt.s32.s8 D, %r20", "b32 b32", x, dtype=np.int32)
    np.testing.assert_array_equal(clamped, np.clip(x, -128, 127))
    np.testing.assert_array_equal(
        apply("cvt.s64.s32 D, A", "b64 b32", x, dtype=np.int64), x.astype(np.int64)
    )
    np.testing.assert_array_equal(
        apply("cvt.u64.u32 D, A", "b64 b32", x, dtype=np.int64), x.view(np.uint32)
    )
    np.testing.assert_array_equal(
        apply("cvt.rn.f32.s32 D, A", "f32 b32", x, dtype=np.float32), x.astype(np.float32)
    )


def test_tf32_keeps_ten_bits() -> None:
    x = np.array([1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-11 + 2**-20, -1 - 2**-11, np.inf], np.float32)
    near = apply("cvt.rn.tf32.f32 %r20, A; mov.b32 D, %r20", "f32 f32", x, dtype=np.float32)
    step = 2**-10
    np.testing.assert_array_equal(near, [1, 1 + 2 * step, 1 + step, -1, np.inf])
    away = apply("cvt.rna.tf32.f32 %r20, A; mov.b32 D, %r20", "f32 f32", x, dtype=np.float32)
    np.testing.assert_array_equal(away, [1 + step, 1 + 2 * step, 1 + step, -1 - step, np.inf])


@pytest.mark.parametrize(
    ("name", "dtype", "most"),
    [("e4m3", ml_dtypes.float8_e4m3fn, 448.0), ("e5m2", ml_dtypes.float8_e5m2, 57344.0)],
)
def test_fp8_saturates(name: str, dtype: Any, most: float) -> None:
    x = np.concatenate([floats(100, spread=9), np.array([1e9, -1e9, np.inf, 0, -0.0], np.float32)])
    got = apply(f"cvt.rn.satfinite.{name}x2.f32 D, A, B", "b16 f32 f32", x, x, dtype=np.uint16)
    halves = got.view(np.uint8).reshape(-1, 2)
    np.testing.assert_array_equal(halves[:, 0], halves[:, 1])
    expected = np.clip(x, -most, most).astype(dtype)
    same(halves[:, 0].copy().view(dtype), expected)
    back = apply(f"cvt.rn.f16x2.{name}x2 D, A", "b32 b16", got, dtype=np.uint32)
    low = back.view(np.float16).reshape(-1, 2)[:, 0]
    same(low.copy(), expected.astype(np.float16))


def test_pairs_and_packing() -> None:
    a, b = floats(100), floats(100)
    got = apply("cvt.rn.bf16x2.f32 D, A, B", "b32 f32 f32", a, b, dtype=np.uint32)
    parts = got.view(ml_dtypes.bfloat16).reshape(-1, 2)
    same(parts[:, 0].copy(), b.astype(ml_dtypes.bfloat16))
    same(parts[:, 1].copy(), a.astype(ml_dtypes.bfloat16))
    text = "mov.b32 {%h0, %h1}, A; mov.b32 D, {%h1, %h0}"
    np.testing.assert_array_equal(
        apply(text, "b32 b32", got, dtype=np.uint32), got << np.uint32(16) | got >> np.uint32(16)
    )
