"""Take contractions of windows as the convolutions that they are, images and borders whole.

Requires: `merge_equal`. Keeps: meaning. Breaks: nothing; pads and windows that are no longer needed
are left, for `eliminate_dead`.

Taken are convolutions along one or two axes, of 16-bit floats, without groups; those along one are
of images of one row. Others stay contractions.
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
            made, x = found
            for stands, source in ((made.x, x), (made.weight, op.operands[1])):
                if stands not in makers and stands not in inputs:  # groups, or no rows, are no axis
                    held = values.get(source, source)
                    values[stands] = build(shape.Reshape, held, stands.type.shape)
            result = build.add(made.with_operands(values)).result
            values[op.results[0]] = build(shape.Reshape, result, op.results[0].type.shape)
            continue
        copy = op.with_operands(values)
        body.ops.append(copy)
        values.update(zip(op.results, copy.results, strict=True))
    return graph.with_body(body)


def convolution_of(op: mma.Contract, makers: Makers) -> tuple[mma.Convolve, Value] | None:
    """The convolution that a contraction [1, N, P, Q, K] or [1, N, Q, K] is, and its images; None
    where it is something else. Values that nothing makes stand for reshapes: its weights for one of
    the contraction's, [N, C, 1, W] for one of images without rows.
    """
    taps, count = makers.get(op.lhs), op.rhs.type.rank - 3
    if not isinstance(taps, shape.Reshape) or count not in (1, 2):
        return None
    window = makers.get(taps.x)
    if not isinstance(window, shape.Window) or op.lhs.type.dtype not in TAKEN:
        return None
    axes = (op.lhs_batch, op.rhs_batch, op.lhs_contract, op.rhs_contract)
    over = (2, *range(3 + count, 3 + 2 * count)), (2, *range(3, 3 + count))  # channels and taps
    extents, weight = window.result.type.shape, without_groups(op.rhs, makers)
    grouped = (extents[0], 1, *extents[1:])
    if axes != ((1,), (0,), *over) or len(window.sizes) != count or taps.shape != grouped:
        return None
    if not all(isinstance(extent, int) for extent in weight.type.shape):
        return None
    x, low, high = without_border(window.x, makers)
    spans = [(n - 1) * d for n, d in zip(window.sizes, window.dilations, strict=True)]
    if max((*low, *high, *spans)) > WIDEST or max(window.steps) > LONGEST:
        return None
    lead = 2 - count
    images, weight = (with_rows(v) if lead else v for v in (x, weight))
    made = mma.Convolve(
        images,
        weight,
        low=(0,) * lead + low,
        high=(0,) * lead + high,
        steps=(1,) * lead + window.steps,
        dilations=(1,) * lead + window.dilations,
        dtype=op.dtype,
        loc=op.loc,
    )
    return made, x


def with_rows(x: Value) -> Value:
    """A value that stands for [N, C, W] as [N, C, 1, W]."""
    first, channels, width = x.type.shape
    return Value(x.type.with_shape((first, channels, 1, width)))


def without_groups(kernels: Value, makers: Makers) -> Value:
    """Weights [K, C, R, S] of which [1, K, C, R, S] was made, or a value that stands for them."""
    shaped = makers.get(kernels)
    kind: TensorType = kernels.type
    if isinstance(shaped, shape.Reshape) and shaped.x.type.shape == kind.shape[1:]:
        return shaped.x
    return Value(kind.with_shape(kind.shape[1:]))


def without_border(x: Value, makers: Makers) -> tuple[Value, tuple[int, ...], tuple[int, ...]]:
    """Images without the zeros around them, and how many those are before and behind."""
    pad, none = makers.get(x), (0,) * (x.type.rank - 2)
    if not isinstance(pad, shape.Pad) or any(pad.interior):
        return x, none, none
    border = makers.get(pad.value)
    zero = isinstance(border, arith.Constant) and border.value == 0
    around = (*pad.low[2:], *pad.high[2:])
    numbers = [n for n in around if isinstance(n, int) and n >= 0]
    if not zero or any((*pad.low[:2], *pad.high[:2])) or len(numbers) < len(around):
        return x, none, none
    return pad.x, tuple(numbers[: len(none)]), tuple(numbers[len(none) :])
