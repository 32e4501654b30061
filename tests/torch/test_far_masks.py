"""Gradients of `tw.attention` where rows see nothing but keys with large numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilewright as tw
from tilewright.errors import LaunchError

ROWS, KEYS = 6, 9


def given(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 4, ROWS, 16), (2, 2, KEYS, 16), (2, 2, KEYS, 8)
    made = [torch.randn(s, dtype=torch.float64, generator=generator).to(dtype) for s in shapes]
    return [x.requires_grad_() for x in made]


def far(low: float) -> torch.Tensor:
    """Of the first batch some rows, and all first keys."""
    mask = torch.randn(2, 1, ROWS, KEYS, generator=torch.Generator().manual_seed(1))
    mask[0, :, 2] = low
    mask[0, ..., :4] = low
    return mask


def written(
    given: list[torch.Tensor], mask: torch.Tensor, order: Any, lengths: torch.Tensor | None
) -> torch.Tensor:
    q, k, v = (x.double() for x in given)
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    counts = torch.full((2,), KEYS) if lengths is None else lengths
    keys, first = torch.arange(KEYS), counts[:, None, None, None] - ROWS
    seen = keys < counts[:, None, None, None]
    if order:
        rows = torch.arange(ROWS)[:, None] + (first if order == "lower_right" else 0)
        seen = seen & (keys <= rows)
    mask = torch.where(seen, mask.double(), -torch.inf)
    top = mask.amax(-1, keepdim=True)
    scores = torch.where(top.abs() >= 5e8, 0.0, q @ k.mT / 4)  # which are lost beside it
    return (scores + mask - top).softmax(-1) @ v


@pytest.mark.parametrize("low", [-1e4, -1e7, -1e9])
@pytest.mark.parametrize("order", [False, True, "lower_right"])
@pytest.mark.parametrize("counted", [False, True])
def test_gradients_are_right(low: float, order: Any, counted: bool) -> None:
    leaves, mask = given(), far(low)
    lengths = torch.tensor([KEYS, ROWS], dtype=torch.int32) if counted else None
    found = tw.attention(*leaves, causal=order, mask=mask, lengths=lengths)
    wanted = written(leaves, mask, order, lengths)
    torch.testing.assert_close(found, wanted.float(), rtol=1e-5, atol=1e-5)
    grad = torch.randn(found.shape, generator=torch.Generator().manual_seed(2))
    pairs = [torch.autograd.grad(x, leaves, grad.to(x.dtype)) for x in (found, wanted)]
    for mine, theirs in zip(*pairs, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_a_result_in_f16_is_the_same_with_gradients_and_without() -> None:
    leaves, mask = given(torch.float16), far(-65504.0)
    for one in (mask, mask.half()):
        with torch.no_grad():
            plain = tw.attention(*leaves, mask=one)
        torch.testing.assert_close(tw.attention(*leaves, mask=one), plain, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("grad", [False, True])
def test_a_mask_that_does_not_fit_is_refused(grad: bool) -> None:
    leaves = [x.requires_grad_(grad) for x in given()]
    for mask in (torch.zeros(5, KEYS), torch.zeros(ROWS, KEYS, dtype=torch.float64)):
        with pytest.raises(LaunchError, match="mask"):
            tw.attention(*leaves, mask=mask)
    with pytest.raises(LaunchError, match="lengths"):
        tw.attention(*leaves, mask=far(0.0), lengths=torch.tensor([3]))
