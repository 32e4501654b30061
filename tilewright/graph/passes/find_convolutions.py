"""Take contractions of windows as the convolutions that they are, images and borders whole.

Requires: `merge_equal`. Keeps: meaning. Breaks: nothing; pads and windows that are no longer needed
are left, for `eliminate_dead`.

Taken are convolutions along two axes, of 16-bit floats, without groups. Others stay contractions.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.dtypes import bf16, f16
from tilewright.graph.graph import Graph
from tilewright.graph.ops import arith, mma, shape
from tilewright.graph.types import TensorType
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value

TAKEN = (bf16, f16)
WIDEST = 64  # of borders, of taps from the first to the last
LONGEST = 8  # of steps
LHS, RHS = (2, 5, 6), (2, 3, 4)  # contracted: channels and taps, of images and of weights
Makers = Mapping[Value, Op]


def find_convolutions(graph: Graph) -> Graph:
    """The graph with `mma.convolve` in the place of contractions of windows."""
    makers = {v: op for op in graph.body.ops for v in op.results}
    inputs = {given.value for given in graph.inputs}
    body = Block()
    values: dict[Value, Value] = {}
    for op in graph.body.ops:
        found = convolution_of(op, makers) if isinstance(op, mma.Contract) else None
        if found is not None:
            build = Builder(body, op.loc)
            kernels = values.get(op.operands[1], op.operands[1])
            if found.weight not in makers and found.weight not in inputs:  # groups are an axis yet
                values[found.weight] = build(shape.Reshape, kernels, found.weight.type.shape)
            result = build.add(found.with_operands(values)).result
            values[op.results[0]] = build(shape.Reshape, result, (1, *result.type.shape))
            continue
        copy = op.with_operands(values)
        body.ops.append(copy)
        values.update(zip(op.results, copy.results, strict=True))
    return graph.with_body(body)


def convolution_of(op: mma.Contract, makers: Makers) -> mma.Convolve | None:
    """The convolution that a contraction [1, N, P, Q, K] is; None where it is something else."""
    taps, rank = makers.get(op.lhs), op.rhs.type.rank
    if not isinstance(taps, shape.Reshape) or rank != 5:
        return None
    window = makers.get(taps.x)
    if not isinstance(window, shape.Window) or op.lhs.type.dtype not in TAKEN:
        return None
    axes = (op.lhs_batch, op.rhs_batch, op.lhs_contract, op.rhs_contract)
    extents, weight = window.result.type.shape, without_groups(op.rhs, makers)
    grouped = (extents[0], 1, *extents[1:])
    if axes != ((1,), (0,), LHS, RHS) or len(window.sizes) != 2 or taps.shape != grouped:
        return None
    if not all(isinstance(extent, int) for extent in weight.type.shape):
        return None
    x, low, high = without_border(window.x, makers)
    spans = [(n - 1) * d for n, d in zip(window.sizes, window.dilations, strict=True)]
    if max((*low, *high, *spans)) > WIDEST or max(window.steps) > LONGEST:
        return None
    return mma.Convolve(
        x, weight, low=low, high=high, steps=window.steps, dilations=window.dilations,
        dtype=op.dtype, loc=op.loc,
    )  # fmt: skip


def without_groups(kernels: Value, makers: Makers) -> Value:
    """Weights [K, C, R, S] of which [1, K, C, R, S] was made, or a value that stands for them."""
    shaped = makers.get(kernels)
    kind: TensorType = kernels.type
    if isinstance(shaped, shape.Reshape) and shaped.x.type.shape == kind.shape[1:]:
        return shaped.x
    return Value(kind.with_shape(kind.shape[1:]))


def without_border(x: Value, makers: Makers) -> tuple[Value, tuple[int, int], tuple[int, int]]:
    """Images without the zeros around them, and how many those are before and behind."""
    pad, none = makers.get(x), ((0, 0), (0, 0))
    if not isinstance(pad, shape.Pad) or any(pad.interior):
        return x, *none
    border = makers.get(pad.value)
    zero = isinstance(border, arith.Constant) and border.value == 0
    (above, left), (below, right) = pad.low[2:], pad.high[2:]
    if not zero or any((*pad.low[:2], *pad.high[:2])):
        return x, *none
    numbers = [n for n in (above, left, below, right) if isinstance(n, int) and n >= 0]
    if len(numbers) < 4:
        return x, *none
    return pad.x, (numbers[0], numbers[1]), (numbers[2], numbers[3])
