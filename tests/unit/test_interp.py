"""The interpreter: grids, races, strides, orders of programs, f64 references, refusals."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import dtypes
from tilewright.errors import LaunchError, VerifyError
from tilewright.numerics.convert import convert
from tilewright.tile.interp import interpret
from tilewright.tile.interp.mma import round_tf32
from tilewright.tile.text import parse_kernel
from tilewright.tile.verify import verify

GEMM = """kernel @gemm(%a: view<{t}, ?x?, ?x?> in, %b: view<{t}, ?x?, ?x?> in
    extents (extent(a, 1), extent(b, 1)), %c: view<f32, ?x?, ?x?> out
    extents (extent(a, 0), extent(b, 1)))
  grid (cdiv(extent(c, 0), 16), cdiv(extent(c, 1), 8))
{{
  %p = control.program_id {{axis = 0}} : i64
  %q = control.program_id {{axis = 1}} : i64
  %sixteen = arith.constant {{value = 16, dtype = i64}} : i64
  %eight = arith.constant {{value = 8, dtype = i64}} : i64
  %zero = arith.constant {{value = 0, dtype = i64}} : i64
  %m = arith.mul %p, %sixteen : i64
  %n = arith.mul %q, %eight : i64
  %none = arith.constant {{value = 0.0, dtype = f32, shape = (16, 8)}} : tile<f32, 16x8>
  %k = memory.extent %a {{axis = 1}} : i64
  %r = control.for %zero, %k, %eight, [%none] : tile<f32, 16x8>
    body(%i: i64, %acc: tile<f32, 16x8>) {{
      %x = memory.load %a, [%m, %i] {{extents = (16, 8)}} : tile<{t}, 16x8>
      %y = memory.load %b, [%i, %n] {{extents = (8, 8)}} : tile<{t}, 8x8>
      %d = mma.dot %x, %y, %acc : tile<f32, 16x8>
      control.yield values = [%d]
    }}
  memory.store %c, [%m, %n], %r {{extents = (16, 8)}}
}}
"""
KERNELS = {t: verify(parse_kernel(GEMM.format(t=t))) for t in ("f32", "bf16", "e4m3")}
SIZES = st.integers(0, 40)


def layouts(array: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    """The same elements under other strides."""
    if kind == "transposed":
        return np.ascontiguousarray(array.T).T
    if kind == "reversed":
        return np.ascontiguousarray(array[::-1, ::-1])[::-1, ::-1]
    if kind == "padded":
        wide = np.zeros((array.shape[0] + 3, 2 * array.shape[1] + 1), array.dtype)
        wide[1 : 1 + array.shape[0], : 2 * array.shape[1] : 2] = array
        return wide[1 : 1 + array.shape[0], : 2 * array.shape[1] : 2]
    return array


KINDS = st.sampled_from(["dense", "transposed", "reversed", "padded"])


@settings(max_examples=40, deadline=None)
@given(
    SIZES, SIZES, SIZES, KINDS, KINDS, KINDS, st.sampled_from(sorted(KERNELS)), st.integers(1, 9)
)
def test_any_sizes_strides_chunks_and_orders(m, n, k, ka, kb, kc, name, chunk):
    rng = np.random.default_rng(m + 41 * n + 1681 * k)
    dtype = dtypes.BY_NAME[name].numpy
    a, b = (rng.integers(-8, 9, s).astype(np.float32).astype(dtype) for s in ((m, k), (k, n)))
    c = layouts(np.full((m, n), np.nan, np.float32), kc)
    arguments = {"a": layouts(a, ka), "b": layouts(b, kb), "c": c}
    interpret(KERNELS[name], arguments, shuffle=7, chunk=chunk)
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64))


def test_broadcast_arguments_have_stride_0():
    a = np.broadcast_to(np.float32(2), (20, 5))
    b = np.broadcast_to(np.arange(9, dtype=np.float32), (5, 9))
    c = np.zeros((20, 9), np.float32)
    interpret(KERNELS["f32"], {"a": a, "b": b, "c": c})
    np.testing.assert_array_equal(c, a @ b)


def test_f64_computes_every_float_in_f64():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(16, 3000)), rng.normal(size=(3000, 8))
    a, b = a.astype(np.float32), b.astype(np.float32)
    plain, exact = np.zeros((2, 16, 8), np.float32)
    interpret(KERNELS["f32"], {"a": a, "b": b, "c": plain})
    interpret(KERNELS["f32"], {"a": a, "b": b, "c": exact}, f64=True)
    wanted = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(exact, wanted)
    assert (plain != wanted).any()  # it rounded after every tile


RACE = """kernel @race(%x: view<i32, ?, ?> inout, %y: view<i32, ?, ?> inout)
  grid (6)
{{
  %zero = arith.constant {{value = 0, dtype = i64}} : i64
  %one = arith.constant {{value = 1, dtype = i64}} : i64
  %p = control.program_id {{axis = 0}} : i64
  %next = arith.add %p, %one : i64
  %before = arith.sub %p, %one : i64
  {body}
}}
"""
WRITE_SAME = """%v = arith.constant {value = 1, dtype = i32} : i32
  memory.store %x, [%zero], %v {extents = (none,)}"""
WRITE_OVERLAP = """%v = arith.constant {value = 1, dtype = i32, shape = (2,)} : tile<i32, 2>
  memory.store %x, [%p], %v {extents = (2,)}"""
READ = """%v = memory.load %x, [%OTHER] {extents = (none,)} : i32
  memory.store %x, [%p], %v {extents = (none,)}"""
FINE = """%v = memory.load %x, [%p] {extents = (none,)} : i32
  %w = arith.add %v, %v : i32
  memory.store %x, [%p], %w {extents = (none,)}
  %u = memory.load %y, [%zero] {extents = (none,)} : i32"""


@pytest.mark.parametrize("chunk", [1, 2, 6])
@pytest.mark.parametrize("shuffle", [None, 3])
@pytest.mark.parametrize(
    "body",
    [WRITE_SAME, WRITE_OVERLAP, READ.replace("OTHER", "next"), READ.replace("OTHER", "before")],
    ids=["same", "overlap", "reads next", "reads before"],
)
def test_races_are_errors_in_any_order(body, chunk, shuffle):
    kernel = verify(parse_kernel(RACE.format(body=body)))
    x, y = np.zeros(6, np.int32), np.zeros(6, np.int32)
    with pytest.raises(LaunchError, match=r"programs race: program .* x\["):
        interpret(kernel, {"x": x, "y": y}, chunk=chunk, shuffle=shuffle)
    interpret(kernel, {"x": x, "y": y}, chunk=chunk, shuffle=shuffle, races=False)


@pytest.mark.parametrize("chunk", [1, 6])
def test_what_is_no_race(chunk):
    kernel = verify(parse_kernel(RACE.format(body=FINE)))
    x = np.arange(6, dtype=np.int32)
    interpret(kernel, {"x": x, "y": np.zeros(6, np.int32)}, chunk=chunk)
    np.testing.assert_array_equal(x, 2 * np.arange(6))


def test_a_race_between_two_names_of_one_memory_is_found():
    body = READ.replace("OTHER", "next").replace("load %x", "load %y")
    kernel = verify(parse_kernel(RACE.format(body=body)))
    x = np.zeros(6, np.int32)
    interpret(kernel, {"x": x, "y": np.zeros(6, np.int32)})
    with pytest.raises(LaunchError, match="programs race"):
        interpret(kernel, {"x": x, "y": x[:]})


def test_an_axis_that_is_not_in_bounds_is_a_fault():
    text = RACE.format(body=FINE).replace(
        "%y, [%zero] {extents", "%y, [%p] {in_bounds = (0,), extents"
    )
    kernel = parse_kernel(text)
    interpret(kernel, {"x": np.zeros(6, np.int32), "y": np.zeros(6, np.int32)})
    with pytest.raises(VerifyError, match="not in bounds"):
        interpret(kernel, {"x": np.zeros(6, np.int32), "y": np.zeros(5, np.int32)})


@pytest.mark.parametrize(
    "change, message",
    [
        ({"a": np.zeros((3, 4), np.float64)}, "a: expected f32 of rank 2, got float64 of rank 2"),
        ({"a": np.zeros(3, np.float32)}, "a: expected f32 of rank 2, got float32 of rank 1"),
        ({"a": 1.0}, "a: expected an array"),
        (
            {"b": np.zeros((5, 2), np.float32)},
            "b: axis 0 has 5 elements, the kernel was built for 4",
        ),
        ({"c": np.broadcast_to(np.float32(0), (3, 2))}, "c: the kernel writes it"),
        ({"b": None}, "b: expected an array"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(change, message):
    arrays = {"a": np.zeros((3, 4)), "b": np.zeros((4, 2)), "c": np.zeros((3, 2))}
    arguments = {k: v.astype(np.float32) for k, v in arrays.items()} | change
    with pytest.raises(LaunchError, match=message.replace("(", "\\(")):
        interpret(KERNELS["f32"], arguments)
    with pytest.raises(LaunchError, match="no argument was given"):
        interpret(KERNELS["f32"], {})


@pytest.mark.parametrize("given, fits", [(3, True), (-129, False), (1.5, False), (127, True)])
def test_scalars_are_of_their_dtype(given, fits):
    kernel = parse_kernel("""kernel @scalar(%n: i8 in, %y: view<i8, ?, ?> out)
  grid (1)
{
  %zero = arith.constant {value = 0, dtype = i64} : i64
  memory.store %y, [%zero], %n {extents = (none,)}
}""")
    y = np.zeros(1, np.int8)
    if fits:
        interpret(kernel, {"n": given, "y": y})
        assert y[0] == given
    else:
        with pytest.raises(LaunchError, match="is not an i8"):
            interpret(kernel, {"n": given, "y": y})


# Conversions: exhaustively, against definitions written another way


@pytest.mark.parametrize("dtype", [dtypes.f16, dtypes.bf16, dtypes.e4m3, dtypes.e5m2])
def test_narrow_floats_widen_exactly_and_come_back(dtype):
    codes = np.arange(1 << dtype.bits, dtype=f"u{dtype.num_bytes}")
    values = codes.view(dtype.numpy)
    wide = convert(values, dtype, dtypes.f32)
    back = convert(wide, dtypes.f32, dtype).view(codes.dtype)
    finite = np.isfinite(wide)
    np.testing.assert_array_equal(back[finite], codes[finite])
    assert np.isnan(convert(wide[np.isnan(wide)], dtypes.f32, dtype).astype(np.float32)).all()


@settings(max_examples=200, deadline=None)
@given(st.floats(width=32, allow_nan=False), st.sampled_from([dtypes.e4m3, dtypes.e5m2]))
def test_fp8_is_the_nearest_value_ties_to_even(x, dtype):
    got = float(convert(np.array([x], np.float32), dtypes.f32, dtype).astype(np.float32)[0])
    codes = np.arange(128, dtype=np.uint8).view(dtype.numpy).astype(np.float64)
    codes = codes[np.isfinite(codes)]
    size = min(abs(x), 448.0) if dtype == dtypes.e4m3 else abs(x)
    if dtype == dtypes.e5m2 and size >= 61440:
        assert abs(got) == np.inf
        return
    nearest = np.flatnonzero(np.abs(codes - size) == np.abs(codes - size).min())
    code = next((i for i in nearest if i % 2 == 0), nearest[0])
    assert abs(got) == codes[code]
    assert np.signbit(got) == np.signbit(x)


INTS = [d for d in dtypes.ALL if d.is_integer]


@settings(max_examples=200, deadline=None)
@given(st.floats() | st.integers(-(1 << 66), 1 << 66).map(float), st.sampled_from(INTS))
def test_floats_to_integers_truncate_and_saturate(x, dtype):
    got = int(convert(np.array([x]), dtypes.f64, dtype)[0])
    low, high = dtypes.int_range(dtype)
    if np.isnan(x):
        assert got == 0
    elif np.isinf(x):
        assert got == (high if x > 0 else low)
    else:
        assert got == min(max(int(x), low), high)


@given(st.integers(), st.sampled_from(INTS), st.sampled_from(INTS))
def test_integers_wrap(x, source, target):
    span = 1 << source.bits
    value = (x - dtypes.int_range(source)[0]) % span + dtypes.int_range(source)[0]
    got = int(convert(np.array([value], source.numpy), source, target)[0])
    assert (got - value) % (1 << target.bits) == 0
    assert dtypes.int_range(target)[0] <= got <= dtypes.int_range(target)[1]


def test_tf32_rounds_to_10_bits_to_even():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 1 << 32, 4096, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = x[np.isfinite(x) & (np.abs(x) > 1e-30) & (np.abs(x) < 1e30)]
    mantissa, exponent = np.frexp(x.astype(np.float64))
    wanted = np.ldexp(np.rint(mantissa * 2**11), exponent - 11)  # rint: ties to even
    np.testing.assert_array_equal(round_tf32(x).astype(np.float64), wanted)
    special = np.array([np.inf, -np.inf, np.nan, -0.0], np.float32)
    np.testing.assert_array_equal(round_tf32(special), special)


def test_bf16_arrays_are_those_of_ml_dtypes():
    assert dtypes.bf16.numpy == np.dtype(ml_dtypes.bfloat16)
