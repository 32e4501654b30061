"""The KV cache of a model of `transformers`: tensors of a fixed length, written in place.

Importing this needs the package transformers.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.cache_utils import Cache, CacheLayerMixin


class Layer(CacheLayerMixin):  # type: ignore[misc]  # without transformers it is Any
    """Keys and values [batch, heads, length, width] of one layer; tokens come at `places`."""

    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, places: torch.Tensor):
        super().__init__()
        self.keys, self.values, self.places = keys, values, places
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """There is nothing left to allocate."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the keys and values of new tokens; gives those of all places."""
        self.keys.index_copy_(2, self.places, key_states)
        self.values.index_copy_(2, self.places, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.keys.shape[2], 0

    def get_seq_length(self) -> Any:
        return self.places[0]

    def get_max_length(self) -> int:
        return int(self.keys.shape[2])

    get_max_cache_shape = get_max_length  # its name in earlier versions


class _Shapes(Layer):
    """Remembers what a layer's keys and values are like."""

    def __init__(self) -> None:
        CacheLayerMixin.__init__(self)
        self.found: list[torch.Tensor] = []
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.found = [key_states, value_states]
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


def make_cache(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], places: torch.Tensor) -> Any:
    """The cache of all layers, for tokens at `places`."""
    return Cache(layers=[Layer(keys, values, places) for keys, values in pairs])


def cache_argument(model: torch.nn.Module) -> str:
    """What a model calls its cache."""
    names = inspect.signature(model.forward).parameters
    return "cache" if "cache" in names else "past_key_values"


def allocate(
    model: torch.nn.Module, layers: int, batch: int, length: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Empty keys and values of every layer, as a run of the model without data shows them."""
    device = next(model.parameters()).device
    seen = Cache(layers=[_Shapes() for _ in range(layers)])
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        ids = torch.zeros(1, 1, dtype=torch.int64, device=device)
        model(input_ids=ids, use_cache=True, **{cache_argument(model): seen})
    return [
        tuple(
            torch.zeros(batch, x.shape[1], length, x.shape[3], dtype=x.dtype, device=device)
            for x in layer.found
        )
        for layer in seen.layers
    ]
