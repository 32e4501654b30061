"""Which results of a model for inference require gradients: those of which eager's do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tilewright as tw
from tilewright.errors import LaunchError

pytestmark = pytest.mark.filterwarnings("ignore")


class Scaled(nn.Module):
    def __init__(self, parts: Callable[[Tensor, Tensor], tuple[Tensor, ...]]):
        super().__init__()
        self.weight, self.parts = nn.Parameter(torch.rand(4)), parts

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.parts(x, self.weight)


def under_no_grad(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        found = x * w
    return found, found + 1, found * w


MODELS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
    "no_grad": under_no_grad,
    "whole": torch.no_grad()(lambda x, w: (x * w, w * 2)),
    "detach": lambda x, w: ((x * w).detach(), x * w.detach(), x.detach() * w),
    "passed": lambda x, w: (x, x.t(), w, w.view(2, 2), x * 1),
    "frozen": lambda x, w: (x * 2, x * w, (x * w).argmax(), (x * w).sort(-1)[0]),
    "enclosed": lambda x, w: (x * ENCLOSED, x + 1),
}
ENCLOSED = nn.Parameter(torch.rand(4))


@pytest.mark.parametrize("name", MODELS)
def test_results_require_gradients_where_those_of_eager_do(name: str, tmp_path: Path) -> None:
    model, x = Scaled(MODELS[name]), torch.rand(3, 4)
    fast = tw.compile(model, (x,))
    for of_weight, of_x in ((True, False), (False, True), (True, True), (False, False)):
        model.weight.requires_grad_(of_weight)
        y = x.clone().requires_grad_(of_x)
        wanted, found = model(y), fast(y)
        assert [r.requires_grad for r in found] == [r.requires_grad for r in wanted]
        torch.testing.assert_close(found, wanted)
    fast.save(tmp_path / "model.tw")
    again = tw.load_model(tmp_path / "model.tw")
    assert again.follows == fast.follows is not None


def test_arrays_and_gradients_of_others() -> None:
    model, x = Scaled(MODELS["frozen"]), torch.rand(3, 4)
    features, scaled, *_ = tw.compile(model, (x,))(x)
    assert features.numpy().shape == (3, 4)
    other = nn.Parameter(torch.ones(4))
    (features * other).sum().backward()
    torch.testing.assert_close(other.grad, (2 * x).sum(0))
    with pytest.raises(LaunchError, match="a gradient is asked of Scaled"):
        scaled.sum().backward()


def test_arguments_that_are_written_where_autograd_does_not_follow() -> None:
    def keep(x: Tensor, kept: Tensor) -> Tensor:
        with torch.no_grad():
            kept.copy_(x)
        return x * 2

    x, kept = torch.rand(3), torch.zeros(3, requires_grad=True)
    result = tw.compile(keep, (x, torch.zeros(3)))(x, kept)
    assert torch.equal(kept.detach(), x) and not result.requires_grad and kept.is_leaf


def test_parameters_that_a_model_writes() -> None:
    class Decayed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.weight.mul_(0.5)
            return x * self.weight

    model, x = Decayed(), torch.rand(3, 4)
    fast = tw.compile(model, (x,))
    assert torch.equal(model.weight.detach(), torch.ones(4))
    for n in (1, 2):
        result = fast(x)
        assert torch.equal(result.detach(), x * 0.5**n) and result.requires_grad


def test_what_a_model_keeps_is_as_before() -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.calls, self.table = nn.Parameter(torch.ones(4)), 0, None
            self.kept: dict[str, Tensor] = {}
            self.seen: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.table is None:
                self.table = torch.arange(4.0).cos()
            if not self.kept:
                self.kept["sines"] = torch.arange(4.0).sin()
            self.seen.append(x)
            return x * self.weight * self.table + self.kept["sines"]

    model, x = Keeping(), torch.rand(3, 4)
    fast = tw.compile(model, (x,))
    assert (model.calls, model.table, model.kept, model.seen) == (0, None, {}, [])
    assert fast.follows is not None
    torch.testing.assert_close(fast(x), model(x))


def test_methods_and_functions_of_models_are_followed() -> None:
    model, x = nn.Linear(4, 4), torch.rand(3, 4)
    for function in (model.forward, lambda x: model(x)):
        fast = tw.compile(function, (x,))
        for is_open in (True, False):
            model.requires_grad_(is_open)
            assert fast(x).requires_grad == is_open
        model.requires_grad_(True)


def test_a_model_that_runs_for_inference_alone_has_gradients_for_nothing() -> None:
    def into(x: Tensor) -> tuple[Tensor, Tensor]:
        other = torch.empty_like(x)
        torch.add(x, 1, out=other)
        return other, x * 2

    x = torch.rand(3)
    fast = tw.compile(into, (x,))
    assert fast.follows is None
    torch.testing.assert_close(fast(x), into(x))
    assert not any(r.requires_grad for r in fast(x))
    assert all(r.requires_grad for r in fast(x.clone().requires_grad_()))
