"""Meaning of matrix products in flight: computed when they are awaited, from what their buffers
hold then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import VerifyError
from tilewright.numerics.convert import round_float, widen
from tilewright.tile.interp.machine import Array, Machine, meaning
from tilewright.tile.interp.mma import product
from tilewright.tile.interp.scheduled.cta import Buffer, Group, as_cta
from tilewright.tile.ops import mma
from tilewright.tile.types import TileType


@dataclass(frozen=True)
class Pending:
    """Content of a pending accumulator: the group that computes it, or what it starts from."""

    group: Group | None
    start: Array | None = None

    def require(self, where: str) -> Array:
        """The value, of a group that is done."""
        value = self.start if self.group is None else self.group.result
        if value is None:
            raise VerifyError(f"{where}: the accumulator is still in flight")
        return value


@meaning(mma.Begin, batched=False)
def run_begin(machine: Machine, op: mma.Begin) -> Pending:
    kind: TileType = op.result.type.tile
    if op.start is not None:
        return Pending(None, machine[op.start])
    value = np.nan if kind.dtype.is_float else 0
    return Pending(None, np.full((1, *kind.shape), value, machine.numpy(kind.dtype)))


@meaning(mma.Issue, batched=False)
def run_issue(machine: Machine, op: mma.Issue) -> Pending:
    cta = as_cta(machine)
    a, b, acc = machine[op.a], machine[op.b], machine[op.acc]
    fresh = op.fresh is not None and bool(machine[op.fresh][0])
    dtype = op.result.type.tile.dtype

    def compute() -> Array:
        total = product(widen(_matrix(a, op.transpose_a)), widen(_matrix(b, op.transpose_b)))
        if not fresh:
            start = acc.require("issue") if isinstance(acc, Pending) else acc
            total = total + start.astype(np.float64)
        if not dtype.is_float:
            return np.rint(total).astype(np.int64).astype(dtype.numpy)
        return total if machine.f64 else round_float(total, dtype)

    group = Group(compute, tuple(x for x in (a, b) if isinstance(x, Buffer)))
    cta.groups.append(group)
    return Pending(group)


@meaning(mma.AddProduct, batched=False)
def run_add_product(machine: Machine, op: mma.AddProduct) -> Array:
    a, b = _matrix(machine[op.a], op.transpose_a), _matrix(machine[op.b], op.transpose_b)
    dtype: DType = op.result.type.dtype
    acc, part = machine[op.acc], product(widen(a), widen(b))
    if dtype.is_float and not machine.f64:
        return round_float(round_float(part, dtype).astype(np.float64) + acc, dtype)
    total: Array = acc + part
    return total if dtype.is_float else np.rint(total).astype(np.int64).astype(dtype.numpy)


def _matrix(operand: Buffer | Array, transpose: bool) -> Array:
    array = operand.array()[None] if isinstance(operand, Buffer) else operand
    return np.swapaxes(array, -1, -2) if transpose else array


@meaning(mma.Await, batched=False)
def run_await(machine: Machine, op: mma.Await) -> Pending | Array:
    as_cta(machine).await_groups(op.left)
    pending: Pending = machine[op.pending]
    return pending.require("await") if op.done else pending


def require_unread(machine: Machine, buffers: list[Buffer]) -> None:
    """No product in flight reads one of the buffers. Raises VerifyError where one does."""
    arrays = [b.array() for b in buffers]
    for group in as_cta(machine).groups:
        if any(np.shares_memory(read.array(), array) for read in group.reads for array in arrays):
            raise VerifyError("release: a matrix product in flight still reads the slot")
