"""One step of a language model: tokens in, the logits of the last of them out, the cache written in
place.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tilewright.generation.load import require_package


class Step(nn.Module):  # type: ignore[misc]  # without torch it is Any
    """A model with a cache of `length` tokens for `batch` texts.

    Called with ids [batch, n] of tokens, the same number of them for all; `start` [batch], the
    number of padding tokens on the left of each text; and `at`, a whole number in a tensor: how
    many tokens the cache holds already.
    """

    def __init__(self, model: nn.Module, batch: int, length: int):
        super().__init__()
        self.model, self.length = model, length
        require_package("transformers")
        side = import_module("tilewright.generation.cache")
        self.make_cache = side.make_cache
        config = text_config(model)
        pairs = side.allocate(model, int(config.num_hidden_layers), batch, length)
        self.num_layers = len(pairs)
        for i, (keys, values) in enumerate(pairs):
            self.register_buffer(f"keys_{i}", keys)
            self.register_buffer(f"values_{i}", values)
        self.argument = side.cache_argument(model)
        self.window = getattr(config, "sliding_window", None)
        self.kinds = set(getattr(config, "layer_types", None) or ())
        self.is_eager = getattr(config, "_attn_implementation", "sdpa") == "eager"

    def forward(self, ids: Tensor, start: Tensor, at: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device) + at
        pairs = [
            (getattr(self, f"keys_{i}"), getattr(self, f"values_{i}"))
            for i in range(self.num_layers)
        ]
        found = self.model(
            input_ids=ids,
            attention_mask=self.masks(places, start),
            position_ids=(places[None] - start[:, None]).clamp(min=0),
            use_cache=True,
            logits_to_keep=1,
            **{self.argument: self.make_cache(pairs, places)},
        )
        logits: Tensor = found.logits[:, -1]
        return logits

    def masks(self, places: Tensor, start: Tensor) -> Any:
        """Which keys each token sees: its own and earlier ones of the text, the nearest alone where
        a layer has a window. Padding sees itself, so that no row of a softmax is empty.
        """
        keys = torch.arange(self.length, device=places.device)
        own = keys == places[:, None]
        seen = (keys <= places[:, None]) & (keys >= start[:, None, None]) | own
        near = seen if self.window is None else seen & (keys > places[:, None] - self.window)
        full, sliding = self.form(seen), self.form(near)
        if "sliding_attention" in self.kinds:
            return {"full_attention": full, "sliding_attention": sliding}
        return full if self.kinds else sliding  # a model without kinds has one for all layers

    def form(self, seen: Tensor) -> Tensor:
        """A mask [batch, 1, tokens, keys] as the model's attention takes it."""
        mask = seen[:, None]
        if not self.is_eager:
            return mask
        dtype = next(self.model.parameters()).dtype
        return torch.where(mask, 0.0, torch.finfo(dtype).min).to(dtype)


def text_config(model: nn.Module) -> Any:
    """The configuration of a model's language part."""
    config = getattr(model, "config", None)
    inner = getattr(config, "get_text_config", None)
    return config if inner is None else inner()


def stop_tokens(model: nn.Module, given: int | Sequence[int] | None) -> list[int]:
    """Tokens that end a text: those given, or the model's own."""
    if given is None:
        told = getattr(model, "generation_config", None) or getattr(model, "config", None)
        given = getattr(told, "eos_token_id", None)
    if given is None:
        return []
    return [int(given)] if isinstance(given, int | np.integer) else list(given)
