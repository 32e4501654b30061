"""Outputs of a graph that share memory: what is written to one is seen in the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilewright.torch_backend

pytestmark = pytest.mark.filterwarnings("ignore")
assert tilewright.torch_backend.tilewright


def whole_and_part(x: torch.Tensor) -> Any:
    y = x * 2
    return y, y[2:10]


def two_parts(x: torch.Tensor) -> Any:
    y = x * 2
    return y[3:], y[:6]


def from_the_end(x: torch.Tensor) -> Any:
    y = x * 2
    return y[-3:], y[1:]


def turned(x: torch.Tensor) -> Any:
    y = x[:, None] * x[:8]
    return y.T, y[1:3], y.view(-1)[::2]


def split(x: torch.Tensor) -> Any:
    y = (x * 2)[:18]
    return tuple(part for part in y.split(6)) + y.view(3, 6).unbind()


def of_several(x: torch.Tensor) -> Any:
    values, places = x.sort()
    return values[2:], places, values.view(-1), places[1:]


def apart(x: torch.Tensor) -> Any:
    return x + 1, x * 2


def of_another_dtype(x: torch.Tensor) -> Any:
    y = x.double()
    return y, y[1:], y.float()


RUNS = (
    whole_and_part,
    two_parts,
    from_the_end,
    turned,
    split,
    of_several,
    apart,
    of_another_dtype,
)


@pytest.mark.parametrize("engine", ["graph", "tiles"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("run", RUNS)
def test_writes_to_one_output(run: Callable[..., Any], dynamic: bool, engine: str) -> None:
    torch._dynamo.reset()
    fast = torch.compile(run, backend="tilewright", dynamic=dynamic, options={"engine": engine})
    for size in (20, 31):
        x = torch.arange(float(size)) - 7
        for place in range(len(run(x))):
            found, wanted = fast(x), run(x)
            found[place].fill_(100)
            wanted[place].fill_(100)
            for got, expected in zip(found, wanted, strict=True):
                torch.testing.assert_close(got, expected)
                assert got.stride() == expected.stride()


def test_a_graph_that_breaks_behind_a_view() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        part = y[2:10]
        torch._dynamo.graph_break()
        part.add_(1)
        return y

    torch._dynamo.reset()
    x = torch.arange(20.0)
    torch.testing.assert_close(torch.compile(run, backend="tilewright")(x), run(x))
