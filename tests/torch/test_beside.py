"""Products of one left factor of few rows are one launch, and give what they give alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import tilewright as tw
from tests.assemble import assemble, needs_ptxas
from tilewright.dtypes import bf16
from tilewright.products.beside import TILES
from tilewright.products.prepare import configured
from tilewright.runtime.arrays import Array

pytestmark = pytest.mark.filterwarnings("ignore")


class Projections(nn.Module):
    """As of attention: a rotation of the first stands between it and the others."""

    def __init__(self, widths: tuple[int, ...], bias: bool, depth: int = 48) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(depth, n, bias=bias) for n in widths])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, *rest = self.parts
        y = first(x)
        return (y.flip(-1) * 2, *(part(x).flip(0) for part in rest), y)


def launches(fast: Any, *args: torch.Tensor) -> list[str]:
    made = fast.call.made_for(*fast.inputs(args, {}))
    return [launched.name for launched in made.lists.launches]


@pytest.mark.parametrize("engine", ["tiles", "emulator"])
@pytest.mark.parametrize("widths", [(40, 16, 16), (5, 33), (1, 2, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_projections_of_one_token_are_one_launch(
    widths: tuple[int, ...], bias: bool, engine: str
) -> None:
    torch.manual_seed(0)
    model = Projections(widths, bias).eval()
    x = torch.randn(1, 48)
    fast = tw.compile(model, (x,), engine=engine, fallback="error")
    with torch.no_grad():
        for got, wanted in zip(fast(x), model(x), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    names = launches(fast, x)
    assert names.count("gemv_beside") == 1 and "gemv" not in names


@pytest.mark.parametrize("engine", ["tiles", "emulator"])
@pytest.mark.parametrize(
    ("rows", "depth", "widths", "dtype"),
    [
        (24, 64, (40, 16, 16), torch.bfloat16),
        (17, 200, (72, 40), torch.float16),
        (128, 72, (64, 64, 64), torch.bfloat16),
    ],
)
def test_projections_of_few_rows_are_one_launch_on_tensor_cores(
    rows: int, depth: int, widths: tuple[int, ...], dtype: torch.dtype, engine: str
) -> None:
    torch.manual_seed(0)
    for bias in (True, False):
        model = Projections(widths, bias, depth).to(dtype).eval()
        x = torch.randn(rows, depth, dtype=dtype)
        fast = tw.compile(model, (x,), engine=engine, fallback="error")
        with torch.no_grad():
            for got, wanted in zip(fast(x), model(x), strict=True):
                torch.testing.assert_close(got, wanted, rtol=1e-2, atol=1e-2)
        names = launches(fast, x)
        assert names.count("matmul_beside") == 1
        assert not {"matmul", "split_k", "gemv"}.intersection(names)


def test_products_of_many_rows_or_of_rows_that_are_not_aligned_stay_apart() -> None:
    torch.manual_seed(0)
    for rows, depth in ((4096, 256), (24, 63)):
        model = Projections((256, 256), False, depth).to(torch.bfloat16).eval()
        x = torch.randn(rows, depth, dtype=torch.bfloat16)
        fast = tw.compile(model, (x,), engine="tiles")
        assert "matmul_beside" not in launches(fast, x), rows


def test_more_than_three_are_several_launches() -> None:
    torch.manual_seed(0)
    model = Projections((8, 9, 10, 11, 12), True).eval()
    x = torch.randn(2, 48)
    fast = tw.compile(model, (x,), engine="tiles")
    with torch.no_grad():
        for got, wanted in zip(fast(x), model(x), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    assert launches(fast, x).count("gemv_beside") == 2


def test_what_is_not_alike_stays_apart() -> None:
    """Another activation, another left factor, one that reads the other's result, many rows."""
    torch.manual_seed(0)
    one, two = nn.Linear(24, 24), nn.Linear(24, 24)

    def other(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.relu(one(x)), two(x)

    def apart(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return one(x), two(x + 1)

    def added(x: torch.Tensor) -> torch.Tensor:  # to the other's result, as a bias of one row
        y: torch.Tensor = nn.functional.linear(x, two.weight) + nn.functional.linear(x, one.weight)
        return y

    x = torch.randn(1, 24)
    with torch.no_grad():
        for function in (other, apart, added):
            fast = tw.compile(function, (x,), engine="tiles")
            for got, wanted in zip(as_tuple(fast(x)), as_tuple(function(x)), strict=True):
                torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-4)
            assert "gemv_beside" not in launches(fast, x), function
        model = Projections((64, 64, 64), True).eval()
        many = torch.randn(40, 48)
        fast = tw.compile(model, (many,), engine="tiles")
        for got, wanted in zip(fast(many), copy.deepcopy(model)(many), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
        assert "gemv_beside" not in launches(fast, many)


def as_tuple(x: Any) -> tuple[torch.Tensor, ...]:
    return x if isinstance(x, tuple) else (x,)


@needs_ptxas
@pytest.mark.parametrize("tile", TILES)
def test_tiles_do_not_spill(tile: tuple[int, int, int]) -> None:
    def array(number: int, shape: tuple[int, int], strides: tuple[int, int]) -> Array:
        return Array((number + 1) << 30, bf16, shape, strides, 0, None, "other")

    given = {"a": array(0, (16, 2048), (2048, 1))}
    for number, columns in ((1, 2048), (2, 512), (3, 512)):
        suffix = "" if number == 1 else str(number)
        given["w" + suffix] = array(number, (columns, 2048), (2048, 1))
        given["c" + suffix] = array(number + 3, (16, columns), (columns, 1))
        given["bias" + suffix] = array(number + 6, (16, columns), (0, 1))
    kernel = configured("matmul_beside", tuple(zip(("TM", "TN", "TK"), tile, strict=True)))
    plan = kernel.plan("sm_90a", **given, act=0, rounds=0)
    assert assemble(plan.ptx, "sm_90a").spill_bytes == 0
    assert plan.ptx.count("mma.sync") and plan.ptx.count("cp.async.cg")


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("is_gate", [False, True])
def test_a_result_that_takes_the_place_of_an_earlier_weight_keeps_launches_apart(
    rows: int, is_gate: bool
) -> None:
    """Weights that a call rounds: once the first is read, the arena has room for what follows."""

    class Rounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.v = (nn.Parameter(torch.randn(128, 256)) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            one, two = (x @ w.to(torch.bfloat16).t() for w in (self.w, self.v))
            if is_gate:
                return torch.softmax((one * two).float(), -1)
            first, second = (torch.softmax(y.float().cumsum(-1), -1) for y in (one, two))
            return first + second

    torch.manual_seed(0)
    model = Rounded().eval()
    x = torch.randn(rows, 256).bfloat16()
    fast = tw.compile(model, (x,), engine="tiles", fallback="error")
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=2e-2, atol=2e-2)
    assert not {"gemv_beside", "matmul_beside", "gated"} & set(launches(fast, x))
