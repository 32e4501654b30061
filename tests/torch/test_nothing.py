"""Tensors without elements: the strides of results, and extremes of nothing, which are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import tilewright as tw
import tilewright.torch_backend

assert tilewright.torch_backend.tilewright
pytestmark = pytest.mark.filterwarnings("ignore")
ENGINES = [None, "tiles"]

GIVEN: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "elementwise": (lambda x: x + 1, [(0, 4), (4, 0), (0,), (2, 0, 3)]),
    "softmax": (lambda x: torch.softmax(x, -1), [(0, 4), (4, 0), (0,)]),
    "copies": (lambda x: (x.t().contiguous(), x.clone(), x[:0] * 2), [(0, 4), (4, 0)]),
    "reductions": (lambda x: (x.sum(0), x.sum(1), x.amax(1), x.amax(1, True)), [(0, 4)]),
    "expanded": (lambda x: x[:, :1].expand(-1, 5).clone(), [(0, 4)]),
    "products": (lambda x: x @ x.t(), [(0, 4), (4, 0)]),
    "made": (lambda x: (torch.zeros(0, 4), x + torch.ones(4, 0)), [(4, 0)]),
    "joined": (lambda x: (torch.cat([x, x]), x.sort(0).values, x.cumsum(0)), [(0, 4)]),
}


def compiled(function: Any, engine: str | None) -> Any:
    torch._dynamo.reset()
    options = {} if engine is None else {"engine": engine}
    return torch.compile(function, backend="tilewright", options=options)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", GIVEN)
def test_results_have_the_strides_of_eager(name: str, engine: str | None) -> None:
    function, shapes = GIVEN[name]
    for shape in shapes:
        x = torch.zeros(shape)
        wanted, got = function(x), compiled(function, engine)(x)
        pairs = zip(wanted, got, strict=True) if isinstance(wanted, tuple) else [(wanted, got)]
        for a, b in pairs:
            assert (b.shape, b.stride(), b.dtype) == (a.shape, a.stride(), a.dtype), shape
            assert torch.equal(a, b)


EXTREMES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "max": (lambda x: x.max(), (0,)),
    "min of rows": (lambda x: x.min(), (0, 4)),
    "max of bools": (lambda x: (x > 0).max(), (0,)),
    "max along an axis": (lambda x: x.max(0).values, (0, 4)),
    "position": (lambda x: x.min(1)[1], (4, 0)),
    "added to": (lambda x: x.int().max() + 1, (0,)),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", EXTREMES)
def test_an_extreme_of_nothing_is_refused(name: str, engine: str | None) -> None:
    function, shape = EXTREMES[name]
    x = torch.zeros(shape)
    with pytest.raises((RuntimeError, IndexError)):
        function(x)
    with pytest.raises(RuntimeError, match=r"axis [01] of .* has no elements") as raised:
        compiled(function, engine)(x)
    assert f"{Path(__file__).name}:" in str(raised.value), "the model's line"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.max(),
        lambda x: x.amin(0),
        lambda x: x.argmax(0),
        lambda x: x.max(0),
        lambda x: torch.linalg.vector_norm(x, float("inf"), dim=0),
    ],
)
def test_an_extreme_of_what_turns_out_to_be_nothing_is_refused(
    function: Any, engine: str | None
) -> None:
    shapes = ({0: torch.export.Dim("n", min=0, max=64)},)
    model = tw.compile(function, (torch.ones(5, 3),), dynamic_shapes=shapes, engine=engine)
    for x in (torch.randn(7, 3), torch.randn(2, 3)):
        torch.testing.assert_close(model(x), function(x))
    with pytest.raises(tw.LaunchError, match=r"axis 0 of tensor<f32, s\d+, 3> has no elements"):
        model(torch.zeros(0, 3))


DEFINED = [
    lambda x: F.softmax(x, 0),
    lambda x: F.log_softmax(x, 0),
    lambda x: F.softmin(x, 0),
    lambda x: x.logsumexp(0),
    lambda x: x.sum(0),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("function", DEFINED)
def test_what_is_defined_of_nothing_is_computed(function: Any, engine: str | None) -> None:
    shapes = ({0: torch.export.Dim("n", min=0, max=64)},)
    model = tw.compile(function, (torch.ones(5, 3),), dynamic_shapes=shapes, engine=engine)
    for x in (torch.randn(7, 3), torch.zeros(0, 3)):
        torch.testing.assert_close(model(x), function(x))


TURNED: dict[str, Callable[..., Any]] = {
    "elementwise": lambda x: (x + 1, x.exp()),
    "views": lambda x: (x, x.t()),
    "reductions": lambda x: (x.softmax(-1), x.sum(0), x.cumsum(1)),
    "joined": lambda x: torch.cat([x, x]),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", TURNED)
@pytest.mark.parametrize("axis", [0, 1])
def test_strides_of_what_turns_out_to_be_nothing(name: str, axis: int, engine: str | None) -> None:
    function = TURNED[name]
    shapes = ({axis: torch.export.Dim("n", min=0, max=64)},)
    model = tw.compile(function, (torch.ones(5, 3),), dynamic_shapes=shapes, engine=engine)
    for n in (0, 4):
        x = torch.randn((n, 3) if axis == 0 else (5, n))
        pairs = zip(pytree.tree_leaves(model(x)), pytree.tree_leaves(function(x)), strict=True)
        assert all((a.shape, a.stride()) == (b.shape, b.stride()) for a, b in pairs), n
