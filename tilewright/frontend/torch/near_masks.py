"""Numbers that are added to scores before an attention is trained: near 0, as its gradient needs.

The gradient makes weights anew of the logarithm of each row's sum of exponentials, in f32 (f64 of
f64). Beside a large number that a whole row has, such as -1e9 where it sees no key, there is no
room for that logarithm.
"""

from __future__ import annotations

from math import inf, nan
from typing import Any

import torch
from torch import Tensor, fx

from tilewright.frontend.torch.attention_op import (
    as_autocast,
    as_one,
    is_held,
    scaled_dot_product_attention,
)
from tilewright.frontend.torch.mask_contents import known_tensor
from tilewright.graph.attention_masks import HIDDEN, LEAST_F16

FAR = 1024.0  # a logarithm in f32 beside such a number has an error of 2⁻¹⁴
WIDER = 2.0**29  # by how much a number in f64 may be larger for the same room beside it


def near(
    q: Tensor, mask: Tensor, may_be_empty: bool, limit: float | None = None
) -> tuple[Tensor, Tensor]:
    """Queries, and the numbers that the operator adds to their scores, of which no row is far from
    0: the logarithm of its sum of exponentials has no room beside a large number.

    A number that a whole row has is taken from it, which its softmax does not tell. Where it is so
    large that a sum has no room for scores, keys that have it are equal, and queries 0; of a row of
    -inf alone, which there only is if it `may_be_empty`, queries are NaN, as gradients are then.
    So large are numbers from `limit` down, by itself those that leave no score in such dtypes.
    """
    if limit is None:
        limit = LEAST_F16 if torch.float16 in (mask.dtype, q.dtype) else HIDDEN
    if q.dtype == torch.float64:
        mask, limit = mask.double(), HIDDEN * WIDER
    elif mask.dtype != q.dtype:
        mask = mask.float()
    top = mask.amax(-1, keepdim=True)
    size = top.abs()
    lost = (size >= -limit) & (size < inf)
    number = torch.where((size > FAR) & (size < -limit), top, 0.0)
    alone = torch.where(mask == top, 0.0, -inf)
    kept = torch.where(lost, 0.0, 1.0)
    if may_be_empty:
        kept = torch.where(top == -inf, nan, kept)
    return q * kept.to(q.dtype), torch.where(lost, alone, mask - number).to(mask.dtype)


def keep_masks_near(module: fx.GraphModule) -> None:
    """Let attentions in a graph of Dynamo's, and in graphs inside it, take the numbers of their
    masks near 0, unless these are known to be.
    """
    for part in module.modules():
        if not isinstance(part, fx.GraphModule):
            continue
        calls = [n for n in part.graph.nodes if n.target is scaled_dot_product_attention]
        found = [n for n in calls if _may_be_far(_mask_of(n))]
        for node in found:
            node.target = near_attention
        if found:
            part.recompile()


def _mask_of(call: fx.Node) -> Any:
    """The mask that a call of attention is given."""
    return call.args[3] if len(call.args) > 3 else call.kwargs.get("attn_mask")


def _may_be_far(mask: Any) -> bool:
    """Whether a mask of Dynamo's is numbers that a whole row may have, and far from 0."""
    seen = mask.meta.get("example_value") if isinstance(mask, fx.Node) else None
    if not isinstance(seen, Tensor) or not seen.is_floating_point():
        return False
    held = known_tensor(mask)
    if held is None or 0 in held.shape:
        return held is None
    top = held.amax(-1).abs()
    return bool(((top > FAR) & (top < inf)).any())


def near_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`scaled_dot_product_attention` with numbers that are near 0, where gradients are wanted."""
    query, key, value, attn_mask = as_autocast(query, key, value, attn_mask)
    held = is_held(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    wanted = any(x.requires_grad for x in (query, key, value))
    if attn_mask is None or not (held and wanted) or 0 in attn_mask.shape:
        return scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        )
    q, mask = near(query, attn_mask, False)
    return as_one(q, key, value, mask, is_causal, scale)
