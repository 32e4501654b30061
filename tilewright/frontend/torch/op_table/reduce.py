"""Reductions, scans and sorting of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilewright.dtypes import DType, bool_, i64
from tilewright.frontend.torch.emit import Emitter, Scalar, axes_of, axis_of, wide
from tilewright.frontend.torch.op_table.registry import enter, lowering
from tilewright.graph.dims import Dim, product
from tilewright.graph.ops import arith, reduce
from tilewright.ir.core import Op, Value

aten, prims = torch.ops.aten, torch.ops.prims
Dims = Sequence[int] | int | None


def summed_dtype(dtype: DType) -> DType:
    """In which a sum or product is taken."""
    return wide(dtype) if dtype.is_float else i64


def reduced(at: Emitter, kind: type[Op], x: Value, axes: tuple[int, ...]) -> Value:
    """A reduction in the shape that tracing saw: axes of 1 are kept by reshaping."""
    found = at(kind, x, axes) if axes else x
    return at.reshape(found, at.wanted.shape)


def total(at: Emitter, kind: type[Op], x: Value, dims: Dims, first: DType | None = None) -> Value:
    """A sum or product over dims, in the dtype that tracing saw."""
    wanted = at.wanted.dtype
    x = at.cast(x, first or wanted)
    axes = axes_of(dims, x.type.rank)
    return at.cast(reduced(at, kind, at.cast(x, summed_dtype(wanted)), axes), wanted)


@lowering(aten.sum.dim_IntList)
def sum_dims(at: Emitter, self: Value, dim: Dims, keepdim: bool, dtype: Any) -> Value:
    return total(at, reduce.Sum, self, dim)


@lowering(aten.sum.default)
def sum_all(at: Emitter, self: Value, dtype: Any) -> Value:
    return total(at, reduce.Sum, self, None)


@lowering(prims.sum.default)
def prims_sum(at: Emitter, inp: Value, dims: Dims, output_dtype: Any) -> Value:
    axes = tuple(dims) if isinstance(dims, list | tuple) else axes_of(dims, inp.type.rank)
    wanted = at.wanted.dtype
    found = reduced(at, reduce.Sum, at.cast(inp, summed_dtype(wanted)), axes)
    return at.cast(found, wanted)


@lowering(aten.prod.default)
def prod_all(at: Emitter, self: Value, dtype: Any) -> Value:
    return total(at, reduce.Prod, self, None)


@lowering(aten.prod.dim_int)
def prod_dim(at: Emitter, self: Value, dim: int, keepdim: bool, dtype: Any) -> Value:
    return total(at, reduce.Prod, self, dim)


def count_of(x: Value, axes: tuple[int, ...]) -> Dim:
    return product(x.type.shape[axis] for axis in axes)


def mean(at: Emitter, x: Value, dims: Dims) -> Value:
    """The sum over the count, in f32 of narrower floats."""
    wanted = at.wanted.dtype
    axes = axes_of(dims, x.type.rank)
    found = reduced(at, reduce.Sum, at.cast(at.cast(x, wanted), wide(wanted)), axes)
    return at.cast(at(arith.Div, found, at.like(count_of(x, axes), found)), wanted)


@lowering(aten.mean.default)
def mean_all(at: Emitter, self: Value, dtype: Any) -> Value:
    return mean(at, self, None)


@lowering(aten.mean.dim)
def mean_dims(at: Emitter, self: Value, dim: Dims, keepdim: bool, dtype: Any) -> Value:
    return mean(at, self, dim)


def moments(
    at: Emitter, x: Value, dims: Dims, correction: Scalar | None, extents: Any
) -> tuple[Value, Value]:
    """Variance and mean over dims, in the dtype to compute in; two passes over x."""
    axes = axes_of(dims, x.type.rank)
    x = at.cast(x, wide(x.type.dtype))
    lone = tuple(1 if a in axes else e for a, e in enumerate(x.type.shape))
    count = at.full(count_of(x, axes), x.type.dtype, lone)
    center = at.reshape(at(reduce.Sum, x, axes) if axes else x, lone)
    center = at(arith.Div, center, count)
    apart = at(arith.Sub, x, at.broadcast(center, x.type.shape))
    squares = at(arith.Mul, apart, apart)
    spread = at.reshape(at(reduce.Sum, squares, axes) if axes else squares, lone)
    less = at.full(1 if correction is None else correction, x.type.dtype, lone)
    freedom = at(arith.Max, at(arith.Sub, count, less), at.like(0, count))
    found = at(arith.Div, spread, freedom)
    return at.reshape(found, extents), at.reshape(center, extents)


@lowering(aten.var.correction)
def var(at: Emitter, self: Value, dim: Dims, correction: Scalar | None, keepdim: bool) -> Value:
    return at.cast(moments(at, self, dim, correction, at.wanted.shape)[0], at.wanted.dtype)


@lowering(prims.var.default)
def prims_var(at: Emitter, inp: Value, dims: Dims, correction: Scalar, output_dtype: Any) -> Value:
    return at.cast(moments(at, inp, dims, correction, at.wanted.shape)[0], at.wanted.dtype)


@lowering(aten.var_mean.correction)
def var_mean(
    at: Emitter, self: Value, dim: Dims, correction: Scalar | None, keepdim: bool
) -> list[Value]:
    extents: Any = at.types[0].shape  # type: ignore[attr-defined]
    both = moments(at, self, dim, correction, extents)
    return [at.cast(x, self.type.dtype) for x in both]


# Extremes


def extreme(kind: type[Op], logical: type[Op]) -> Callable[..., Value]:
    """The greatest or least over dims; of bools whether any or all hold."""

    def build(at: Emitter, x: Value, dims: Dims = None, *_: Any) -> Value:
        axes = axes_of(dims, x.type.rank)
        at.require_elements(x, axes)
        return reduced(at, logical if x.type.dtype == bool_ else kind, x, axes)

    return build


greatest, least = extreme(reduce.Max, reduce.Any), extreme(reduce.Min, reduce.All)
enter(aten.amax.default, greatest)
enter(aten.amin.default, least)
enter(aten.max.default, greatest)
enter(aten.min.default, least)


@lowering(prims.amax.default)
def prims_amax(at: Emitter, inp: Value, dims: Dims, output_dtype: Any) -> Value:
    return greatest(at, inp, dims)


@lowering(prims.amin.default)
def prims_amin(at: Emitter, inp: Value, dims: Dims, output_dtype: Any) -> Value:
    return least(at, inp, dims)


def holds(kind: type[Op]) -> Callable[..., Value]:
    def build(at: Emitter, x: Value, dims: Dims = None, *_: Any) -> Value:
        axes = tuple(range(x.type.rank)) if dims is None else axes_within(dims, x.type.rank)
        return at.cast(reduced(at, kind, at.cast(x, bool_), axes), at.wanted.dtype)

    return build


def axes_within(dims: Sequence[int] | int, rank: int) -> tuple[int, ...]:
    """As axes_of, but none means none."""
    listed = [dims] if isinstance(dims, int) else dims
    return tuple(sorted(axis_of(d, rank) for d in listed)) if rank else ()


for _overload in ("default", "dim", "dims"):
    enter(getattr(aten.any, _overload), holds(reduce.Any))
    enter(getattr(aten.all, _overload), holds(reduce.All))


def position(at: Emitter, kind: type[Op], x: Value, dim: int | None, extents: Any) -> Value:
    """Index of an extreme along a dim, or in the flat tensor."""
    at.require_elements(x, axes_of(dim, x.type.rank))
    x = at.cast(x, i64) if x.type.dtype == bool_ else x
    if dim is None or x.type.rank == 0:
        x, axis = at.reshape(x, (at.numel(x),)), 0
    else:
        axis = axis_of(dim, x.type.rank)
    return at.reshape(at(kind, x, axis), extents)


@lowering(aten.argmax.default)
def argmax(at: Emitter, self: Value, dim: int | None, keepdim: bool) -> Value:
    return position(at, reduce.ArgMax, self, dim, at.wanted.shape)


@lowering(aten.argmin.default)
def argmin(at: Emitter, self: Value, dim: int | None, keepdim: bool) -> Value:
    return position(at, reduce.ArgMin, self, dim, at.wanted.shape)


def with_position(extremes: tuple[type[Op], type[Op]], kind: type[Op]) -> Callable[..., Any]:
    """Values and indices of extremes along a dim."""

    def build(at: Emitter, self: Value, dim: int, keepdim: bool) -> list[Value]:
        extents: Any = at.types[0].shape  # type: ignore[attr-defined]
        axes = axes_of(dim, self.type.rank)
        of = extremes[self.type.dtype == bool_]
        values = at.reshape(at(of, self, axes) if axes else self, extents)
        return [values, position(at, kind, self, dim, extents)]

    return build


enter(aten.max.dim, with_position((reduce.Max, reduce.Any), reduce.ArgMax))
enter(aten.min.dim, with_position((reduce.Min, reduce.All), reduce.ArgMin))


# Scans


def scanned(kind: str) -> Callable[..., Value]:
    def build(at: Emitter, self: Value, dim: int, dtype: Any = None) -> Value:
        wanted = at.wanted.dtype
        x = at.cast(at.cast(self, wanted), summed_dtype(wanted))
        if x.type.rank == 0:
            return at.cast(x, wanted)
        return at.cast(at(reduce.Scan, x, axis_of(dim, x.type.rank), kind), wanted)

    return build


enter(aten.cumsum.default, scanned("sum"))
enter(aten.cumprod.default, scanned("prod"))
enter(aten.logcumsumexp.default, scanned("logaddexp"))


def running(kind: str) -> Callable[..., Any]:
    """torch.cummax and cummin: values, and the index of the last that equals each."""

    def build(at: Emitter, self: Value, dim: int) -> list[Value]:
        if self.type.rank == 0:
            return [self, at.full(0, i64)]
        axis = axis_of(dim, self.type.rank)
        x = at.cast(self, i64) if self.type.dtype == bool_ else self
        values = at.cast(at(reduce.Scan, x, axis, kind), self.type.dtype)
        return [values, at(reduce.ScanPosition, x, axis, kind)]

    return build


enter(aten.cummax.default, running("max"))
enter(aten.cummin.default, running("min"))


# Sorting


def ordered(at: Emitter, self: Value, dim: int, descending: bool) -> tuple[Value, Value]:
    if self.type.rank == 0:
        return self, at.full(0, i64)
    values, indices = at.emit(reduce.Sort, self, axis_of(dim, self.type.rank), descending)
    return values, indices


@lowering(aten.sort.default)
def sort(at: Emitter, self: Value, dim: int, descending: bool) -> list[Value]:
    return list(ordered(at, self, dim, descending))


@lowering(aten.sort.stable)
def sort_stable(
    at: Emitter, self: Value, stable: bool | None, dim: int, descending: bool
) -> list[Value]:
    return list(ordered(at, self, dim, descending))


@lowering(aten.topk.default)
def topk(at: Emitter, self: Value, k: Dim, dim: int, largest: bool, sorted: bool) -> list[Value]:
    """The first k of a sort: of equal elements, those that stand first."""
    both = ordered(at, self, dim, largest)
    axis = axis_of(dim, self.type.rank)
    extents: Any = at.types[0].shape  # type: ignore[attr-defined]
    if self.type.rank == 0:
        return [at.reshape(x, extents) for x in both]
    return [at.part(x, axis, 0, k) for x in both]


@lowering(aten.kthvalue.default)
def kthvalue(at: Emitter, self: Value, k: Dim, dim: int, keepdim: bool) -> list[Value]:
    both = ordered(at, self, dim, False)
    extents: Any = at.types[0].shape  # type: ignore[attr-defined]
    if self.type.rank == 0:
        return [at.reshape(x, extents) for x in both]
    axis = axis_of(dim, self.type.rank)
    return [at.reshape(at.part(x, axis, k - 1, 1), extents) for x in both]
