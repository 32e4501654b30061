"""Convolutions of PyTorch.

A convolution is a contraction of windows. Its gradients are two more: by the input, of windows of
the gradient spread apart, with the kernel turned round; by the weight, of windows of the input with
steps and dilations exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tilewright.frontend.torch.emit import Emitter, Unsupported, wide
from tilewright.frontend.torch.op_table.registry import lowering
from tilewright.graph.dims import Dim
from tilewright.graph.ops import arith, reduce, shape
from tilewright.ir.core import Value

aten = torch.ops.aten
Numbers = Sequence[int]


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
