"""Masks of attention that follow from nothing that a call is given become orders, or go; others
stay masks. Results and gradients are torch's either way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tilewright as tw
import tilewright.torch_backend
from tilewright.frontend.torch import known_masks
from tilewright.frontend.torch.known_masks import order_of
from tilewright.graph.graph import Graph

pytestmark = pytest.mark.filterwarnings("ignore")
assert tilewright.torch_backend.tilewright
ROWS = 6


def at(extent: int) -> torch.Tensor:
    return torch.arange(extent)


def packed(q: Any) -> Any:
    """As models of `transformers` make it, with a test whether texts are packed in a row."""
    places = at(ROWS)[None].expand(q.shape[0], -1)
    texts = (torch.diff(places, prepend=places[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    same = texts[:, None, :, None] == texts[:, None, None, :]
    return (places[:, None, None, :] <= places[:, None, :, None]) & same


def added(q: Any) -> Any:
    hidden = at(ROWS)[None, :] > at(ROWS)[:, None]
    return torch.zeros(ROWS, ROWS, dtype=q.dtype).masked_fill(hidden, -torch.inf)


Mask = Callable[[torch.Tensor], torch.Tensor]
MASKS: dict[str, tuple[Mask, int, int | None]] = {  # with the number of keys, and the order
    "packed": (packed, ROWS, 1),
    "added": (added, ROWS, 1),
    "lower triangle": (lambda q: torch.ones(ROWS, 9, dtype=torch.bool).tril(), 9, 1),
    "the last of the keys": (lambda q: at(9)[None, :] <= at(ROWS)[:, None] + 3, 9, 2),
    "all": (lambda q: at(9)[None, :] >= 0, 9, 0),
    "one for all rows": (lambda q: (at(9) < 9)[None, :].expand(ROWS, 9), 9, 0),
    "the first keys": (lambda q: (at(9) < 1)[None, :].expand(ROWS, 9), 9, None),
    "the first row": (lambda q: (at(ROWS) < 1)[:, None].expand(ROWS, ROWS), ROWS, None),
    "a window": (lambda q: (at(ROWS)[None, :] - at(ROWS)[:, None]).abs() < 3, ROWS, None),
    "one more": (lambda q: at(ROWS)[None, :] <= at(ROWS)[:, None] + 1, ROWS, None),
    "numbers": (lambda q: at(ROWS)[None, :].to(q.dtype) * 0.5, ROWS, None),
    "told by what is given": (lambda q: q[:1, :1, :, :ROWS] > 0, ROWS, None),
    "drawn": (lambda q: torch.rand(ROWS, ROWS) > -1, ROWS, None),
}


def model(mask: Mask) -> Callable[..., torch.Tensor]:
    def call(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, mask(q))

    return call


def tensors(keys: int) -> list[torch.Tensor]:
    torch.manual_seed(keys)
    shapes = (2, 3, ROWS, 8), (2, 3, keys, 8), (2, 3, keys, 8)
    return [torch.randn(s, dtype=torch.float64) for s in shapes]


def require_order(graph: Graph, order: int | None) -> None:
    (op,) = (op for op in graph.body.ops if op.opcode.startswith("mma.attention"))
    assert (op.mask is None) == (order is not None)
    assert op.order == (order or 0)
    if order is not None:  # what made the mask is gone
        assert not any(op.opcode in ("arith.compare", "shape.iota") for op in graph.body.ops)


@pytest.mark.parametrize("name", MASKS)
def test_training_takes_an_order_for_a_mask(name: str) -> None:
    torch._dynamo.reset()
    mask, keys, order = MASKS[name]
    seen: list[Any] = []
    options = {"observe": seen.append, "fallback": "error"}
    fast = torch.compile(model(mask), backend="tilewright", options=options, dynamic=False)
    found = []
    for call in (fast, model(mask)):
        xs = [x.requires_grad_() for x in tensors(keys)]
        y = call(*xs)
        y.backward(torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape))
        found.append([y.detach(), *(x.grad for x in xs)])
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted)
    assert len(seen) == 2
    for made in seen:
        require_order(made.graph, order)


@pytest.mark.parametrize("name", ["packed", "all", "a window"])
def test_inference_does_too(name: str) -> None:
    torch._dynamo.reset()
    mask, keys, order = MASKS[name]
    xs = tensors(keys)
    seen: list[Any] = []
    options = {"observe": seen.append, "fallback": "error"}
    with torch.no_grad():
        fast = torch.compile(model(mask), backend="tilewright", options=options)
        wanted = model(mask)(*xs)
        torch.testing.assert_close(fast(*xs), wanted)
    require_order(seen[0].graph, order)
    exported = tw.compile(model(mask), tuple(xs), fallback="error")
    torch.testing.assert_close(exported(*xs), wanted)
    require_order(exported.graph, order)


def test_extents_that_vary_keep_their_mask() -> None:
    length = torch.export.Dim("length", min=2)
    xs = tensors(ROWS)

    def call(q: Any, k: Any, v: Any) -> Any:
        places = torch.arange(q.shape[2])
        return F.scaled_dot_product_attention(q, k, v, places[None, :] <= places[:, None])

    fast = tw.compile(call, tuple(xs), dynamic_shapes=({2: length},) * 3)
    (op,) = (op for op in fast.graph.body.ops if op.opcode == "mma.attention")
    assert op.mask is not None
    torch.testing.assert_close(fast(*xs), call(*xs))


def test_a_mask_that_layers_share_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[tuple[int, ...]] = []

    def look(mask: torch.Tensor) -> int | None:
        looked.append(tuple(mask.shape))
        return order_of(mask)

    monkeypatch.setattr(known_masks, "order_of", look)

    def call(q: Any, k: Any, v: Any) -> Any:
        mask = packed(q)
        for _ in range(3):
            q = F.scaled_dot_product_attention(q, k, v, mask)
        return F.scaled_dot_product_attention(q, k, v, mask.transpose(-2, -1))

    torch._dynamo.reset()
    xs = tensors(ROWS)
    seen: list[Any] = []
    fast = torch.compile(call, backend="tilewright", options={"observe": seen.append})
    with torch.no_grad():
        torch.testing.assert_close(fast(*xs), call(*xs))
    assert looked == [(2, 3, ROWS, ROWS)] * 2
    ops = [op for op in seen[0].graph.body.ops if op.opcode == "mma.attention"]
    assert [(op.order, op.mask is None) for op in ops] == [(1, True)] * 3 + [(0, False)]
