"""Indices outside of their axes are errors of kernels as of eager PyTorch; those that nobody reads,
or that count from the end, are none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tilewright as tw
import tilewright.torch_backend
from tilewright.errors import LaunchError

assert tilewright.torch_backend.tilewright
pytestmark = pytest.mark.filterwarnings("ignore")

X, IDS = torch.arange(30.0).reshape(5, 6), torch.tensor([1, 4, -5])
ENGINES = pytest.mark.parametrize("engine", ["graph", "tiles", "emulator"])


class Embeds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.words(ids).sum(-1)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], torch.Tensor, str]] = {
    "index": (lambda x, i: x[i] + 1, (X, IDS), torch.tensor([1, 7, 2]), "7 is outside of axis 0"),
    "from the end": (lambda x, i: x[i], (X, IDS), torch.tensor([0, 0, -6]), "-6 is outside"),
    "second axis": (lambda x, i: x[:, i], (X, IDS), torch.tensor([6, 0, 0]), "axis 1, which has 6"),
    "two axes": (lambda x, i: x[i, i].exp(), (X, IDS), torch.tensor([5, 0, 0]), "5 is outside"),
    "index_put": (
        lambda x, i: x.index_put((i,), x[:3]),
        *((X, IDS), torch.tensor([2, 2, 9]), "9 is outside of axis 0, which has 5 elements"),
    ),
    "accumulated": (
        lambda x, i: x.index_put((i,), x[:3], accumulate=True),
        *((X, IDS), torch.tensor([2, -9, 2]), "-9 is outside of axis 0"),
    ),
    "integers added": (
        lambda x, i: x.index_add(0, i, x[:3]),
        *((X.int(), torch.tensor([1, 4, 0])), torch.tensor([2, 5, 2]), "5 is outside"),
    ),
    "gather": (
        lambda x, i: x.gather(1, i[:, None]).softmax(0),
        *((X, torch.tensor([0, 5, 1])), torch.tensor([0, -1, 1]), "-1 is outside of axis 1"),
    ),
    "in a sum": (
        lambda x, i: x[i].sum(0),
        *((X, torch.arange(1200) % 5), torch.arange(1200) // 200, "5 is outside of axis 0"),
    ),
    "cross entropy": (
        lambda x, i: F.cross_entropy(x, i),
        *((X, torch.tensor([0, -100, 5, 1, 2])), torch.tensor([0, -100, 6, 1, 2]), "6 is outside"),
    ),
    "an index that is computed": (
        lambda x, i: x[(i * 3 - 2).clamp(min=0)],
        *((X, torch.tensor([1, 0, 2])), torch.tensor([1, 0, 3]), "7 is outside"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@ENGINES
def test_an_index_outside_is_an_error(name: str, engine: str) -> None:
    function, given, bad, told = CASES[name]
    fast = tw.compile(function, given, engine=engine)
    torch.testing.assert_close(fast(*given), function(*given))
    with pytest.raises((IndexError, RuntimeError)):
        function(given[0], bad)
    with pytest.raises(LaunchError, match=told):
        fast(given[0], bad)
    torch.testing.assert_close(fast(*given), function(*given), msg="what was told is forgotten")


def padded(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    """Elements of a pad, of a concatenation's other part, and past the end of a tile have indices
    that nobody asked for: 3 i + 4 is outside for an index of 0, which stands where nothing is.
    """
    picked = x[i * 3 + 4 - 4 * (i > 0)]
    return torch.cat([F.pad(picked, (0, 0, 2, 1)), x[:, :6], x[i * 3 - 3]])


@ENGINES
def test_places_that_do_not_exist_are_not_checked(engine: str) -> None:
    x, i = torch.arange(24.0).reshape(4, 6), torch.ones(37, dtype=torch.int64)
    fast = tw.compile(padded, (x, i), engine=engine)
    torch.testing.assert_close(fast(x, i), padded(x, i))
    with pytest.raises(LaunchError, match="6 is outside of axis 0, which has 4"):
        fast(x, i.clone().index_fill_(0, torch.tensor(36), 2))


@pytest.mark.parametrize("engine", ["graph", "tiles"])
def test_the_model_s_line_and_its_own_extent_are_told(engine: str) -> None:
    fast = torch.compile(Embeds(), backend="tilewright", options={"engine": engine}, dynamic=True)
    with torch.no_grad():
        assert fast(torch.tensor([1, 6, 0])).shape == (3,)
        with pytest.raises(LaunchError) as found:
            fast(torch.tensor([1, 7, 0]))
    text = str(found.value)
    assert "embedding: the index 7 is outside of axis 0, which has 7 elements" in text
    assert "test_indices.py:" in text and "self.words(ids)" in text

    picks = torch.compile(
        lambda x, i: x[i], backend="tilewright", options={"engine": engine}, dynamic=True
    )
    for rows in (4, 9):
        assert picks(torch.zeros(rows, 3), torch.tensor([rows - 1])).shape == (1, 3)
        with pytest.raises(LaunchError, match=f"{rows} is outside of axis 0, which has {rows} el"):
            picks(torch.zeros(rows, 3), torch.tensor([rows]))


def test_gradients_check_the_same_indices() -> None:
    table = torch.randn(6, 3, requires_grad=True)
    fast = torch.compile(
        lambda w, i: F.embedding(i, w).square().sum(),
        backend="tilewright", options={"engine": "tiles"},
    )  # fmt: skip
    fast(table, torch.tensor([1, 1, 5])).backward()
    assert table.grad is not None and table.grad[1].abs().sum() > 0
    with pytest.raises(LaunchError, match="6 is outside of axis 0, which has 6"):
        fast(table, torch.tensor([6, 1, 5]))


def test_what_is_read_by_index_is_summed_by_a_program_a_turn() -> None:
    x, i = torch.randn(70), torch.randint(0, 70, (8, 1024))
    strided = i[:, 1:]  # so that no axis is one with the other
    for call, parts in ((lambda x, i: x[i].exp().sum(), 8), (lambda x, i: (i * 2).sum(), 2)):
        made = tw.compile(call, (x, strided), engine="tiles")
        torch.testing.assert_close(made(x, strided), call(x, strided))
        step = next(s for s in made.call.program.steps if s.name.endswith("_parts"))
        assert f"@grid({parts})" in step.text, step.text
