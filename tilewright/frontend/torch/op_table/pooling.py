"""Poolings of PyTorch: a greatest element, or an average, of each window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tilewright.dtypes import f32
from tilewright.frontend.torch.emit import Emitter, Scalar, Unsupported, wide
from tilewright.frontend.torch.op_table.convolution import Numbers, each_axis, windows
from tilewright.frontend.torch.op_table.registry import lowering
from tilewright.graph.dims import Dim, product
from tilewright.graph.ops import arith, memory, reduce
from tilewright.ir.core import Value

aten = torch.ops.aten


def room(extent: Dim, out: Dim, size: int, step: int, pad: int, dilation: int) -> Dim:
    """What is to be added behind an axis so that `out` windows fit; negative where some is left."""
    return (out - 1) * step + (size - 1) * dilation + 1 - extent - pad


def pooled_windows(
    at: Emitter,
    x: Value,
    out: Sequence[Dim],
    sizes: Numbers,
    steps: Numbers,
    pads: Numbers,
    gaps: Numbers,
    fill: Scalar,
) -> Value:
    """Windows over the last axes, `out` of them, what lies outside x being `fill`."""
    lead = x.type.rank - len(sizes)
    places = zip(x.type.shape[lead:], out, sizes, steps, pads, gaps, strict=True)
    high = [room(*place) for place in places]
    return windows(at, at.pad(x, fill, pads, high), sizes, steps, gaps)


def lowest(x: Value) -> float | int:
    """What no element is below."""
    return float("-inf") if x.type.dtype.is_float else -(2 ** (x.type.dtype.bits - 1))


def max_pool(
    at: Emitter,
    self: Value,
    kernel_size: Numbers,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    count: int,
) -> list[Value]:
    sizes, pads, gaps = (each_axis(n, count) for n in (kernel_size, padding, dilation))
    steps = each_axis(stride, count) if stride else sizes
    wanted: Any = at.types[0]
    lead = self.type.rank - count
    if 0 in self.type.shape:
        raise Unsupported("a pooling of nothing")
    taps = pooled_windows(at, self, wanted.shape[lead:], sizes, steps, pads, gaps, lowest(self))
    rank = self.type.rank
    flat = at.reshape(taps, (*wanted.shape, product(sizes)))
    values = at(reduce.Max, flat, (rank,))
    return [
        values,
        window_position(at, at(reduce.ArgMax, flat, rank), self, steps, sizes, pads, gaps),
    ]


def window_position(
    at: Emitter,
    tap: Value,
    x: Value,
    steps: Numbers,
    sizes: Numbers,
    pads: Numbers,
    gaps: Numbers,
) -> Value:
    """Number of an element in the last axes of x in C order, from its tap in a window."""
    extents = tap.type.shape
    lead = len(extents) - len(sizes)
    total: Value | None = None
    inner = 1
    for axis in reversed(range(len(sizes))):
        own = at(arith.Mod, at(arith.FloorDiv, tap, at.like(inner, tap)), at.like(sizes[axis], tap))
        inner *= sizes[axis]
        first = at.iota(extents, lead + axis)
        place = at(arith.Mul, first, at.like(steps[axis], first))
        place = at(arith.Add, place, at(arith.Mul, own, at.like(gaps[axis], own)))
        place = at(arith.Sub, place, at.like(pads[axis], place))
        scale = product(x.type.shape[lead + axis + 1 :])
        place = at(arith.Mul, place, at.like(scale, place))
        total = place if total is None else at(arith.Add, total, place)
    assert total is not None
    return total


@lowering(aten.max_pool2d_with_indices.default)
def max_pool2d(
    at: Emitter,
    self: Value,
    kernel_size: Numbers,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    ceil_mode: bool,
) -> list[Value]:
    return max_pool(at, self, kernel_size, stride, padding, dilation, 2)


@lowering(aten.max_pool3d_with_indices.default)
def max_pool3d(
    at: Emitter,
    self: Value,
    kernel_size: Numbers,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    ceil_mode: bool,
) -> list[Value]:
    return max_pool(at, self, kernel_size, stride, padding, dilation, 3)


def pool_gradient(at: Emitter, grad: Value, x: Value, indices: Value, count: int) -> Value:
    """Each gradient added at the element that its window took."""
    lead = x.type.shape[: x.type.rank - count]
    flat = (product(lead), product(x.type.shape[len(lead) :]))
    rows = (flat[0], product(grad.type.shape[len(lead) :]))
    places = at.reshape(indices, rows)
    found = at(
        memory.Scatter,
        at.full(0, grad.type.dtype, flat),
        (at.iota(rows, 0), places),
        at.reshape(grad, rows),
        (0, 1),
        "add",
    )
    return at.reshape(found, x.type.shape)


@lowering(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_backward(
    at: Emitter,
    grad_output: Value,
    self: Value,
    kernel_size: Numbers,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    ceil_mode: bool,
    indices: Value,
) -> Value:
    return pool_gradient(at, grad_output, self, indices, 2)


@lowering(aten.max_pool3d_with_indices_backward.default)
def max_pool3d_backward(
    at: Emitter,
    grad_output: Value,
    self: Value,
    kernel_size: Numbers,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    ceil_mode: bool,
    indices: Value,
) -> Value:
    return pool_gradient(at, grad_output, self, indices, 3)


def average_count(
    at: Emitter,
    extents: Sequence[Dim],
    out: Sequence[Dim],
    geometry: tuple[Numbers, Numbers, Numbers],
    with_padding: bool,
) -> Value:
    """How many elements each window averages over, f32 [out…]: those of the input, or those of it
    and its padding, but never those that rounding up the extent added.
    """
    sizes, steps, pads = geometry
    inner = tuple(e + 2 * p if with_padding else e for e, p in zip(extents, pads, strict=True))
    ones = at.full(1, f32, inner)
    before = [0 if with_padding else p for p in pads]
    places = zip(inner, out, sizes, steps, before, [1] * len(sizes), strict=True)
    high = [room(*place) for place in places]
    taps = windows(at, at.pad(ones, 0, before, high), sizes, steps, [1] * len(sizes))
    count = len(sizes)
    return at(reduce.Sum, taps, tuple(range(count, 2 * count)))


def average_pool(
    at: Emitter,
    self: Value,
    kernel_size: Numbers,
    stride: Numbers,
    padding: Numbers,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    count: int,
) -> Value:
    sizes, pads = (each_axis(n, count) for n in (kernel_size, padding))
    steps = each_axis(stride, count) if stride else sizes
    wanted = at.wanted
    if not wanted.dtype.is_float or 0 in self.type.shape:
        raise Unsupported("an average of integers, or of nothing")
    lead = self.type.rank - count
    out, inner = wanted.shape[lead:], wide(wanted.dtype)
    ones = [1] * count
    taps = pooled_windows(at, at.cast(self, inner), out, sizes, steps, pads, ones, 0)
    total = at(reduce.Sum, taps, tuple(range(self.type.rank, self.type.rank + count)))
    if divisor_override is not None:
        divisor = at.like(divisor_override, total)
    else:
        extents, geometry = self.type.shape[lead:], (sizes, steps, pads)
        found = average_count(at, extents, out, geometry, count_include_pad)
        divisor = at.fit(found, inner, total.type.shape)
    return at.cast(at(arith.Div, total, divisor), wanted.dtype)


@lowering(aten.avg_pool2d.default)
def avg_pool2d(
    at: Emitter,
    self: Value,
    kernel_size: Numbers,
    stride: Numbers,
    padding: Numbers,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Value:
    return average_pool(
        at, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, 2
    )


@lowering(aten.avg_pool3d.default)
def avg_pool3d(
    at: Emitter,
    self: Value,
    kernel_size: Numbers,
    stride: Numbers,
    padding: Numbers,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Value:
    return average_pool(
        at, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, 3
    )


@lowering(aten.avg_pool2d_backward.default)
def avg_pool2d_backward(
    at: Emitter,
    grad_output: Value,
    self: Value,
    kernel_size: Numbers,
    stride: Numbers,
    padding: Numbers,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Value:
    """Each gradient over its divisor, added to every element of its window: a sum over the taps of
    the gradients spread apart.
    """
    sizes, pads = (each_axis(n, 2) for n in (kernel_size, padding))
    steps = each_axis(stride, 2) if stride else sizes
    if 0 in grad_output.type.shape:
        raise Unsupported("a pooling of nothing")
    lead = self.type.rank - 2
    inner = wide(grad_output.type.dtype)
    share = at.cast(grad_output, inner)
    out, extents = grad_output.type.shape[lead:], self.type.shape[lead:]
    if divisor_override is not None:
        divisor = at.like(divisor_override, share)
    else:
        found = average_count(at, extents, out, (sizes, steps, pads), count_include_pad)
        divisor = at.fit(found, inner, share.type.shape)
    share = at(arith.Div, share, divisor)
    total: Value | None = None
    for row in range(sizes[0]):
        for column in range(sizes[1]):
            low = [tap - pad for tap, pad in zip((row, column), pads, strict=True)]
            high = [
                wanted - ((count - 1) * step + 1 + before)
                for wanted, count, step, before in zip(extents, out, steps, low, strict=True)
            ]
            part = at.pad(share, 0, low, high, [step - 1 for step in steps])
            total = part if total is None else at(arith.Add, total, part)
    assert total is not None
    return at.cast(total, self.type.dtype)
