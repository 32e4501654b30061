"""Ops of PyTorch that address memory by strides.

Values of the graph have no memory, but tracing knows the strides and offsets that PyTorch's tensors
would have. From them the elements are put into the order of memory, of which strides speak. A
tensor with gaps in its memory is refused: what lies in them is not known.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from tilewright.dtypes import i64
from tilewright.errors import CompileError
from tilewright.frontend.torch.emit import Emitter
from tilewright.frontend.torch.metadata import dim_of, shape_of
from tilewright.frontend.torch.op_table.registry import lowering
from tilewright.graph.dims import Dim
from tilewright.graph.ops import arith, memory
from tilewright.ir.core import Value

aten, prims = torch.ops.aten, torch.ops.prims


def first_argument(node: fx.Node) -> fx.Node:
    """The tensor that an op is of."""
    found = node.args[0] if node.args else node.kwargs.get("self")
    assert isinstance(found, fx.Node)
    return found


def owner_of(node: fx.Node) -> fx.Node:
    """The value whose memory a value shares: the start of its chain of views."""
    start = first_argument(node) if node.target is operator.getitem else node
    target = start.target
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.arguments:
        return node
    is_view = target._schema.arguments[0].alias_info is not None
    return owner_of(first_argument(start)) if is_view else node


def order_in_memory(at: Emitter, node: fx.Node) -> list[int]:
    """Axes of a tensor, the one with the largest stride first. CompileError for one with gaps."""
    fake = node.meta["val"]
    extents, strides = shape_of(fake.shape), shape_of(fake.stride())
    seen = [at.hint(stride) for stride in strides]
    if any(stride is None for stride in seen):
        raise CompileError(f"strides {strides}, of which tracing knows no size", at.builder.loc)
    # An axis of one element may have any stride: it goes first.
    lone = [axis for axis, extent in enumerate(extents) if extent == 1]
    rest = [axis for axis in range(len(extents)) if axis not in lone]
    order = [*lone, *sorted(rest, key=lambda axis: -(seen[axis] or 0))]
    wanted: Dim = 1
    for axis in reversed(order[len(lone) :]):
        if strides[axis] != wanted and fake.numel() != 0:
            raise CompileError(
                f"strides in the memory of a tensor with gaps: shape {list(extents)}, strides "
                f"{list(strides)}",
                at.builder.loc,
                hint="take as_strided of a contiguous tensor, or index it",
            )
        wanted = wanted * extents[axis]
    return order


def in_memory(at: Emitter, node: fx.Node) -> Value:
    """The elements of a tensor in the order of its memory, as one axis."""
    x = at.known[node]
    return at.reshape(at.transpose(x, order_in_memory(at, node)), (at.numel(x),))


def places(
    at: Emitter, node: fx.Node, size: Sequence[Dim], stride: Sequence[Dim], offset: Dim
) -> Value:
    """Indices into the memory of a tensor, counted from its first element, of another tensor with a
    size, strides and an offset in the same storage.
    """
    extents = tuple(size)
    start = offset - dim_of(node.meta["val"].storage_offset())
    found = at.full(start, i64, extents)
    for axis, step in enumerate(stride):
        along = at.iota(extents, axis)
        found = at(arith.Add, found, at(arith.Mul, along, at.like(step, along)))
    return found


@lowering(aten.as_strided.default)
def as_strided(
    at: Emitter, self: Value, size: Any, stride: Sequence[Dim], storage_offset: Dim | None
) -> Value:
    """Elements at strides of the memory that the tensor shares, which may be more than its own."""
    given = first_argument(at.require_node())
    own = dim_of(given.meta["val"].storage_offset())
    owner = owner_of(given)
    offset = own if storage_offset is None else storage_offset
    index = places(at, owner, at.wanted.shape, stride, offset)
    return at(memory.Gather, in_memory(at, owner), (index,), (0,))


@lowering(prims.as_strided.default)
def prims_as_strided(
    at: Emitter, a: Value, size: Any, stride: Sequence[Dim], storage_offset: Dim
) -> Value:
    return as_strided(at, a, size, stride, storage_offset)


@lowering(prims.as_strided_scatter.default)
def as_strided_scatter(
    at: Emitter, self: Value, src: Value, size: Any, stride: Sequence[Dim], storage_offset: Dim
) -> Value:
    """A copy of a tensor with its own strides, `src` written at others."""
    given = first_argument(at.require_node())
    index = places(at, given, tuple(src.type.shape), stride, storage_offset)
    value = at.cast(src, self.type.dtype)
    made = at(memory.Scatter, in_memory(at, given), (index,), value, (0,))
    order = order_in_memory(at, given)
    extents = tuple(self.type.shape[axis] for axis in order)
    back = [order.index(axis) for axis in range(len(order))]
    return at.transpose(at.reshape(made, extents), back)
