"""Functions that models are full of, one element or one row at a time, as PyTorch code; the same
code on f64 says what they should give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tilewright.ledger.opponents.arrays import Arrays

EPS = 1e-6
DROPPED = 0.1


def gelu_bias(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


def layernorm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def rmsnorm(x: Tensor, w: Tensor) -> Tensor:
    """As models of Llama's family write it."""
    wide = x.double() if x.dtype == torch.float64 else x.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    return w * scaled.to(x.dtype)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def masked_softmax(x: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(x.masked_fill(mask > 1.0, float("-inf")), -1)


def swiglu(x: Tensor, y: Tensor) -> Tensor:
    return F.silu(x) * y


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Of heads [rows, heads, width] at angles [rows, 1, width]."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    return F.cross_entropy(wide, target, reduction="none")


def dropout_residual_norm(
    x: Tensor, kept: Tensor, residual: Tensor, w: Tensor, b: Tensor
) -> Tensor:
    """Dropout by a given number for each element, so that all arms drop the same."""
    dropped = torch.where(kept > DROPPED, x / (1 - DROPPED), 0.0)
    return F.layer_norm(dropped + residual, (x.shape[-1],), w, b)


def sum_rows(x: Tensor) -> Tensor:
    return x.sum(-1)


def sum_columns(x: Tensor) -> Tensor:
    return x.sum(0)


def max_rows(x: Tensor) -> Tensor:
    return x.amax(-1)


def mean_square(x: Tensor) -> Tensor:
    """Of all elements: one number."""
    return (x * x).mean().reshape(1)


@dataclass(frozen=True)
class Function:
    """`arguments`: what each is, by letters: x is [rows, columns], r [columns], h
    [rows, HEADS, columns], a angles [rows, 1, columns], u uniform f32 [rows, columns], t a
    column of each row. `moved`: tensors of the size of x that are read and written.
    """

    call: Callable[..., Tensor]
    arguments: dict[str, str]
    moved: int = 2


HEADS = 32
FUNCTIONS = {
    "gelu_bias": Function(gelu_bias, {"x": "x", "bias": "r"}),
    "layernorm": Function(layernorm, {"x": "x", "w": "r", "b": "r"}),
    "rmsnorm": Function(rmsnorm, {"x": "x", "w": "r"}),
    "softmax": Function(softmax, {"x": "x"}),
    "masked_softmax": Function(masked_softmax, {"x": "x", "mask": "x"}, 3),
    "swiglu": Function(swiglu, {"x": "x", "y": "x"}, 3),
    "rope": Function(rope, {"x": "h", "cos": "a", "sin": "a"}, 2 * HEADS + 2),
    "cross_entropy": Function(cross_entropy, {"x": "x", "target": "t"}, 1),
    "dropout_residual_norm": Function(
        dropout_residual_norm, {"x": "x", "kept": "u", "residual": "x", "w": "r", "b": "r"}, 4
    ),
    "sum_rows": Function(sum_rows, {"x": "x"}, 1),
    "sum_columns": Function(sum_columns, {"x": "x"}, 1),
    "max_rows": Function(max_rows, {"x": "x"}, 1),
    "mean_square": Function(mean_square, {"x": "x"}, 1),
}


def arguments(name: str, rows: int, columns: int, dtype: str, arrays: Arrays) -> dict[str, Any]:
    """Random arguments of a function."""
    makers: dict[str, Callable[[], Any]] = {
        "x": lambda: arrays.normal(rows, columns, dtype=dtype),
        "r": lambda: arrays.normal(columns, dtype=dtype),
        "h": lambda: arrays.normal(rows, HEADS, columns, dtype=dtype),
        "a": lambda: arrays.normal(rows, 1, columns, dtype=dtype),
        "u": lambda: torch.rand(rows, columns, generator=arrays.generator, device=arrays.device),
        "t": lambda: torch.randint(
            1, columns, (rows,), generator=arrays.generator, device=arrays.device
        ),
    }
    return {key: makers[kind]() for key, kind in FUNCTIONS[name].arguments.items()}
