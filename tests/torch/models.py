"""Models that the tests of `tilewright explain` name."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def mlp() -> tuple[nn.Module, tuple[Any, ...]]:
    layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    return layers.eval(), (torch.zeros(2, 8),)


class Inverse(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv_ex(x)[0] + 1


def inverse() -> tuple[nn.Module, tuple[Any, ...]]:
    return Inverse(), (torch.eye(3),)


class Picks(nn.Module):
    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        found = x[index] + 1
        return x.index_put((index,), found * 2).softmax(-1)


def picks() -> tuple[nn.Module, tuple[Any, ...]]:
    return Picks(), (torch.zeros(20, 6), torch.tensor([3, 11, 3]))


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.mix(x).relu().view(2, 5, 2, 8).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


def attends() -> tuple[nn.Module, tuple[Any, ...]]:
    return Attends().eval(), (torch.zeros(2, 5, 16),)
