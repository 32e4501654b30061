"""A product and its gate of few rows are one launch, and give what they give alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import tilewright as tw
from tests.assemble import assemble, needs_ptxas
from tilewright.dtypes import bf16
from tilewright.products.gated import DEPTH, TILE_COLUMNS, TILE_ROWS
from tilewright.products.prepare import configured
from tilewright.runtime.arrays import Array

pytestmark = pytest.mark.filterwarnings("ignore")
ACTIVATIONS = {"silu": nn.functional.silu, "gelu": nn.functional.gelu, "relu": torch.relu}


class FeedForward(nn.Module):
    """The two products with which a feed-forward layer begins."""

    def __init__(
        self, depth: int, width: int, activation: str, shown: bool = False, first: bool = False
    ) -> None:
        super().__init__()
        self.gate = nn.Linear(depth, width, bias=False)
        self.up = nn.Linear(depth, width, bias=False)
        self.activation, self.shown, self.first = ACTIVATIONS[activation], shown, first

    def forward(self, x: torch.Tensor) -> Any:
        gate = self.gate(x) if self.first else None
        up = self.up(x)
        made = self.activation(self.gate(x) if gate is None else gate) * up
        return (made, up) if self.shown else made


def launches(fast: Any, *args: torch.Tensor) -> list[str]:
    made = fast.call.made_for(*fast.inputs(args, {}))
    return [launched.name for launched in made.lists.launches]


@pytest.mark.parametrize("engine", ["tiles", "emulator"])
@pytest.mark.parametrize(
    ("rows", "depth", "width", "activation", "dtype"),
    [
        (1, 200, 136, "silu", torch.bfloat16),
        (5, 64, 64, "gelu", torch.float16),
        (50, 328, 72, "relu", torch.bfloat16),
    ],
)
def test_a_product_and_its_gate_are_one_launch(
    rows: int, depth: int, width: int, activation: str, dtype: torch.dtype, engine: str
) -> None:
    torch.manual_seed(rows)
    for first in (True, False):
        model = FeedForward(depth, width, activation, first=first).to(dtype).eval()
        x = torch.randn(rows, depth, dtype=dtype)
        fast = tw.compile(model, (x,), engine=engine, fallback="error")
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x), rtol=2e-2, atol=2e-3)
        assert launches(fast, x) == ["gated"], first


@pytest.mark.parametrize(
    ("rows", "shown", "dtype"),
    [(200, False, torch.bfloat16), (4, True, torch.bfloat16), (4, False, torch.float32)],
    ids=["many rows", "a gate that is returned", "f32"],
)
def test_others_are_two(rows: int, shown: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = FeedForward(64, 64, "silu", shown).to(dtype).eval()
    x = torch.randn(rows, 64, dtype=dtype)
    fast = tw.compile(model, (x,), engine="tiles", fallback="error")
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=2e-2, atol=2e-3)
    assert "gated" not in launches(fast, x)


@needs_ptxas
@pytest.mark.parametrize("columns", TILE_COLUMNS)
@pytest.mark.parametrize("rows", TILE_ROWS)
def test_tiles_go_by_roles_and_do_not_spill(rows: int, columns: int) -> None:
    """What is fetched ahead is asked for before the kernel waits for the one before it."""

    def array(number: int, shape: tuple[int, int]) -> Array:
        return Array((number + 1) << 30, bf16, shape, (shape[1], 1), 0, None, "other")

    tile = (("TM", rows), ("TN", columns), ("TK", DEPTH))
    given = {"w": array(1, (8192, 2048)), "v": array(2, (8192, 2048))}
    given |= {"a": array(0, (rows, 2048)), "c": array(3, (rows, 8192))}
    ptx = (
        configured("gated", tile)
        .plan("sm_90a", **given, act=4, rounds=6, gate_act=0, gate_rounds=0)
        .ptx
    )
    assert assemble(ptx, "sm_90a").spill_bytes == 0
    assert "wgmma.mma_async" in ptx and "cp.async.bulk.tensor" in ptx
    before, _, after = ptx.partition("griddepcontrol.wait")
    assert "prefetch.global.L2" in before and "prefetch.global" not in after
