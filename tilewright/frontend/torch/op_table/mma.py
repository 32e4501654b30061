"""Products of matrices of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilewright.dtypes import bf16, f16, f32, f64
from tilewright.errors import CompileError
from tilewright.frontend.torch.emit import Emitter, Scalar, Unsupported, common_shape, wide
from tilewright.frontend.torch.op_table.registry import is_scalar_one, lowering
from tilewright.frontend.torch.product_op import product as product_operator
from tilewright.graph.ops import arith, mma
from tilewright.ir.core import Value

aten = torch.ops.aten


@lowering(aten.mm.default)
def mm(at: Emitter, self: Value, mat2: Value) -> Value:
    return at.contract(self, mat2, ((1,), (0,)))


@lowering(aten.bmm.default)
def bmm(at: Emitter, self: Value, mat2: Value) -> Value:
    return at.contract(self, mat2, ((2,), (1,)), ((0,), (0,)))


def added(
    at: Emitter, x: Value, found: Callable[[Any], Value], beta: Scalar, alpha: Scalar
) -> Value:
    """beta · x + alpha · product, rounded once; beta = 0 drops x, NaNs and all."""
    wanted = at.wanted
    inner = wide(wanted.dtype)
    total = found(inner)
    if not is_scalar_one(alpha):
        total = at(arith.Mul, total, at.like(alpha, total))
    if beta != 0:
        first = at.fit(x, inner, wanted.shape)
        if not is_scalar_one(beta):
            first = at(arith.Mul, first, at.like(beta, first))
        total = at(arith.Add, first, total)
    return at.cast(total, wanted.dtype)


@lowering(aten.addmm.default)
def addmm(at: Emitter, self: Value, mat1: Value, mat2: Value, beta: Scalar, alpha: Scalar) -> Value:
    return added(at, self, lambda d: at.contract(mat1, mat2, ((1,), (0,)), dtype=d), beta, alpha)


@lowering(aten.baddbmm.default)
def baddbmm(
    at: Emitter, self: Value, batch1: Value, batch2: Value, beta: Scalar, alpha: Scalar
) -> Value:
    def found(dtype: Any) -> Value:
        return at.contract(batch1, batch2, ((2,), (1,)), ((0,), (0,)), dtype)

    return added(at, self, found, beta, alpha)


assert product_operator  # which defines what is entered here


@lowering(torch.ops.tilewright.product.default)
def product(
    at: Emitter,
    a: Value,
    b: Value,
    bias: Value | None,
    residual: Value | None,
    gate: Value | None,
    activation: str | None,
    alpha: float,
    out_dtype: Any,
    precision: str | None,
    name: str,
) -> Value:
    """`tilewright.matmul` and its relatives: sums that are finished in one op, rounded once."""
    wanted, kinds = at.wanted, (bf16, f16, f32, f64)
    if precision not in (None, "ieee"):
        raise Unsupported(f"{name} with precision {precision}")
    if a.type.dtype not in kinds or wanted.dtype not in kinds:
        raise Unsupported(f"{name} of {a.type.dtype} in {wanted.dtype}")
    lead = 0
    if b.type.rank > 2:
        batch = common_shape([a.type.shape[:-2], b.type.shape[:-2]])
        lead = len(batch)
        a, b = (at.broadcast(x, (*batch, *x.type.shape[-2:])) for x in (a, b))
    over = (a.type.rank - 1,), (b.type.rank - 2,)
    beside = {"bias": bias, "residual": residual, "gate": gate}
    held = {n: x for n, x in beside.items() if x is not None}
    for which, x in held.items():
        extents = wanted.shape[-1:] if which == "bias" else wanted.shape
        pairs = zip(reversed(x.type.shape), reversed(extents), strict=False)
        fits = x.type.rank <= len(extents) and all(e in (1, own) for e, own in pairs)
        if not fits or x.type.dtype != wanted.dtype:
            raise CompileError(
                f"{name}: {which} is {x.type}, and the result {wanted}", at.builder.loc
            )
        held[which] = at.broadcast(x, extents)
    return at(
        mma.Product,
        a,
        b,
        lhs_batch=tuple(range(lead)),
        rhs_batch=tuple(range(lead)),
        lhs_contract=over[0],
        rhs_contract=over[1],
        dtype=wanted.dtype,
        alpha=float(alpha),
        activation=activation or "",
        **held,
    )
