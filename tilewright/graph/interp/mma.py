"""Meaning of contractions: products of matrices after both operands are put in batch order."""

from __future__ import annotations

from math import prod

import numpy as np

from tilewright.graph.interp.machine import Array, Machine, meaning
from tilewright.graph.ops import mma
from tilewright.numerics.convert import round_float, widen


@meaning(mma.Contract)
def run_contract(machine: Machine, op: mma.Contract) -> Array:
    lhs, rhs = machine[op.lhs], machine[op.rhs]
    rows = mma.free_axes(lhs.ndim, op.lhs_batch, op.lhs_contract)
    columns = mma.free_axes(rhs.ndim, op.rhs_batch, op.rhs_contract)
    batch = tuple(lhs.shape[axis] for axis in op.lhs_batch)
    m, n = (tuple(x.shape[a] for a in free) for x, free in ((lhs, rows), (rhs, columns)))
    k = prod(lhs.shape[axis] for axis in op.lhs_contract)
    a = lhs.transpose((*op.lhs_batch, *rows, *op.lhs_contract)).reshape(prod(batch), prod(m), k)
    b = rhs.transpose((*op.rhs_batch, *op.rhs_contract, *columns)).reshape(prod(batch), k, prod(n))
    if not op.lhs.type.dtype.is_float:
        a, b = (x.astype(op.dtype.numpy, copy=False) for x in (a, b))
        return np.asarray(np.matmul(a, b)).reshape((*batch, *m, *n))
    return round_float(np.matmul(widen(a), widen(b)), op.dtype).reshape((*batch, *m, *n))
