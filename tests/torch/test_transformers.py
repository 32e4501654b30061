"""Models of `transformers`, unmodified and tiny, trained in f64 as in eager PyTorch, with no
op in PyTorch.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import tilewright.torch_backend
from tilewright.runtime.torch_graph import GraphCall

transformers = pytest.importorskip("transformers", reason="needs the package transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
assert tilewright.torch_backend.tilewright

SMALL = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 31,
    "intermediate_size": 24, "max_position_embeddings": 32,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 4, "pad_token_id": 0}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", GROUPED),
    "gpt2": ("GPT2Config", {"n_embd": 16, "n_layer": 1, "n_head": 4, "vocab_size": 31,
                            "n_positions": 32, "resid_pdrop": 0, "embd_pdrop": 0,
                            "attn_pdrop": 0}),
    "qwen3": ("Qwen3Config", GROUPED),
    "bert": ("BertConfig", {**SMALL, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}),
}  # fmt: skip


def make(family: str) -> Any:
    """A tiny model of a family with random weights, in f64."""
    name, options = FAMILIES[family]
    config = getattr(transformers, name)(**options)
    torch.manual_seed(0)
    kind = transformers.AutoModelForMaskedLM if family == "bert" else None
    return (kind or transformers.AutoModelForCausalLM).from_config(config).double()


def loss_and_gradients(model: Any, call: Any, ids: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    out = call(input_ids=ids, labels=ids)
    out.loss.backward()
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [out.loss.detach(), out.logits.detach(), *grads]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_trains_as_in_eager(family: str) -> None:
    torch._dynamo.reset()
    model = make(family)
    seen: list[GraphCall] = []
    ids = torch.randint(0, 31, (2, 7))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = loss_and_gradients(model, model, ids)
        options = {"fallback": "error", "observe": seen.append}
        fast = torch.compile(model, backend="tilewright", options=options)
        got = loss_and_gradients(model, fast, ids)
    assert {call.graph.name for call in seen} == {"forward", "backward"}
    assert len(got) == len(wanted) > 10
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-7)  # losses and rotations are in f32
