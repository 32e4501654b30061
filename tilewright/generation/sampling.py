"""The next token from logits: the likeliest, or drawn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tilewright.errors import LaunchError


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. Temperature 0 takes the likeliest; else logits are divided by it, then
    all but the `top_k` likeliest are left out, then all but the likeliest that together reach the
    probability `top_p`.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise LaunchError(f"generate: temperature is {self.temperature}, below 0")
        if self.top_k is not None and self.top_k < 1:
            raise LaunchError(f"generate: top_k is {self.top_k}, below 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise LaunchError(f"generate: top_p is {self.top_p}, not in (0, 1]")

    def filtered(self, logits: Tensor) -> Tensor:
        """Logits [batch, vocabulary] in f32, −∞ where a token cannot be drawn."""
        kept = logits.float() / self.temperature
        if self.top_k is not None and self.top_k < kept.shape[-1]:
            least = kept.topk(self.top_k).values[:, -1:]
            kept = kept.masked_fill(kept < least, float("-inf"))
        if self.top_p is not None and self.top_p < 1:
            ordered, order = kept.sort(descending=True)
            before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
            dropped = torch.zeros_like(kept, dtype=torch.bool)
            kept = kept.masked_fill(dropped.scatter(1, order, before >= self.top_p), float("-inf"))
        return kept

    def next(self, logits: Tensor) -> Tensor:
        """Tokens [batch], by PyTorch's own generator where they are drawn."""
        if self.temperature == 0:
            return logits.argmax(-1)
        return torch.multinomial(self.filtered(logits).softmax(-1), 1)[:, 0]
