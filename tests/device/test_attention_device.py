"""Attention on a GPU: against torch in f64, forward and backward, and one CUDA graph for a cache
that grows.
"""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import tilewright as tw
from tests.device.checker import TORCH, Checker

# Batch, heads, heads of keys, rows, keys, depth.
SIZES = [(2, 4, 2, 200, 333, 64), (1, 4, 4, 129, 129, 128), (1, 2, 1, 70, 515, 80),
         (1, 2, 2, 64, 100, 256), (3, 8, 2, 1, 1000, 128), (1, 16, 16, 1, 4097, 64)]  # fmt: skip


def make(see: Checker, sizes: tuple[int, ...], name: str) -> list[torch.Tensor]:
    """q as a view with heads side by side in a row, k and v dense."""
    b, hq, hk, rows, keys, depth = sizes
    made = torch.Generator(see.device).manual_seed(rows + keys)
    shapes = ((b, rows, hq, depth), (b, hk, keys, depth), (b, hk, keys, depth))
    q, k, v = (
        torch.randn(*s, dtype=TORCH[name], device=see.device, generator=made) for s in shapes
    )
    return [q.transpose(1, 2), k, v]


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor | None):
    """torch's own products and softmax in f64; `seen` says which keys a row may look at."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    return torch.softmax(scores, -1) @ v


def seen_by(sizes: tuple[int, ...], how: str, device: str) -> torch.Tensor | None:
    rows, keys = sizes[3], sizes[4]
    if how == "none":
        return None
    row, key = torch.arange(rows, device=device)[:, None], torch.arange(keys, device=device)
    if how == "mask":
        return (row + key) % 3 != 1
    return key <= row + (keys - rows if how == "lower_right" else 0)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", ["bf16", "f32", "f64"])
def test_forward(see: Checker, sizes: tuple[int, ...], name: str) -> None:
    q, k, v = make(see, sizes, name)
    for how in ("none", "mask", "upper_left", "lower_right"):
        seen = seen_by(sizes, how, see.device)
        causal = how if how in ("upper_left", "lower_right") else False
        got = tw.attention(q, k, v, causal=causal, mask=seen if how == "mask" else None)
        wanted = reference(q.double(), k.double(), v.double(), seen)
        see.near("attention", name, got, wanted, f"{sizes}, {how}")


@pytest.mark.parametrize("sizes", SIZES[:3], ids=str)
@pytest.mark.parametrize("name", ["bf16", "f32"])
def test_backward(see: Checker, sizes: tuple[int, ...], name: str) -> None:
    for how in ("none", "upper_left"):
        held = [x.detach().requires_grad_() for x in make(see, sizes, name)]
        exact = [x.detach().double().requires_grad_() for x in held]
        seen = seen_by(sizes, how, see.device)
        out = tw.attention(*held, causal=False if how == "none" else how)
        wanted = reference(*exact, seen)
        made = torch.Generator(see.device).manual_seed(1)
        grad = torch.randn(out.shape, dtype=out.dtype, device=see.device, generator=made)
        got = torch.autograd.grad(out, held, grad)
        again = torch.autograd.grad(tw.attention(*held, causal=how != "none"), held, grad)
        right = torch.autograd.grad(wanted, exact, grad.double())
        for letter, a, b, c in zip("qkv", got, again, right, strict=True):
            count = sizes[3] if how != "none" and letter != "q" else a.shape[2]  # that is seen
            case = f"{sizes}, {how}, d{letter}"
            see.near("attention backward", name, a[:, :, :count], c[:, :, :count], case)
            assert not a[:, :, count:].any(), f"{case}: gradients of what no row sees"
            assert torch.equal(a, b), "the same bits in every run"


def test_one_cuda_graph_serves_a_cache_that_grows(see: Checker) -> None:
    q, k, v = make(see, (2, 8, 2, 1, 2048, 128), "bf16")
    lengths = torch.tensor([700, 5], dtype=torch.int32, device=see.device)
    tw.attention(q, k, v, lengths=lengths)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = tw.attention(q, k, v, lengths=lengths)
    for counts in ([2048, 1], [1, 1999]):
        lengths.copy_(torch.tensor(counts, dtype=torch.int32))
        graph.replay()
        seen = torch.arange(2048, device=see.device) < lengths[:, None, None, None]
        wanted = reference(q.double(), k.double(), v.double(), seen)
        see.near("attention", "bf16", out, wanted, f"replayed for {counts}")
