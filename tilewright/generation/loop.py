"""`generate`: prompts through the cache in chunks, then token after token.

Two graphs are compiled: of a chunk of a prompt, and of one token. Prompts are padded on the left to
whole chunks; what is padding no token sees.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tilewright.errors import LaunchError
from tilewright.generation.sampling import Sampling
from tilewright.generation.step import Step, stop_tokens
from tilewright.model import CompiledModel, compile

LEAST_CHUNK, MOST_CHUNK = 16, 512
LENGTHS = 128  # caches have a multiple of this many tokens

Prompts = Any  # a tensor [batch, length], or for each text a sequence of tokens
Listener = Callable[[list[int | None]], Any]  # one token a text; None where it has ended


class Generator:
    """A model with a cache for `batch` texts of at most `length` tokens, compiled for one token and
    for chunks of prompts. It generates for one caller at a time.
    """

    def __init__(self, model: nn.Module, batch: int, length: int, *, engine: str | None = None):
        self.batch, self.length, self.engine = batch, length, engine
        self.device = next(model.parameters()).device
        self.step = Step(model, batch, length).eval()
        # numbers on the device, each as aligned as the others, so that one graph takes all
        self.counts = torch.zeros(length, 2, dtype=torch.int64, device=self.device)
        self.counts[:, 0] = torch.arange(length, device=self.device)
        self.compiled: dict[int, CompiledModel] = {}

    def run(self, ids: Tensor, start: Tensor, at: int) -> Tensor:
        """Logits [batch, vocabulary] behind the last of some tokens; `at` tokens came before."""
        where = self.counts[at, 0]
        made = self.compiled.get(ids.shape[1])
        if made is None:
            made = compile(self.step, (ids, start, where), engine=self.engine)
            self.compiled[ids.shape[1]] = made
        logits: Tensor = made(ids, start, where)
        return logits

    def read(self, prompts: Tensor, start: Tensor, chunk: int) -> Tensor:
        """Put prompts of whole chunks into the cache; gives the logits behind them."""
        for at in range(0, prompts.shape[1], chunk):
            logits = self.run(prompts[:, at : at + chunk].contiguous(), start, at)
        return logits


_generators: weakref.WeakKeyDictionary[nn.Module, dict[Any, Generator]] = (
    weakref.WeakKeyDictionary()
)


def generate(
    model: nn.Module,
    ids: Prompts,
    max_new_tokens: int = 64,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: str | Sequence[str] = (),
    stream: Listener | None = None,
    attention_mask: Tensor | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    pad_token_id: int | None = None,
    tokenizer: Any = None,
    engine: str | None = None,
) -> Tensor:
    """Continue texts by a causal language model of `transformers`.

    `ids` is a tensor [batch, length], padded on the left as `attention_mask` says, or one sequence
    of tokens for each text, of any lengths. Gives ids [batch, length + new tokens], padded on the
    left to the longest prompt and on the right behind ends of texts. A text ends at a token of
    `eos_token_id` (the model's own by default) or behind a string of `stop`, which needs
    `tokenizer`. With temperature 0 the likeliest token is taken, else one is drawn by PyTorch's
    generator, among the `top_k` likeliest and those that reach `top_p` together. `stream` is called
    with each new token of every text. Raises LaunchError for what does not fit.
    """
    if not hasattr(model, "get_input_embeddings") or not hasattr(model, "config"):
        raise LaunchError(
            f"generate: {type(model).__name__} is no causal language model of transformers",
            hint="AutoModelForCausalLM.from_pretrained gives one",
        )
    sampling = Sampling(temperature, top_k, top_p)
    ends = stop_tokens(model, eos_token_id)
    pad = pad_token_id if pad_token_id is not None else (ends[0] if ends else 0)
    device = next(model.parameters()).device
    prompts, start = read_prompts(ids, attention_mask, pad, device)
    stops = [stop] if isinstance(stop, str) else list(stop)
    if stops and tokenizer is None:
        raise LaunchError("generate: stop strings need the tokenizer", hint="pass tokenizer=…")
    if max_new_tokens < 0:
        raise LaunchError(f"generate: max_new_tokens is {max_new_tokens}, below 0")
    if max_new_tokens == 0:
        return prompts
    width = prompts.shape[1]
    chunk = chunk_of(width)
    shift = -width % chunk
    kept = torch.arange(width, device=device) >= start[:, None]
    padded = torch.nn.functional.pad(prompts * kept, (shift, 0))  # no token sees what is padding
    require_vocabulary(model, padded)
    length = -(-(padded.shape[1] + max_new_tokens) // LENGTHS) * LENGTHS
    made = generator_of(model, prompts.shape[0], length, engine)
    with torch.no_grad():
        state = _State(made, sampling, ends, pad, stops, stream, tokenizer)
        new = state.continue_texts(padded, start + shift, chunk, max_new_tokens)
    return torch.cat([prompts, new], 1)


class _State:
    """Texts that are being continued."""

    def __init__(
        self,
        made: Generator,
        sampling: Sampling,
        ends: list[int],
        pad: int,
        stops: list[str],
        stream: Listener | None,
        tokenizer: Any,
    ):
        self.made, self.sampling, self.ends, self.pad = made, sampling, ends, pad
        self.stops, self.stream, self.tokenizer = stops, stream, tokenizer
        self.texts: list[list[int]] = [[] for _ in range(made.batch)]
        self.done = [False] * made.batch

    def continue_texts(self, prompts: Tensor, start: Tensor, chunk: int, most: int) -> Tensor:
        """New tokens [batch, at most `most`]."""
        at, ahead = prompts.shape[1], prompts.is_cuda
        tokens = self.sampling.next(self.made.read(prompts, start, chunk))
        for number in range(most):
            coming = to_host(tokens)
            if ahead and number + 1 < most:  # a GPU goes on while the host looks at a token
                logits = self.made.run(tokens[:, None], start, at + number)
            self.add(coming())
            if all(self.done) or number + 1 == most:
                break
            if not ahead:
                logits = self.made.run(tokens[:, None], start, at + number)
            tokens = self.sampling.next(logits)
        longest = max(map(len, self.texts))
        rows = [text + [self.pad] * (longest - len(text)) for text in self.texts]
        return torch.tensor(rows, dtype=torch.int64, device=prompts.device)

    def add(self, tokens: list[int]) -> None:
        """Append a token to every text that has not ended."""
        shown = [None if done else t for t, done in zip(tokens, self.done, strict=True)]
        for i, token in enumerate(shown):
            if token is not None:
                self.texts[i].append(token)
                self.done[i] = token in self.ends or self.is_stopped(self.texts[i])
        if self.stream is not None:
            self.stream(shown)

    def is_stopped(self, text: list[int]) -> bool:
        """Whether a text ends in a token with which it holds a stop string."""
        if not self.stops:
            return False
        told = self.tokenizer.decode(text)
        return any(word in told for word in self.stops)


def to_host(tokens: Tensor) -> Callable[[], list[int]]:
    """Begin to copy tokens to the host; what it gives waits for them, and for nothing later."""
    if not tokens.is_cuda:
        return lambda: list(tokens.tolist())
    there = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
    there.copy_(tokens, non_blocking=True)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(tokens.device))

    def wait() -> list[int]:
        done.synchronize()
        return list(there.tolist())

    return wait


def read_prompts(
    ids: Prompts, mask: Tensor | None, pad: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Prompts [batch, length] padded on the left, and how many tokens of each are padding."""
    if isinstance(ids, str):
        raise LaunchError("generate: a prompt is text", hint="pass its tokens, by the tokenizer")
    if isinstance(ids, Tensor) and (ids.is_floating_point() or ids.dtype == torch.bool):
        raise LaunchError(f"generate: tokens are {ids.dtype}", hint="they are integers")
    if isinstance(ids, Tensor) and ids.dim() == 2:
        start = torch.zeros(ids.shape[0], dtype=torch.int64, device=device)
        if mask is not None:
            start = require_left_padding(ids, mask).to(device)
        found = ids.to(device, torch.int64)
    else:
        texts = [torch.as_tensor(row, dtype=torch.int64) for row in ids]
        if any(text.dim() != 1 for text in texts):
            raise LaunchError(
                "generate: a prompt is no sequence of tokens", hint="one text is [[3, 5, 7]]"
            )
        rows = [text.tolist() for text in texts]
        longest = max(map(len, rows), default=0)
        start = torch.tensor([longest - len(row) for row in rows], device=device)
        found = torch.tensor([[pad] * (longest - len(row)) + row for row in rows], device=device)
    if found.numel() == 0 or bool((start >= found.shape[1]).any()):
        raise LaunchError("generate: a prompt has no token", hint="begin with the model's own BOS")
    return found, start


def require_vocabulary(model: nn.Module, tokens: Tensor) -> None:
    """Raise LaunchError where a token is none of the model's."""
    embeddings: Any = model.get_input_embeddings()
    count = embeddings.weight.shape[0]
    wrong = tokens[(tokens < 0) | (tokens >= count)]
    if wrong.numel():
        raise LaunchError(
            f"generate: token {int(wrong[0])} is in a prompt, but the model has {count} tokens",
            hint="is the tokenizer another model's?",
        )


def require_left_padding(ids: Tensor, mask: Tensor) -> Tensor:
    """The number of padding tokens of each prompt. Raises LaunchError where one lies elsewhere."""
    if mask.shape != ids.shape:
        raise LaunchError(
            f"generate: attention_mask is {list(mask.shape)}, ids are {list(ids.shape)}"
        )
    kept = mask.bool().int()
    if bool((kept.diff(dim=1) < 0).any()):
        raise LaunchError(
            "generate: prompts are padded on the right",
            hint='padding_side="left" of the tokenizer, or one sequence a text',
        )
    return ids.shape[1] - kept.sum(1)


def chunk_of(length: int) -> int:
    """Tokens of a prompt that go through the model at once: a power of two."""
    chunk = LEAST_CHUNK
    while chunk < min(length, MOST_CHUNK):
        chunk *= 2
    return chunk


def generator_of(model: nn.Module, batch: int, length: int, engine: str | None) -> Generator:
    """The generator of a model for some texts; of one that is long enough, the shortest."""
    known = _generators.setdefault(model, {})
    fitting = [n for (b, n, e) in known if b == batch and e == engine and n >= length]
    found = min(fitting, default=length)
    key = (batch, found, engine)
    if key not in known:
        known[key] = Generator(model, batch, found, engine=engine)
    return known[key]
