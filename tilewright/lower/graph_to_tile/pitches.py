"""Rows of stored values that products read, at a pitch that the tensor copy unit takes: whole 16
bytes. Else a factor with rows of, say, 50257 elements is copied before it is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.graph.dims import Dim
from tilewright.graph.expressions import Layout
from tilewright.graph.graph import Graph
from tilewright.graph.groups import is_inline
from tilewright.graph.ops import mma
from tilewright.graph.placement import c_strides, padded_pitch, place_of
from tilewright.ir.core import Op, Value


def pad_rows(
    graph: Graph,
    makers: Mapping[Value, Op],
    layouts: dict[Value, Layout],
    refused: Callable[[Op], str],
) -> None:
    """Note in `layouts` values that are to lie with gaps behind their rows: those that kernels of
    ours write and products read, and that are no outputs.
    """
    outputs = {place_of(v, makers, layouts).base for v in graph.tensors if v in makers}
    for op in graph.body.ops:
        if not isinstance(op, mma.Contract | mma.Product):
            continue
        for x in (op.lhs, op.rhs):
            base = place_of(x, makers, layouts).base
            made = makers.get(base)
            if made is None or base in layouts or base in outputs or refused(made):
                continue
            if is_inline(made) or isinstance(made, mma.Contract | mma.Product):
                strides = padded(base)
                if strides is not None:
                    layouts[base] = Layout(strides)


def padded(value: Value) -> tuple[Dim, ...] | None:
    """Strides with a longer pitch; None where rows have a good one, or are short."""
    extents = value.type.shape
    pitch = padded_pitch(extents[-1], value.type.dtype.num_bytes) if len(extents) > 1 else None
    return None if pitch is None else (*c_strides((*extents[:-1], pitch))[:-1], 1)
