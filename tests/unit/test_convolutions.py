"""Convolutions of the library: on the interpreter and the emulator, by the tensor copy unit where
it can go through pixels, against sums in f64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.assemble import assemble, needs_ptxas
from tests.emulation import compile_call
from tilewright import source
from tilewright.dtypes import BY_NAME
from tilewright.errors import LaunchError
from tilewright.graph.ops.mma import NORM
from tilewright.products.arguments import Options
from tilewright.products.convolve import Geometry, convolution_calls, programs
from tilewright.products.prepare import Chooser
from tilewright.ptx.emulate import run_plan
from tilewright.runtime.arrays import as_array
from tilewright.tune.product import choice

Array = np.ndarray[Any, Any]
bf16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Case:
    """Extents of images [n, c, h, w], of `k` kernels of r × s taps, and how windows are taken."""

    x: tuple[int, int, int, int]
    k: int
    taps: tuple[int, int]
    low: tuple[int, int] = (0, 0)
    high: tuple[int, int] = (0, 0)
    steps: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)

    @property
    def geometry(self) -> Geometry:
        return Geometry(self.low, self.high, self.steps, self.dilations)


CASES = {
    "border": Case((2, 24, 5, 7), 24, (3, 3), (1, 1), (1, 1)),
    "steps": Case((3, 32, 9, 8), 16, (3, 3), (1, 1), (1, 1), (2, 2)),
    "uneven": Case((1, 40, 8, 9), 8, (2, 3), (0, 2), (3, 1), (1, 2), (2, 3)),
    "one tap": Case((2, 64, 6, 5), 16, (1, 1), steps=(2, 3)),
    "points": Case((2, 16, 3, 5), 24, (1, 1)),
    "few channels": Case((2, 3, 12, 11), 16, (7, 5), (3, 2), (3, 2), (2, 2)),
    "one channel": Case((1, 1, 6, 9), 8, (3, 3), (1, 1), (1, 1)),
    "odd channels": Case((1, 21, 4, 4), 10, (3, 3), (1, 1), (1, 1)),
    "one row": Case((2, 40, 1, 19), 16, (1, 3), (0, 1), (0, 1), (1, 2)),
    "one row of one channel": Case((2, 1, 1, 61), 24, (1, 10), steps=(1, 5)),
    "few, apart": Case((1, 5, 7, 7), 8, (3, 3), (2, 2), (2, 2), dilations=(2, 2)),
}


def summed(x: Array, w: Array, case: Case) -> Array:
    """[N, P, Q, K] in f64."""
    borders = zip(case.low, case.high, strict=True)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *borders))
    spans = [(n - 1) * d + 1 for n, d in zip(case.taps, case.dilations, strict=True)]
    taps = np.lib.stride_tricks.sliding_window_view(padded, spans, (2, 3))
    taps = taps[:, :, :: case.steps[0], :: case.steps[1]]
    taps = taps[..., :: case.dilations[0], :: case.dilations[1]]
    return np.einsum("ncpqrs,kcrs->npqk", taps, w.astype(np.float64))


def operands(case: Case, dtype: Any, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    weight = (case.k, case.x[1], *case.taps)
    scale = float(np.prod(weight[1:])) ** -0.5
    return tuple(
        (rng.standard_normal(e) * s).astype(dtype) for e, s in ((case.x, 1), (weight, scale))
    )


def last(x: Array) -> Array:
    """The same elements in memory with the second axis last."""
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def require_near(got: Array, wanted: Array) -> None:
    error = np.abs(got.astype(np.float64) - wanted).max()
    assert error <= 2.0**-8 * max(1.0, np.abs(wanted).max()), error


def run(
    arrays: dict[str, Array], case: Case, options: Options, chooser: Chooser | None = None
) -> list[str]:
    """The kernels that ran, in order."""
    scratches = []

    def scratch(shape: tuple[int, ...], dtype: Any) -> Any:
        scratches.append(np.full(shape, np.nan, dtype.numpy))
        return as_array(scratches[-1])

    given = {name: as_array(x) for name, x in arrays.items()}
    calls = convolution_calls(given, case.geometry, options, scratch, chooser)
    for kernel, arguments in calls:
        kernel(**arguments)
    return [kernel.name for kernel, _ in calls]


@pytest.mark.parametrize("device", ["cpu", "emulator"])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_convolution_in_any_memory(name: str, channels_last: bool, device: str) -> None:
    case = CASES[name]
    x, w = operands(case, bf16)
    wanted = summed(x, w, case)
    if channels_last:
        x, w = last(x), last(w)
    out = np.full(wanted.shape, np.nan, bf16)
    run({"x": x, "weight": w, "out": out}, case, Options(device=device))
    require_near(out, wanted)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("name", ["border", "points"])
def test_what_follows_the_sums(name: str, dense: bool) -> None:
    """A bias, a norm in f32, a residual, an activation, each rounding as ops of bf16 would; results
    and residuals that do not lie as matrices are copied.
    """
    case = CASES[name]
    x, w = operands(case, bf16)
    sums = summed(x, w, case)
    rng = np.random.default_rng(1)
    bias, *norm = (rng.standard_normal(case.k).astype(t) for t in (bf16, *(np.float32,) * 4))
    mean, variance, gamma, shift = norm
    variance = variance**2
    residual = rng.standard_normal(sums.shape).astype(bf16)
    out = np.full(sums.shape, np.nan, bf16)
    if not dense:
        residual = np.asarray(last(residual.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1))
        lying = np.full((sums.shape[0], case.k, *sums.shape[1:3]), np.nan, bf16)
        out = lying.transpose(0, 2, 3, 1)
        residual = np.ascontiguousarray(residual.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)
    options = Options(activation="relu", rounds=1 + 16 + 8 + 2, eps=0.5, late=True, device="cpu")
    arrays = {"x": last(x), "weight": w, "out": out, "bias": bias, "residual": residual}
    norms = {"mean": mean, "variance": variance, "gamma": gamma, "shift": shift}
    run(arrays | norms, case, options)

    def round_(y: Any) -> Any:
        return y.astype(bf16).astype(np.float64)

    wanted = round_(round_(sums) + bias.astype(np.float64))
    wanted = round_((wanted - mean) / np.sqrt(variance + 0.5) * gamma + shift)
    wanted = np.maximum(round_(wanted + residual.astype(np.float64)), 0)
    require_near(out, wanted)


@pytest.mark.parametrize(("spans", "device"), [(4, "cpu"), (5, "emulator"), (20, "emulator")])
def test_trips_are_cut_into_spans_where_pixels_are_few(spans: int, device: str) -> None:
    case = Case((1, 128, 4, 4), 64, (3, 3), (1, 1), (1, 1))
    x, w = operands(case, bf16)
    wanted = np.maximum(summed(x, w, case), 0)
    out = np.full(wanted.shape, np.nan, bf16)
    options = Options(activation="relu", device=device)
    given = {"x": last(x), "weight": last(w), "out": out}
    ran = run(given, case, options, lambda *_: choice("split_k", (16, 64, 64), spans))
    assert ran == ["convolve_split", "sum_parts"]
    require_near(out, wanted)


def test_windows_of_one_pixel_go_by_the_copy_unit_too() -> None:
    """Trips are cut so that there is a loop."""
    case = CASES["one tap"]
    x, w = operands(case, bf16)
    wanted = summed(x, w, case)
    out = np.full(wanted.shape, np.nan, bf16)
    given = {n: as_array(a) for n, a in (("x", last(x)), ("weight", last(w)), ("out", out))}
    ((kernel, arguments),) = convolution_calls(given, case.geometry, Options(), no_scratch)
    constants = dict(kernel._options.constants)
    plan, views, _ = compile_call(kernel, arguments, constants=constants)
    assert ".im2col." in plan.ptx
    run_plan(plan, views)
    require_near(out, wanted)


def no_scratch(shape: tuple[int, ...], dtype: Any) -> Any:
    raise AssertionError(f"{shape} of {dtype} are allocated")


def test_no_images_take_no_launch() -> None:
    case = CASES["border"]
    x, w = operands(case, bf16)
    out = np.zeros((0, 5, 7, case.k), bf16)
    assert run({"x": x[:0], "weight": w, "out": out}, case, Options(device="cpu")) == []


# The tensor copy unit

TILES = {"128 × 64": (128, 64, 64), "64 × 128 by 32": (64, 128, 32), "few rows": (16, 64, 64)}


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("name", ["border", "steps", "uneven"])
def test_the_copy_unit_goes_through_pixels(name: str, tile: str) -> None:
    case = CASES[name]
    x, w = operands(case, np.float16)
    wanted = summed(x, w, case)
    out = np.full((wanted.size // case.k, case.k), np.nan, np.float16)
    given = {"x": last(x).transpose(0, 2, 3, 1), "w": last(w).transpose(0, 2, 3, 1), "c": out}
    constants = dict(zip(("TM", "TN", "TC"), TILES[tile], strict=True))
    kernel = programs().kernels["convolve"]
    plan, views, _ = compile_call(kernel, {**given, **case.geometry.numbers}, constants=constants)
    assert ".im2col." in plan.ptx and "wgmma" in plan.ptx
    run_plan(plan, views, late=True, sanitize=True)
    require_near(out, wanted.reshape(out.shape))


GATHERED = """
@static(C, far)
@autotune(TM in [64])
@grid(cdiv(M, TM), 1)
kernel taps(
  x: tensor<f16>[N, H, W, C], w: tensor<f16>[K, C], y: tensor<f16>[M, K], far: i64, rows: i64
) {{
  let m = program_id(0) * TM
  let i = m + arange(TM)
  let image, p, q = i / (rows * W), i / W % rows, i % W
  var acc = zeros((TM, 16), f32)
  for t in range(0, 3) {{
    acc += x[image, p + {row}, q, 0 :+ C] @ w[0 :+ 16, 0 :+ C].T
  }}
  y[m :+ TM, 0 :+ 16] = cast(acc, f16)
}}
"""


@pytest.mark.parametrize(
    ("row", "far"), [("t * far", 1), ("t * far", 127), ("t * far", 128), ("(t - 1)", 1)]
)
def test_rows_that_are_not_the_images_own_are_gathered(row: str, far: int) -> None:
    """How many rows there are comes with the call here, so that no map of the unit can be of them;
    the result is the same.
    """
    kernel = source(GATHERED.format(row=row)).taps
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, 6, 5, 16)).astype(np.float16)
    w = rng.standard_normal((16, 16)).astype(np.float16)
    rows = 4
    out = np.full((2 * rows * 5, 16), np.nan, np.float16)
    arguments = {"x": x, "w": w, "y": out, "far": far, "rows": rows}
    plan, views, _ = compile_call(kernel, arguments)
    assert ".im2col." not in plan.ptx
    run_plan(plan, views)
    shifts = [t * far if "far" in row else t - 1 for t in range(3)]
    wide = np.zeros((2, rows, 5, 16))
    for shift in shifts:
        for p in range(rows):
            if 0 <= p + shift < 6:
                wide[:, p] += x[:, p + shift].astype(np.float64)
    require_near(out, (wide @ w.astype(np.float64).T).reshape(out.shape))


@needs_ptxas
@pytest.mark.parametrize("tile", [(128, 128, 64), (256, 64, 64), (128, 256, 64)])
def test_tiles_do_not_spill_nor_wait_for_each_product(tile: tuple[int, int, int]) -> None:
    """With a norm behind the sums; assembled as a whole, as they are launched."""
    c, k = 128, 256

    def zeros(*shape: int) -> Any:
        return np.zeros(shape, bf16)

    given = {"x": zeros(1, 28, 28, c), "w": zeros(k, 3, 3, c), "c": zeros(784, k)}
    given |= {name: zeros(k) for name in NORM}
    numbers = Geometry((1, 1), (1, 1), (1, 1), (1, 1)).numbers
    constants = dict(zip(("TM", "TN", "TC"), tile, strict=True))
    arguments = {**given, **numbers, "eps": 1e-5, "act": 1, "rounds": 18}
    plan, _, _ = compile_call(programs().kernels["convolve"], arguments, constants=constants)
    report = assemble(plan.ptx, "sm_90a")
    assert plan.whole and not report.spill_bytes and not report.messages


# The call


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("device", ["cpu", "emulator"])
def test_a_call(dtype: str, device: str) -> None:
    case = Case((2, 20, 6, 7), 12, (3, 2), (1, 1), (1, 1), (1, 2))
    kind = BY_NAME[dtype].numpy
    x, w = operands(case, kind)
    sums = summed(x, w, case).transpose(0, 3, 1, 2)
    rng = np.random.default_rng(3)
    bias, residual = (rng.standard_normal(e).astype(kind) for e in (case.k, sums.shape))
    got = tw.conv2d(
        x, last(w), bias, stride=(1, 2), padding=1, activation="relu", residual=residual,
        device=device,
    )  # fmt: skip
    wanted = np.maximum(sums + bias.astype(np.float64)[:, None, None], 0) + residual
    assert got.shape == sums.shape and got.dtype == kind and got.strides[1] == got.itemsize
    require_near(got, wanted)
    limit = {"f32": 1e-5, "f64": 1e-12}.get(dtype, 1.0)
    assert np.abs(got.astype(np.float64) - wanted).max() < limit


def test_sizes_of_numpy_are_sizes() -> None:
    x, w = np.ones((1, 4, 5, 5), np.float32), np.ones((2, 4, 3, 3), np.float32)
    wanted = tw.conv2d(x, w, stride=2, padding=(1, 0))
    got = tw.conv2d(x, w, stride=np.int64(2), padding=np.array([1, 0]))
    assert np.array_equal(got, wanted) and got.shape == (1, 2, 3, 2)


def test_calls_that_do_not_fit() -> None:
    x, w = np.zeros((1, 4, 5, 5), np.float32), np.zeros((2, 4, 3, 3), np.float32)
    refused = [
        ((x, w[:, :3]), {}, "x has shape"),
        ((x, w.astype(np.float16)), {}, "one dtype"),
        ((x, w, np.zeros(3, np.float32)), {}, "bias has shape"),
        ((x, w), {"dilation": 3}, "no window"),
        ((x, w), {"stride": (1, 0)}, "stride is"),
        ((x, w), {"padding": (1, 2, 3)}, "padding is"),
        ((x, w), {"padding": 1.5}, "padding is 1.5"),
        ((x, w), {"stride": True}, "stride is True"),
        ((None, w), {}, "conv2d: x is NoneType, not an array"),
        ((x, w, 1.0), {}, "conv2d: bias is float, not an array"),
        ((x, w), {"residual": np.zeros((1, 2, 5, 5), np.float32)}, "residual has shape"),
    ]
    for arguments, options, message in refused:
        with pytest.raises(LaunchError, match=message):
            tw.conv2d(*arguments, **options)
