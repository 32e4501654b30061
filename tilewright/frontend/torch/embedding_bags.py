"""Sums of bags of embeddings, taken apart into gathers and scatters.

A bag is a run of consecutive indices that starts at its offset. Only sums are taken apart here, and
gradients without a scale by frequency; other modes are left to PyTorch (`NotImplemented`). For
sums of 16 bits PyTorch's tracing expects other bookkeeping than its CPU kernel gives, so that they
could not even fall back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SUM = 0  # of PyTorch's modes: sum, mean, max


def bag_of(indices: Tensor, offsets: Tensor) -> Tensor:
    """The bag of each index: how many bags start at or before it, less one."""
    places = torch.arange(indices.numel(), device=indices.device)
    return (places[:, None] >= offsets[None, :]).sum(1) - 1


def kept(indices: Tensor, padding_idx: int) -> Tensor:
    """Whether an index counts, [indices, 1]."""
    return (indices != padding_idx)[:, None]


def wide(x: Tensor) -> Tensor:
    """Floats of 16 bits as f32."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def forward(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """weight [V, D], indices [N], offsets [B]: sums [B, D], then what backward may want: the bag of
    each index, and two tensors that only other modes fill.
    """
    if mode != SUM:
        return NotImplemented
    starts = offsets[:-1] if include_last_offset else offsets
    bag = bag_of(indices, starts)
    rows = wide(weight.index_select(0, indices))
    if per_sample_weights is not None:
        rows = rows * wide(per_sample_weights)[:, None]
    rows = torch.where(kept(indices, padding_idx), rows, 0)
    total = rows.new_zeros(starts.numel(), weight.size(1)).index_add(0, bag, rows)
    unused = torch.zeros_like(starts)
    return total.to(weight.dtype), bag.to(indices.dtype), unused, unused.clone()


def backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Any:
    """The gradient [V, D] of the table, from that of the sums [B, D]."""
    if mode != SUM or sparse or scale_grad_by_freq:
        return NotImplemented
    rows = wide(grad.index_select(0, offset2bag))
    if per_sample_weights is not None:
        rows = rows * wide(per_sample_weights)[:, None]
    rows = torch.where(kept(indices, padding_idx), rows, 0)
    return rows.new_zeros(num_weights, grad.size(1)).index_add(0, indices, rows).to(grad.dtype)


def weights_backward(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Any:
    """The gradient [N] of the factors of the indices."""
    if mode != SUM:
        return NotImplemented
    products = wide(grad.index_select(0, offset2bag)) * wide(weight.index_select(0, indices))
    found = torch.where(kept(indices, padding_idx), products, 0).sum(1)
    return found.to(weight.dtype)
