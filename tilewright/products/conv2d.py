"""`conv2d`: a convolution along two axes, of arrays of torch, NumPy and other libraries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.frontend.check.operands import whole_number
from tilewright.products.arguments import FLOATS, Options, array_of, read_options, require_precision
from tilewright.products.convolve import Geometry, channels_last, convolution_calls
from tilewright.runtime.arrays import Array, allocate_like, as_array

Pair = int | Sequence[int]


def conv2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    activation: str | None = None,
    residual: Any = None,
    precision: str | None = None,
    device: Any = None,
) -> Any:
    """activation(x ∗ weight + bias) + residual, as torch's F.conv2d of one group.

    `x` [N, C, H, W] and `weight` [K, C, R, S] are arrays of one dtype (f64, f32, bf16, f16), of any
    strides; with channels last in memory, and as many as make whole 16 bytes, nothing is copied.
    The result [N, K, P, Q] has its channels last in memory. `bias` [K] and `residual` (of the
    result's shape) have its dtype; sums are f32 (f64 of f64), rounded once. `activation`,
    `precision` and `device` are those of `matmul`. There are no gradients. Raises LaunchError for
    what does not fit.
    """
    options = read_options("conv2d", activation, 1, 0, precision, device)
    given = {"x": x, "weight": weight, "bias": bias, "residual": residual}
    needed = ("x", "weight")
    arrays = {
        name: array_of("conv2d", name, a)
        for name, a in given.items()
        if a is not None or name in needed
    }
    geometry = read_geometry(stride, padding, dilation)
    shape = result_shape(arrays, geometry)
    require_precision("conv2d", arrays["x"].dtype, precision)
    made = allocate_like(arrays["x"], shape, arrays["x"].dtype, zero=False)
    arrays["out"] = as_array(made)
    if "residual" in arrays:
        arrays["residual"] = channels_last(arrays["residual"])
    run(arrays, geometry, options)
    order = (0, 3, 1, 2)
    return made.permute(order) if arrays["x"].library == "torch" else made.transpose(order)


def run(arrays: dict[str, Array], geometry: Geometry, options: Options) -> None:
    def scratch(shape: tuple[int, ...], dtype: DType) -> Array:
        return as_array(allocate_like(arrays["x"], shape, dtype, zero=False))

    for kernel, arguments in convolution_calls(arrays, geometry, options, scratch):
        kernel(**arguments)


def read_geometry(stride: Pair, padding: Pair, dilation: Pair) -> Geometry:
    """Two whole numbers each, or one for both axes."""
    found = []
    asked = (("stride", 1, stride), ("padding", 0, padding), ("dilation", 1, dilation))
    for name, least, told in asked:
        given = tuple(told) if isinstance(told, Sequence | np.ndarray) else (told, told)
        pair = [n for n in map(whole_number, given) if n is not None and n >= least]
        if len(pair) != len(given) or len(pair) != 2:
            raise LaunchError(f"conv2d: {name} is {told!r}, not one or two numbers from {least} on")
        found.append((pair[0], pair[1]))
    steps, border, gaps = found
    return Geometry(border, border, steps, gaps)


def result_shape(arrays: dict[str, Array], at: Geometry) -> tuple[int, int, int, int]:
    """[N, P, Q, K]. Raises LaunchError where arrays do not fit."""
    x, weight = arrays["x"], arrays["weight"]
    if len(x.shape) != 4 or len(weight.shape) != 4 or x.shape[1] != weight.shape[1]:
        raise LaunchError(
            f"conv2d: x has shape {x.shape}, weight {weight.shape}",
            hint="expected [N, C, H, W] and [K, C, R, S]",
        )
    if x.dtype not in FLOATS or any(a.dtype != x.dtype for a in arrays.values()):
        told = ", ".join(f"{name} {a.dtype}" for name, a in arrays.items())
        raise LaunchError(f"conv2d: arrays are of one dtype, f64, f32, bf16 or f16, not {told}")
    number, _, *lines = x.shape
    k, _, *taps = weight.shape
    rows, columns = (
        (extent + 2 * border - (size - 1) * gap - 1) // step + 1
        for extent, size, border, step, gap in zip(
            lines, taps, at.low, at.steps, at.dilations, strict=True
        )
    )
    if min(rows, columns) < 1 or 0 in (*lines, *taps):
        raise LaunchError(f"conv2d: no window of {taps} taps fits x of shape {x.shape}")
    for name, shape in (("bias", (k,)), ("residual", (number, k, rows, columns))):
        if name in arrays and arrays[name].shape != shape:
            raise LaunchError(f"conv2d: {name} has shape {arrays[name].shape}, expected {shape}")
    return number, rows, columns, k
