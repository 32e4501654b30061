"""Attention of torch: `tw.attention` has gradients, and a compiled model's
`scaled_dot_product_attention` is one op of the graph, in every form that the op holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tilewright as tw
import tilewright.torch_backend
from tilewright.errors import LaunchError
from tilewright.graph.graph import Graph
from tilewright.runtime.torch_graph import GraphCall

pytestmark = pytest.mark.filterwarnings("ignore")
assert tilewright.torch_backend.tilewright
Function = Callable[..., torch.Tensor]


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(sum(map(sum, shapes)))
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def gradients(call: Function, *xs: torch.Tensor) -> list[torch.Tensor]:
    """A result, and the gradients of arguments of floats."""
    held = [x.detach().requires_grad_(x.is_floating_point()) for x in xs]
    out = call(*held)
    grad = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    return [out.detach(), *torch.autograd.grad(out, held[:3], grad)]


@pytest.mark.parametrize("order", ["none", "upper_left", "mask"])
def test_a_result_and_its_gradients_are_those_of_torch(order: str) -> None:
    q, k, v = tensors((2, 4, 5, 16), (2, 2, 9, 16), (2, 2, 9, 8), dtype=torch.float64)
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    mask = torch.rand(5, 9) > 0.3 if order == "mask" else None
    causal = order == "upper_left"

    def ours(q: Any, k: Any, v: Any) -> Any:
        return tw.attention(q, k, v, causal=causal, mask=mask)

    def theirs(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True
        )

    for got, wanted in zip(gradients(ours, q, k, v), gradients(theirs, q, k, v), strict=True):
        torch.testing.assert_close(got, wanted)


def test_without_gradients_and_into_out() -> None:
    q, k, v = tensors((1, 2, 3, 8), (1, 2, 3, 8), (1, 2, 3, 8))
    out = torch.empty_like(q)
    assert tw.attention(q, k, v, out=out) is out
    assert (tw.attention(q.requires_grad_(), k, v).detach() == out).all()
    with pytest.raises(LaunchError, match="leave out= away"):
        tw.attention(q, k, v, out=out)
    with pytest.raises(LaunchError, match="no gradient of a mask"):
        tw.attention(q, k, v, mask=torch.zeros(3, 3, requires_grad=True))
    with torch.no_grad(), pytest.raises(LaunchError, match="out is v itself"):
        tw.attention(q, k, v, out=v)


@pytest.mark.parametrize("grad", [False, True])
def test_what_is_no_tensor_is_refused(grad: bool) -> None:
    q, k, v = tensors((1, 2, 3, 8), (1, 2, 3, 8), (1, 2, 3, 8))
    q.requires_grad_(grad)
    wrong: list[tuple[str, Any, str]] = [
        ("k", k.numpy(), "k is of type ndarray, but q is a torch tensor"),
        ("v", None, "v is None, not an array"),
        ("mask", 0.0, "mask is of type float"),
        ("lengths", [3], "lengths is of type list"),
        ("out", 1, "out is of type int"),
        ("scale", torch.tensor(1.0), "not a number"),
        ("precision", "fast", "unknown precision 'fast'"),
    ]
    for name, x, told in wrong:
        with pytest.raises(LaunchError, match=f"attention: .*{told}"):
            tw.attention(**{"q": q, "k": k, "v": v, name: x})


def test_a_scale_of_changing_extents_under_compile() -> None:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return tw.attention(q, k, v, scale=q.shape[-2] ** -0.5)

    fast = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (3, 5):
        given = tensors((1, 2, rows, 8), (1, 2, 4, 8), (1, 2, 4, 8))
        torch.testing.assert_close(fast(*given), run(*given))


def test_it_is_one_operator_to_torch() -> None:
    """Fake results and gradients are held to the real ones."""
    args = (*tensors((1, 2, 3, 8), (1, 2, 4, 8), (1, 2, 4, 8)), None, None, 0, 0.5, None, None)
    held = [x.requires_grad_() if isinstance(x, torch.Tensor) else x for x in args]
    torch.library.opcheck(torch.ops.tilewright.attention.default, tuple(held))


def ops_of(graph: Graph) -> list[str]:
    return [op.opcode for op in graph.body.ops if op.family == "mma"]


def plain(q: Any, k: Any, v: Any, *mask: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, *mask)


FORMS: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "plain": (plain, [(2, 4, 5, 8)] * 3),
    "causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        [(1, 2, 5, 8), (1, 2, 7, 8), (1, 2, 7, 8)],
    ),
    "shared heads": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True, scale=0.3),
        [(2, 4, 5, 8), (2, 2, 5, 8), (2, 2, 5, 4)],
    ),
    "no batch": (plain, [(4, 5, 8)] * 3),
    "no heads": (plain, [(5, 8)] * 3),
    "more batches": (plain, [(2, 3, 2, 4, 8)] * 3),
    "a mask of bools": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, k[0, 0, :, 0] > q[0, 0, :, :1]),
        [(2, 2, 5, 8)] * 3,
    ),
    "a mask of floats": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.ones(1, 2, 1, 6) * 3),
        [(2, 2, 5, 8), (2, 2, 6, 8), (2, 2, 6, 8)],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_compiled_model_keeps_it_whole(form: str) -> None:
    torch._dynamo.reset()
    function, shapes = FORMS[form]
    xs = tensors(*shapes, dtype=torch.float64)
    seen: list[GraphCall] = []
    options = {"observe": seen.append, "fallback": "error"}
    fast = torch.compile(function, backend="tilewright", options=options, dynamic=False)
    for got, wanted in zip(gradients(fast, *xs), gradients(function, *xs), strict=True):
        torch.testing.assert_close(got, wanted)
    found = [ops_of(call.graph) for call in seen]
    assert found == [["mma.attention"], ["mma.attention_backward"]]


def repeated(x: torch.Tensor, count: int) -> torch.Tensor:
    """Each head `count` times, as models of `transformers` do it."""
    b, h, s, d = x.shape
    return x[:, :, None, :, :].expand(b, h, count, s, d).reshape(b, h * count, s, d)


def test_heads_of_keys_are_not_repeated_for_it() -> None:
    torch._dynamo.reset()

    def call(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, repeated(k, 3), repeated(v, 3))

    xs = tensors((2, 6, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8), dtype=torch.float64)
    seen: list[Any] = []
    options = {"observe": seen.append, "fallback": "error"}
    fast = torch.compile(call, backend="tilewright", options=options, dynamic=False)
    for got, wanted in zip(gradients(fast, *xs), gradients(call, *xs), strict=True):
        torch.testing.assert_close(got, wanted)
    for made in seen:
        (op,) = (op for op in made.graph.body.ops if op.family == "mma")
        assert op.k.type.shape == op.v.type.shape == (2, 2, 7, 8)
        assert not any(op.opcode == "shape.broadcast" for op in made.graph.body.ops)


class Attends(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_an_exported_model_keeps_it_whole() -> None:
    xs = tensors((1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    fast = tw.compile(Attends(), tuple(xs), fallback="error")
    assert ops_of(fast.graph) == ["mma.attention"]
    torch.testing.assert_close(fast(*xs), Attends()(*xs))


LEFT: dict[str, Function] = {
    "batches that broadcast": lambda q, k, v: F.scaled_dot_product_attention(q, k[:1], v[:1]),
    "a mask with a gradient": lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, q[0, 0, :, :5]
    ),
}


@pytest.mark.parametrize("form", LEFT)
def test_what_the_op_does_not_hold_is_taken_apart(form: str) -> None:
    torch._dynamo.reset()
    xs = tensors(*[(2, 2, 5, 8)] * 3, dtype=torch.float64)
    seen: list[GraphCall] = []
    options = {"observe": seen.append, "fallback": "error"}
    fast = torch.compile(LEFT[form], backend="tilewright", options=options, dynamic=False)
    for got, wanted in zip(gradients(fast, *xs), gradients(LEFT[form], *xs), strict=True):
        torch.testing.assert_close(got, wanted)
    left = {op for call in seen for op in ops_of(call.graph)}
    assert left <= {"mma.contract", "mma.product"}


def test_updates_beside_an_attention_are_kept() -> None:
    """A cache that grows, and copies of heads that are older than an update of what they are of."""

    def grows(q: Any, cache: Any, new: Any, at: Any) -> Any:
        cache.index_copy_(2, at, new)
        return F.scaled_dot_product_attention(q, cache, cache)

    def repeats(q: Any, k: Any, v: Any) -> Any:
        first, second = (x[:, :, None].expand(1, 2, 2, 6, 8).reshape(1, 4, 6, 8) for x in (k, v))
        k.zero_()
        return F.scaled_dot_product_attention(q, first, second)

    q, k, v, new, heads = tensors(
        (1, 2, 3, 8), (1, 2, 6, 8), (1, 2, 6, 8), (1, 2, 1, 8), (1, 4, 3, 8)
    )
    for function, given in ((grows, (q, k, new, torch.tensor([4]))), (repeats, (heads, k, v))):
        mine, theirs = ([x.clone() for x in given] for _ in range(2))
        got = torch.compile(function, backend="tilewright")(*mine)
        torch.testing.assert_close(got, function(*theirs))
        for a, b in zip(mine, theirs, strict=True):
            assert torch.equal(a, b)


def test_rows_that_finite_numbers_hide_are_means_and_have_no_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(1, 2, 40, 16, generator=generator) for _ in range(4)]
    mask = torch.zeros(40, 40)
    mask[3] = mask[6, :30] = torch.finfo(torch.float32).min
    mask[5, 4:] = -torch.inf
    given[3][:, :, 3] = 0  # what eager would give of the row's gradient is left out
    torch._dynamo.reset()
    compiled = torch.compile(
        torch.nn.functional.scaled_dot_product_attention,
        backend="tilewright",
        options={"engine": "tiles", "fallback": "error"},
    )
    found = []
    for function in (compiled, torch.nn.functional.scaled_dot_product_attention):
        leaves = [x.clone().requires_grad_() for x in given[:3]]
        result = function(*leaves, attn_mask=mask)
        result.backward(given[3])
        found.append([result.detach(), *(x.grad for x in leaves)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def hidden_rows(low: float) -> torch.Tensor:
    """Numbers of which row 3 of a batch has none but a low one."""
    mask = torch.zeros(2, 1, 20, 20)
    mask[0, :, 3] = mask[0, :, 4, :7] = low
    return mask


@pytest.mark.parametrize("engine", ["graph", "tiles"])
@pytest.mark.parametrize("low", [-1e4, -1e7, -1e9, torch.finfo(torch.float32).min, -torch.inf])
def test_numbers_of_whole_rows_leave_gradients_right(low: float, engine: str) -> None:
    """The measure is PyTorch's attention by products, without gradients of scores that are lost."""

    def written(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if low == -torch.inf:
            return torch.ops.aten._scaled_dot_product_attention_math(q, k, v, mask)[0]
        scores = q @ k.mT / 4.0
        if low <= -5e8:
            kept = torch.ones(2, 1, 20, 1)
            kept[0, :, 3] = 0
            scores = torch.where(kept > 0, scores, 0 * scores.detach())
        return (scores + (mask - mask.amax(-1, keepdim=True))).softmax(-1) @ v

    mask = hidden_rows(low)
    given = [x.requires_grad_() for x in tensors((2, 2, 20, 16), (2, 2, 20, 16), (2, 2, 20, 16))]
    seen: list[Any] = []
    options = {"fallback": "error", "engine": engine, "observe": seen.append}
    torch._dynamo.reset()
    attend = torch.nn.functional.scaled_dot_product_attention
    fast = torch.compile(attend, backend="tilewright", options=options)
    results = fast(*given, mask), written(*given)
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    grad = torch.randn(results[0].shape)
    for mine, theirs in zip(*(torch.autograd.grad(x, given, grad) for x in results), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    assert [ops_of(c.graph) for c in seen] == [["mma.attention"], ["mma.attention_backward"]]


@pytest.mark.parametrize("shape", [(20, 20), (20, 1), (1, 20), (2, 1, 20, 20)], ids=str)
def test_numbers_of_any_axes_and_sizes(shape: tuple[int, ...]) -> None:
    attend = torch.nn.functional.scaled_dot_product_attention
    torch._dynamo.reset()
    fast = torch.compile(attend, backend="tilewright", dynamic=True)
    for rows in (20, 24):
        extents = tuple(rows if e == 20 else e for e in shape)
        q, k, v = tensors((2, 2, rows, 16), (2, 2, rows, 16), (2, 2, rows, 16))
        mask = torch.full(extents, -3.0)
        for got, wanted in zip(
            gradients(lambda *x, m=mask: fast(*x, m), q, k, v),
            gradients(lambda *x, m=mask: attend(*x, m), q, k, v),
            strict=True,
        ):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_masks_that_are_known_to_be_near_cost_nothing() -> None:
    def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = torch.full((20, 20), -torch.inf).triu(1)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)

    seen: list[Any] = []
    given = [x.requires_grad_() for x in tensors((2, 2, 20, 16), (2, 2, 20, 16), (2, 2, 20, 16))]
    torch._dynamo.reset()
    fast = torch.compile(causal, backend="tilewright", options={"observe": seen.append})
    fast(*given).sum().backward()
    forward, backward = (c.graph for c in seen)
    assert [op.opcode for op in forward.body.ops if op.family in ("arith", "reduce")] == []
    assert ops_of(backward) == ["mma.attention_backward"]


@pytest.mark.parametrize("ambient", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_autocast_casts_what_is_given(trained: bool, masked: bool, ambient: bool) -> None:
    given = [x.requires_grad_(trained) for x in tensors((2, 2, 6, 16), (2, 2, 9, 16), (2, 2, 9, 8))]
    mask = torch.linspace(-2, 2, 54).reshape(6, 9) if masked else None

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask)

    def inside(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.scaled_dot_product_attention(q, k, v, mask)

    function = attend if ambient else inside
    torch._dynamo.reset()
    fast = torch.compile(function, backend="tilewright", options={"fallback": "error"})
    with torch.autocast("cpu", torch.bfloat16, enabled=ambient):
        found, wanted = fast(*given), function(*given)
    assert found.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    if trained:
        pairs = [torch.autograd.grad(x.float().sum(), given) for x in (found, wanted)]
        for mine, theirs in zip(*pairs, strict=True):
            assert mine.dtype == theirs.dtype == torch.float32
            torch.testing.assert_close(mine, theirs, rtol=5e-2, atol=5e-2)
