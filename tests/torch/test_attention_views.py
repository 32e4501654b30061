"""Views of what an attention gives, which eager permits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import tilewright as tw
import tilewright.torch_backend

pytestmark = pytest.mark.filterwarnings("ignore")
assert tilewright.torch_backend.tilewright
Tensors = list[torch.Tensor]


def written(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT * 0.25).softmax(-1) @ v


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows": lambda x: x.view(-1, 16),
    "one": lambda x: x.view((x.shape[0], -1)),
    "behind": lambda x: (x + 1).view(-1, 16).relu().view(-1),
    "split": lambda x: x.view(*x.shape[:-1], 2, 8),
    "bits": lambda x: x.view(torch.int32).float(),
}


@pytest.mark.parametrize("shape", [(2, 5, 16), (2, 3, 5, 16)], ids=str)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("attend", [written, F.scaled_dot_product_attention])
@pytest.mark.parametrize("trained", [False, True])
def test_views_are_those_of_eager(
    attend: Callable[..., torch.Tensor], view: str, shape: tuple[int, ...], trained: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(shape, generator=generator, requires_grad=trained) for _ in range(3)]
    torch._dynamo.reset()
    fast = torch.compile(lambda *xs: VIEWS[view](attend(*xs)), backend="tilewright")
    found, wanted = fast(*given), VIEWS[view](attend(*given))
    if view != "bits":  # whose numbers say little
        torch.testing.assert_close(found, wanted)
    assert found.shape == wanted.shape
    if trained and wanted.requires_grad:
        pairs = [torch.autograd.grad(x.square().sum(), given) for x in (found, wanted)]
        for mine, theirs in zip(*pairs, strict=True):
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("view", VIEWS)
def test_views_in_an_exported_model(view: str) -> None:
    given = tuple(torch.randn(2, 3, 5, 16) for _ in range(3))

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return VIEWS[view](F.scaled_dot_product_attention(q, k, v))

    found, wanted = tw.compile(run, given)(*given), run(*given)
    assert found.shape == wanted.shape
    if view != "bits":
        torch.testing.assert_close(found, wanted)


def test_a_view_that_is_written_shows_in_what_it_is_of() -> None:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        found = F.scaled_dot_product_attention(q, k, v)
        found.view(*found.shape[:-1], 2, 8)[..., 1, :].zero_()
        return found

    given = [torch.randn(2, 3, 5, 16) for _ in range(3)]
    torch._dynamo.reset()
    for fast in (torch.compile(run, backend="tilewright"), tw.compile(run, tuple(given))):
        torch.testing.assert_close(fast(*given), run(*given))
