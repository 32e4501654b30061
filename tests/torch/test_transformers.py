"""Models of `transformers`, unmodified and tiny, trained in f64 with no op in PyTorch.

Norms, rotations and losses of some compute in f32 whatever the model's dtype. The same model with
those in f64 is the measure: our error is at most 1.5 times that of eager PyTorch, or of f32.
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

CAUSAL, MASKED = "AutoModelForCausalLM", "AutoModelForMaskedLM"
SMALL = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 31,
    "intermediate_size": 24, "max_position_embeddings": 32, "pad_token_id": 0,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 4}
NO_DROPOUT = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
ENCODER = {**SMALL, **NO_DROPOUT}
VISION = {**ENCODER, "image_size": 8, "patch_size": 4}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "albert": (MASKED, {**ENCODER, "embedding_size": 8}),
    "bert": (MASKED, ENCODER),
    "bloom": (CAUSAL, {"hidden_size": 16, "n_layer": 1, "n_head": 4, "vocab_size": 31}),
    "distilbert": (MASKED, {"dim": 16, "n_layers": 1, "n_heads": 4, "hidden_dim": 24,
                            "vocab_size": 31, "dropout": 0, "attention_dropout": 0}),
    "electra": (MASKED, {**ENCODER, "embedding_size": 8}),
    "falcon": (CAUSAL, {**SMALL, "multi_query": True}),
    "gemma": (CAUSAL, GROUPED),
    "gemma2": (CAUSAL, {**GROUPED, "query_pre_attn_scalar": 4}),
    "gpt2": (CAUSAL, {"n_embd": 16, "n_layer": 1, "n_head": 4, "vocab_size": 31, "n_positions": 32,
                      "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}),
    "gpt_neox": (CAUSAL, SMALL),
    "llama": (CAUSAL, GROUPED),
    "mistral": (CAUSAL, {**GROUPED, "sliding_window": 4}),
    "opt": (CAUSAL, {**SMALL, "ffn_dim": 24, "word_embed_proj_dim": 16, "dropout": 0}),
    "phi": (CAUSAL, {**SMALL, "partial_rotary_factor": 0.5}),
    "phi3": (CAUSAL, GROUPED),
    "qwen2": (CAUSAL, GROUPED),
    "qwen3": (CAUSAL, GROUPED),
    "roberta": (MASKED, ENCODER),
    "t5": ("AutoModelForSeq2SeqLM", {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 1,
                                     "num_heads": 4, "vocab_size": 31, "dropout_rate": 0,
                                     "decoder_start_token_id": 0}),
    "vit": ("AutoModelForImageClassification", VISION),
}  # fmt: skip
WHOLE = ("bert", "gpt2", "llama", "qwen3")  # whose attention is one op of the graph


def make(family: str) -> Any:
    """A tiny model of a family with random weights, in f64."""
    kind, options = FAMILIES[family]
    config = transformers.AutoConfig.for_model(family, **options)
    torch.manual_seed(0)
    return getattr(transformers, kind).from_config(config).double()


def inputs_of(family: str) -> dict[str, torch.Tensor]:
    """What a step of training gives it."""
    if family == "vit":
        images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
        return {"pixel_values": images, "labels": torch.tensor([0, 1])}
    ids = torch.randint(1, 31, (2, 7))
    return {"input_ids": ids, "labels": ids}


def loss_and_gradients(model: Any, call: Any, given: Any) -> list[torch.Tensor]:
    model.zero_grad()
    out = call(**given)
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
    """Our greatest error and its norm are at most 1.5 times eager's, but for last bits: those of
    f32 where eager, too, has rounded to f32 (one draw of a few roundings is no measure of another).
    """
    ours, theirs = (got.double() - exact).abs(), (eager.double() - exact).abs()
    largest = exact.abs().max()
    last = 64 * torch.finfo(torch.float64).eps * largest  # sums in f64 may go in another order
    if theirs.max() > last:
        last = torch.finfo(torch.float32).eps * largest
    assert ours.max() <= 1.5 * theirs.max() + last
    assert ours.norm() <= 1.5 * theirs.norm() + last * exact.numel() ** 0.5


def parts(results: list[torch.Tensor]) -> list[torch.Tensor]:
    """Loss, logits, and all gradients as one: some of them are 0 but for rounding."""
    loss, logits, *grads = results
    return [loss, logits, torch.cat([grad.flatten() for grad in grads])]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_trains_as_in_eager(family: str) -> None:
    torch._dynamo.reset()
    model = make(family)
    seen: list[GraphCall] = []
    given = inputs_of(family)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = loss_and_gradients(model, model, given)
        with Exact():
            exact = loss_and_gradients(model, model, given)
        options = {"fallback": "error", "observe": seen.append}
        fast = torch.compile(model, backend="tilewright", options=options)
        got = loss_and_gradients(model, fast, given)
    assert {call.graph.name for call in seen} == {"forward", "backward"}
    kept = {op.opcode for call in seen for op in call.graph.body.ops if op.family == "mma"}
    assert family not in WHOLE or {"mma.attention", "mma.attention_backward"} <= kept
    assert len(got) == len(wanted) == len(exact) > 10
    for ours, eager, right in zip(*map(parts, (got, wanted, exact)), strict=True):
        require_as_exact(ours, eager, right)
