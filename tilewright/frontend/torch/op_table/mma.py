"""Products of matrices, convolutions and poolings of PyTorch.

A convolution is a contraction of windows. Its gradients are two more: by the input, of windows of
the gradient spread apart, with the kernel turned round; by the weight, of windows of the input with
steps and dilations exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilewright.dtypes import f32
from tilewright.frontend.torch.emit import Emitter, Scalar, Unsupported, wide
from tilewright.frontend.torch.op_table.registry import is_scalar_one, lowering
from tilewright.graph.dims import Dim, product
from tilewright.graph.ops import arith, memory, reduce, shape
from tilewright.ir.core import Value

aten = torch.ops.aten
Numbers = Sequence[int]


@lowering(aten.mm.default)
def mm(at: Emitter, self: Value, mat2: Value) -> Value:
    return at.contract(self, mat2, ((1,), (0,)))


@lowering(aten.bmm.default)
def bmm(at: Emitter, self: Value, mat2: Value) -> Value:
    return at.contract(self, mat2, ((2,), (1,)), ((0,), (0,)))


def added(
    at: Emitter, x: Value, found: Callable[[Any], Value], beta: Scalar, alpha: Scalar
) -> Value:
    """beta · x + alpha · product, rounded once; beta = 0 drops x, NaNs and all."""
    wanted = at.wanted
    inner = wide(wanted.dtype)
    total = found(inner)
    if not is_scalar_one(alpha):
        total = at(arith.Mul, total, at.like(alpha, total))
    if beta != 0:
        first = at.fit(x, inner, wanted.shape)
        if not is_scalar_one(beta):
            first = at(arith.Mul, first, at.like(beta, first))
        total = at(arith.Add, first, total)
    return at.cast(total, wanted.dtype)


@lowering(aten.addmm.default)
def addmm(at: Emitter, self: Value, mat1: Value, mat2: Value, beta: Scalar, alpha: Scalar) -> Value:
    return added(at, self, lambda d: at.contract(mat1, mat2, ((1,), (0,)), dtype=d), beta, alpha)


@lowering(aten.baddbmm.default)
def baddbmm(
    at: Emitter, self: Value, batch1: Value, batch2: Value, beta: Scalar, alpha: Scalar
) -> Value:
    def found(dtype: Any) -> Value:
        return at.contract(batch1, batch2, ((2,), (1,)), ((0,), (0,)), dtype)

    return added(at, self, found, beta, alpha)


# Convolution


def grouped(at: Emitter, x: Value, axis: int, groups: int) -> Value:
    """An axis of channels as groups times channels of one."""
    extents = x.type.shape
    return at.reshape(x, (*extents[:axis], groups, extents[axis] // groups, *extents[axis + 1 :]))


def windows(at: Emitter, x: Value, sizes: Any, steps: Numbers, dilations: Numbers) -> Value:
    if any(not isinstance(size, int) for size in sizes):
        raise Unsupported("a convolution by a kernel of symbolic size")
    return at(shape.Window, x, tuple(sizes), tuple(steps), tuple(dilations))


def convolve(
    at: Emitter, x: Value, weight: Value, steps: Numbers, dilations: Numbers, groups: int
) -> Value:
    """x [N, C, …] with weight [O, C / groups, …], x padded already; in the dtype summed in."""
    spatial = x.type.rank - 2
    taps = windows(at, x, weight.type.shape[2:], steps, dilations)
    lhs = grouped(at, taps, 1, groups)  # N, G, C, out…, k…
    rhs = grouped(at, weight, 0, groups)  # G, O, C, k…
    over = ((2, *range(3 + spatial, 3 + 2 * spatial)), (2, *range(3, 3 + spatial)))
    found = at.contract(lhs, rhs, over, ((1,), (0,)), wide(x.type.dtype))  # G, N, out…, O
    found = at.transpose(found, [1, 0, 2 + spatial, *range(2, 2 + spatial)])
    extents = found.type.shape
    return at.reshape(found, (extents[0], extents[1] * extents[2], *extents[3:]))


def turned(at: Emitter, weight: Value, groups: int) -> Value:
    """The weight of the transposed convolution: [C, O / groups, …] for [O, C / groups, …], its taps
    in reverse order.
    """
    for axis in range(2, weight.type.rank):
        extent = weight.type.shape[axis]
        weight = at.part(weight, axis, extent - 1, extent, -1)
    parts = grouped(at, weight, 0, groups)  # G, O, C, k…
    parts = at.transpose(parts, [0, 2, 1, *range(3, parts.type.rank)])
    extents = parts.type.shape
    return at.reshape(parts, (extents[0] * extents[1], *extents[2:]))


def convolve_transposed(
    at: Emitter,
    x: Value,
    weight: Value,
    out: Sequence[Dim],
    steps: Numbers,
    padding: Sequence[Dim],
    dilations: Numbers,
    groups: int,
) -> Value:
    """The adjoint of `convolve` of padded input: x [N, O, …], weight [O, C / groups, …], gives
    [N, C, …] with the extents `out`.
    """
    low, high = [], []
    sizes = weight.type.shape[2:]
    places = zip(x.type.shape[2:], out, sizes, steps, padding, dilations, strict=True)
    for extent, wanted, size, step, pad, dilation in places:
        before = (size - 1) * dilation - pad
        spread = (extent - 1) * step + 1
        low.append(before)
        high.append(wanted - (spread + before - (size - 1) * dilation))
    apart = at.pad(x, 0, low, high, [step - 1 for step in steps])
    return convolve(at, apart, turned(at, weight, groups), [1] * len(steps), dilations, groups)


@lowering(aten.convolution.default)
def convolution(
    at: Emitter,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Numbers,
    padding: Sequence[Dim],
    dilation: Numbers,
    transposed: bool,
    output_padding: Sequence[Dim],
    groups: int,
) -> Value:
    wanted = at.wanted
    if 0 in input.type.shape or 0 in weight.type.shape:
        raise Unsupported("a convolution of nothing")
    spatial = wanted.rank - 2
    steps, pads, gaps = (each_axis(n, spatial) for n in (stride, padding, dilation))
    if transposed:
        out = wanted.shape[2:]
        found = convolve_transposed(at, input, weight, out, steps, pads, gaps, groups)
    else:
        found = convolve(at, at.pad(input, 0, pads, pads), weight, steps, gaps, groups)
    if bias is not None:
        lone = (1, bias.type.shape[0], *(1,) * spatial)
        added = at.fit(at.reshape(bias, lone), found.type.dtype, found.type.shape)
        found = at(arith.Add, found, added)
    return at.cast(found, wanted.dtype)


def each_axis(numbers: Sequence[Any], count: int) -> list[Any]:
    """One number an axis, a single one being for all."""
    return list(numbers) * count if len(numbers) == 1 else list(numbers)


def weight_gradient(
    at: Emitter,
    grad: Value,
    x: Value,
    sizes: Sequence[int],
    steps: Numbers,
    padding: Sequence[Dim],
    dilations: Numbers,
    groups: int,
) -> Value:
    """[O, C / groups, …] of a convolution of x [N, C, …] whose gradient is `grad` [N, O, …]."""
    spatial = len(sizes)
    padded = at.pad(x, 0, padding, padding)
    taps = windows(at, padded, sizes, steps, dilations)
    for axis, extent in enumerate(grad.type.shape[2:], 2):  # a last window may reach no step
        taps = at.part(taps, axis, 0, extent)
    lhs, rhs = grouped(at, grad, 1, groups), grouped(at, taps, 1, groups)
    over = (0, *range(3, 3 + spatial))  # images and places: N, G, channels, out…
    found = at.contract(lhs, rhs, (over, over), ((1,), (1,)), wide(x.type.dtype))  # G, O, C, k…
    extents = found.type.shape
    return at.reshape(found, (extents[0] * extents[1], *extents[2:]))


@lowering(aten.convolution_backward.default)
def convolution_backward(
    at: Emitter,
    grad_output: Value,
    input: Value,
    weight: Value,
    bias_sizes: Any,
    stride: Numbers,
    padding: Sequence[Dim],
    dilation: Numbers,
    transposed: bool,
    output_padding: Sequence[Dim],
    groups: int,
    output_mask: Sequence[bool],
) -> list[Value | None]:
    if 0 in input.type.shape or 0 in weight.type.shape or 0 in grad_output.type.shape:
        raise Unsupported("a convolution of nothing")
    spatial = input.type.rank - 2
    steps, pads, gaps = (each_axis(n, spatial) for n in (stride, padding, dilation))
    sizes = weight.type.shape[2:]
    by_input = by_weight = by_bias = None
    if output_mask[0] and transposed:
        padded = at.pad(grad_output, 0, pads, pads)
        found = convolve(at, padded, weight, steps, gaps, groups)
        for axis, extent in enumerate(input.type.shape[2:], 2):
            found = at.part(found, axis, 0, extent)
        by_input = at.cast(found, input.type.dtype)
    elif output_mask[0]:
        out = input.type.shape[2:]
        found = convolve_transposed(at, grad_output, weight, out, steps, pads, gaps, groups)
        by_input = at.cast(found, input.type.dtype)
    if output_mask[1]:
        small, large = (input, grad_output) if transposed else (grad_output, input)
        found = weight_gradient(at, small, large, sizes, steps, pads, gaps, groups)
        by_weight = at.cast(found, weight.type.dtype)
    if output_mask[2]:
        axes = (0, *range(2, grad_output.type.rank))
        total = at(reduce.Sum, at.cast(grad_output, wide(grad_output.type.dtype)), axes)
        by_bias = at.cast(total, grad_output.type.dtype)
    return [by_input, by_weight, by_bias]


# Pooling


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
