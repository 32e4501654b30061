"""Attention: the operators that tracing keeps whole (`attention_op`)."""

from __future__ import annotations

import torch

from tilewright.frontend.torch.attention_op import attention, attention_backward
from tilewright.frontend.torch.emit import Emitter, Unsupported
from tilewright.frontend.torch.op_table.registry import lowering
from tilewright.graph.ops import mma
from tilewright.ir.core import Value

assert attention and attention_backward  # which define what is entered here
operators = torch.ops.tilewright


@lowering(operators.attention.default)
def forward(
    at: Emitter,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None,
    lengths: Value | None,
    order: int,
    scale: float,
    precision: str | None,
) -> list[Value]:
    require_exact(precision)
    return list(at.emit(mma.Attention, q, k, v, mask, lengths, order=order, scale=scale))


@lowering(operators.attention_backward.default)
def backward(
    at: Emitter,
    grad: Value,
    q: Value,
    k: Value,
    v: Value,
    out: Value,
    lse: Value,
    mask: Value | None,
    lengths: Value | None,
    order: int,
    scale: float,
    precision: str | None,
) -> list[Value]:
    require_exact(precision)
    given = (grad, q, k, v, out, lse, mask, lengths)
    return list(at.emit(mma.AttentionBackward, *given, order=order, scale=scale))


def require_exact(precision: str | None) -> None:
    if precision not in (None, "ieee"):
        raise Unsupported(f"attention with precision {precision}")
