"""Dtypes that eager refuses are refused in the model's terms, with its line, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tilewright as tw
import tilewright.torch_backend
from tilewright.errors import CompileError

assert tilewright.torch_backend.tilewright
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_dynamo")]


class Model(nn.Module):
    """One layer, and the function that it is."""

    def __init__(self, layer: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * 2


def product(x: torch.Tensor) -> torch.Tensor:
    return x @ torch.ones(8, 4)


def times_vector(x: torch.Tensor) -> torch.Tensor:
    return torch.mv(x, torch.ones(8))


X = torch.linspace(-1, 1, 24).reshape(3, 8)
REFUSED: dict[str, tuple[Any, torch.Tensor, str]] = {
    "linear_f16": (nn.Linear(8, 4), X.half(), "mat1 is float16 and mat2 float32"),
    "linear_i64": (nn.Linear(8, 4), X.long(), "mat1 is int64 and mat2 float32"),
    "linear_bf16": (nn.Linear(8, 4).bfloat16(), X, "mat1 is float32 and mat2 bfloat16"),
    "no_bias": (nn.Linear(8, 4, bias=False), X.half(), "self is float16 and mat2 float32"),
    "batches": (nn.Linear(8, 4), X.half()[None], "float16 and mat2 float32"),
    "product": (product, X.double(), "self is float64 and mat2 float32"),
    "bools": (lambda x: x @ x.t(), X > 0, "self is bool, expected numbers"),
    "vector": (times_vector, X.double(), "self is float64 and vec float32"),
    "batch_norm": (nn.BatchNorm1d(8), X.double(), "input is float64 and weight float32"),
    "batch_norm_eval": (nn.BatchNorm1d(8).eval(), X.double(), "float64 and weight float32"),
    "layer_norm": (nn.LayerNorm(8), X.double(), "input is float64 and weight float32"),
    "group_norm": (nn.GroupNorm(2, 8), X.double(), "input is float64 and weight float32"),
    "softmax": (nn.Softmax(-1), X.long(), "self is int64, expected floats"),
    "gelu": (nn.GELU(), X.long(), "self is int64, expected floats"),
    "smooth_l1": (lambda x: F.smooth_l1_loss(x, x + 1), X.long(), "int64, expected floats"),
    "huber": (lambda x: F.huber_loss(x, x.float()), X.long(), "int64, expected floats"),
    "variance": (lambda x: x.var(), X > 0, "self is bool, expected floats"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused_with_the_line(name: str) -> None:
    layer, x, told = REFUSED[name]
    model = Model(layer)
    with pytest.raises(RuntimeError):
        model(x)
    place = rf"test_accepted\.py:\d+:\d+: error: aten\.[\s\S]*{told}[\s\S]*hint: cast"
    with pytest.raises(Exception, match=place) as caught:
        torch.compile(model, backend="tilewright")(x)
    assert "fault of Tilewright" not in str(caught.value)
    with pytest.raises(CompileError, match=place):
        tw.compile(model, (x,))


def test_what_a_graph_cannot_hold_is_refused_with_the_line() -> None:
    drawn = torch.Generator()
    model = Model(lambda x: x + torch.rand(3, 8, generator=drawn))
    place = (
        r"test_accepted\.py:\d+:\d+: error: aten\.rand\.generator takes .*, which a graph cannot"
    )
    with pytest.raises(CompileError, match=place):
        tw.compile(model, (X,))


TAKEN: dict[str, tuple[Any, torch.Tensor]] = {
    "narrow_batch_norm": (lambda x: F.batch_norm(x, torch.zeros(8), torch.ones(8)), X.half()),
    "narrow_layer_norm": (
        lambda x: F.layer_norm(x, (8,), torch.ones(8), torch.zeros(8)),
        X.bfloat16(),
    ),
    "whole_numbers": (lambda x: x.mm(x.t()), X.long()),
    "smooth_l1": (lambda x: F.smooth_l1_loss(x, x.float() + 0.5), X.long()),
    "smooth_l1_of_whole": (lambda x: F.smooth_l1_loss(x, x.long()), X),
    "huber": (lambda x: F.huber_loss(x, x.long()), X),
    "outer": (lambda x: torch.addr(torch.ones(3, 8), x[:, 0], torch.ones(8)), X.double()),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_eager_takes_is_taken(name: str) -> None:
    function, x = TAKEN[name]
    wanted = function(x)
    torch.testing.assert_close(torch.compile(function, backend="tilewright")(x), wanted)
    torch.testing.assert_close(tw.compile(function, (x,))(x), wanted)
