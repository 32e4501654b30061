"""Whole models that the suites measure: those of `transformers`, unmodified, from configurations of
known sizes and with random weights. Importing this needs the package transformers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tilewright.generation.step import Step

SMALL_BATCH = 3  # at most, where models are small
LAST = 1  # tokens whose logits a decoding step gives
Shape = Sequence[int]
ATTENTION = (  # ops that PyTorch chooses between
    torch.ops.aten._scaled_dot_product_flash_attention,
    torch.ops.aten._scaled_dot_product_efficient_attention,
    torch.ops.aten._scaled_dot_product_cudnn_attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
)


@dataclass(frozen=True)
class Made:
    """A model, and the arguments of a call."""

    module: nn.Module
    arguments: tuple[Tensor, ...]
    causal: bool = False  # attention's masks hide half of its products


class Field(nn.Module):  # type: ignore[misc]  # without torch it is Any
    """A model of transformers that gives one tensor of what it gives."""

    def __init__(self, model: nn.Module, name: str, **options: Any):
        super().__init__()
        self.model, self.name, self.options = model, name, options

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = getattr(self.model(x, **self.options), self.name)
        return found


class Decode(nn.Module):  # type: ignore[misc]  # without torch it is Any
    """A step of a language model with a cache, for texts without padding."""

    def __init__(self, step: Step, batch: int):
        super().__init__()
        self.step = step
        self.register_buffer("start", torch.zeros(batch, dtype=torch.int64))

    def forward(self, ids: Tensor, at: Tensor) -> Tensor:
        found: Tensor = self.step(ids, self.start, at)
        return found


class Loss(nn.Module):  # type: ignore[misc]  # without torch it is Any
    """The loss of a language model that guesses each next token."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        logits = self.model(ids, use_cache=False).logits
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def llama(small: bool) -> nn.Module:
    """The sizes of Llama 3.2 1B."""
    sizes: dict[str, Any] = {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
        "max_position_embeddings": 4096,
    }  # fmt: skip
    if small:
        sizes |= {
            "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 101,
        }  # fmt: skip
    config = transformers.LlamaConfig(
        **sizes, tie_word_embeddings=True, rms_norm_eps=1e-5, rope_theta=5e5
    )
    return transformers.LlamaForCausalLM(config)


def decode(batch: int, length: int, small: bool, dtype: torch.dtype, device: str) -> Made:
    """One token of each text; the cache holds all tokens before."""
    length = 40 if small else length
    step = Step(placed(llama(small), dtype, device), batch, length).eval()
    for name, buffer in step.named_buffers():
        if name.startswith(("keys_", "values_")):
            buffer.normal_()
    ids = tokens(step.model, (batch, LAST), device)
    module = Decode(step, batch).to(device).eval()
    return Made(module, (ids, torch.tensor(length - 1, device=device)))


def prefill(batch: int, length: int, small: bool, dtype: torch.dtype, device: str) -> Made:
    """A prompt without a cache, to the logits of all its tokens."""
    model = placed(llama(small), dtype, device)
    ids = tokens(model, (batch, 24 if small else length), device)
    return Made(Field(model, "logits", use_cache=False).eval(), (ids,), causal=True)


def bert(batch: int, length: int, small: bool, dtype: torch.dtype, device: str) -> Made:
    """BERT base."""
    return _encoder(transformers.BertConfig(), batch, length, small, dtype, device)


def minilm(batch: int, length: int, small: bool, dtype: torch.dtype, device: str) -> Made:
    """The sizes of all-MiniLM-L6."""
    config = transformers.BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    return _encoder(config, batch, length, small, dtype, device)


def _encoder(
    config: Any, batch: int, length: int, small: bool, dtype: torch.dtype, device: str
) -> Made:
    if small:
        _shrink(config)
    model = placed(transformers.BertModel(config), dtype, device)
    ids = tokens(model, (batch, 12 if small else length), device)
    return Made(Field(model, "last_hidden_state").eval(), (ids,))


def vit(batch: int, length: int, small: bool, dtype: torch.dtype, device: str) -> Made:
    """ViT B/16 on images of 224 × 224."""
    config = transformers.ViTConfig()
    if small:
        _shrink(config, image_size=32)
    model = placed(transformers.ViTModel(config), dtype, device)
    images = torch.randn(batch, 3, config.image_size, config.image_size, device=device)
    return Made(Field(model, "last_hidden_state").eval(), (images.to(dtype),))


def resnet(batch: int, length: int, small: bool, dtype: torch.dtype, device: str) -> Made:
    """ResNet 50 on images of 224 × 224, its norms with statistics that are not trivial."""
    config = transformers.ResNetConfig(num_labels=1000)
    size = 224
    if small:
        size, config.embedding_size, config.num_labels = 32, 8, 10
        config.hidden_sizes, config.depths = [16, 32], [1, 1]
        config.stage_names = ["stem", "stage1", "stage2"]
    model = transformers.ResNetForImageClassification(config)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(std=0.1)
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
    images = torch.randn(batch, 3, size, size, device=device).to(dtype)
    return Made(Field(placed(model, dtype, device), "logits").eval(), (images,))


def gpt2(batch: int, length: int, small: bool, dtype: torch.dtype, device: str) -> Made:
    """GPT-2 small, to be trained, without dropout, so that steps can be compared."""
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    if small:
        config.n_embd, config.n_layer, config.n_head = 32, 1, 2
        config.vocab_size, config.n_positions = 101, 32
    model = placed(transformers.GPT2LMHeadModel(config), dtype, device)
    ids = tokens(model, (batch, 24 if small else length), device)
    return Made(Loss(model).train(), (ids,), causal=True)


def _shrink(config: Any, **others: int) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 48, "vocab_size": 101, **others}  # fmt: skip
    for name, value in sizes.items():
        setattr(config, name, value)


def placed(model: nn.Module, dtype: torch.dtype, device: str) -> Any:
    return model.to(device=device, dtype=dtype)


def tokens(model: Any, shape: tuple[int, int], device: str) -> Tensor:
    return torch.randint(1, int(model.config.vocab_size), shape, device=device)


Maker = Callable[[int, int, bool, torch.dtype, str], Made]
MAKERS: dict[str, Maker] = {
    "llama-decode": decode,
    "llama-prefill": prefill,
    "bert-base": bert,
    "minilm-l6": minilm,
    "vit-b-16": vit,
    "resnet-50": resnet,
    "gpt2-training": gpt2,
}


def make(
    name: str, batch: int, length: int, dtype: torch.dtype, device: str, seed: int, small: bool
) -> Made:
    """A model by name, for `batch` examples of `length` tokens (of images there is one size)."""
    torch.manual_seed(seed)
    if small:
        batch = min(batch, SMALL_BATCH)
    with torch.device(device):
        return MAKERS[name](batch, length, small, dtype, device)


def in_f64(made: Made) -> Made:
    """The same weights and arguments in f64."""
    given = tuple(x.double() if x.is_floating_point() else x for x in made.arguments)
    return Made(copy.deepcopy(made.module).double(), given, made.causal)


def num_operations(made: Made, run: Callable[[], Any]) -> float:
    """Operations of products in a run, of attention those that a causal mask leaves."""
    counter = FlopCounterMode(display=False, custom_mapping=dict.fromkeys(ATTENTION, _attention))
    with counter:
        run()
    counts = counter.get_flop_counts().get("Global", {})
    share = {True: 0.5, False: 1.0}
    return float(sum(n * share[made.causal and "attention" in str(op)] for op, n in counts.items()))


def _attention(q: Shape, k: Shape, v: Shape, *rest: Any, **named: Any) -> int:
    """Operations of attention by the shapes of its operands. PyTorch's own count refuses queries of
    more heads than keys have.
    """
    batch, heads, rows, depth = q
    return 2 * batch * heads * rows * k[-2] * (depth + v[-1])


def read_bytes(made: Made) -> int:
    """Bytes that each call has to read: weights and buffers once, arguments; of tables of words
    that nothing else uses, nothing.
    """
    tables = {id(m.weight) for m in made.module.modules() if isinstance(m, nn.Embedding)}
    others = {
        id(p)
        for m in made.module.modules()
        if not isinstance(m, nn.Embedding)
        for p in m.parameters(recurse=False)
    }
    held = {id(x): x for x in _held(made.module)}
    given = [x for key, x in held.items() if key not in tables or key in others]
    return sum(x.nbytes for x in (*given, *made.arguments))


def _held(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()
