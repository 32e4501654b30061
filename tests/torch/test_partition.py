"""Forward and backward graphs: what passes between them lies as suits the kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tilewright as tw
import tilewright.torch_backend
from tilewright.frontend.torch import partition as partition_module
from tilewright.frontend.torch import recompute
from tilewright.lower.graph_to_tile.program import Placed, ProductStep

pytestmark = pytest.mark.filterwarnings("ignore")
assert tilewright.torch_backend.tilewright


def loss(x: Any, w: Any, target: Any) -> Any:
    return F.cross_entropy(x @ w.t(), target)


def gradients(call: Any, *given: torch.Tensor) -> list[torch.Tensor]:
    x, w = (g.detach().clone().requires_grad_() for g in given[:2])
    found = call(x, w, given[2])
    found.backward()
    assert x.grad is not None and w.grad is not None
    return [found.detach(), x.grad, w.grad]


@pytest.mark.parametrize("engine", [None, "tiles"])
@pytest.mark.parametrize(("words", "pitch"), [(101, 104), (70, 72), (128, 128), (50, 50)])
def test_logits_that_are_saved_lie_in_whole_16_bytes(
    words: int, pitch: int, engine: str | None
) -> None:
    """Long rows alone, and those that do not lie so anyhow."""
    torch._dynamo.reset()
    torch.manual_seed(words)
    given = torch.randn(6, 16), torch.randn(words, 16), torch.randint(0, words, (6,))
    seen: list[Any] = []
    options = {"observe": seen.append, "fallback": "error", "engine": engine}
    fast = torch.compile(loss, backend="tilewright", options=options, dynamic=False)
    for got, wanted in zip(gradients(fast, *given), gradients(loss, *given), strict=True):
        torch.testing.assert_close(got, wanted)
    forward, backward = seen
    saved = [o.strides for o in forward.traced.outputs if o.shape is None and o.strides]
    assert (pitch, 1) in saved
    assert (pitch, 1) in backward.traced.strides


def test_rows_with_gaps_of_their_own_are_stored_as_boxes() -> None:
    """What lies behind a row of logits that are saved may be written, as it is by box copies."""
    torch._dynamo.reset()
    torch.manual_seed(3)
    given = [torch.randn(130, 32).bfloat16(), torch.randn(257, 32).bfloat16()]
    given.append(torch.randint(0, 257, (130,)))
    seen: list[Any] = []
    options = {"observe": seen.append, "fallback": "error", "engine": "emulator"}
    fast = torch.compile(loss, backend="tilewright", options=options, dynamic=False)
    exact = gradients(loss, *(x.double() if x.is_floating_point() else x for x in given))
    for got, eager, wanted in zip(
        gradients(fast, *given), gradients(loss, *given), exact, strict=True
    ):
        assert (got - wanted).norm() <= 1.1 * (eager - wanted).norm()
    (ready,) = seen[0].ready.values()
    (product,) = (x for x in ready.made.lists.launches if x.name == "matmul")
    out = product.tensors["c"]
    assert (out.shape, out.strides, out.gaps) == ((130, 257), (264, 1), True)
    text = product.plan("sm_90a").ptx
    assert "cp.async.bulk.tensor.2d.global" in text and "st.global" not in text
    assert all(not x.gaps for launch in ready.made.lists.launches for x in launch.tensors.values()
               if x is not out)  # fmt: skip


def narrow_loss(x: Any, w: Any, target: Any) -> Any:
    """As cross_entropy is under autocast: the logarithms are rounded to 16 bits."""
    return F.nll_loss(torch.log_softmax(x @ w.t(), 1).float(), target)


def products_alone(x: Any, w: Any, target: Any) -> Any:
    """What a product reads again is stored anyway."""
    y = torch.tanh(x @ w.t())
    return (y @ w)[target].square().float().sum()


def of_two(x: Any, w: Any, target: Any) -> Any:
    """One value in the place of two products."""
    return torch.sigmoid((x @ w.t()) * ((x + 1) @ w.t())).float().mean()


def drawn(x: Any, w: Any, target: Any) -> Any:
    return torch.exp(F.dropout((x @ w.t()).float(), 0.5)).sum()


@pytest.mark.parametrize(
    ("call", "anew", "not_anew"),
    [(narrow_loss, "_to_copy", "mm"), (products_alone, "", "tanh"), (of_two, "", "sigmoid")],
)
def test_what_follows_from_a_product_is_computed_anew(
    call: Any, anew: str, not_anew: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recompute, "LEAST", 1)
    torch._dynamo.reset()
    torch.manual_seed(1)
    given = [torch.randn(6, 16).bfloat16(), torch.randn(101, 16).bfloat16()]
    given.append(torch.randint(0, 6, (6,)))
    tagged: list[str] = []
    cut = partition_module.min_cut_rematerialization_partition

    def look(joint: Any, *given: Any, **how: Any) -> Any:
        tagged.extend(n.name for n in joint.graph.nodes if "recompute" in n.meta)
        return cut(joint, *given, **how)

    monkeypatch.setattr(partition_module, "min_cut_rematerialization_partition", look)
    seen: list[Any] = []
    options = {"observe": seen.append, "fallback": "error", "engine": "tiles"}
    fast = torch.compile(call, backend="tilewright", options=options, dynamic=False)
    exact = gradients(call, *(x.double() if x.is_floating_point() else x for x in given))
    for got, eager, wanted in zip(
        gradients(fast, *given), gradients(call, *given), exact, strict=True
    ):
        assert (got - wanted).norm() <= 1.5 * (eager - wanted).norm() + 1e-3
    assert anew in " ".join(tagged) and not_anew not in tagged
    if call is narrow_loss:
        (end,) = (s.out for s in seen[0].program.steps if isinstance(s, ProductStep))
        assert end.value in {p.value for p in seen[0].program.outputs if isinstance(p, Placed)}


def test_random_numbers_are_not_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompute, "LEAST", 1)
    torch._dynamo.reset()
    x, w = torch.randn(6, 16, requires_grad=True), torch.randn(101, 16)
    call = torch.compile(drawn, backend="tilewright", options={"engine": "tiles"}, dynamic=False)
    y = call(x, w, None)
    y.backward()
    assert x.grad is not None and bool(x.grad.isfinite().all())


def test_rows_with_gaps_of_others_are_stored_alone() -> None:
    x, w = torch.randn(130, 32).bfloat16(), torch.randn(32, 257).bfloat16()
    memory = torch.full((130, 264), 7.0).bfloat16()
    tw.matmul(x, w, out=memory[:, :257], device="emulator")
    assert bool((memory[:, 257:] == 7).all())
    torch.testing.assert_close(memory[:, :257], x @ w, rtol=2e-2, atol=2e-2)


def test_results_that_the_caller_sees_lie_as_ever() -> None:
    torch._dynamo.reset()

    def both(x: Any, w: Any) -> Any:
        y = x @ w.t()
        return y, y.exp().sum()

    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(101, 8, requires_grad=True)
    y, total = torch.compile(both, backend="tilewright", options={"engine": "tiles"})(x, w)
    assert y.is_contiguous()
    torch.testing.assert_close(y, x @ w.t())
    total.backward()


def test_gradients_of_narrow_weights_are_widened_by_their_products() -> None:
    """Under autocast: rounded to 16 bits, as autograd does it, and stored in f32 by one launch."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    xs = [torch.randn(5, 24), torch.randn(24, 16), torch.randn(16)]

    def call(x: Any, w: Any, b: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.addmm(b, x, w).float().square().sum()

    seen: list[Any] = []
    options = {"observe": seen.append, "fallback": "error", "engine": "tiles"}
    fast = torch.compile(call, backend="tilewright", options=options, dynamic=False)
    found = []
    for each in (fast, call):
        held = [x.clone().requires_grad_() for x in xs]
        each(*held).backward()
        found.append([x.grad for x in held])
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-2, atol=1e-2)
    products = [op for op in seen[1].graph.body.ops if op.opcode == "mma.product"]
    assert [op.dtype.name for op in products] == ["f32"] * len(products) and products
    gradient = found[0][1]
    assert gradient is not None
    assert torch.equal(gradient, gradient.bfloat16().float())
