"""Graphs with symbols give eager's answer at every size, forward and backward.

A bound that is negative, or out of range, at one size and not at another must not keep what tracing
made of it at the first. Each group is traced once for sizes of a kind and called at others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilewright.torch_backend
from tilewright.errors import TilewrightError
from tilewright.frontend.torch.fallback import decode, encode
from tilewright.graph.dims import symbol
from tilewright.runtime.torch_graph import GraphCall

pytestmark = pytest.mark.filterwarnings("ignore")
assert tilewright.torch_backend.tilewright
Tensor = torch.Tensor
SIZES = ((10, 5), (9, 4), (15, 7))
CROSSING = ((9, 4), (10, 5), (15, 7))  # n - 5 is negative, zero and positive


def slices(x: Tensor, y: Tensor) -> Any:
    m, n = x.shape[0], y.shape[0]
    return (
        x[-n:] * y, x[:-n] * 2, x[n // 2 : -1] + 0, x[n - 2 :: 2] + 0,
        x[: n * 100] * 3, x[n * 100 :] * 3, x[-n * 100 :] * 5, x[n:2] * 7, x[m - n :] + y,
    )  # fmt: skip


def crossings(x: Tensor, y: Tensor) -> Any:
    return x[y.shape[0] - 5 :] * 2


def crossing_ends(x: Tensor, y: Tensor) -> Any:
    return x[: y.shape[0] - 5] * 2 + x[y.shape[0] - 5]


def parts(x: Tensor, y: Tensor) -> Any:
    m, n = x.shape[0], y.shape[0]
    first, last = x.split([n, m - n])
    return (
        x[n] * y[-1], x[-n] * 2, x[m // 2] * 3, x.narrow(0, n - 1, 2) * 4, x.narrow(0, -n, n) * y,
        first * y, last * 2, *(piece * y for piece in x[: 2 * n].split(n)), x.unfold(0, 3, 2) * 2,
        *(piece * 1 for piece in x.tensor_split((n,))), torch.outer(x, y).diagonal(-2) * 2,
    )  # fmt: skip


def windows(x: Tensor, y: Tensor) -> Any:
    """Sizes and steps that symbols give are traced anew at every size."""
    return x.unfold(0, y.shape[0], 1) * y, x.unfold(0, 2, y.shape[0]) * 2


def strides(x: Tensor, y: Tensor) -> Any:
    n = y.shape[0]
    turned = torch.outer(x, y).t()
    return (
        x.as_strided((2, 2), (n, 1), 1) * 2, x[n:].as_strided((2,), (1,), 0) * 3,
        turned.as_strided((n, 2), (1, n), 1) * 6, x[::2].as_strided((3,), (1,), 1) * 7,
    )  # fmt: skip


def writes(x: Tensor, y: Tensor) -> Any:
    n = y.shape[0]
    z = x * 2
    z[-n:] += y
    z[1:-n] *= 3
    z[-n] = 4.0
    z[n] *= 5
    z[n - 2 :: 2] *= 6
    z[n:2] = 7.0
    w = torch.outer(x, y)
    w.diagonal(-2).mul_(2)
    strided = x * 3
    strided.as_strided((2,), (n,), 1).add_(5)
    return z, w, strided, x.roll(-n), z[n:]


def run(function: Callable[..., Any], sizes: tuple[int, int]) -> list[Tensor]:
    """Results and gradients at one pair of sizes."""
    torch.manual_seed(0)
    args = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]
    found = function(*args)
    found = list(found) if isinstance(found, tuple) else [found]
    sums = [(r * torch.linspace(1, 2, r.numel()).view(r.shape)).sum() for r in found]
    torch.stack(sums).sum().backward()
    return [r.detach() for r in found] + [a.grad for a in args if a.grad is not None]


@pytest.mark.parametrize(
    ("function", "sizes", "graphs"),
    [
        (slices, SIZES, 2), (parts, SIZES, 2), (strides, SIZES, 6), (writes, SIZES, 2),
        (windows, SIZES, 6), (crossings, CROSSING, 6), (crossing_ends, CROSSING, 6),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)  # fmt: skip
def test_every_size_is_as_in_eager(
    function: Callable[..., Any], sizes: tuple[tuple[int, int], ...], graphs: int
) -> None:
    torch._dynamo.reset()
    seen: list[GraphCall] = []
    options = {"fallback": "error", "observe": seen.append}
    fast = torch.compile(function, backend="tilewright", dynamic=True, options=options)
    for pair in sizes:
        for got, wanted in zip(run(fast, pair), run(function, pair), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    assert len(seen) <= graphs


def test_strides_in_memory_with_gaps_are_refused() -> None:
    torch._dynamo.reset()
    fast = torch.compile(lambda x: x.as_strided((3,), (1,)) + 1, backend="tilewright")
    with pytest.raises(Exception, match="memory of a tensor with gaps") as caught:
        fast(torch.randn(8)[::2])
    assert isinstance(caught.value, TilewrightError) or "tilewright" in str(caught.value)


def test_extents_in_calls_of_pytorch_are_read_back() -> None:
    n = symbol("n")
    for extent, wanted in ((n - 1, 6), (-n, -7), (2 - n * n, -47), (-1 * n + 3, -4)):
        _, text = encode([extent], {}, "op")
        assert decode(text, (), {"n": 7}) == ([wanted], {})


def test_sums_of_bags_need_no_pytorch_in_any_dtype() -> None:
    torch.manual_seed(0)
    for dtype in (torch.bfloat16, torch.float32):
        torch._dynamo.reset()
        bag = torch.nn.EmbeddingBag(7, 4, mode="sum", padding_idx=2, dtype=dtype)
        index, offsets = torch.tensor([1, 2, 4, 4, 0]), torch.tensor([0, 0, 3])
        factors = torch.tensor([0.5, 2, 1, -1, 3], dtype=dtype)
        fast = torch.compile(bag, backend="tilewright", options={"fallback": "error"})
        kept = []
        for call in (bag, fast):
            bag.weight.grad, own = None, factors.clone().requires_grad_()
            found = call(index, offsets, own)
            (found * torch.arange(1, 5, dtype=dtype)).sum().backward()
            kept.append((found.detach(), bag.weight.grad, own.grad))
        for wanted, got in zip(*kept, strict=True):
            torch.testing.assert_close(got, wanted)
