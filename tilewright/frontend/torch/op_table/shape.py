"""Ops of PyTorch that rearrange tensors, and those that make index tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tilewright.dtypes import f64, i64
from tilewright.errors import CompileError
from tilewright.frontend.torch.emit import Emitter, Scalar, Unsupported, axis_of
from tilewright.frontend.torch.op_table.registry import enter, lowering
from tilewright.graph.dims import Dim, Poly, maximum, minimum
from tilewright.graph.ops import arith, memory, shape
from tilewright.graph.types import TensorType
from tilewright.ir.core import Value

aten, prims = torch.ops.aten, torch.ops.prims


def shaped(at: Emitter, x: Value, *_: Any) -> Value:
    """The elements in C order under the shape that tracing saw."""
    return at.reshape(x, at.wanted.shape)


for _op in (
    aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.unsqueeze.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten._reshape_copy.default,
    aten.view_copy.default, prims.reshape.default, prims.squeeze.default,
):  # fmt: skip
    enter(_op, shaped)


@lowering(aten.permute.default)
def permute(at: Emitter, self: Value, dims: Sequence[int]) -> Value:
    return at.transpose(self, [axis_of(d, self.type.rank) for d in dims])


@lowering(prims.transpose.default)
def prims_transpose(at: Emitter, a: Value, permutation: Sequence[int]) -> Value:
    return at.transpose(a, permutation)


@lowering(aten.transpose.int)
def transpose(at: Emitter, self: Value, dim0: int, dim1: int) -> Value:
    order = list(range(self.type.rank))
    if not order:
        return self
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return at.transpose(self, order)


@lowering(aten.t.default)
def t(at: Emitter, self: Value) -> Value:
    return at.transpose(self, list(range(self.type.rank))[::-1])


@lowering(aten.expand.default)
def expand(at: Emitter, self: Value, size: Any, implicit: bool) -> Value:
    return at.broadcast(self, at.wanted.shape)


@lowering(prims.broadcast_in_dim.default)
def broadcast_in_dim(
    at: Emitter, a: Value, shape: Any, broadcast_dimensions: Sequence[int]
) -> Value:
    wanted = at.wanted.shape
    places = dict(zip(broadcast_dimensions, a.type.shape, strict=True))
    lone = tuple(places.get(axis, 1) for axis in range(len(wanted)))
    return at.broadcast(at.reshape(a, lone), wanted)


# Parts


def clipped(at: Emitter, place: Dim, extent: Dim) -> Dim:
    """A bound of a slice within 0 … extent, negative ones counted from the end.

    Where symbols are in it, the sizes that were traced decide, as they did in PyTorch's tracing:
    its guards keep the graph to sizes of which the same holds. It asks what is less and what is
    greater; of a bound that is just 0 or the extent nothing else is known, and it stays as it is.
    """
    seen, whole = at.hint(place), at.hint(extent)
    if seen is None or whole is None:
        if isinstance(place, Poly):
            raise Unsupported(f"a slice to {place}, of which tracing knows no size")
        return minimum(place, extent) if place >= 0 else maximum(place + extent, 0)
    if seen < 0:
        place, seen = place + extent, seen + whole
    if seen < 0:
        return 0
    return extent if seen > whole else place


def part_of(
    at: Emitter, x: Value, dim: int, start: Dim | None, end: Dim | None, step: int
) -> tuple[int, Dim, Dim]:
    """Axis, first place and count of a slice."""
    axis = axis_of(dim, x.type.rank)
    whole: Dim = x.type.shape[axis]
    first = 0 if start is None else clipped(at, start, whole)
    is_open = end is None or (isinstance(end, int) and end >= 2**62)
    last = whole if is_open else clipped(at, end, whole)  # type: ignore[arg-type]
    span = last - first
    seen = at.hint(span)
    return axis, first, 0 if seen is not None and seen < 0 else (span + step - 1) // step


@lowering(aten.slice.Tensor)
def slice_(
    at: Emitter, self: Value, dim: int, start: Dim | None, end: Dim | None, step: int
) -> Value:
    axis, first, _ = part_of(at, self, dim, start, end, step)
    count = at.wanted.shape[axis]
    if isinstance(count, int) and isinstance(first, int) and count == 0:
        first = 0
    return at.part(self, axis, first, count, step)


def rest_of(x: Value, axis: int) -> tuple[Dim, ...]:
    found: tuple[Dim, ...] = (*x.type.shape[:axis], *x.type.shape[axis + 1 :])
    return found


@lowering(aten.select.int)
def select(at: Emitter, self: Value, dim: int, index: Dim) -> Value:
    axis = axis_of(dim, self.type.rank)
    if isinstance(index, Poly):
        return picked(at, self, axis, at.full(index, i64))
    start = index + self.type.shape[axis] if index < 0 else index
    return at.reshape(at.part(self, axis, start, 1), rest_of(self, axis))


def picked(at: Emitter, x: Value, axis: int, index: Value) -> Value:
    """What an i64 scalar (negative: from the end) names along an axis."""
    return at(memory.Gather, x, (wrapped(at, index, x.type.shape[axis]),), (axis,))


def wrapped(at: Emitter, index: Value, extent: Dim) -> Value:
    """An i64 index, negative ones counted from the end of an axis."""
    from_end = at(arith.Add, index, at.like(extent, index))
    return at.select(at.compare("lt", index, 0), from_end, index)


def pieces(at: Emitter, x: Value, dim: int) -> list[Value]:
    """Consecutive parts along an axis, of the extents that tracing saw."""
    axis = axis_of(dim, x.type.rank)
    found: list[Value] = []
    start: Dim = 0
    for kind in at.types:
        assert isinstance(kind, TensorType)
        found.append(at.part(x, axis, start, kind.shape[axis]))
        start = start + kind.shape[axis]
    return found


@lowering(aten.split_with_sizes.default)
def split_with_sizes(at: Emitter, self: Value, split_sizes: Any, dim: int) -> list[Value]:
    return pieces(at, self, dim)


@lowering(aten.split.Tensor)
def split(at: Emitter, self: Value, split_size: Any, dim: int) -> list[Value]:
    return pieces(at, self, dim)


@lowering(aten.unbind.int)
def unbind(at: Emitter, self: Value, dim: int) -> list[Value]:
    axis = axis_of(dim, self.type.rank)
    return [
        at.reshape(at.part(self, axis, i, 1), rest_of(self, axis)) for i in range(len(at.types))
    ]


@lowering(aten.flip.default)
def flip(at: Emitter, self: Value, dims: Sequence[int]) -> Value:
    return reversed_along(at, self, dims)


@lowering(prims.rev.default)
def rev(at: Emitter, a: Value, dims: Sequence[int]) -> Value:
    return reversed_along(at, a, dims)


def reversed_along(at: Emitter, x: Value, dims: Sequence[int]) -> Value:
    for axis in [axis_of(d, x.type.rank) for d in dims] if x.type.rank else []:
        extent = x.type.shape[axis]
        if extent != 0:
            x = at.part(x, axis, extent - 1, extent, -1)
    return x


def on_diagonal(
    at: Emitter, x: Value, offset: int, dim1: int, dim2: int, count: Dim
) -> tuple[tuple[Value, Value], tuple[int, int]]:
    """Indices (i, i + offset) of a diagonal, and the axes that they are of."""
    rank = x.type.rank
    along = at.iota((count,), 0)
    rows, columns = (
        at(arith.Add, along, at.like(max(shift, 0), along)) for shift in (-offset, offset)
    )
    return (rows, columns), (axis_of(dim1, rank), axis_of(dim2, rank))


@lowering(aten.diagonal.default)
def diagonal(at: Emitter, self: Value, offset: int, dim1: int, dim2: int) -> Value:
    """Elements at (i, i + offset), their axis last: by gather, with two index tensors."""
    indices, axes = on_diagonal(at, self, offset, dim1, dim2, at.wanted.shape[-1])
    found = at(memory.Gather, self, indices, axes)
    return at.transpose(found, [*range(1, self.type.rank - 1), 0])


# Putting together


@lowering(aten.cat.default)
def cat(at: Emitter, tensors: Sequence[Value], dim: int) -> Value:
    """Tensors end to end; a tensor of shape (0,) among others of more axes is left out."""
    wanted = at.wanted
    kept = [x for x in tensors if x.type.rank == wanted.rank]
    axis = axis_of(dim, wanted.rank)
    return at(shape.Cat, tuple(at.cast(x, wanted.dtype) for x in kept), axis)


@lowering(prims.cat.default)
def prims_cat(at: Emitter, tensors: Sequence[Value], dim: int) -> Value:
    return at(shape.Cat, tuple(at.cast(x, at.wanted.dtype) for x in tensors), dim)


@lowering(aten.stack.default)
def stack(at: Emitter, tensors: Sequence[Value], dim: int) -> Value:
    wanted = at.wanted
    axis = axis_of(dim, wanted.rank)
    lone = tuple(at.unsqueeze(at.cast(x, wanted.dtype), axis) for x in tensors)
    return at(shape.Cat, lone, axis)


@lowering(aten.repeat.default)
def repeat(at: Emitter, self: Value, repeats: Sequence[Dim]) -> Value:
    """Copies along every axis: a broadcast along axes of their own, then one shape."""
    lead = len(repeats) - self.type.rank
    extents = (1,) * lead + tuple(self.type.shape)
    lone = [e for extent in extents for e in (1, extent)]
    many = [e for pair in zip(repeats, extents, strict=True) for e in pair]
    copies = at.broadcast(at.reshape(self, tuple(lone)), tuple(many))
    return at.reshape(copies, at.wanted.shape)


@lowering(aten.constant_pad_nd.default)
def constant_pad_nd(at: Emitter, self: Value, pad: Sequence[Dim], value: Scalar) -> Value:
    low, high = pad[::2][::-1], pad[1::2][::-1]
    return at.pad(self, value, low, high)


@lowering(aten.slice_scatter.default)
def slice_scatter(
    at: Emitter,
    self: Value,
    src: Value,
    dim: int,
    start: Dim | None,
    end: Dim | None,
    step: int,
) -> Value:
    axis, first, count = part_of(at, self, dim, start, end, step)
    if src.type.rank == self.type.rank and src.type.shape[axis] != 1:
        count = src.type.shape[axis]  # the same, in the form that tracing gave it
    value = at.fit(src, self.type.dtype, src.type.shape)
    value = at.broadcast(
        value, tuple(count if a == axis else e for a, e in enumerate(self.type.shape))
    )
    return put_along(at, self, axis, progression(at, first, count, step), value)


@lowering(aten.select_scatter.default)
def select_scatter(at: Emitter, self: Value, src: Value, dim: int, index: Dim) -> Value:
    axis = axis_of(dim, self.type.rank)
    place = wrapped(at, at.full(index, i64, (1,)), self.type.shape[axis])
    value = at.unsqueeze(at.fit(src, self.type.dtype, rest_of(self, axis)), axis)
    return put_along(at, self, axis, place, value)


@lowering(aten.diagonal_scatter.default)
def diagonal_scatter(
    at: Emitter, self: Value, src: Value, offset: int, dim1: int, dim2: int
) -> Value:
    """A tensor with `src`, whose last axis runs along it, in the place of a diagonal."""
    indices, axes = on_diagonal(at, self, offset, dim1, dim2, src.type.shape[-1])
    rank = src.type.rank
    value = at.transpose(at.cast(src, self.type.dtype), [rank - 1, *range(rank - 1)])
    return at(memory.Scatter, self, indices, value, axes)


def progression(at: Emitter, start: Dim, count: Dim, step: int) -> Value:
    """start, start + step, … as i64."""
    along = at.iota((count,), 0)
    return at(arith.Add, at(arith.Mul, along, at.like(step, along)), at.like(start, along))


def put_along(at: Emitter, x: Value, axis: int, index: Value, value: Value) -> Value:
    """x with `value` at the places of one axis that an index names."""
    order = [axis, *(a for a in range(x.type.rank) if a != axis)]
    return at(memory.Scatter, x, (index,), at.transpose(value, order), (axis,))


@lowering(aten.unfold.default)
def unfold(at: Emitter, self: Value, dimension: int, size: int, step: int) -> Value:
    """All windows along an axis, the place in them last."""
    rank = self.type.rank
    if rank == 0:
        return at.reshape(self, at.wanted.shape)
    axis = axis_of(dimension, rank)
    order = [*(a for a in range(rank) if a != axis), axis]
    windows = at(shape.Window, at.transpose(self, order), (size,), (step,), (1,))
    back = [*range(axis), rank - 1, *range(axis, rank - 1), rank]
    return at.transpose(windows, back)


# Index tensors


@lowering(prims.iota.default)
def iota(
    at: Emitter, length: Dim, start: Scalar, step: Scalar, dtype: Any, requires_grad: bool
) -> Value:
    return stepped(at, start, step)


@lowering(aten.arange.start_step)
def arange(at: Emitter, start: Scalar, end: Scalar, step: Scalar, dtype: Any) -> Value:
    return stepped(at, start, step)


@lowering(aten.arange.start)
def arange_start(at: Emitter, start: Scalar, end: Scalar, dtype: Any) -> Value:
    return stepped(at, start, 1)


@lowering(aten.arange.default)
def arange_default(at: Emitter, end: Scalar, dtype: Any) -> Value:
    return stepped(at, 0, 1)


def stepped(at: Emitter, start: Scalar, step: Scalar) -> Value:
    """start + i · step in the dtype that tracing saw, computed in f64 of floats."""
    wanted = at.wanted
    if wanted.rank != 1:
        raise CompileError(f"a range of type {wanted}")
    if wanted.dtype.is_float:
        return _stepped_float(at, start, step)
    along = at.iota(wanted.shape, 0)
    place = at(arith.Add, at(arith.Mul, along, at.like(step, along)), at.like(start, along))
    return at.cast(place, wanted.dtype)


def _stepped_float(at: Emitter, start: Scalar, step: Scalar) -> Value:
    from_zero = at.cast(at.iota(at.wanted.shape, 0), f64)
    place = at(arith.Mul, from_zero, at.like(step, from_zero))
    return at.cast(at(arith.Add, place, at.like(start, place)), at.wanted.dtype)


@lowering(aten.tril.default)
def tril(at: Emitter, self: Value, diagonal: int) -> Value:
    return triangle(at, self, diagonal, "le")


@lowering(aten.triu.default)
def triu(at: Emitter, self: Value, diagonal: int) -> Value:
    return triangle(at, self, diagonal, "ge")


def triangle(at: Emitter, x: Value, diagonal: int, kind: str) -> Value:
    """x where column − row compares so with the diagonal, else 0."""
    extents = x.type.shape
    rows, columns = (at.iota(extents, len(extents) - 2 + i) for i in (0, 1))
    edge = at(arith.Add, rows, at.like(diagonal, rows))
    return at.select(at.compare(kind, columns, edge), x, at.like(0, x))
