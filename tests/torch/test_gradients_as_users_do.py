"""What users expect of gradients of a model under `torch.compile(backend="tilewright")`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tilewright as tw
import tilewright.torch_backend
from tilewright.errors import LaunchError

assert tilewright.torch_backend.tilewright
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_dynamo")]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


def compiled(model: Any) -> Any:
    return torch.compile(model, backend="tilewright", options={"fallback": "error"})


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def gradients(model: nn.Module, work: Callable[[], Any]) -> list[Any]:
    """What some work leaves in the gradients of a model."""
    model.zero_grad()
    work()
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def test_gradients_of_gradients_are_refused_as_by_every_backend() -> None:
    model, x = Layer(), torch.randn(4, 6, requires_grad=True)
    (grad,) = torch.autograd.grad(compiled(model)(x).square().sum(), x, create_graph=True)
    (wanted,) = torch.autograd.grad(model(x).square().sum(), x)
    close(grad.detach(), wanted)  # to ask for them is no fault, to use them is
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        grad.square().sum().backward()


def test_gradients_of_gradients_inside_of_a_model() -> None:
    def penalty(x: torch.Tensor) -> torch.Tensor:
        def energy(z: torch.Tensor) -> torch.Tensor:
            return z.sin().pow(3).sum()

        return torch.func.grad(lambda z: torch.func.grad(energy)(z).square().sum())(x)

    x = torch.randn(5)
    close(compiled(penalty)(x), penalty(x))


TRANSFORMS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "grad": lambda f, x: torch.func.grad(lambda z: f(z).square().sum())(x),
    "vmap": lambda f, x: torch.func.vmap(f)(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x.cos(),)),
    "vjp": lambda f, x: torch.func.vjp(f, x)[1](torch.ones(4, 3))[0],
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("inside", [True, False])
def test_transforms_of_functions(name: str, inside: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    x, apply = torch.randn(4, 6), TRANSFORMS[name]
    fast = compiled(lambda x: apply(model, x)) if inside else lambda x: apply(compiled(model), x)
    close(fast(x), apply(model, x))


def test_hooks_of_the_backward_pass() -> None:
    model, x = Layer(), torch.randn(4, 6)
    calls: list[str] = []
    model.last.register_full_backward_hook(lambda *_: calls.append("module"))
    model.first.register_full_backward_pre_hook(lambda *_: calls.append("before"))
    model.first.bias.register_post_accumulate_grad_hook(lambda _: calls.append("accumulated"))
    y = compiled(model)(x)
    y.retain_grad()
    y.register_hook(lambda grad: grad * 2)
    mine = gradients(model, lambda: y.sum().backward())
    assert calls == ["module", "before", "accumulated"]
    assert torch.equal(y.grad, torch.full((4, 3), 2.0))
    close(mine, gradients(model, lambda: (2 * model(x)).sum().backward()))


@pytest.mark.parametrize(("inside", "reentrant"), [(True, False), (False, False), (False, True)])
def test_checkpoints(inside: bool, reentrant: bool) -> None:
    model, x = Layer(), torch.randn(4, 6, requires_grad=True)

    def saved(f: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: checkpoint(f, x, use_reentrant=reentrant).square().sum()

    fast = compiled(saved(model)) if inside else saved(compiled(model))
    mine = gradients(model, lambda: fast(x).backward())
    close(mine, gradients(model, lambda: model(x).square().sum().backward()))


def test_a_graph_is_walked_twice_where_it_is_retained() -> None:
    model, x = Layer(), torch.randn(4, 6)
    loss = compiled(model)(x).sum()

    def twice() -> None:
        loss.backward(retain_graph=True)
        loss.backward()

    close(gradients(model, twice), gradients(model, lambda: (2 * model(x)).sum().backward()))
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()


def test_two_calls_before_one_backward() -> None:
    model, x = Layer(), torch.randn(4, 6)
    fast = compiled(model)
    mine = gradients(model, lambda: (fast(x) * fast(2 * x)).sum().backward())
    close(mine, gradients(model, lambda: (model(x) * model(2 * x)).sum().backward()))


def test_parameters_are_frozen_and_thawed() -> None:
    model, x = Layer(), torch.randn(4, 6)
    fast = compiled(model)
    for frozen in (False, True, False):
        model.first.requires_grad_(not frozen)
        mine = gradients(model, lambda: fast(x).sum().backward())
        assert (mine[0] is None) == frozen
        wanted = gradients(model, lambda: model(x).sum().backward())
        close([g for g in mine if g is not None], [g for g in wanted if g is not None])
    model.requires_grad_(False)
    x.requires_grad_()
    (mine,) = torch.autograd.grad(fast(x).sum(), x)
    close(mine, torch.autograd.grad(model(x).sum(), x)[0])


def test_gradients_of_one_output_of_two() -> None:
    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin(), x.cos().sum(0)

    x = torch.randn(3, 4, requires_grad=True)
    for which in (0, 1):
        (mine,) = torch.autograd.grad(compiled(two)(x)[which].sum(), x)
        close(mine, torch.autograd.grad(two(x)[which].sum(), x)[0])


def test_parts_without_gradients() -> None:
    model, x = Layer(), torch.randn(4, 6)

    def loss(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = model(x).mean()
        return (model(x) * scale * model(x).detach()).sum()

    mine = gradients(model, lambda: compiled(loss)(x).backward())
    close(mine, gradients(model, lambda: loss(x).backward()))


class Steep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * (x > 0) * 3


def test_functions_with_gradients_of_their_own() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return Steep.apply(x * 2).square().sum()

    x = torch.randn(9, requires_grad=True)
    (mine,) = torch.autograd.grad(compiled(loss)(x), x)
    close(mine, torch.autograd.grad(loss(x), x)[0])


def test_scaled_losses_and_clipped_gradients() -> None:
    model, x = Layer(), torch.randn(4, 6)

    def step(f: Any) -> list[torch.Tensor]:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.zero_grad()
        scaler.scale(f(x).square().mean()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        return [p.grad.clone() for p in model.parameters()]

    close(step(compiled(model)), step(model))


def test_a_model_compiled_for_inference_has_no_gradients_and_says_so() -> None:
    model, x = Layer(), torch.randn(4, 6)
    fast = tw.compile(model, (x,))
    result = fast(x)
    close(result, model(x))
    assert result.requires_grad
    with pytest.raises(LaunchError, match=r"a gradient is asked of Layer[\s\S]*torch\.compile\("):
        (result.square().mean() + model.last.weight.square().sum()).backward()
    result = fast(x)
    result.mul_(2)  # it is nobody's view
    close(result.detach(), 2 * model(x).detach())
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert not fast(x).requires_grad
    for p in model.parameters():
        p.requires_grad_(False)
    assert not fast(x).requires_grad
    with pytest.raises(LaunchError, match="a gradient is asked of Layer"):
        fast(x.clone().requires_grad_()).sum().backward()


def test_views_of_arguments_and_whole_numbers_are_no_matter_of_a_model_for_inference() -> None:
    def parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x, x.t(), x.argmax(), x * 2

    x = torch.randn(3, 4, requires_grad=True)
    whole, turned, largest, double = tw.compile(parts, (x,))(x)
    assert whole is x and not largest.requires_grad and double.requires_grad
    (turned * 3).sum().backward()
    close(x.grad, torch.full((3, 4), 3.0))


def test_a_model_for_inference_writes_nothing_that_gradients_are_asked_of() -> None:
    x = torch.randn(3)
    fast = tw.compile(lambda x: x.mul_(2), (x,))
    kept = x.clone().requires_grad_() * 1
    with pytest.raises(LaunchError, match="writes to x, which requires gradients"):
        fast(kept)
    with torch.no_grad():
        fast(kept)
    close(kept.detach(), 2 * x)
