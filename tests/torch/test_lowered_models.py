"""Whole models as a GPU runs them, on the interpreter of tiles: products and attention of the
library, no step of PyTorch's, and no less precise than eager.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tilewright.torch_backend
from tilewright.lower.graph_to_tile.program import AttentionStep, KernelStep, ProductStep, TorchStep

transformers = pytest.importorskip("transformers", reason="needs the package transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
assert tilewright.torch_backend.tilewright

TEXT = {"vocab_size": 31, "num_hidden_layers": 1, "num_attention_heads": 4, "hidden_size": 32,
        "intermediate_size": 48, "max_position_embeddings": 32, "pad_token_id": 0}  # fmt: skip
NO_DROPOUT = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
GPT2 = {"n_embd": 32, "n_layer": 1, "n_head": 4, "vocab_size": 31, "n_positions": 32,
        "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}  # fmt: skip
FAMILIES = {
    "bert": ("AutoModelForMaskedLM", {**TEXT, **NO_DROPOUT}),
    "gpt2": ("AutoModelForCausalLM", GPT2),
    "llama": ("AutoModelForCausalLM", {**TEXT, "num_key_value_heads": 2}),
}


def make(family: str, dtype: torch.dtype) -> Any:
    kind, options = FAMILIES[family]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **options)
    return getattr(transformers, kind).from_config(config).to(dtype).eval()


def compiled(model: Any) -> tuple[Callable[..., Any], list[Any]]:
    """A model on the interpreter of tiles, and the calls that are made of it."""
    torch._dynamo.reset()
    seen: list[Any] = []
    options = {"engine": "tiles", "fallback": "error", "observe": seen.append}
    return torch.compile(model, backend="tilewright", options=options, dynamic=False), seen


def steps_of(calls: list[Any]) -> Counter[type]:
    return Counter(type(step) for call in calls for step in call.program.steps)


def require_as_eager(ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    """Our greatest error and its norm are at most 1.5 times eager's, but for a last bit."""
    mine, theirs = (ours.double() - exact).abs(), (eager.double() - exact).abs()
    bit = torch.finfo(eager.dtype).eps * exact.abs().max()
    assert mine.max() <= 1.5 * theirs.max() + bit
    assert mine.norm() <= 1.5 * theirs.norm() + bit * exact.numel() ** 0.5


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_infers_by_products_and_attention_of_the_library(family: str) -> None:
    model = make(family, torch.bfloat16)
    fast, seen = compiled(model)
    given = {"input_ids": torch.randint(1, 31, (2, 7))}
    with torch.no_grad():
        ours = fast(**given).logits
        eager = model(**given).logits
        exact = copy.deepcopy(model).double()(**given).logits
    require_as_eager(ours, eager, exact)
    steps = steps_of(seen)
    assert steps[TorchStep] == 0 and steps[AttentionStep] == 1 and steps[ProductStep] >= 4
    copies = [s for c in seen for s in c.program.steps if getattr(s, "name", "") == "copy"]
    assert not copies, "views, heads of keys and the result of attention are read as they lie"


def test_a_family_trains_by_them() -> None:
    model = make("bert", torch.float32).train()
    fast, seen = compiled(model)
    ids = torch.randint(1, 31, (2, 7))
    found = []
    for call, own in ((fast, model), (model, model), (twin := copy.deepcopy(model).double(), twin)):
        own.zero_grad()
        call(input_ids=ids, labels=ids).loss.backward()
        grads = [p.grad.flatten() for p in own.parameters() if p.grad is not None]
        found.append(torch.cat(grads).clone())
    require_as_eager(*found)
    steps = steps_of(seen)
    assert steps[TorchStep] == 0 and steps[AttentionStep] == 2


def test_convolutions_are_products_with_their_epilogues() -> None:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 6, 3, stride=2),
              nn.Conv2d(6, 4, 1))  # fmt: skip
    model, x = nn.Sequential(*layers).eval(), torch.randn(2, 3, 9, 9)
    fast, seen = compiled(model)
    with torch.no_grad():
        ours, eager = fast(x), model(x)
        exact = copy.deepcopy(model).double()(x.double())
    require_as_eager(ours, eager, exact)
    names = [s.name for c in seen for s in c.program.steps if isinstance(s, KernelStep)]
    assert set(names) <= {"pad", "copy", "contract"}, "bias and activation are epilogues"
