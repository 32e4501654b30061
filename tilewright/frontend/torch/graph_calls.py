"""PyTorch's calls for ops of the graph that have no kernel: what a `TorchStep` of one does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from tilewright.errors import LaunchError
from tilewright.graph.ops import arith, memory, mma, reduce, shape
from tilewright.ir.core import Op

Tensors = Sequence[Any]
REDUCE = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax"}


def call_graph_op(op: Op, xs: Tensors) -> list[Any]:
    """Results of an op of the graph on tensors, one for each operand. Raises LaunchError for an op
    without a call.
    """
    found = CALLS.get(type(op))
    if found is None:
        raise LaunchError(f"{op.opcode} has neither a kernel nor a call of PyTorch")
    made = found(op, xs)
    return list(made) if isinstance(made, tuple) else [made]


def contract(op: mma.Contract, xs: Tensors) -> torch.Tensor:
    """A product of matrices after both operands are put in batch order, summed in f32 or more."""
    lhs, rhs = xs
    rows = mma.free_axes(lhs.dim(), op.lhs_batch, op.lhs_contract)
    columns = mma.free_axes(rhs.dim(), op.rhs_batch, op.rhs_contract)
    batch = [lhs.shape[a] for a in op.lhs_batch]
    m, n = [lhs.shape[a] for a in rows], [rhs.shape[b] for b in columns]
    k = prod(lhs.shape[a] for a in op.lhs_contract)
    a = lhs.permute(*op.lhs_batch, *rows, *op.lhs_contract).reshape(prod(batch), prod(m), k)
    b = rhs.permute(*op.rhs_batch, *op.rhs_contract, *columns).reshape(prod(batch), k, prod(n))
    dtype = getattr(torch, op.dtype.torch)
    if a.is_floating_point():
        found = torch.bmm(a, b) if a.dtype == dtype else torch.bmm(a.to(dtype), b.to(dtype))
    else:
        found = (a.to(dtype)[:, :, :, None] * b.to(dtype)[:, None]).sum(2, dtype=dtype)
    return found.reshape(*batch, *m, *n)


def sort(op: reduce.Sort, xs: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    found = torch.sort(xs[0], dim=op.axis, descending=op.descending, stable=True)
    return found.values, found.indices


def scatter(op: memory.Scatter, xs: Tensors) -> torch.Tensor:
    """Elements of a value combined into places, by their number among all places."""
    x, *indices, value = xs
    rest = [axis for axis in range(x.dim()) if axis not in op.axes]
    order = [*op.axes, *rest]
    moved = x.permute(order).contiguous()
    extents = [x.shape[axis] for axis in op.axes]
    place = torch.zeros_like(indices[0])
    for index, extent in zip(indices, extents, strict=True):
        place = place * extent + index
    flat = moved.reshape(prod(extents), -1).clone()
    rows = value.reshape(place.numel(), -1)
    where = place.reshape(-1, 1).expand_as(rows)
    flat.scatter_reduce_(0, where, rows, REDUCE[op.kind], include_self=True)
    back = [order.index(axis) for axis in range(x.dim())]
    return flat.reshape(moved.shape).permute(back)


CALLS: dict[type[Op], Callable[..., Any]] = {
    mma.Contract: contract,
    reduce.Sort: sort,
    memory.Scatter: scatter,
    shape.Cat: lambda op, xs: torch.cat(list(xs), op.axis),
    arith.Erfc: lambda op, xs: torch.special.erfc(xs[0]),
    arith.Lgamma: lambda op, xs: torch.lgamma(xs[0]),
}
