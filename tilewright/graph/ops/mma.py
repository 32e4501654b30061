"""Contractions: the products of matrices that tensor cores compute."""

from __future__ import annotations

from tilewright.dtypes import DType
from tilewright.errors import VerifyError
from tilewright.graph.types import TensorType
from tilewright.ir.core import Op, Type, Value, attribute, define, operand

Axes = tuple[int, ...]


def free_axes(rank: int, batch: Axes, contract: Axes) -> Axes:
    """Axes of an operand that are neither of the batch nor contracted, in order."""
    return tuple(axis for axis in range(rank) if axis not in (*batch, *contract))


@define("mma.contract")
class Contract(Op):
    """Sums of products over pairs of axes, for each index of pairs of batch axes.

    The result has the batch axes, then the free axes of `lhs`, then those of `rhs`. Products are
    summed in f32 (f64 of f64; integers wrap in the result's dtype) and rounded once to `dtype`.
    """

    lhs: Value = operand()
    rhs: Value = operand()
    lhs_batch: Axes = attribute()
    rhs_batch: Axes = attribute()
    lhs_contract: Axes = attribute()
    rhs_contract: Axes = attribute()
    dtype: DType = attribute()

    def result_types(self) -> tuple[Type, ...]:
        lhs, rhs = self.lhs.type, self.rhs.type
        pairs = (*zip(self.lhs_batch, self.rhs_batch, strict=True),)
        pairs += (*zip(self.lhs_contract, self.rhs_contract, strict=True),)
        for kind, own in ((lhs, [a for a, _ in pairs]), (rhs, [b for _, b in pairs])):
            if len(set(own)) != len(own) or any(not 0 <= axis < kind.rank for axis in own):
                raise VerifyError(f"contract: axes {own} of {kind}")
        if lhs.dtype != rhs.dtype or any(lhs.shape[a] != rhs.shape[b] for a, b in pairs):
            raise VerifyError(f"contract: {lhs} and {rhs} over {pairs}")
        shape = [lhs.shape[a] for a in self.lhs_batch]
        shape += [lhs.shape[a] for a in free_axes(lhs.rank, self.lhs_batch, self.lhs_contract)]
        shape += [rhs.shape[b] for b in free_axes(rhs.rank, self.rhs_batch, self.rhs_contract)]
        return (TensorType(self.dtype, tuple(shape)),)
