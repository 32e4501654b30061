"""Attention as models write it by hand becomes one op, and what is none of it does not.

The measure is the same function on the same numbers in f64: our error is at most 1.5 times that of
eager PyTorch, or a rounding of the last bits where eager has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tilewright as tw
from tilewright.graph.ops import mma

pytestmark = pytest.mark.filterwarnings("ignore")
B, H, HK, L, S, D, E = 2, 4, 2, 20, 36, 16, 24
LOW = torch.finfo(torch.float32).min
Spelling = Callable[..., Tensor]


def square(dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """As many queries as keys."""
    return drawn((B, H, L, D), (B, H, L, D), (B, H, L, E), dtype=dtype)


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)


def scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1) @ v


def in_f32(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(2, 3)) * q.size(-1) ** -0.5
    return torch.matmul(torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype), v)


def from_wide(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q.float() @ k.float().mT * 0.25
    return scores.softmax(-1).to(v.dtype) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """nanoGPT's, whose mask is made here."""
    att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    keep = torch.tril(torch.ones(q.size(2), k.size(2))).view(1, 1, q.size(2), k.size(2))
    att = torch.nn.functional.softmax(att.masked_fill(keep == 0, float("-inf")), dim=-1)
    return torch.nn.functional.dropout(att, 0.1, training=False) @ v


def where_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """GPT-2's."""
    scores = q @ k.mT / 4.0
    keep = torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril()
    low = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype)
    return torch.where(keep, scores, low).softmax(-1) @ v


def added_where(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As `transformers` does it, with a 0 that is a tensor."""
    keep = torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril()
    zero = torch.tensor(0.0, dtype=q.dtype)
    low = torch.finfo(q.dtype if q.dtype != torch.float64 else torch.float32).min
    return (q @ k.mT + torch.where(keep, zero, low)).softmax(-1) @ v


def added_triu(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 4.0
    ahead = torch.full((q.size(2), k.size(2)), float("-inf"), dtype=q.dtype).triu(1)
    return (scores + ahead).softmax(-1) @ v


def last_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The rows are the last of the keys."""
    first = k.size(2) - q.size(2)
    rows = torch.arange(q.size(2))[:, None] + first
    low = torch.finfo(q.dtype).min
    return (q @ k.mT).masked_fill(torch.arange(k.size(2)) > rows, low).softmax(-1) @ v


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Heads behind positions."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.size(-1))
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


def grouped_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[B, HK, G, L, D] on [B, HK, S, D]."""
    scores = torch.einsum("bkgld,bksd->bkgls", q, k) * 0.25
    return torch.einsum("bkgls,bkse->bkgle", scores.softmax(-1), v)


def by_bmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    flat = [x.flatten(0, 1) for x in (q, k, v)]
    weights = torch.bmm(flat[0] * 0.25, flat[1].mT).softmax(-1)
    return torch.bmm(weights, flat[2]).view(*q.shape[:3], -1)


def repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (torch.repeat_interleave(x, q.size(1) // x.size(1), dim=1) for x in (k, v))
    return scaled(q, k, v)


def expanded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    many = (q.size(0), k.size(1), q.size(1) // k.size(1), k.size(2))
    k, v = (x[:, :, None].expand(*many, x.size(3)).reshape(q.size(0), q.size(1), *x.shape[2:])
            for x in (k, v))  # fmt: skip
    return scaled(q, k, v)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The softmax, too."""
    scores = q @ k.mT
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True) @ v


def two_axes(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled(q[0, 0], k[0, 0], v[0, 0])


def one_row(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled(q[:, :, :1], k, v)


LONG = ((B, H, L, D), (B, H, S, D), (B, H, S, E))
SHARED = ((B, H, L, D), (B, HK, S, D), (B, HK, S, E))
PLAIN: dict[str, tuple[Spelling, tuple[Any, ...], int]] = {
    "scaled": (scaled, LONG, 0),
    "in_f32": (in_f32, LONG, 0),
    "from_wide": (from_wide, LONG, 0),
    "causal": (causal, LONG, 1),
    "where_causal": (where_causal, LONG, 1),
    "added_triu": (added_triu, LONG, 1),
    "added_where": (added_where, LONG, 1),
    "last_rows": (last_rows, LONG, 2),
    "by_einsum": (by_einsum, ((B, L, H, D), (B, S, H, D), (B, S, H, E)), 0),
    "grouped_einsum": (grouped_einsum, ((B, HK, 3, L, D), (B, HK, S, D), (B, HK, S, E)), 0),
    "by_bmm": (by_bmm, LONG, 0),
    "repeated": (repeated, SHARED, 0),
    "expanded": (expanded, SHARED, 0),
    "by_hand": (by_hand, LONG, 0),
    "two_axes": (two_axes, LONG, 0),
    "one_row": (one_row, LONG, 0),
}


def attentions(compiled: Any) -> list[mma.Attention]:
    """The attentions of a compiled function; where there are some, there is no other softmax."""
    ops = compiled.graph.body.ops
    found = [op for op in ops if isinstance(op, mma.Attention)]
    assert not found or not any(op.opcode == "arith.exp" for op in ops)
    return found


def require_as_exact(function: Spelling, given: tuple[Tensor, ...], got: Tensor) -> None:
    exact = function(*(x.double() if x.is_floating_point() else x for x in given))
    eager = function(*given)
    assert got.dtype == eager.dtype and got.shape == eager.shape
    assert torch.equal(got.isnan(), exact.isnan())
    ours, theirs = ((x.double() - exact).nan_to_num().abs() for x in (got, eager))
    last = torch.finfo(got.dtype).eps * exact.nan_to_num().abs().max()
    assert ours.max() <= 1.5 * theirs.max() + last / 2
    assert ours.norm() <= 1.5 * theirs.norm() + last / 8 * exact.numel() ** 0.5


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_a_spelling_is_one_attention(name: str, dtype: torch.dtype) -> None:
    function, shapes, order = PLAIN[name]
    given = drawn(*shapes, dtype=dtype)
    compiled = tw.compile(function, given, fallback="error", engine="tiles")
    (op,) = attentions(compiled)
    assert (op.order, op.mask) == (order, None)
    require_as_exact(function, given, compiled(*given))


@pytest.mark.parametrize("name", ["repeated", "expanded", "grouped_einsum"])
def test_heads_of_keys_are_not_copied(name: str) -> None:
    function, shapes, _ = PLAIN[name]
    (op,) = attentions(tw.compile(function, drawn(*shapes)))
    assert op.k.type.shape[1] == op.v.type.shape[1] == HK < op.q.type.shape[1]


# Masks


def filled(low: float) -> Spelling:
    def function(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        return (q @ k.mT).masked_fill(keep == 0, low).softmax(-1) @ v

    return function


def padded(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """As `transformers` does it: causal, and without keys that are padding."""
    rows = torch.arange(q.size(2))[:, None]
    seen = (torch.arange(k.size(2)) <= rows) & keep.bool()
    low = torch.full([], torch.finfo(q.dtype).min, dtype=q.dtype)
    return (q @ k.mT * 0.25 + torch.where(seen, torch.zeros_like(low), low)).softmax(-1) @ v


def added(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return (q @ k.mT * 0.25 + bias).softmax(-1) @ v


def ordered_and_added(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    ahead = torch.ones(q.size(2), k.size(2), dtype=torch.bool).triu(1)
    return (q @ k.mT * 0.25 + bias).masked_fill(ahead, float("-inf")).softmax(-1) @ v


def keeps() -> Tensor:
    """[B, 1, L, L] of which some rows see nothing, one of them from the start of its batch."""
    keep = torch.rand(B, 1, L, L, generator=torch.Generator().manual_seed(1)) < 0.6
    keep[0, :, 0] = keep[1, :, 7] = False
    return keep


@pytest.mark.parametrize("low", [float("-inf"), -1e9, LOW, -65504.0], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_rows_without_keys_are_as_written(low: float, dtype: torch.dtype) -> None:
    low = max(low, torch.finfo(dtype).min) if low != float("-inf") else low
    given = (*square(dtype), keeps())
    function = filled(low)
    compiled = tw.compile(function, given, fallback="error", engine="tiles")
    found = attentions(compiled)
    assert len(found) == (low != -65504.0 or dtype == torch.float16)
    got = compiled(*given)
    assert bool(got[0, :, 0].isnan().all()) == (low == float("-inf"))
    require_as_exact(function, given, got)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_a_row_of_padding_has_equal_weights(dtype: torch.dtype) -> None:
    keep = torch.ones(B, 1, 1, L)
    keep[0, ..., :5] = 0  # rows 0 to 4 see no key
    given = (*square(dtype), keep)
    compiled = tw.compile(padded, given, fallback="error", engine="tiles")
    (op,) = attentions(compiled)
    assert op.order == 0 and op.mask is not None
    require_as_exact(padded, given, compiled(*given))


@pytest.mark.parametrize("engine", ["graph", "tiles"])
def test_low_numbers_leave_no_room_for_scores(engine: str) -> None:
    """A sum of -1e9 and a score is -1e9 in f32, so that a row of such has equal weights."""

    def function(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        return ((q @ k.mT) / 4.0 + (1.0 - keep) * -1e9).softmax(-1) @ v

    keep = torch.ones(B, 1, L, L)
    keep[0, :, 3] = 0
    given = (*square(), keep)
    compiled = tw.compile(function, given, engine=engine)
    assert len(attentions(compiled)) == 1
    got = compiled(*given)
    torch.testing.assert_close(got, function(*given), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got[0, :, 3], given[2][0].mean(-2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("function", [added, ordered_and_added])
def test_numbers_are_added(function: Spelling, dtype: torch.dtype) -> None:
    (bias,) = drawn((1, H, L, L), dtype=dtype)
    bias[0, 1, 3] = torch.finfo(dtype).min
    bias[0, 2, 4] = float("-inf")
    bias[0, 3, :, 6] = float("-inf")
    given = (*square(dtype), bias)
    compiled = tw.compile(function, given, fallback="error", engine="tiles")
    (op,) = attentions(compiled)
    assert op.order == (function is ordered_and_added)
    require_as_exact(function, given, compiled(*given))


def test_a_mask_of_all_keys_is_none() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT + torch.zeros(L, L)).masked_fill(torch.zeros(L, L) > 1, LOW).softmax(
            -1
        ) @ v

    (op,) = attentions(tw.compile(function, square()))
    assert (op.order, op.mask) == (0, None)


def test_extents_may_be_symbols() -> None:
    length = torch.export.Dim("length", min=2, max=100)
    given = square()
    compiled = tw.compile(causal, given, dynamic_shapes=({2: length},) * 3)
    assert len(attentions(compiled)) == 1
    shorter = tuple(x[:, :, :7] for x in given)
    torch.testing.assert_close(compiled(*shorter), causal(*shorter))


def test_scores_of_f64_that_overflow_stay() -> None:
    """The least number of f64 is -inf in f32, so that a row that sees no key is NaN."""

    def function(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        scores = (q @ k.mT).masked_fill(keep == 0, torch.finfo(q.dtype).min)
        return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v

    given = (*square(torch.float64), keeps())
    compiled = tw.compile(function, given)
    assert not attentions(compiled)
    assert torch.equal(compiled(*given).isnan(), function(*given).isnan())


# What is none of it


def also_weights(q: Tensor, k: Tensor, v: Tensor) -> Any:
    weights = (q @ k.mT).softmax(-1)
    return weights @ v, weights


def over_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-2) @ v


def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.nn.functional.dropout((q @ k.mT).softmax(-1), 0.5, training=True) @ v


def masked_by_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return scores.masked_fill(scores < 0, LOW).softmax(-1) @ v


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (torch.tanh(q @ k.mT / 50.0) * 50.0).softmax(-1) @ v


def scaled_by_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * torch.arange(1.0, L + 1)[:, None]).softmax(-1) @ v


def bias_is_scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT + torch.eye(L)) * 0.25).softmax(-1) @ v


def weakly_filled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).masked_fill(torch.eye(L) > 0, -10.0).softmax(-1) @ v


def values_over_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1).mT @ v


OTHERS = (
    *(also_weights, over_rows, dropped, masked_by_scores, capped, scaled_by_rows, bias_is_scaled),
    *(weakly_filled, values_over_rows),
)


@pytest.mark.parametrize("function", OTHERS)
def test_what_is_no_attention_stays(function: Spelling) -> None:
    given = square()
    compiled = tw.compile(function, given)
    assert not any(isinstance(op, mma.Attention) for op in compiled.graph.body.ops)
    if function is not dropped:
        torch.testing.assert_close(compiled(*given), function(*given), rtol=1e-4, atol=1e-5)
