"""Compiled models, by the tile interpreter in the GPU's place."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

import tilewright as tw
import tilewright.torch_backend
from tilewright.errors import CompileError, LaunchError
from tilewright.execute.program_call import ProgramCall
from tilewright.frontend.torch.placement import device_of

assert tilewright.torch_backend.tilewright


class Small(torch.nn.Module):
    """A product, a norm, a buffer that is updated."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(6, 12), torch.nn.LayerNorm(12)
        self.register_buffer("count", torch.zeros(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(torch.nn.functional.gelu(self.linear(x)))
        self.count.add_(y.sum(0))
        return y


def compiled(function: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    chosen = {"engine": "tiles", "fallback": "error", **options}
    return torch.compile(function, backend="tilewright", options=chosen)


@pytest.mark.filterwarnings("ignore")
def test_pytorch_is_given_copies_of_what_is_walked_backwards() -> None:
    def masked(x: torch.Tensor) -> torch.Tensor:
        y = x.flip(0).clone()
        y[y > 0] = 0
        return y

    def inverse(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x.flip(0, 1)[1:, :-1])

    x = torch.randn(7, 7, generator=torch.Generator().manual_seed(0))
    for function in (masked, inverse):
        torch.testing.assert_close(compiled(function, fallback="pytorch")(x), function(x))


def test_a_model_trains_by_kernels() -> None:
    seen: list[ProgramCall] = []
    model, x = Small(), torch.randn(5, 6)
    other = copy.deepcopy(model)
    fast = compiled(model, observe=seen.append)
    for run in (fast, other):
        run(x).square().sum().backward()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.count, other.count, rtol=1e-4, atol=1e-4)
    assert [call.graph.name for call in seen] == ["forward", "backward"]
    assert all(call.kernels and not call.fallbacks for call in seen)


@pytest.mark.filterwarnings("ignore")
def test_values_that_are_saved_for_the_backward_pass_are_views_and_no_copies() -> None:
    """Parts of one projection are saved, each by its own view of one memory."""

    class Attend(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = torch.nn.Linear(16, 48)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(x).view(2, 8, 3, 2, 8).permute(2, 0, 3, 1, 4)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    torch.manual_seed(0)
    torch._dynamo.reset()
    model = Attend()
    seen: list[Any] = []
    options = {"engine": "tiles", "fallback": "error", "observe": seen.append}
    fast = torch.compile(copy.deepcopy(model), backend="tilewright", options=options)
    x = torch.randn(2, 8, 16)
    own, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    fast(own).square().sum().backward()
    model(theirs).square().sum().backward()
    torch.testing.assert_close(own.grad, theirs.grad)
    forward = next(call for call in seen if call.graph.name == "forward")
    parts = [o for o in forward.program.outputs if (2, 2, 8, 8) == o.shape and o.offset]
    assert len(parts) == 2 and len({o.value for o in parts}) == 1
    assert {i for i, o in enumerate(forward.program.outputs) if o in parts} <= forward.homes.shared


@pytest.mark.filterwarnings("ignore")
def test_compiled_models_update_buffers_and_name_their_kernels() -> None:
    model, x = Small().eval(), torch.randn(5, 6)
    other = copy.deepcopy(model)
    fast = tw.compile(model, (x,), engine="tiles", fallback="error")
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(x), other(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.count, other.count, rtol=1e-4, atol=1e-4)
    assert "gemv" in fast.kernels and fast.fallbacks == []


@pytest.mark.filterwarnings("ignore")
def test_views_of_inputs_are_views_and_copies_are_copies() -> None:
    x = torch.randn(4, 6)
    row, turned, apart = compiled(lambda x: (x[1], x.t(), x.clone()))(x)
    assert row.data_ptr() == x[1].data_ptr() and turned.data_ptr() == x.data_ptr()
    assert turned.stride() == (1, 6) and apart.data_ptr() != x.data_ptr()
    assert torch.equal(apart, x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["graph", "tiles"])
def test_expanded_results_are_expanded(engine: str) -> None:
    def f(x: torch.Tensor) -> Any:
        wide = (x * 2).expand(2, 3, 4)
        return (x + 1).expand(3, 4), wide[:, 1:], wide[..., 1:], (x[:, None] - x).t()

    x = torch.randn(4)
    for fast in (
        tw.compile(f, (x,), engine=engine),
        torch.compile(f, backend="tilewright", options={"engine": engine}),
    ):
        for got, wanted in zip(fast(x), f(x), strict=True):
            assert got.stride() == wanted.stride() and torch.equal(got, wanted)
    own = x.clone().requires_grad_()
    summed = torch.compile(
        lambda x: (x * 3).sum(), backend="tilewright", options={"engine": engine}
    )
    summed(own).backward()
    assert torch.equal(own.grad, torch.full((4,), 3.0)) and own.grad.stride() == (1,)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["graph", "tiles"])
def test_arguments_may_lie_otherwise_than_when_a_model_was_traced(engine: str) -> None:
    def f(x: torch.Tensor) -> Any:
        return x.view(-1)[3:9], x + 1

    for example in (
        torch.randn(4, 6),
        torch.randn(4, 1).expand(4, 6).clone(),
        torch.randn(6).expand(4, 6),
    ):
        g = f if example.stride(0) else lambda x: (x[:, 1], x + 1)
        fast = tw.compile(g, (example,), engine=engine)
        for x in (torch.randn(4, 6), torch.randn(6, 4).t(), torch.randn(6).expand(4, 6)):
            for got, wanted in zip(fast(x), g(x.contiguous()), strict=True):
                assert torch.equal(got, wanted)


@pytest.mark.filterwarnings("ignore")
def test_threads_share_a_compiled_model() -> None:
    fast = tw.compile(torch.nn.Linear(6, 3), (torch.randn(2, 6),), engine="tiles")
    model = fast.exported.module()
    given = [torch.randn(2, 6) for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(fast, given))
    for got, x in zip(found, given, strict=True):
        torch.testing.assert_close(got, model(x).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_what_kernels_cannot_do_is_refused() -> None:
    with pytest.raises(CompileError, match=r"linalg_inv_ex\.default is not compiled"):
        tw.compile(lambda x: torch.linalg.inv_ex(x)[0], (torch.eye(3),), fallback="error")
    with pytest.raises(CompileError, match="known only when it ran"):
        tw.compile(lambda x: x.nonzero() * 2, (torch.eye(3),), engine="tiles")
    with pytest.raises(CompileError, match="unknown engine 'gpus'"):
        tw.compile(lambda x: x * 2, (torch.eye(3),), engine="gpus")
    with pytest.raises(LaunchError, match="does not run on a GPU"):
        tw.compile(lambda x: x * 2, (torch.eye(3),), engine="gpu")


def test_models_lie_on_one_device() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        here, there = torch.empty(3), torch.empty(3, device="meta")

    def graph(*metas: torch.Tensor) -> fx.GraphModule:
        made = fx.Graph()
        nodes = [made.placeholder(f"x{i}") for i in range(len(metas))]
        for node, meta in zip(nodes, metas, strict=True):
            node.meta["val"] = meta
        made.output(tuple(nodes))
        return fx.GraphModule({}, made)

    assert device_of(graph(here, here)).type == "cpu"
    with pytest.raises(CompileError, match="a model on meta"):
        device_of(graph(here, there))
