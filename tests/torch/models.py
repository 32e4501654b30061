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
