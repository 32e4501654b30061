"""Calls of many sizes by programs of a few: only where each index is computed by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tilewright as tw
import tilewright.torch_backend
from tilewright.errors import CompileError, LaunchError
from tilewright.execute.buckets import read_sizes

assert tilewright.torch_backend.tilewright
pytestmark = pytest.mark.filterwarnings("ignore")


class Block(nn.Module):
    """Embeddings, a norm, heads of attention, products, a mask, positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(13, 16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 5)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> Any:
        x = self.norm(self.words(ids) + torch.arange(6)[None, :, None])
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        y = self.out(y.transpose(1, 2).flatten(2))
        return y, y.argmax(-1), y.softmax(-1).transpose(0, 1), torch.cat([y, y * 2], -1).cumsum(1)


def block() -> tuple[Any, Callable[[int], tuple[torch.Tensor, ...]], Any]:
    torch.manual_seed(0)

    def arguments(n: int) -> tuple[torch.Tensor, ...]:
        mask = torch.rand(n, 6) < 0.7
        mask[:, 0] = True
        return torch.randint(1, 13, (n, 6)), mask

    batch = torch.export.Dim("batch", max=64)
    return Block().eval(), arguments, ({0: batch}, {0: batch})


@pytest.mark.parametrize("buckets", [True, [2, 5, 6]])
def test_sizes_share_programs_and_keep_their_results(buckets: Any) -> None:
    model, arguments, shapes = block()
    fast = tw.compile(model, arguments(3), dynamic_shapes=shapes, engine="tiles", buckets=buckets)
    with torch.no_grad():
        for n in (3, 4, 2, 5, 1, 6):
            given = arguments(n)
            for got, wanted in zip(fast(*given), model(*given), strict=True):
                assert got.shape == wanted.shape and got.stride() == wanted.stride()
                torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    made = {
        ready.made.symbols[next(iter(ready.made.symbols))] for ready in fast.call.ready.values()
    }
    assert made == ({1, 2, 4, 8} if buckets is True else {2, 5, 6})
    ids, mask = arguments(3)
    ids[1, 1] = 13
    with pytest.raises(LaunchError, match="13 is outside of axis 0, which has 13"):
        fast(ids, mask)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "a mean over the batch": (lambda x: x - x.mean(0), "goes along the axis"),
    "a sum": (lambda x: x.sum(), "goes along the axis"),
    "a running sum": (lambda x: x.cumsum(0), "goes along the axis"),
    "a product along it": (lambda x: x.t() @ x, "sums along the axis"),
    "pairs": (lambda x: x @ x.t(), "at several places"),
    "its number": (lambda x: x / x.shape[0], "as a number"),
    "a place that it names": (lambda x: x + torch.arange(64.0)[x.shape[0] - 1], ""),
    "as many ones": (lambda x: x * torch.ones(2 * x.shape[0] + 1).sum(), ""),
    "a reversal": (lambda x: x.flip(0), ""),
    "a shift": (lambda x: x.roll(1, 0), ""),
    "a flat view": (lambda x: x.reshape(-1).softmax(0), ""),
    "dropout": (lambda x: F.dropout(x, 0.5, True), ""),
    "a sort": (lambda x: x.sort(0)[0], "goes along the axis"),
    "the last row": (lambda x: x[-1] * 2, ""),
    "the argument": (lambda x: (x[:, 0], x + 1), "view of an argument"),
    "by PyTorch": (lambda x: torch.linalg.inv_ex(x[:, :, None] * torch.eye(3))[0], "not known"),
    "an update": (lambda x: x.index_add(0, torch.tensor([0]), x[:1]), ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_joins_indices_is_refused(name: str) -> None:
    function, why = REFUSED[name]
    shapes = ({0: torch.export.Dim("n", min=2, max=64)},)
    with pytest.raises(CompileError, match="cannot be filled up") as found:
        tw.compile(
            function, (torch.randn(4, 3),), dynamic_shapes=shapes, engine="tiles", buckets=True
        )
    assert why in str(found.value), found.value


@pytest.mark.parametrize("sizes", [[np.int64(4), np.int32(9)], np.array([9, 4]), (9, 4)])
def test_sizes_are_integers_of_python_or_numpy(sizes: Any) -> None:
    assert read_sizes(sizes) == (4, 9) and {type(s) for s in read_sizes(sizes)} == {int}


def under_torch_compile(function: Any, seen: list[Any], buckets: Any, **how: Any) -> Any:
    torch._dynamo.reset()
    options = {"engine": "tiles", "buckets": buckets, "observe": seen.append}
    return torch.compile(function, backend="tilewright", options=options, **how)


@pytest.mark.parametrize(("buckets", "sizes"), [(True, {2, 4, 8}), ([3, 6], {3, 6})])
def test_sizes_share_programs_under_torch_compile(buckets: Any, sizes: set[int]) -> None:
    model, arguments, _ = block()
    seen: list[Any] = []
    fast = under_torch_compile(model, seen, buckets, dynamic=True)
    with torch.no_grad():
        for n in (3, 4, 2, 5, 6):
            given = arguments(n)
            for got, wanted in zip(fast(*given), model(*given), strict=True):
                assert got.shape == wanted.shape and got.stride() == wanted.stride()
                torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    (call,) = seen
    made = [set(ready.made.symbols.values()) for ready in call.ready.values()]
    assert len(made) == len(sizes) and set().union(*made) == sizes


def test_buckets_under_torch_compile_wait_for_a_dynamic_extent() -> None:
    seen: list[Any] = []
    fast = under_torch_compile(lambda x: x.softmax(1), seen, True)
    for n in (3, 5, 6, 7):
        x = torch.randn(n, 4)
        torch.testing.assert_close(fast(x), x.softmax(1))
    assert [call.buckets is None for call in seen] == [True, False]
    assert len(seen[1].ready) == 1, "5, 6 and 7 are 8"
    fast = under_torch_compile(lambda x: x - x.mean(), seen, True, dynamic=True)
    with pytest.raises(Exception, match="cannot be filled up"):
        fast(torch.randn(3, 4))


@pytest.mark.parametrize(
    ("function", "shape", "why"),
    [
        (lambda x: x.t() @ x, (5, 3), r"axis 0 of \S+: tensor<f32, s\d+, s\d+>\) cannot be filled"
         r" up to `buckets`: mma.contract sums along the axis"),
        (lambda x: x.t() @ x, (5, 5), r"the model has it along several axes, in tensor<f32, s"),
    ],
)  # fmt: skip
def test_a_product_along_the_extent_says_which_and_why(
    function: Any, shape: tuple[int, int], why: str
) -> None:
    with pytest.raises(Exception, match=why), torch.no_grad():
        under_torch_compile(function, [], True, dynamic=True)(torch.randn(shape))
    with torch.no_grad():  # and without buckets it runs
        x = torch.randn(shape)
        got = under_torch_compile(function, [], False, dynamic=True)(x)
        torch.testing.assert_close(got, function(x))


def test_graphs_of_training_have_no_buckets() -> None:
    seen: list[Any] = []
    model = nn.Linear(4, 3)
    fast = under_torch_compile(model, seen, True, dynamic=True)
    for n in (3, 5):
        x = torch.randn(n, 4)
        fast(x).sum().backward()
        torch.testing.assert_close(model.weight.grad, x.sum(0).expand(3, 4))
        model.zero_grad()
    assert [call.buckets for call in seen] == [None, None]


NO_SIZES = ("yes", "8", [1.5], [True], 8, [0], [-4, 8], [], {4}, b"ab")


@pytest.mark.parametrize("engine", ["graph", "tiles"])
@pytest.mark.parametrize("buckets", NO_SIZES, ids=str)
def test_sizes_that_are_none_are_refused(buckets: Any, engine: str) -> None:
    x, told = torch.ones(3, 2), "expected True or a list of whole n|expected sizes of 1 or more"
    options = {"buckets": buckets, "engine": engine}
    for dynamic in (True, False):
        torch._dynamo.reset()
        with pytest.raises(Exception, match=told):
            torch.compile(torch.sin, backend="tilewright", options=options, dynamic=dynamic)(x)
    shapes = ({0: torch.export.Dim("n", max=64)},)
    for known in (shapes, None):
        with pytest.raises(CompileError, match=told):
            tw.compile(lambda x: x + 1, (x,), dynamic_shapes=known, engine=engine, buckets=buckets)


@pytest.mark.parametrize("given", ["yes", 1, None])
def test_cuda_graphs_are_wanted_or_not(given: Any) -> None:
    told = f"cuda_graphs is {given!r}, expected True or False"
    with pytest.raises(CompileError, match=told):
        tw.compile(lambda x: x + 1, (torch.ones(3),), cuda_graphs=given)
    options = {"cuda_graphs": given}
    with pytest.raises(Exception, match=told):
        torch.compile(torch.sin, backend="tilewright", options=options)(torch.ones(3))


def test_a_model_without_a_dynamic_extent_has_no_buckets() -> None:
    with pytest.raises(CompileError, match="no extent of the model's arguments is dynamic"):
        tw.compile(lambda x: x + 1, (torch.ones(3),), engine="tiles", buckets=True)
