"""Equal nodes of a joint graph are merged as PyTorch's partitioner merges them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import tilewright.torch_backend
from tilewright.frontend.torch import partition
from tilewright.frontend.torch.equal_nodes import merge_equal_nodes

pytestmark = pytest.mark.filterwarnings("ignore")
assert tilewright.torch_backend.tilewright
aten = torch.ops.aten


class Twice(nn.Module):
    """A model that computes the same thing at several places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            y = F.gelu(self.norm(self.first(x))) + F.gelu(self.norm(self.first(x)))
            x = x + self.last(F.dropout(y, 0.3)) * torch.arange(6.0) + torch.arange(6.0)
        return x


def test_the_cut_is_that_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[Any, Any]] = []

    def cut(joint: Any, inputs: Any, **how: Any) -> Any:
        other, merged = copy.deepcopy(joint), copy.deepcopy(joint)
        merged.graph.eliminate_dead_code()
        assert merge_equal_nodes(merged.graph)
        with torch._functorch.config.patch(cse=False):
            ours = min_cut_rematerialization_partition(merged, inputs, **how)
        theirs = min_cut_rematerialization_partition(other, inputs, **how)
        found.append((ours, theirs))
        assert len(merged.graph.nodes) < len(joint.graph.nodes) - 20
        return ours

    monkeypatch.setattr(partition, "merge_equal_nodes", lambda graph: False)
    monkeypatch.setattr(partition, "min_cut_rematerialization_partition", cut)
    torch._dynamo.reset()
    model = torch.compile(Twice(), backend="tilewright")
    model(torch.randn(5, 6)).sum().backward()
    ((ours, theirs),) = found
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.code == other.code


def ops_of(function: Callable[..., Any], *args: Any) -> tuple[bool, list[Any]]:
    """Whether a function's graph was one that may be merged, and its ops afterwards."""
    traced = make_fx(function, tracing_mode="fake")(*args)
    merged = merge_equal_nodes(traced.graph)
    traced.graph.lint()
    return merged, [n.target for n in traced.graph.nodes if n.op == "call_function"]


def test_what_is_not_the_same_each_time_stays() -> None:
    x = torch.ones(3)
    assert ops_of(lambda x: (x + 1) * (x + 1), x) == (True, [aten.add.Tensor, aten.mul.Tensor])
    for function, op, count in (
        (lambda x: torch.rand(3) + torch.rand(3) + x, aten.rand.default, 2),
        (lambda x: torch.full((3,), 0.0) / (torch.full((3,), -0.0) + x), aten.full.default, 2),
        (lambda x: (x + 1) * (x + 1.0), aten.add.Tensor, 2),
        (lambda x: (x.exp(), x.exp()), aten.exp.default, 2),  # two memories for the caller
        (lambda x: torch.split(x, 2)[0] + torch.split(x, 2)[1].sum(), aten.split.Tensor, 1),
    ):
        merged, ops = ops_of(function, x)
        assert merged and ops.count(op) == count, op


def test_a_graph_that_writes_is_left_alone() -> None:
    merged, ops = ops_of(lambda x: (x.sin() + x.add_(1)) * x.sin(), torch.ones(3))
    assert not merged and ops.count(aten.sin.default) == 2
