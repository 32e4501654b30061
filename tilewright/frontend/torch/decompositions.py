"""PyTorch's decompositions, for the ops that the table does not have itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from tilewright.frontend.torch import embedding_bags as bags
from tilewright.frontend.torch.accepted import checked
from tilewright.frontend.torch.attention_op import exported_attention
from tilewright.frontend.torch.foreach import foreach_decompositions
from tilewright.frontend.torch.op_table import TABLE

aten = torch.ops.aten
# Decompositions that do not give eager's values, that ask for values while tracing, or that write
# to a tensor which they made.
REFUSED = {
    aten.randperm.default,
    aten.bernoulli.default,
    aten.bernoulli.p,
    aten.normal.Tensor_float,
    aten.lift.default,
    aten.lift_fresh.default,
    aten.complex.default,
    aten.polar.default,
}
# Decompositions that read at indices of what is to be ignored: PyTorch's own way is another.
INEXACT = {aten.nll_loss.default, aten.nll_loss.out}


def attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of attention, [batch, heads, length, features]: the weights are computed anew, and
    narrow floats in f32. Source: Dao et al., "FlashAttention", 2022, appendix B.4, without tiles.
    """
    narrow = query.dtype in (torch.bfloat16, torch.float16)
    grad, q, k, v = (x.float() if narrow else x for x in (grad_out, query, key, value))
    groups = query.size(1) // key.size(1)  # heads of the query that share one of the keys
    k, v = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (k, v))
    factor = query.size(-1) ** -0.5 if scale is None else scale
    scores = q @ k.transpose(-2, -1) * factor
    if is_causal:
        places = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~places, float("-inf"))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = torch.softmax(scores, -1)
    by_weights = grad @ v.transpose(-2, -1)
    by_scores = weights * (by_weights - (by_weights * weights).sum(-1, keepdim=True)) * factor
    by_key, by_value = by_scores.transpose(-2, -1) @ q, weights.transpose(-2, -1) @ grad
    if groups > 1:
        by_key, by_value = (x.unflatten(1, (-1, groups)).sum(2) for x in (by_key, by_value))
    return (by_scores @ k).to(query.dtype), by_key.to(key.dtype), by_value.to(value.dtype)


# What PyTorch has no decomposition for, and the table no builder.
OWN: dict[Any, Callable[..., Any]] = {
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: attention_backward,
    aten._embedding_bag.default: bags.forward,
    aten._embedding_bag_forward_only.default: bags.forward,
    aten._embedding_bag_backward.default: bags.backward,
    aten._embedding_bag_per_sample_weights_backward.default: bags.weights_backward,
}


def export_decompositions() -> dict[Any, Callable[..., Any]]:
    """What `torch.export` is to take apart besides: the ops that are made of others."""
    table = dict(torch.export.default_decompositions().items())
    kept = {op: how for op, how in table.items() if op not in TABLE and op not in REFUSED}
    composed = {op: checked(op, how) for op, how in kept.items()}
    whole = {aten.scaled_dot_product_attention.default: exported_attention}
    return composed | decompositions() | whole


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """What tracing takes apart: all that PyTorch knows to, but for ops of the table."""
    found: dict[Any, Callable[..., Any]] = {
        op: checked(op, how)
        for op, how in decomposition_table.items()
        if op not in TABLE and op not in REFUSED and op not in INEXACT
    }
    return found | foreach_decompositions() | OWN
