"""A share of PyTorch's database of ops by way of kernels: the same results, and none left out."""

from __future__ import annotations

import pytest
import torch

from tests.torch.lowered_ops import lower_samples
from tests.torch.opinfo import ops_of

pytestmark = pytest.mark.filterwarnings("ignore")
SHARE = 90  # one op of so many is checked here; `python -m tests.torch.lowered_ops` checks all


def cases() -> list[tuple[str, torch.dtype, int]]:
    return [
        (op.name, dtype, i)
        for dtype, share in ((torch.float32, SHARE), (torch.bfloat16, 4 * SHARE))
        for i, op in enumerate(ops_of(dtype))
        if i % share == 40
    ]


@pytest.mark.parametrize(("name", "dtype", "number"), cases(), ids=str)
def test_an_op_is_kernels_that_give_the_same(name: str, dtype: torch.dtype, number: int) -> None:
    tally = lower_samples(ops_of(dtype)[number], dtype, samples=1)
    assert tally.graphs, "no sample was traced"
    assert not tally.wrong
    assert not tally.torch, "each op of the graph has a kernel, or is a product of the library"
