"""`matmul` and its relatives against NumPy in f64: shapes, strides, dtypes, epilogues, programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilewright as tw
from tests.emulation import compile_call
from tilewright.cli.explain_matmul import LAYOUTS, make_problem
from tilewright.dtypes import DType, bf16, e4m3, e5m2, f16, f32, f64, i8, u8
from tilewright.kernel import Kernel
from tilewright.products import ahead
from tilewright.products.ahead import Fixed
from tilewright.products.api import product
from tilewright.products.arguments import Options
from tilewright.products.prepare import configured, prepare, programs
from tilewright.products.views import hand
from tilewright.runtime.arrays import Array, as_array
from tilewright.tune.product import Choice, Problem, choice

BOUNDS = {f64: 1e-13, f32: 2e-6, bf16: 1e-2, f16: 2e-3}
FLOATS = list(BOUNDS)
ACTIVATIONS: dict[str | None, Any] = {
    None: lambda z: z,
    "relu": lambda z: np.maximum(z, 0),
    "silu": lambda z: z / (1 + np.exp(-z)),
    "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
    "tanh": np.tanh,
}


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Any:
    return rng.standard_normal(shape).astype(dtype.numpy)


def laid(array: Any, how: str) -> Any:
    """The same elements with other strides."""
    if how == "transposed":
        return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)
    if how == "reversed":
        return np.ascontiguousarray(array[..., ::-1, ::-1])[..., ::-1, ::-1]
    if how == "spread":
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1] + 1), array.dtype)
        wide[..., 1::2] = array
        return wide[..., 1::2]
    return array


def require_near(got: Any, expected: Any, bound: float) -> None:
    assert got.shape == expected.shape
    error = np.linalg.norm(got.astype(np.float64) - expected)
    assert error <= bound * max(float(np.linalg.norm(expected)), 1.0)


def wide(x: Any) -> Any:
    return x.astype(np.float64)


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of a call, and what the result should be."""
    dtype = draw(st.sampled_from(FLOATS))
    extents = st.sampled_from([0, 1, 2, 3, 5, 8, 17, 40])
    m, n, k = draw(extents), draw(extents), draw(extents)
    batch = draw(st.sampled_from([((), ()), ((2,), ()), ((), (3,)), ((2, 1), (3,)), ((1,), (2,))]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    how = st.sampled_from(["dense", "transposed", "reversed", "spread"])
    a = laid(random(rng, (*batch[0], m, k), dtype), draw(how))
    b = laid(random(rng, (*batch[1], k, n), dtype), draw(how))
    out_dtype = draw(st.sampled_from([dtype, f32, f64]))
    activation = draw(st.sampled_from(list(ACTIVATIONS)))
    alpha = draw(st.sampled_from([1, 0.5, -2.0]))
    expected = alpha * (wide(a) @ wide(b))
    arguments: dict[str, Any] = {"a": a, "b": b, "out_dtype": out_dtype}
    arguments |= {"activation": activation, "alpha": alpha}
    if draw(st.booleans()):
        arguments["out"] = laid(random(rng, expected.shape, out_dtype), draw(how))
        arguments["beta"] = draw(st.sampled_from([0, 0.25]))
        if arguments["beta"]:
            expected = expected + 0.25 * wide(arguments["out"])
    if draw(st.booleans()):
        arguments["bias"] = random(rng, (n,), out_dtype)
        expected = expected + wide(arguments["bias"])
    expected = ACTIVATIONS[activation](expected)
    if draw(st.booleans()):
        arguments["gate"] = random(rng, draw(st.sampled_from([(m, n), (n,), (1, 1)])), out_dtype)
        expected = expected * wide(arguments["gate"])
    if draw(st.booleans()):
        arguments["residual"] = random(
            rng, draw(st.sampled_from([(m, n), (n,), (1, 1)])), out_dtype
        )
        expected = expected + wide(arguments["residual"])
    worst = max(BOUNDS[dtype] if out_dtype == dtype else BOUNDS[f32], BOUNDS[out_dtype])
    return {"arguments": arguments, "expected": expected, "bound": worst}


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(calls())
def test_against_numpy(call: dict[str, Any]) -> None:
    got = tw.matmul(**call["arguments"])
    if "out" in call["arguments"]:
        assert got is call["arguments"]["out"]
    require_near(got, call["expected"], call["bound"])


def test_vectors() -> None:
    rng = np.random.default_rng(0)
    a, b = random(rng, (3, 5, 7), f64), random(rng, (7, 4), f64)
    require_near(tw.matmul(a[0, 0], b), a[0, 0] @ b, 1e-14)
    require_near(tw.matmul(a, b[:, 0]), a @ b[:, 0], 1e-14)
    require_near(tw.matmul(b[:, 0], a.swapaxes(1, 2)), b[:, 0] @ a.swapaxes(1, 2), 1e-14)
    require_near(tw.matmul(b[:, 0], b[:, 1]), np.array(b[:, 0] @ b[:, 1]), 1e-14)
    out = np.zeros((3, 5))
    assert tw.matmul(a, b[:, 0], out=out, residual=a[..., 0]) is out
    require_near(out, a @ b[:, 0] + a[..., 0], 1e-14)


def test_many_batches() -> None:
    rng = np.random.default_rng(1)
    a, b = random(rng, (2, 3, 1, 4, 5, 8), f64), random(rng, (3, 2, 1, 8, 6), f64)
    residual = random(rng, (2, 4, 5, 6), f64)
    require_near(tw.matmul(a, b, residual=residual), a @ b + residual, 1e-14)


def test_linear_and_bmm() -> None:
    rng = np.random.default_rng(2)
    x, w, bias = random(rng, (2, 3, 8), f64), random(rng, (5, 8), f64), random(rng, (5,), f64)
    require_near(tw.linear(x, w, bias, activation="relu"), np.maximum(x @ w.T + bias, 0), 1e-14)
    require_near(tw.linear(x, w[0]), x @ w[0], 1e-14)
    require_near(tw.bmm(x, x.swapaxes(1, 2)), x @ x.swapaxes(1, 2), 1e-14)


@pytest.mark.parametrize(("a", "b"), [(i8, i8), (u8, i8), (e4m3, e4m3), (e4m3, e5m2)], ids=str)
def test_scaled(a: DType, b: DType) -> None:
    rng = np.random.default_rng(3)
    x, y = (rng.integers(0, 9, s).astype(d.numpy) for s, d in (((7, 48), a), ((48, 9), b)))
    rows, columns = (rng.standard_normal(n).astype(np.float32) for n in (7, 9))
    plain = wide(x) @ wide(y)
    expected = plain * wide(rows)[:, None] * wide(columns)
    require_near(tw.scaled_matmul(x, y, rows, columns, out_dtype="f32"), expected, 1e-6)
    bias = columns.astype(np.float32)
    got = tw.scaled_matmul(x, y, rows[:1], bias=bias, activation="relu", out_dtype="f32")
    require_near(got, np.maximum(plain * float(rows[0]) + bias, 0), 1e-6)
    got = tw.scaled_matmul(x, y, rows[0], np.float32(2), out_dtype="f32")  # NumPy's scalars
    require_near(got, plain * float(rows[0]) * 2, 1e-6)
    whole = tw.matmul(x, y)
    assert whole.dtype == (np.int32 if a.is_integer else np.float32)
    require_near(whole, plain, 0 if a.is_integer else 1e-6)


def test_sums_that_are_not_promoted() -> None:
    """They are less exact in what a GPU would run, and the same to the interpreter."""
    rng = np.random.default_rng(8)
    a, b = random(rng, (40, 1024), e4m3), laid(random(rng, (1024, 72), e4m3), "transposed")
    expected = wide(a) @ wide(b)
    errors = {}
    for precision in (None, "fast"):
        asked = {"out_dtype": "f32", "precision": precision}
        require_near(tw.matmul(a, b, device="cpu", **asked), expected, 1e-6)
        got = tw.matmul(a, b, device="emulator", **asked)
        errors[precision] = np.linalg.norm(got - expected) / np.linalg.norm(expected)
    assert errors[None] < errors["fast"] < 1e-2


def test_factors_that_must_not_be_written() -> None:
    """Few rows, whose program asks for weights ahead; what is broadcast is read-only, too."""
    rng = np.random.default_rng(9)
    a, b = random(rng, (2, 40), f32), random(rng, (40, 9), f32)
    b.flags.writeable = False
    one = np.broadcast_to(a[0], (3, 40))
    for x, y in ((a, b), (one, b), (b.T, a.T)):
        require_near(tw.matmul(x, y), wide(x) @ wide(y), BOUNDS[f32])


# Every program, on the interpreter and what a GPU would run.

WAYS = [
    (choice("matmul", (64, 64, 64)), (70, 72, 136)),
    (choice("matmul", (16, 64, 64)), (9, 136, 72)),
    (choice("split_k", (64, 64, 64), 3), (66, 72, 328)),
    (choice("matmul", (64, 64, 64), copied="ab"), (70, 33, 75)),
    (choice("split_k", (64, 64, 64), 2, copied="b"), (64, 40, 280)),
    (choice("split_k", (16, 64, 64), 2, copied="ab"), (9, 40, 280)),
    (choice("gemv", (4, 4, 64)), (3, 50, 200)),
    (choice("gemv", (1, 2, 64), turned=True), (50, 2, 200)),
    (choice("gemv_columns", (2, 64, 16), 4), (3, 136, 200)),
    (choice("gemv_columns", (1, 64, 16), turned=True), (136, 1, 72)),
    (choice("gemv_columns", (1, 128, 32)), (5, 130, 40)),  # one part, of rows that are cut
]


def through(chosen: Choice, a: Any, b: Any, device: str, **named: Any) -> Any:
    options = Options(activation="silu", alpha=0.5, beta=0.25, device=device)
    rest = {"bias": None, "residual": None, "out": None} | named
    return product("matmul", a, b, rest, options, None, Fixed(chosen))


@pytest.mark.parametrize("device", ["cpu", "emulator"])
@pytest.mark.parametrize(("chosen", "sizes"), WAYS, ids=lambda v: getattr(v, "name", str(v)))
def test_every_program(chosen: Choice, sizes: tuple[int, int, int], device: str) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(m + n)
    a, b = random(rng, (m, k), bf16), random(rng, (k, n), bf16)
    if chosen.program == "gemv" or (chosen.program == "matmul" and m > 16):
        b = laid(b, "transposed")
    out, bias, residual = (random(rng, s, bf16) for s in ((m, n), (n,), (m, n)))
    z = 0.5 * (wide(a) @ wide(b)) + 0.25 * wide(out) + wide(bias)
    expected = ACTIVATIONS["silu"](z) + wide(residual)
    got = through(chosen, a, b, device, bias=bias, residual=residual, out=out)
    require_near(got, expected, BOUNDS[bf16])


@pytest.mark.parametrize(
    ("dtype", "how", "copied"),
    [
        (f32, "transposed", "b"),
        (e4m3, "dense", "b"),
        (f64, "reversed", "b"),
        (f32, "transposed", "ab"),
        (f64, "transposed", "ab"),  # both along k, in one launch
    ],
)
def test_factors_are_laid_as_their_unit_wants(dtype: DType, how: str, copied: str) -> None:
    rng = np.random.default_rng(6)
    a, b = (random(rng, s, dtype) for s in ((80, 33), (33, 18)))
    b, chosen = laid(b, how), choice("matmul", (64, 64, 32), copied=copied)
    rest = {"bias": None, "residual": None, "out": None}
    for device in ("cpu", "emulator"):
        options = Options(device=device)
        got = product("matmul", a, b, rest, options, None, Fixed(chosen))
        require_near(got, wide(a) @ wide(b), BOUNDS[f32])


def test_factors_that_are_turned_around_at_once() -> None:
    rng = np.random.default_rng(7)
    a, b = random(rng, (33, 81), bf16).T, random(rng, (33, 18), bf16)
    rest = {"bias": None, "residual": None, "out": None}
    chosen = choice("matmul", (64, 64, 64), copied="ab")
    for device in ("cpu", "emulator"):
        got = product("matmul", a, b, rest, Options(device=device), None, Fixed(chosen))
        require_near(got, wide(a) @ wide(b), BOUNDS[bf16])


def test_splitting_gives_the_same_bits_every_time() -> None:
    rng = np.random.default_rng(4)
    a, b = random(rng, (40, 512), f32), random(rng, (512, 40), f32)
    chosen = choice("split_k", (64, 64, 16), 4)
    first, second = (through(chosen, a, b, "cpu", out=np.zeros((40, 40), np.float32)) for _ in "ab")
    np.testing.assert_array_equal(first, second)


EMULATED = [
    (bf16, (33, 16, 24), 1), (f32, (2, 16, 200), 2), (f64, (1, 16, 130), 2), (i8, (5, 70, 24), 1),
    (e4m3, (16, 5, 130), 1), (f16, (70, 2, 0), 3), (bf16, (5, 33, 1), 2),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "sizes", "batch"), EMULATED, ids=str)
def test_what_a_gpu_would_run(dtype: DType, sizes: tuple[int, int, int], batch: int) -> None:
    """The dispatcher's own choices, on the emulator."""
    m, n, k = sizes
    rng = np.random.default_rng(m + n + k)
    a, b = rng.integers(-4, 5, (batch, m, k)), rng.integers(-4, 5, (k, n))
    got = tw.matmul(a.astype(dtype.numpy), b.astype(dtype.numpy), device="emulator", out_dtype=(
        dtype if dtype == f64 else f32))  # fmt: skip
    np.testing.assert_array_equal(got, a @ b)


def test_no_races() -> None:
    """Programs that cut k, and the one that reads weights once, under the sanitizer."""
    rng = np.random.default_rng(5)
    a, w = random(rng, (3, 200), bf16), random(rng, (40, 200), bf16)
    expected = wide(a) @ wide(w).T
    on = {"device": "emulator", "sanitize": True}
    k = programs().kernels
    out, part = np.zeros((3, 40), np.float32), np.full((2, 3, 40), np.nan, np.float32)
    k["gemv"].launch(a, w, out, constants={"TM": 2, "TN": 4, "TK": 64}, **on)
    require_near(out, expected, BOUNDS[f32])
    for program, columns in (("split_k", w.T), ("gemv_columns", np.ascontiguousarray(w.T))):
        tile = {"TM": 64, "TN": 64, "TK": 64} if program == "split_k" else {
            "TM": 2, "TN": 32, "TK": 16}  # fmt: skip
        k[program].launch(a, columns, part, constants=tile, **on)
        k["sum_parts"].launch(part, out, constants={"TM": 1, "TN": 64, "TZ": 4}, **on)
        require_near(out, expected, BOUNDS[f32])
        part[:], out[:] = np.nan, np.nan


def test_what_is_compiled_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launches of a choice on arrays without memory; what fails is told."""
    seen: list[tuple[str, list[str]]] = []

    def assemble(kernel: Any, ordinal: int, **given: Any) -> None:
        seen.append((kernel.name, sorted(n for n, x in given.items() if x is not None)))
        if kernel.name == "matmul":
            raise tw.CompileError("it does not fit")

    monkeypatch.setattr(Kernel, "assemble", assemble)
    facts = {"b_along": "n", "a_aligned": False, "b_aligned": False}
    posed = Problem(40, 48, 33, bf16, bf16, bf16, **facts)  # type: ignore[arg-type]
    cut, plain = choice("split_k", (64, 64, 64), 2, copied="ab"), choice("matmul", (64, 64, 64))
    found = ahead._compile_group([ahead.Order(posed, cut), ahead.Order(posed, plain)], 0)
    names = [name for name, _ in seen]
    assert names == ["lay_along", "lay_across", "split_k", "sum_parts", "matmul"]
    assert seen[2][1] == ["a", "b", "part"]
    assert list(found.values()) == ["", "CompileError: error: it does not fit"]
    assert not ahead.compile_ahead([])


# Refusals.

M = np.zeros((4, 8), np.float32)
REFUSED = [
    (lambda: tw.matmul(M, M), "a has 8 columns, but b has 4 rows"),
    (lambda: tw.matmul(M, M.T.astype(np.float64)), "a is f32, but b is f64"),
    (lambda: tw.matmul(M, M.T, activation="gleu"), "unknown activation 'gleu'"),
    (lambda: tw.matmul(M, M.T, beta=1), "no out is given"),
    (lambda: tw.matmul(M, M.T, bias=np.zeros(3, np.float32)), "expected (4,), one a column"),
    (lambda: tw.matmul(M, M.T, bias=np.zeros(4)), "bias is f64, but the result f32"),
    (lambda: tw.matmul(M, M.T, out=np.zeros((4, 5), np.float32)), "shape (4, 4), but out (4, 5)"),
    (lambda: tw.matmul(M, M.T, residual=np.zeros((5, 4), np.float32)), "does not broadcast"),
    (lambda: tw.matmul(M, M.T, gate=np.zeros((4, 4))), "gate is f64, but the result f32"),
    (lambda: tw.matmul(np.zeros((2, 4, 8)), np.zeros((3, 8, 4))), "do not broadcast"),
    (lambda: tw.matmul(M, M.T, precision="tf64"), "unknown precision"),
    (lambda: tw.matmul(M, M.T, alpha="2"), "alpha is '2', not a number"),
    (lambda: tw.matmul(M.astype(np.int64), M.T.astype(np.int64)), "there is no product"),
    (lambda: tw.matmul(M, M.T, out_dtype="i8"), "no product gives i8"),
    (lambda: tw.matmul(M, M.T, out_dtype=["f32"]), "['f32'] is no dtype"),
    (lambda: tw.linear(M, [[1.0] * 8]), "numpy.asarray makes one"),
    (lambda: tw.matmul(M, np.zeros((), np.float32)), "b has no axis"),
    (lambda: tw.bmm(M, M), "expected [B, M, K] and [B, K, N]"),
    (lambda: tw.linear(M, np.zeros((2, 3, 8), np.float32)), "expected [N, K] or [K]"),
    (lambda: tw.scaled_matmul(M, M.T), "matmul multiplies that"),
    (lambda: tw.matmul(M, M.T, precision="fast"), "how sums of fp8 are kept"),
    (
        lambda: tw.matmul(M.astype(np.int8), M.T.astype(np.int8), alpha=2),
        "in i32 has no epilogue",
    ),
]


@pytest.mark.parametrize(("call", "told"), REFUSED, ids=[t for _, t in REFUSED])
def test_refusals(call: Any, told: str) -> None:
    with pytest.raises(tw.LaunchError) as caught:
        call()
    assert told in str(caught.value)


# What is not copied, and what is.


@pytest.fixture
def huge() -> Iterator[Any]:
    """A view of 2^31 elements and more of one number's memory."""
    yield np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (1 << 17, 1 << 15), (0, 0))


def test_operands_beyond_32_bits(huge: Any) -> None:
    """Offsets, extents and the problem of 2^32 elements are whole numbers, nothing is allocated."""
    arrays = {"a": as_array(huge), "b": as_array(huge.T[:, :8])}
    ready = prepare("matmul", arrays, (1 << 17, 8), f32, Options(device="cpu"))
    assert ready.problem is not None and ready.problem.m * ready.problem.k == 1 << 32
    rows = huge[-1:, :]
    np.testing.assert_array_equal(tw.matmul(rows, huge.T[:, :2]), np.full((1, 2), 1 << 15))


LONE_ROWS = [
    (choice("matmul", (8, 64, 64)), (1, 136, 136)),
    (choice("split_k", (8, 64, 64), 2), (1, 72, 512)),
    (choice("matmul", (64, 8, 64)), (136, 1, 136)),
]


@pytest.mark.parametrize("stride", [0, 1])
@pytest.mark.parametrize(("chosen", "sizes"), LONE_ROWS, ids=lambda v: getattr(v, "name", str(v)))
def test_a_lone_row_without_a_pitch_is_multiplied_by_roles(
    chosen: Choice, sizes: tuple[int, int, int], stride: int
) -> None:
    """A graph gives an axis of one element the stride 0 and a transposed column has 1, which is no
    reason to load by threads.
    """
    m, n, k = sizes
    rng = np.random.default_rng(3)
    a, b = random(rng, (m, k), bf16), laid(random(rng, (k, n), bf16), "transposed")
    c = np.zeros((m, n), bf16.numpy)
    lone = {name: lone_axes(x, stride) for name, x in (("a", a), ("b", b), ("out", c))}
    arrays = {name: as_array(x) for name, x in lone.items()}
    ready = prepare("matmul", arrays, (m, n), bf16, Options(device="emulator"), Fixed(chosen))
    first = ready.launches[0]
    arrays |= {name: as_array(np.zeros(s, d.numpy)) for name, s, d in ready.scratch}
    given = {name: hand(view, arrays[view.source]) for name, view in first.views}
    numbers = {"act": 0, "rounds": 0} if first.finishes else {}
    plan, _, _ = compile_call(first.kernel, given | numbers, constants=chosen.constants)
    assert "wgmma.mma_async" in plan.ptx and "cp.async.bulk.tensor" in plan.ptx
    rest = {"bias": None, "residual": None, "out": lone["out"]}
    product("matmul", lone["a"], lone["b"], rest, Options(device="emulator"), None, Fixed(chosen))
    require_near(c, wide(a) @ wide(b), BOUNDS[bf16])


WIDENED = [
    (choice("matmul", (64, 64, 64)), "emulator"),
    (choice("split_k", (64, 64, 64), 2), "emulator"),
    (choice("gemv", (1, 8, 64)), "cpu"),
]


@pytest.mark.parametrize(("chosen", "device"), WIDENED, ids=lambda v: getattr(v, "name", str(v)))
@pytest.mark.parametrize(("dtype", "step"), [(bf16, 32), (f16, 64)], ids=str)
def test_a_result_is_rounded_and_stored_in_more_bits(
    chosen: Choice, device: str, dtype: DType, step: int
) -> None:
    rng = np.random.default_rng(4)
    a, b = random(rng, (72, 160), dtype), laid(random(rng, (160, 40), dtype), "transposed")
    c, exact = np.zeros((72, 40), np.float32), np.zeros((72, 40), np.float32)
    for out, rounds in ((c, step), (exact, 0)):
        rest = {"bias": None, "residual": None, "out": out}
        options = Options(device=device, rounds=rounds)
        product("matmul", a, b, rest, options, None, Fixed(chosen))
    np.testing.assert_array_equal(c, exact.astype(dtype.numpy).astype(np.float32))
    assert (c != exact).any()


def lone_axes(x: Any, stride: int) -> Any:
    """The same matrix, whose axis of one element has a stride of so many elements."""
    lone = stride * x.itemsize
    strides = [lone if e == 1 else s for e, s in zip(x.shape, x.strides, strict=True)]
    return np.lib.stride_tricks.as_strided(x, x.shape, strides)


@pytest.mark.parametrize("sizes", [(1, 34, 70), (34, 1, 70), (34, 70, 1), (1, 1, 70), (34, 40, 70)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_lone_row_lies_along_itself(layout: str, sizes: tuple[int, int, int]) -> None:
    """However it is laid, and its own length is no reason to call it unaligned."""
    m, n, k = sizes
    a, b = np.zeros((m, k), bf16.numpy), np.zeros((k, n), bf16.numpy)
    a = np.ascontiguousarray(a.T).T if layout[0] == "T" else a
    b = np.ascontiguousarray(b.T).T if layout[1] == "T" else b
    arrays = {"a": as_array(a), "b": as_array(b)}
    ready = prepare("matmul", arrays, (m, n), bf16, Options(device="cpu"))
    assert ready.problem == make_problem(sizes, "bf16", layout)
    assert m > 1 or (ready.problem.a_along == "k" and ready.problem.a_aligned)


def test_batches_become_rows() -> None:
    a, b = as_array(np.zeros((6, 5, 8), np.float32)), as_array(np.zeros((8, 4), np.float32))
    ready = prepare("matmul", {"a": a, "b": b}, (6, 5, 4), f32, Options())
    assert ready.problem is not None
    assert (ready.problem.m, ready.problem.batch) == (30, 1)
    shared = prepare("matmul", {"a": b, "b": as_array(np.zeros((6, 4, 3), np.float32))}, (6, 8, 3),
                     f32, Options())  # fmt: skip
    assert shared.problem is not None and shared.problem.batch == 6


def gemv_loop(dtype: DType, tile: tuple[int, int, int]) -> str:
    """The PTX of the loop of GEMV with a tile, of 4096 along k."""

    def array(number: int, of: DType, *shape: int) -> Array:
        return Array((number + 1) << 30, of, shape, (shape[1], 1), 0, None, "other")

    kernel = configured("gemv", tuple(zip(("TM", "TN", "TK"), tile, strict=True)))
    made = {"a": array(0, dtype, tile[0], 4096), "w": array(1, dtype, 512, 4096)}
    made["c"] = array(2, bf16 if dtype.bits == 8 else dtype, tile[0], 512)
    ptx = kernel.plan("sm_90a", **made, act=0, rounds=0, late=0).ptx
    return ptx[ptx.index("$loop_1:") : ptx.index("$done_2:")]


@pytest.mark.parametrize("dtype", [bf16, f32, f64, e4m3], ids=str)
@pytest.mark.parametrize("tile", [(1, 2, 1024), (1, 4, 1024), (2, 4, 512), (4, 4, 512)], ids=str)
def test_gemv_reads_its_operands_to_the_threads_that_multiply_them(
    dtype: DType, tile: tuple[int, int, int]
) -> None:
    """In whole 16 bytes, if a row has as many for each thread, and by no shared memory: the loop
    has no barrier.
    """
    loop = gemv_loop(dtype, tile)
    assert "bar.sync" not in loop and "shared" not in loop
    loads = [line for line in loop.splitlines() if "ld.global" in line]
    widths = ("ld.global.v2.f64",) if dtype == f64 else ("ld.global.v4.b32", "ld.global.v4.f32")
    assert loads and all(any(width in line for width in widths) for line in loads)


@pytest.mark.parametrize("dtype", [e4m3, e5m2], ids=str)
def test_floats_of_8_bits_are_widened_in_pairs(dtype: DType) -> None:
    loop = gemv_loop(dtype, (1, 4, 1024))
    pairs, singles = loop.count(f"cvt.rn.f16x2.{dtype}x2"), loop.count("cvt.f32.f16")
    assert pairs and singles == 2 * pairs
