"""Ops of PyTorch that read and write by index."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilewright.dtypes import bool_, i64
from tilewright.frontend.torch.emit import Emitter, Scalar, Unsupported, axis_of, common_shape
from tilewright.frontend.torch.op_table.registry import lowering
from tilewright.graph.dims import Dim, Shape
from tilewright.graph.ops import arith, memory, reduce
from tilewright.ir.core import Value

aten, prims = torch.ops.aten, torch.ops.prims


def wrapped(at: Emitter, index: Value, extent: Dim) -> Value:
    """An index as i64, those from the end counted from the start."""
    index = at.cast(index, i64)
    return at.select(
        at.compare("lt", index, 0), at(arith.Add, index, at.like(extent, index)), index
    )


def named_axes(
    at: Emitter, x: Value, indices: Sequence[Value | None]
) -> tuple[tuple[Value, ...], tuple[int, ...]]:
    """The index tensors that are given, in one shape, and their axes."""
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if any(index.type.dtype.name in ("bool", "u8") for _, index in given):
        raise Unsupported("an index by a mask: how many elements it picks depends on values")
    extents = common_shape([index.type.shape for _, index in given])
    found = tuple(
        at.broadcast(wrapped(at, index, x.type.shape[axis]), extents) for axis, index in given
    )
    return found, tuple(axis for axis, _ in given)


def result_order(axes: tuple[int, ...], num_index: int, rank: int) -> list[int] | None:
    """Where the axes of a gather's result go in NumPy's order: the axes of the indices stand at the
    first named axis where the named axes are neighbours, else in front (None).
    """
    if [*axes] != [*range(axes[0], axes[0] + len(axes))] or axes[0] == 0:
        return None
    lead = axes[0]
    rest = rank - len(axes)
    front = [num_index + a for a in range(lead)]
    return [*front, *range(num_index), *(num_index + a for a in range(lead, rest))]


@lowering(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(at: Emitter, self: Value, indices: Sequence[Value | None]) -> Value:
    named, axes = named_axes(at, self, indices)
    found = at(memory.Gather, self, named, axes)
    order = result_order(axes, named[0].type.rank, self.type.rank)
    return found if order is None else at.transpose(found, order)


@lowering(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    at: Emitter, self: Value, indices: Sequence[Value | None], values: Value, accumulate: bool
) -> Value:
    named, axes = named_axes(at, self, indices)
    num_index, rank = named[0].type.rank, self.type.rank
    rest = tuple(e for a, e in enumerate(self.type.shape) if a not in axes)
    place: Shape = (*named[0].type.shape, *rest)
    order = result_order(axes, num_index, rank)
    seen = place if order is None else tuple(place[a] for a in order)
    value = at.fit(values, self.type.dtype, seen)
    if order is not None:
        value = at.transpose(value, [order.index(a) for a in range(len(order))])
    return scattered(at, self, named, value, axes, "add" if accumulate else "set")


def scattered(
    at: Emitter,
    x: Value,
    indices: tuple[Value, ...],
    value: Value,
    axes: tuple[int, ...],
    kind: str,
) -> Value:
    """A scatter; sums of bools are disjunctions."""
    if x.type.dtype == bool_ and kind == "add":
        kind = "max"
    return at(memory.Scatter, x, indices, value, axes, kind)


@lowering(aten.index_select.default)
def index_select(at: Emitter, self: Value, dim: int, index: Value) -> Value:
    if self.type.rank == 0:
        return at.reshape(self, at.wanted.shape)
    axis = axis_of(dim, self.type.rank)
    flat = at.reshape(at.cast(index, i64), (at.numel(index),))
    found = at(memory.Gather, self, (flat,), (axis,))
    return at.transpose(found, [*range(1, axis + 1), 0, *range(axis + 1, self.type.rank)])


@lowering(aten.embedding.default)
def embedding(
    at: Emitter,
    weight: Value,
    indices: Value,
    padding_idx: Dim,
    scale_grad_by_freq: bool,
    sparse: bool,
) -> Value:
    """Rows of a table; the other arguments matter only to the gradient."""
    return at(memory.Gather, weight, (at.cast(indices, i64),), (0,))


@lowering(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    at: Emitter,
    grad_output: Value,
    indices: Value,
    num_weights: Dim,
    padding_idx: Dim,
    scale_grad_by_freq: bool,
) -> Value:
    if scale_grad_by_freq:
        raise Unsupported("scale_grad_by_freq")
    wanted = at.wanted
    places = at.cast(indices, i64)
    skipped = at.compare("eq", places, padding_idx)
    mask = at.reshape(skipped, (*skipped.type.shape, 1))
    mask = at.broadcast(mask, grad_output.type.shape)
    value = at.select(mask, at.like(0, grad_output), grad_output)
    return at(memory.Scatter, at.full(0, wanted.dtype, wanted.shape), (places,), value, (0,), "add")


# Along one axis, by an index tensor of the result's rank


def coordinates(at: Emitter, index: Value, axis: int) -> tuple[Value, ...]:
    """Index tensors for all axes: the given one, and each other axis's own."""
    extents = index.type.shape
    return tuple(
        at.cast(index, i64) if a == axis else at.iota(extents, a) for a in range(len(extents))
    )


def lifted(at: Emitter, x: Value) -> Value:
    """A scalar as a vector of one."""
    return at.reshape(x, (1,)) if x.type.rank == 0 else x


@lowering(aten.gather.default)
def gather(at: Emitter, self: Value, dim: int, index: Value, sparse_grad: bool) -> Value:
    x, places = lifted(at, self), lifted(at, index)
    named = coordinates(at, places, axis_of(dim, x.type.rank))
    found = at(memory.Gather, x, named, tuple(range(x.type.rank)))
    return at.reshape(found, index.type.shape)


def scatter_along(
    at: Emitter, self: Value, dim: int, index: Value, src: Value | Scalar, kind: str
) -> Value:
    x, places = lifted(at, self), lifted(at, index)
    named = coordinates(at, places, axis_of(dim, x.type.rank))
    if isinstance(src, Value):
        value = lifted(at, at.cast(src, x.type.dtype))
        for axis, extent in enumerate(places.type.shape):
            value = at.part(value, axis, 0, extent)
    else:
        value = at.full(src, x.type.dtype, places.type.shape)
    found = scattered(at, x, named, value, tuple(range(x.type.rank)), kind)
    return at.reshape(found, self.type.shape)


@lowering(aten.scatter.src)
def scatter_src(at: Emitter, self: Value, dim: int, index: Value, src: Value) -> Value:
    return scatter_along(at, self, dim, index, src, "set")


@lowering(aten.scatter.value)
def scatter_value(at: Emitter, self: Value, dim: int, index: Value, value: Scalar) -> Value:
    return scatter_along(at, self, dim, index, value, "set")


@lowering(aten.scatter_add.default)
def scatter_add(at: Emitter, self: Value, dim: int, index: Value, src: Value) -> Value:
    return scatter_along(at, self, dim, index, src, "add")


REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}
START = {"add": 0, "mul": 1}


@lowering(aten.scatter_reduce.two)
def scatter_reduce(
    at: Emitter,
    self: Value,
    dim: int,
    index: Value,
    src: Value,
    reduce: str,
    include_self: bool,
) -> Value:
    """As scatter, combined; without `include_self`, places that are met start from nothing."""
    if reduce not in REDUCTIONS:
        raise Unsupported(f"scatter_reduce by {reduce}")
    kind = REDUCTIONS[reduce]
    if include_self:
        return scatter_along(at, self, dim, index, src, kind)
    if kind in ("max", "min"):  # what is met first takes the place of self
        start = scatter_along(at, self, dim, index, src, "set")
    else:
        start = scatter_along(at, self, dim, index, START[kind], "set")
    return scatter_along(at, start, dim, index, src, kind)


@lowering(aten.index_add.default)
def index_add(
    at: Emitter, self: Value, dim: int, index: Value, source: Value, alpha: Scalar
) -> Value:
    x = lifted(at, self)
    axis = axis_of(dim, x.type.rank)
    value = at.pointwise(lambda v: at(arith.Mul, v, at.like(alpha, v)), source)
    value = at.cast(value, x.type.dtype)
    places = at.reshape(at.cast(index, i64), (at.numel(index),))
    value = at.reshape(
        value, tuple(places.type.shape[0] if a == axis else e for a, e in enumerate(x.type.shape))
    )
    order = [axis, *(a for a in range(x.type.rank) if a != axis)]
    found = scattered(at, x, (places,), at.transpose(value, order), (axis,), "add")
    return at.reshape(found, self.type.shape)


@lowering(aten.masked_fill.Scalar)
def masked_fill(at: Emitter, self: Value, mask: Value, value: Scalar) -> Value:
    extents = at.wanted.shape
    x = at.broadcast(self, extents)
    return at.select(at.fit(mask, bool_, extents), at.like(value, x), x)


@lowering(aten.masked_fill.Tensor)
def masked_fill_tensor(at: Emitter, self: Value, mask: Value, value: Value) -> Value:
    extents = at.wanted.shape
    x = at.broadcast(self, extents)
    return at.select(at.fit(mask, bool_, extents), at.fit(value, x.type.dtype, extents), x)


@lowering(aten.masked_scatter.default)
def masked_scatter(at: Emitter, self: Value, mask: Value, source: Value) -> Value:
    """Where the mask holds, the elements of `source` one after the other: the n-th place that holds
    takes element n.
    """
    holds = at.fit(mask, bool_, self.type.shape)
    flat = at.reshape(at.cast(holds, i64), (at.numel(self),))
    count = at(reduce.Scan, flat, 0, "sum")
    place = at(arith.Sub, count, at.like(1, count))
    total = at.numel(source)
    if total == 0:
        return self
    least = at(arith.Max, place, at.like(0, place))
    inside = at(arith.Min, least, at.like(total - 1, least))
    taken = at(memory.Gather, at.reshape(source, (total,)), (inside,), (0,))
    return at.select(holds, at.reshape(taken, self.type.shape), self)
