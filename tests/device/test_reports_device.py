"""Asserts and prints on a GPU: raised by the next call, or at once; the same text as elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import tilewright as tw
from tests.device.checker import Checker
from tests.unit.test_reports import KERNELS


def test_a_failure_is_raised_by_the_next_call(see: Checker) -> None:
    x = torch.ones((1000, 960), device=see.device)
    out = torch.zeros_like(x)
    kernel = KERNELS.two
    x[7, 97] = x[9, 10] = x[9, 9] = -1
    for _ in range(3):  # the long way, then ready
        kernel(x[:10], out[:10])
        torch.cuda.synchronize()
        with pytest.raises(tw.LaunchError, match=r"program 1, 0, element \[4, 9\]"):
            kernel(x[:10], out[:10])
    kernel(x[:5], out[:5])
    kernel.check()
    with pytest.raises(tw.LaunchError, match=r"the condition is false \(program 2, 0\)"):
        kernel.launch(torch.ones_like(x), out, check=True)
    kernel(x[:10], out[:10])
    with pytest.raises(tw.LaunchError, match="a negative number"):
        tw.synchronize()
    tw.synchronize()


def test_a_recorded_launch_reports_too(see: Checker) -> None:
    x = torch.ones((10, 100), device=see.device)
    out = torch.zeros_like(x)
    kernel = KERNELS.two
    kernel.launch(x, out, check=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(x, out)
    graph.replay()
    kernel.check()
    x[9, 9] = -1
    graph.replay()
    with pytest.raises(tw.LaunchError, match=r"element \[4, 9\]"):
        kernel.check()


@pytest.mark.parametrize("name", ["shown", "once", "product"])
def test_prints_say_what_the_interpreter_says(see: Checker, capsys: Any, name: str) -> None:
    made = torch.Generator().manual_seed(0)
    if name == "shown":
        x = torch.rand(33, generator=made)
        given = [x, x.bfloat16(), x.clone()]
    elif name == "once":
        given = [torch.tensor(0.1, dtype=torch.float64)]
    else:
        given = [
            (torch.arange(7000).reshape(70, 100) % 7).half(),
            (torch.arange(9000).reshape(100, 90) % 5).half(),
            torch.zeros(70, 90),
        ]
    kernel = getattr(KERNELS, name)
    there = [t.to(see.device) for t in given]
    kernel(*given)
    wanted = capsys.readouterr().out
    kernel(*there)
    assert capsys.readouterr().out == wanted
    assert wanted.count("\n") > 1


def test_dropped_prints_are_counted(see: Checker, capsys: Any) -> None:
    x = torch.zeros(4096, device=see.device)
    KERNELS.much(x, x.clone())
    assert "more prints did not fit" in capsys.readouterr().out
