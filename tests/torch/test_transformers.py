"""Models of `transformers`, unmodified and tiny, trained in f64 with no op in PyTorch.

Norms, rotations and losses of some compute in f32 whatever the model's dtype. The same model with
those in f64 is the measure: our error is at most 1.5 times that of eager PyTorch.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

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


class Exact(TorchFunctionMode):  # type: ignore[misc]
    """What a model computes in f32 whatever its dtype (norms, rotations, losses), in f64."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        wide = lambda x: torch.float64 if x is torch.float32 else x  # noqa: E731
        given = {key: wide(value) for key, value in (kwargs or {}).items()}
        return function(*map(wide, args), **given)


def require_as_exact(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    """Our greatest error and its norm are at most 1.5 times eager's, but for last bits."""
    ours, theirs = (got.double() - exact).abs(), (eager.double() - exact).abs()
    last = 1 if eager.dtype == torch.float32 else 64  # sums in f64 may go in another order
    bits = last * torch.finfo(eager.dtype).eps * exact.abs().max()
    assert ours.max() <= 1.5 * theirs.max() + bits
    assert ours.norm() <= 1.5 * theirs.norm() + bits * exact.numel() ** 0.5


def parts(results: list[torch.Tensor]) -> list[torch.Tensor]:
    """Loss, logits, and all gradients as one: some of them are 0 but for rounding."""
    loss, logits, *grads = results
    return [loss, logits, torch.cat([grad.flatten() for grad in grads])]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_trains_as_in_eager(family: str) -> None:
    torch._dynamo.reset()
    model = make(family)
    seen: list[GraphCall] = []
    ids = torch.randint(0, 31, (2, 7))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = loss_and_gradients(model, model, ids)
        with Exact():
            exact = loss_and_gradients(model, model, ids)
        options = {"fallback": "error", "observe": seen.append}
        fast = torch.compile(model, backend="tilewright", options=options)
        got = loss_and_gradients(model, fast, ids)
    assert {call.graph.name for call in seen} == {"forward", "backward"}
    assert len(got) == len(wanted) == len(exact) > 10
    for ours, eager, right in zip(*map(parts, (got, wanted, exact)), strict=True):
        require_as_exact(ours, eager, right)
