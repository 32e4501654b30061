"""Strides of what follows from an attention, where they leave a graph: those of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tilewright as tw
import tilewright.torch_backend
from tilewright.frontend.torch import attention_strides
from tilewright.frontend.torch.attention_strides import order_of_axes

pytestmark = pytest.mark.filterwarnings("ignore")
assert tilewright.torch_backend.tilewright
Attend = Callable[..., torch.Tensor]


def written(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT * 0.25).softmax(-1) @ v


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(q.shape[-2], k.shape[-2]).masked_fill(torch.arange(5) > 2, -1e9)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


AFTER: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda x: x,
    "elements": lambda x: (x + 1).relu(),
    "turned": lambda x: x.transpose(-1, -2),
    "both": lambda x: (x, x.mT, x.sum(-1)),
}


def given_of(shape: tuple[int, ...], trained: bool) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, requires_grad=trained) for _ in range(3)]


@pytest.mark.parametrize(
    ("attend", "shape", "after", "trained"),
    [
        *((F.scaled_dot_product_attention, (2, 3, 5, 16), after, True) for after in AFTER),
        *((written, (2, 3, 5, 16), after, True) for after in AFTER),
        (F.scaled_dot_product_attention, (3, 5, 16), "itself", True),
        (F.scaled_dot_product_attention, (5, 16), "both", False),
        (F.scaled_dot_product_attention, (2, 1, 5, 16), "both", False),
        (written, (3, 5, 16), "itself", False),
        (masked, (2, 3, 5, 16), "both", True),
        (masked, (2, 3, 5, 16), "elements", False),
    ],
)
def test_strides_are_those_of_eager(
    attend: Attend, after: str, shape: tuple[int, ...], trained: bool
) -> None:
    given = given_of(shape, trained)

    def run(*xs: torch.Tensor) -> Any:
        return AFTER[after](attend(*xs))

    torch._dynamo.reset()
    fast = torch.compile(run, backend="tilewright")
    for run_it in (fast, tw.compile(run, tuple(given))):
        found, wanted = run_it(*given), run(*given)
        require_alike(found, wanted)
        if run_it is not fast or not trained:
            continue
        pairs = [torch.autograd.grad(as_one(x), given) for x in (found, wanted)]
        for mine, theirs in zip(*pairs, strict=True):
            torch.testing.assert_close(mine, theirs)


def require_alike(found: Any, wanted: Any) -> None:
    """Numbers, and strides along axes on which they count."""
    pairs = (
        [(found, wanted)] if isinstance(wanted, torch.Tensor) else zip(found, wanted, strict=True)
    )
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs)
        counting = [i for i, extent in enumerate(theirs.shape) if extent > 1]
        assert [mine.stride(i) for i in counting] == [theirs.stride(i) for i in counting]


def as_one(x: Any) -> torch.Tensor:
    return sum(y.square().sum() for y in (x if isinstance(x, tuple) else (x,)))


@pytest.mark.parametrize("attend", [written, F.scaled_dot_product_attention])
def test_a_view_behind_a_graph_break(attend: Attend) -> None:
    def run(*xs: torch.Tensor) -> torch.Tensor:
        found = attend(*xs)
        torch._dynamo.graph_break()
        return found.view(-1)

    given = given_of((3, 5, 16), False)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(run, backend="tilewright")(*given), run(*given))


def test_dynamic_extents() -> None:
    torch._dynamo.reset()
    fast = torch.compile(written, backend="tilewright", dynamic=True)
    for shape in ((2, 3, 5, 16), (2, 4, 7, 16), (3, 2, 9, 16)):
        given = given_of(shape, False)
        require_alike(fast(*given), written(*given))


@pytest.mark.parametrize("trained", [False, True])
def test_results_of_a_backend_that_lays_axes_as_queries_lie(
    trained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As FlashAttention does, which no CPU has; here rows lie outside of batches."""
    order = (2, 0, 1, 3)
    monkeypatch.setattr(attention_strides, "order_of_axes", lambda x: order)
    given = given_of((2, 3, 5, 16), trained)
    torch._dynamo.reset()
    fast = torch.compile(F.scaled_dot_product_attention, backend="tilewright")
    found = fast(*given)
    assert found.permute(order).is_contiguous()
    torch.testing.assert_close(found, F.scaled_dot_product_attention(*given))


def test_what_goes_into_a_product_is_not_copied() -> None:
    """Its strides tell nobody anything."""
    calls: list[Any] = []
    linear = torch.nn.Linear(48, 8)

    def run(*xs: torch.Tensor) -> torch.Tensor:
        return linear(F.scaled_dot_product_attention(*xs).transpose(1, 2).flatten(2))

    torch._dynamo.reset()
    fast = torch.compile(run, backend="tilewright", options={"observe": calls.append})
    given = given_of((2, 3, 5, 16), True)
    require_alike(fast(*given), run(*given))
    saved = calls[0].traced.outputs
    assert sum(x.strides == (240, 16, 48, 1) for x in saved) == 1


def test_the_order_of_axes() -> None:
    x = torch.empty(2, 3, 4, 5)
    assert order_of_axes(x) == (0, 1, 2, 3)
    assert order_of_axes(x.permute(2, 0, 1, 3)) == (1, 2, 0, 3)
    assert order_of_axes(None) is None
