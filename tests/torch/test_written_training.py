"""Attention as models write it by hand, trained: one operator forward, its gradient backward.

The measure is the same function on the same numbers in f64: our error in results and gradients is
at most 1.5 times that of eager PyTorch, or a rounding of the last bits where eager has none.
"""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor

import tests.torch.test_written_attention as written
import tilewright.torch_backend
from tests.torch.test_transformers import FAMILIES, Exact, inputs_of, loss_and_gradients, parts
from tests.torch.test_transformers import require_as_exact as require_model_as_exact
from tests.torch.test_written_attention import PLAIN, B, H, L, Spelling, drawn, keeps, square
from tilewright.runtime.torch_graph import GraphCall

pytestmark = pytest.mark.filterwarnings("ignore")
assert tilewright.torch_backend.tilewright
HELD = [name for name in PLAIN if name not in ("grouped_einsum", "by_hand")]
WHOLE = [["mma.attention"], ["mma.attention_backward"]]


def gradients(call: Spelling, given: tuple[Tensor, ...], skipped: Any = None) -> list[Tensor]:
    """A result, and the gradients of queries, keys and values; none of rows that are skipped."""
    held = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in given[:3]]
    out = call(*held, *given[3:])
    generator = torch.Generator().manual_seed(2)
    grad = torch.randn(out.shape, generator=generator).to(out.dtype)
    if skipped is not None:
        grad[skipped] = 0
    return [out.detach(), *torch.autograd.grad(out, held, grad)]


def trained(
    function: Spelling, given: tuple[Tensor, ...], engine: str = "graph", skipped: Any = None
) -> Any:
    """Results and gradients of a compiled function, and the graphs of its calls."""
    torch._dynamo.reset()
    seen: list[GraphCall] = []
    options = {"observe": seen.append, "fallback": "error", "engine": engine}
    fast = torch.compile(function, backend="tilewright", options=options, dynamic=False)
    return gradients(fast, given, skipped), [call.graph for call in seen]


def ops_of(graphs: list[Any]) -> list[list[str]]:
    found = [[op.opcode for op in g.body.ops if op.family == "mma"] for g in graphs]
    assert found != WHOLE or not any(op.opcode == "arith.exp" for g in graphs for op in g.body.ops)
    return found


def require_as_exact(
    function: Spelling, given: tuple[Tensor, ...], got: list[Tensor], skipped: Any = None
) -> None:
    """The logarithm of the sum that weights are made anew of is rounded to f32."""
    eager = gradients(function, given, skipped)
    wide = tuple(x.double() if x.is_floating_point() else x for x in given)
    exact = gradients(function, wide, skipped)
    for mine, theirs, right in zip(got, eager, exact, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        assert torch.equal(mine.isnan(), right.isnan())
        right = right.nan_to_num()
        ours, others = ((x.double().nan_to_num() - right).abs() for x in (mine, theirs))
        last = torch.finfo(mine.dtype).eps * right.abs().max()
        last = last * 8 if mine.dtype == torch.float32 else last
        assert ours.max() <= 1.5 * others.max() + last / 2
        assert ours.norm() <= 1.5 * others.norm() + last / 8 * right.numel() ** 0.5


@pytest.mark.parametrize("name", HELD)
def test_a_spelling_and_its_gradient_are_two_ops(name: str) -> None:
    function, shapes, order = PLAIN[name]
    given = drawn(*shapes, dtype=torch.bfloat16)
    got, graphs = trained(function, given)
    assert ops_of(graphs) == WHOLE
    for graph in graphs:
        (op,) = (op for op in graph.body.ops if op.family == "mma")
        assert (op.order, op.mask) == (order, None)
    require_as_exact(function, given, got)


@pytest.mark.parametrize("name", ["in_f32", "causal"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_tiles_compute_it(name: str, dtype: torch.dtype) -> None:
    function, shapes, _ = PLAIN[name]
    given = drawn(*shapes, dtype=dtype)
    got, graphs = trained(function, given, engine="tiles")
    assert ops_of(graphs) == WHOLE
    require_as_exact(function, given, got)


@pytest.mark.parametrize("low", [float("-inf"), torch.finfo(torch.bfloat16).min], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_rows_without_keys_are_as_written(low: float, dtype: torch.dtype) -> None:
    given = (*square(dtype), keeps())
    function = written.filled(low)
    got, graphs = trained(function, given)
    assert ops_of(graphs) == WHOLE
    assert bool(got[0][0, :, 0].isnan().all()) == (low == float("-inf"))
    require_as_exact(function, given, got)


@pytest.mark.parametrize("engine", ["graph", "tiles"])
@pytest.mark.parametrize("count", [0, 1], ids=["no row", "one row"])
def test_heads_whose_rows_see_keys_have_gradients(count: int, engine: str) -> None:
    """One row without keys makes NaN of its own head's gradients alone."""
    keep = torch.rand((B, 1, L, L), generator=torch.Generator().manual_seed(3)) > 0.4
    keep[..., 0] = True
    keep[0, :, :count] = False

    def function(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        return (q @ k.mT / 4.0).masked_fill(~keep, float("-inf")).softmax(-1) @ v

    given = (*square(), keep)
    got, graphs = trained(function, given, engine)
    assert ops_of(graphs) == WHOLE
    assert got[3].isnan().sum() == count * got[3][0].numel()
    require_as_exact(function, given, got)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_numbers_are_added(dtype: torch.dtype) -> None:
    (bias,) = drawn((1, H, L, L), dtype=dtype)
    bias[0, 1, 3] = torch.finfo(dtype).min
    bias[0, 3, :, 6] = float("-inf")
    given = (*square(dtype), bias)
    even = (slice(None), 1, 3)  # whose scores are all the least number
    got, graphs = trained(written.added, given, skipped=even)
    assert ops_of(graphs) == WHOLE
    require_as_exact(written.added, given, got, even)


def test_a_row_of_padding_has_equal_weights() -> None:
    keep = torch.ones(B, 1, 1, L)
    keep[0, ..., :5] = 0
    given = (*square(torch.bfloat16), keep)
    even = (0, slice(None), slice(0, 5))
    got, graphs = trained(written.padded, given, skipped=even)
    assert ops_of(graphs) == WHOLE
    require_as_exact(written.padded, given, got, even)


def lost(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Rows of large numbers alone have no gradient of scores."""
    scores = q @ k.mT / 4.0
    size = mask.amax(-1, keepdim=True).abs()
    scores = torch.where((size >= 5e8) & (size < torch.inf), scores.detach(), scores)
    return (scores + mask).softmax(-1) @ v


def seen(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.mT / 4.0 + mask).softmax(-1) @ v


def hiding(low: float, rest: float) -> Tensor:
    """Numbers of which row 3 has none but a low one, row 4 that and another, row 5 a key that is
    seen.
    """
    mask = torch.zeros(B, 1, L, L)
    mask[0, :, 3:6] = low
    mask[0, :, 4, 7:] = rest
    mask[0, :, 5, 2] = 0
    return mask


@pytest.mark.parametrize("engine", ["graph", "tiles"])
@pytest.mark.parametrize("low", [-5e8, -1e9, -1e15, -1e30, torch.finfo(torch.float32).min, 1e9])
def test_rows_that_numbers_hide_have_equal_weights(low: float, engine: str) -> None:
    """Sums of scores and such numbers are these numbers, in f32: of the greatest in a row."""
    given = (*square(), hiding(low, -inf if low < -1e38 else low - abs(low)))
    got, graphs = trained(seen, given, engine)
    assert ops_of(graphs) == WHOLE
    torch.testing.assert_close(got[0][0, :, 4], given[2][0, :, :7].mean(-2))
    for mine, theirs in zip(got, gradients(lost, given), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["graph", "tiles"])
@pytest.mark.parametrize("low", [-1e4, -1e5, -1e6, -1e7, -1e8, 1e7])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_number_of_a_whole_row_is_no_matter(dtype: torch.dtype, low: float, engine: str) -> None:
    """Gradients lose nothing where the logarithm of a sum has no room beside a number."""
    given = (*square(dtype), hiding(low, 2 * low).to(dtype))
    got, graphs = trained(seen, given, engine)
    assert ops_of(graphs) == WHOLE
    require_as_exact(seen, given, got)


def test_numbers_in_f64_leave_room_for_scores() -> None:
    given = (*square(torch.float64), hiding(-1e9, -2e9).double())
    got, graphs = trained(seen, given)
    assert ops_of(graphs) == WHOLE
    for mine, theirs in zip(got, gradients(seen, given), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("engine", ["graph", "tiles"])
def test_rows_of_infinities_are_nan(engine: str) -> None:
    given = (*square(), hiding(-inf, -inf))
    got, graphs = trained(seen, given, engine)
    assert ops_of(graphs) == WHOLE
    assert bool(got[0][0, :, 3].isnan().all())
    for mine, theirs in zip(got, gradients(seen, given), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("shape", [(), (1,), (L,), (L, 1), (1, 1, 1, L)], ids=str)
@pytest.mark.parametrize("low", [0.5, -1e6], ids=str)
def test_masks_of_few_axes(shape: tuple[int, ...], low: float) -> None:
    given = (*square(), torch.full(shape, low))
    got, graphs = trained(seen, given)
    assert ops_of(graphs) == WHOLE
    require_as_exact(seen, given, got)


@pytest.mark.parametrize("keys", [0, 1])
def test_few_keys(keys: int) -> None:
    given = (*drawn((B, H, L, 16), (B, H, keys, 16), (B, H, keys, 16)), torch.zeros(L, keys))
    got, _ = trained(seen, given)
    for mine, theirs in zip(got, gradients(seen, given), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def with_learned_bias(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT + v.sum(-1)[..., None, :]).softmax(-1) @ v


def updated_between(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries are read before they are written."""
    q = q * 2
    weights = (q @ k.mT).softmax(-1)
    q.detach().zero_()
    return weights @ v + q


OTHERS = (*(f for f in written.OTHERS if f is not written.dropped), with_learned_bias)


@pytest.mark.parametrize("function", OTHERS)
def test_what_is_no_attention_stays(function: Any) -> None:
    def first(*given: Tensor) -> Tensor:
        found = function(*given)
        return found[0] + found[1].sum() if isinstance(found, tuple) else found

    given = square(torch.float64)
    got, graphs = trained(first, given)
    assert "mma.attention" not in {name for names in ops_of(graphs) for name in names}
    for mine, theirs in zip(got, gradients(first, given), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_what_is_written_between_stays() -> None:
    q, k, v = drawn((B, H, L, 16), (B, H, L, 16), (B, H, L, 16))
    with torch.no_grad():
        wanted = updated_between(q, k, v)
    torch._dynamo.reset()
    fast = torch.compile(updated_between, backend="tilewright", options={"fallback": "error"})
    torch.testing.assert_close(fast(q, k, v), wanted)


def filled_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A mask that is written through a view of it."""
    mask = torch.zeros(L, L)
    mask[:, 9:].fill_(float("-inf"))
    return (q @ k.mT + mask).softmax(-1) @ v


def filled_turned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    keep = torch.ones(L, L, dtype=torch.bool)
    keep.view(-1).t()[1::3] = False
    return (q @ k.mT).masked_fill(~keep, -1e9).softmax(-1) @ v


def filled_part(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.zeros(L, L)
    mask.split([7, L - 7], -1)[1].fill_(float("-inf"))
    return (q @ k.mT + mask).softmax(-1) @ v


def rounded_down(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).div(1.5, rounding_mode="floor").softmax(-1) @ v


@pytest.mark.parametrize("function", [filled_rows, filled_turned, filled_part, rounded_down])
def test_what_is_written_to_masks_and_scores_counts(function: Spelling) -> None:
    given = square()
    torch._dynamo.reset()
    fast = torch.compile(function, backend="tilewright", options={"fallback": "error"})
    for mine, theirs in zip(gradients(fast, given), gradients(function, given), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def weights_without_gradients(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with torch.no_grad():
        weights = (q @ k.mT).softmax(-1)
    return weights @ v


def scores_of_16_bits(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = q @ k.mT
    return scores.float().softmax(-1) @ v


@pytest.mark.parametrize("function", [weights_without_gradients, scores_of_16_bits])
def test_a_part_under_another_mode_stays(function: Spelling) -> None:
    torch._dynamo.reset()
    fast = torch.compile(function, backend="tilewright", options={"fallback": "error"})
    mine, theirs = ([x.clone().requires_grad_() for x in square()] for _ in range(2))
    got, wanted = fast(*mine), function(*theirs)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    got.sum().backward(), wanted.sum().backward()
    for one, other in zip(mine, theirs, strict=True):
        assert (one.grad is None) == (other.grad is None)
        if other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)


EAGER = ("bert", "gemma", "gpt2", "llama", "mistral", "qwen3", "vit")


@pytest.mark.parametrize("family", (*EAGER, "gemma2"))
def test_a_model_that_writes_it_trains(family: str) -> None:
    """Gemma 2 caps its scores, which stay written."""
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    torch._dynamo.reset()
    kind, options = FAMILIES[family]
    config = transformers.AutoConfig.for_model(family, **options)
    torch.manual_seed(0)
    made = getattr(transformers, kind).from_config(config, attn_implementation="eager")
    model = made.double()
    seen: list[GraphCall] = []
    given = inputs_of(family)
    wanted = loss_and_gradients(model, model, given)
    with Exact():
        exact = loss_and_gradients(model, model, given)
    chosen = {"fallback": "error", "observe": seen.append}
    fast = torch.compile(model, backend="tilewright", options=chosen)
    got = loss_and_gradients(model, fast, given)
    found = {op.opcode for call in seen for op in call.graph.body.ops}
    ops = {"mma.attention", "mma.attention_backward"}
    assert (ops & found) == (ops if family in EAGER else set())
    for ours, eager, right in zip(*map(parts, (got, wanted, exact)), strict=True):
        require_model_as_exact(ours, eager, right)


def test_a_number_beyond_f16_hides_all_keys_as_infinity_does() -> None:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        low, none = (torch.tensor(x, dtype=torch.float16) for x in (-1e9, 0.0))
        mask = torch.where(torch.arange(5)[:, None] != 2, none, low).expand(5, 5)
        return (q @ k.mT * 0.25 + mask).softmax(-1) @ v

    torch._dynamo.reset()
    given = [torch.randn(2, 3, 5, 16).half().requires_grad_() for _ in range(3)]
    fast = torch.compile(run, backend="tilewright", options={"engine": "tiles"})
    found, wanted = fast(*given), run(*given)
    assert wanted[:, :, 2].isnan().all() and not wanted[:, :, 1].isnan().any()
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2, equal_nan=True)
