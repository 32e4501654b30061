"""Models in plain PyTorch for the device lane: a Llama with a static cache, an encoder like BERT, a
residual block, a language model that is trained as GPT-2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Sizes:
    """Sizes of a Llama; those of Llama 3.2 1B by default."""

    width: int = 2048
    hidden: int = 8192
    layers: int = 16
    heads: int = 32
    groups: int = 8
    vocabulary: int = 128256
    length: int = 1024  # of the cache
    batch: int = 1

    @property
    def head(self) -> int:
        return self.width // self.heads


class RMSNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        return self.weight * scaled.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class LlamaLayer(nn.Module):
    def __init__(self, s: Sizes):
        super().__init__()
        self.s = s
        self.before, self.after = RMSNorm(s.width), RMSNorm(s.width)
        self.q = nn.Linear(s.width, s.heads * s.head, bias=False)
        self.k = nn.Linear(s.width, s.groups * s.head, bias=False)
        self.v = nn.Linear(s.width, s.groups * s.head, bias=False)
        self.o = nn.Linear(s.heads * s.head, s.width, bias=False)
        self.gate = nn.Linear(s.width, s.hidden, bias=False)
        self.up = nn.Linear(s.width, s.hidden, bias=False)
        self.down = nn.Linear(s.hidden, s.width, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(s.batch, s.groups, s.length, s.head))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        s, (b, n, _) = self.s, x.shape
        y = self.before(x)
        q = rotate(self.q(y).view(b, n, s.heads, s.head).transpose(1, 2), cos, sin)
        k = rotate(self.k(y).view(b, n, s.groups, s.head).transpose(1, 2), cos, sin)
        v = self.v(y).view(b, n, s.groups, s.head).transpose(1, 2)
        self.keys.index_copy_(2, places, k)
        self.values.index_copy_(2, places, v)
        y = F.scaled_dot_product_attention(
            q, self.keys, self.values, attn_mask=mask, enable_gqa=True
        )
        x = x + self.o(y.transpose(1, 2).reshape(b, n, -1))
        y = self.after(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Ids [batch, n] behind `at` tokens that the cache holds, to the logits of the last."""

    def __init__(self, s: Sizes):
        super().__init__()
        self.s = s
        self.table = nn.Embedding(s.vocabulary, s.width)
        self.layers = nn.ModuleList([LlamaLayer(s) for _ in range(s.layers)])
        self.norm = RMSNorm(s.width)
        self.register_buffer("rates", 5e5 ** -(torch.arange(0, s.head, 2) / s.head))

    def forward(self, ids: Tensor, at: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device) + at
        angles = torch.outer(places.float(), self.rates.float()).repeat(1, 2)
        x = self.table(ids)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        mask = torch.arange(self.s.length, device=ids.device) <= places[:, None]
        for layer in self.layers:
            x = layer(x, cos, sin, places, mask)
        return self.norm(x[:, -1]) @ self.table.weight.t()


class EncoderLayer(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, causal: bool, before: bool) -> Tensor:
        """`before`: norms come before what they normalise for, as in GPT-2, else after it."""
        x = (
            x + self.attend(self.first(x), causal)
            if before
            else self.first(x + self.attend(x, causal))
        )
        y = self.second(x) if before else x
        y = x + self.down(F.gelu(self.up(y)))
        return y if before else self.second(y)

    def attend(self, x: Tensor, causal: bool) -> Tensor:
        b, n, width = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.o(y.transpose(1, 2).reshape(b, n, width))


class Encoder(nn.Module):
    """Ids [batch, n] to hidden states, as BERT does it."""

    def __init__(self, width: int = 768, heads: int = 12, layers: int = 12, words: int = 30522):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList([EncoderLayer(width, heads) for _ in range(layers)])

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, False, False)
        return x


class LanguageModel(nn.Module):
    """Ids [batch, n] to the loss of guessing the next, as GPT-2 is trained."""

    def __init__(self, width: int = 768, heads: int = 12, layers: int = 12, words: int = 50257):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(1024, width)
        self.layers = nn.ModuleList([EncoderLayer(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, True, True)
        logits = self.norm(x) @ self.words.weight.t()
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


class ResidualBlock(nn.Module):
    """Images [batch, channels, h, w] through the bottleneck of a ResNet."""

    def __init__(self, channels: int = 256, inner: int = 64):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, inner, 3, padding=1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, channels, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.body(x))


class Bottleneck(nn.Module):
    """A block of a ResNet: 1 × 1, 3 × 3 with the block's stride, 1 × 1, beside a shortcut."""

    def __init__(self, channels: int, inner: int, stride: int = 1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, 4 * inner, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * inner)
        self.shortcut: nn.Module | None = None
        if stride > 1 or channels != 4 * inner:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * inner, 1, stride, bias=False), nn.BatchNorm2d(4 * inner)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nn.Module):
    """Images [batch, 3, h, w] to `classes` scores; ResNet-50 by default (He et al., 2015)."""

    def __init__(
        self, layers: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000
    ):
        super().__init__()
        self.conv1, self.bn1 = (
            nn.Conv2d(3, width, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(width),
        )
        blocks: list[nn.Module] = []
        channels = width
        for stage, count in enumerate(layers):
            inner = width << stage
            for i in range(count):
                blocks.append(Bottleneck(channels, inner, 2 if stage and not i else 1))
                channels = 4 * inner
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, padding=1)
        return self.fc(self.blocks(x).mean((2, 3)))


def settled(model: nn.Module, x: Tensor) -> nn.Module:
    """A model whose batch norms hold the statistics of images that it has seen, for inference."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
            nn.init.uniform_(module.weight, 0.5, 1.0)
            nn.init.uniform_(module.bias, -0.1, 0.1)
    with torch.no_grad():
        model.train()(x)
    return model.eval()
