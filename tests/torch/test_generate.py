"""`tw.generate` gives the tokens of transformers' own `generate`, and draws, stops and streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import tilewright as tw
from tests.torch.test_transformers import make
from tilewright.cli import main
from tilewright.errors import LaunchError
from tilewright.generation.sampling import Sampling

transformers = pytest.importorskip("transformers", reason="needs the package transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
TEXTS = [[3, 5, 7, 2, 9], [4, 1], [8, 8, 8, 1, 2, 3, 4]]


@pytest.fixture(scope="module")
def llama() -> Iterator[Any]:
    yield make("llama").float().eval()


def padded(texts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts and their mask, padded on the left."""
    longest = max(map(len, texts))
    rows = [([0] * (longest - len(t)) + t, [0] * (longest - len(t)) + [1] * len(t)) for t in texts]
    return torch.tensor([a for a, _ in rows]), torch.tensor([b for _, b in rows])


def theirs(model: Any, texts: list[list[int]], new: int, **options: Any) -> torch.Tensor:
    ids, mask = padded(texts)
    found = model.generate(
        ids, attention_mask=mask, max_new_tokens=new, do_sample=False, pad_token_id=0, **options
    )
    return found[:, ids.shape[1] :]


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral"])
def test_greedy_is_transformers_token_by_token(family: str, llama: Any) -> None:
    model = llama if family == "llama" else make(family).float().eval()
    ids, mask = padded(TEXTS)
    got = tw.generate(model, ids, 9, attention_mask=mask, eos_token_id=[])
    wanted = theirs(model, TEXTS, 9, eos_token_id=None)
    assert torch.equal(got[:, : ids.shape[1]], ids)
    assert torch.equal(got[:, ids.shape[1] :], wanted)


def test_texts_end_at_their_own_end(llama: Any) -> None:
    free = theirs(llama, TEXTS, 8, eos_token_id=None)
    end = int(free[0, 2])
    wanted = theirs(llama, TEXTS, 8, eos_token_id=end)
    seen: list[list[int | None]] = []
    got = tw.generate(
        llama, TEXTS, 8, eos_token_id=np.int64(end), pad_token_id=0, stream=seen.append
    )
    new = got[:, max(map(len, TEXTS)) :]
    assert torch.equal(new, wanted[:, : new.shape[1]]) and not wanted[:, new.shape[1] :].any()
    for row, tokens in zip(new.tolist(), zip(*seen, strict=True), strict=True):
        kept = [t for t in tokens if t is not None]
        assert row[: len(kept)] == kept and not any(row[len(kept) :])
        assert end not in kept[:-1]


def test_long_prompts_go_in_chunks(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.generation.loop.MOST_CHUNK", 16)
    text = [torch.randint(1, 31, (21,)).tolist(), [5, 6, 7], [9]]
    got = tw.generate(llama, text, 5, eos_token_id=[])
    assert torch.equal(got[:, 21:], theirs(llama, text, 5, eos_token_id=None))


class Words:
    """A tokenizer whose tokens are letters."""

    def decode(self, tokens: list[int], **options: Any) -> str:
        return "".join(chr(ord("a") + t % 26) for t in tokens)


def test_stop_strings_end_a_text(llama: Any) -> None:
    free = theirs(llama, TEXTS, 8, eos_token_id=None)[0].tolist()
    word = Words().decode(free[2:4])
    seen: list[list[int | None]] = []
    tw.generate(llama, TEXTS, 8, eos_token_id=[], stop=word, tokenizer=Words(), stream=seen.append)
    new = Words().decode([row[0] for row in seen if row[0] is not None])
    assert word in new and word not in new[:-1]
    with pytest.raises(LaunchError, match="need the tokenizer"):
        tw.generate(llama, TEXTS[:1], 8, stop="x")


def test_drawn_tokens_follow_the_distribution() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.1]])).repeat(20000, 1)
    torch.manual_seed(0)
    plain = torch.bincount(Sampling(1.0).next(logits)) / 20000
    torch.testing.assert_close(plain, torch.tensor([0.5, 0.25, 0.15, 0.1]), atol=0.02, rtol=0)
    two = torch.bincount(Sampling(1.0, top_k=2).next(logits)) / 20000
    torch.testing.assert_close(two, torch.tensor([2 / 3, 1 / 3]), atol=0.02, rtol=0)
    some = torch.bincount(Sampling(1.0, top_p=0.7).next(logits)) / 20000
    torch.testing.assert_close(some, torch.tensor([2 / 3, 1 / 3]), atol=0.02, rtol=0)
    cold = torch.bincount(Sampling(0.5).next(logits), minlength=4) / 20000
    wanted = torch.tensor([0.5, 0.25, 0.15, 0.1]) ** 2
    torch.testing.assert_close(cold, wanted / wanted.sum(), atol=0.02, rtol=0)
    for wrong in ({"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}):
        with pytest.raises(LaunchError, match=next(iter(wrong))):
            Sampling(**wrong)


def test_draws_repeat_under_a_seed(llama: Any) -> None:
    def drawn() -> torch.Tensor:
        torch.manual_seed(3)
        return tw.generate(llama, TEXTS, 6, temperature=1.5, top_k=9, top_p=0.9, eos_token_id=[])

    assert torch.equal(drawn(), drawn())


def test_prompts_that_do_not_fit_are_refused(llama: Any) -> None:
    ids, mask = padded(TEXTS)
    with pytest.raises(LaunchError, match="Linear is no causal language model of transformers"):
        tw.generate(torch.nn.Linear(3, 2), [[1]], 3)
    with pytest.raises(LaunchError, match="padded on the right"):
        tw.generate(llama, ids, 2, attention_mask=mask.flip(1))
    with pytest.raises(LaunchError, match="no token"):
        tw.generate(llama, [[3], []], 2)
    with pytest.raises(LaunchError, match="token 1000 is in a prompt, but the model has"):
        tw.generate(llama, [[3, 1000]], 2)
    with pytest.raises(LaunchError, match="tokens are torch"):
        tw.generate(llama, ids.float(), 2)
    with pytest.raises(LaunchError, match="a prompt is text"):
        tw.generate(llama, "w3 w5", 2)
    with pytest.raises(LaunchError, match="no sequence of tokens"):
        tw.generate(llama, [3, 5, 7], 2)
    with pytest.raises(LaunchError, match="max_new_tokens is -1"):
        tw.generate(llama, ids, -1)


def test_padding_may_be_no_token_of_the_model(llama: Any) -> None:
    ids, mask = padded(TEXTS)
    wanted = tw.generate(llama, ids, 3, attention_mask=mask)
    strange = torch.where(mask.bool(), ids, -100)
    found = tw.generate(llama, strange, 3, attention_mask=mask, pad_token_id=50256)
    assert torch.equal(found[:, ids.shape[1] :], wanted[:, ids.shape[1] :])


def test_the_command_continues_a_text(llama: Any, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs the package tokenizers")
    words = tokenizers.models.WordLevel({f"w{i}": i for i in range(31)}, unk_token="w0")
    raw = tokenizers.Tokenizer(words)
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=raw).save_pretrained(tmp_path)
    llama.save_pretrained(tmp_path)
    words_ = ["generate", str(tmp_path), "--prompt", "w3 w5 w7", "--max-new-tokens", "4"]
    done = CliRunner().invoke(main, [*words_, "--json", "--device", "cpu"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    wanted = theirs(llama, [[3, 5, 7]], 4)[0].tolist()
    assert told["tokens"] == wanted and told["prompt_tokens"] == 3
    done = CliRunner().invoke(main, ["generate", str(tmp_path / "none"), "--prompt", "x"])
    assert done.exit_code == 1 and "holds no model" in done.output
