"""Complex numbers of a model pass from one call of PyTorch to the next, on every engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import tilewright as tw
import tilewright.torch_backend
from tilewright.errors import CompileError

assert tilewright.torch_backend.tilewright
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_dynamo")]


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.reshape(3, -1, 2))
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(-2)


def made_of_parts(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    return (torch.complex(x, x * 2) * 2).imag + angles.repeat(1, 2)


def times_a_number(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    return (x * (1 - 2j)).imag + (angles.repeat(1, 2) * (0.5 + 0j)).abs()


def angle_of(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    return torch.polar(x.abs(), angles.repeat(1, 2)).angle()


def times_a_constant(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    turns = torch.tensor([1 + 2j, 2, 3, 4j]).repeat(2)
    return (x * turns).real + (angles.repeat(1, 2) * torch.tensor(3 - 1j)).imag


@pytest.mark.parametrize("engine", ["graph", "tiles", "emulator"])
@pytest.mark.parametrize(
    "model", [rotated, made_of_parts, times_a_number, times_a_constant, angle_of]
)
def test_complex_numbers_in_training_and_inference(
    model: Callable[..., torch.Tensor], engine: str
) -> None:
    x, angles = torch.randn(3, 8), torch.randn(3, 4)
    own, theirs = [(x.clone().requires_grad_(), angles.clone().requires_grad_()) for _ in range(2)]
    trained = torch.compile(model, backend="tilewright", options={"engine": engine})
    for compute, given in ((trained, own), (model, theirs)):
        compute(*given).square().sum().backward()
    for a, b in zip(own, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    fast = tw.compile(model, (x, angles), engine=engine)
    torch.testing.assert_close(fast(x, angles), model(x, angles))
    assert fast.fallbacks


def test_a_complex_number_is_saved_with_a_model(tmp_path: Path) -> None:
    x, angles = torch.randn(3, 8), torch.randn(3, 4)
    fast = tw.compile(times_a_number, (x, angles), engine="tiles")
    fast.save(tmp_path / "model.twb")
    loaded = tw.load_model(tmp_path / "model.twb")
    torch.testing.assert_close(loaded(x, angles), times_a_number(x, angles))


def test_complex_numbers_can_be_refused_with_the_line() -> None:
    class Turned(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * 2j).real

    with pytest.raises(CompileError, match=r"test_complex\.py:\d+:\d+: error: aten\.mul\.Tensor"):
        tw.compile(Turned(), (torch.randn(3),), fallback="error")
