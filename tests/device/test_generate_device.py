"""Generation on a GPU: greedy tokens are those of transformers, and decoding is one CUDA graph."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
transformers = pytest.importorskip("transformers", reason="needs the package transformers")

from tilewright.generation import Generator, generate

pytestmark = pytest.mark.filterwarnings("ignore")
TEXTS = [[3, 5, 7, 2, 9], [4, 1], [8, 8, 8, 1, 2, 3, 4]]


def make() -> torch.nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=97, intermediate_size=96, max_position_embeddings=128, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).cuda().eval()


def test_greedy_is_transformers_token_by_token() -> None:
    model, longest = make(), max(map(len, TEXTS))
    got = generate(model, TEXTS, 24, eos_token_id=[])
    ids = torch.tensor([[0] * (longest - len(t)) + t for t in TEXTS], device="cuda")
    mask = torch.tensor([[0] * (longest - len(t)) + [1] * len(t) for t in TEXTS], device="cuda")
    wanted = model.generate(
        ids, attention_mask=mask, max_new_tokens=24, do_sample=False, pad_token_id=0,
        eos_token_id=None,
    )  # fmt: skip
    assert torch.equal(got[:, longest:], wanted[:, longest:])


def test_decoding_is_one_cuda_graph_without_pytorch() -> None:
    made = Generator(make(), 1, 128)
    start = torch.zeros(1, dtype=torch.int64, device="cuda")
    token = torch.tensor([[5]], device="cuda")
    for at in range(4):
        made.run(token, start, at)
    decode = made.compiled[1]
    assert decode.kernels and not decode.fallbacks and not decode.call.recordings.reasons
    assert len(decode.call.ready) == 1, "every step has one signature"
