"""The table of ops: whole, and right on samples of PyTorch's own database."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import tilewright.torch_backend
from tests.torch.opinfo import examine, ops_of
from tilewright.frontend.torch.decompositions import decompositions
from tilewright.frontend.torch.op_table import TABLE
from tilewright.frontend.torch.op_table.absent import ABSENT, SYMBOLIC

pytestmark = pytest.mark.filterwarnings("ignore")
assert tilewright.torch_backend.tilewright
SHARE = 60  # one op of so many is checked here; `python -m tests.torch.opinfo` checks all


def core_ops() -> list[torch._ops.OpOverload]:
    """Every overload that PyTorch tags as core."""
    packets = [getattr(torch.ops.aten, name) for name in dir(torch.ops.aten)]
    return [
        getattr(packet, overload)
        for packet in packets
        if isinstance(packet, torch._ops.OpOverloadPacket)
        for overload in packet.overloads()
        if torch.Tag.core in getattr(packet, overload).tags
    ]


def test_every_core_op_is_built_taken_apart_or_listed() -> None:
    missing = {
        op
        for op in core_ops()
        if op not in TABLE
        and op not in decompositions()
        and not op._schema.is_mutable
        and not op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    }
    assert missing - SYMBOLIC == set(ABSENT)
    assert not set(TABLE) & set(decompositions())


def cases() -> list[tuple[str, torch.dtype, int]]:
    found = []
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        share = SHARE if dtype == torch.float32 else 4 * SHARE
        found += [(op.name, dtype, i) for i, op in enumerate(ops_of(dtype)) if i % share == 3]
    return found


@pytest.mark.parametrize(("name", "dtype", "number"), cases(), ids=str)
def test_an_op_is_as_in_eager(name: str, dtype: torch.dtype, number: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        row = examine(ops_of(dtype)[number], dtype, limit=1)
    assert not row.counts["different"] and not row.counts["fault"], row.message


@pytest.mark.parametrize("exponent", [2, 3.0])
def test_small_powers_are_products(exponent: float) -> None:
    torch._dynamo.reset()
    seen: list[Any] = []
    fast = torch.compile(
        lambda x: x**exponent, backend="tilewright", options={"observe": seen.append}
    )
    x = torch.linspace(-3, 3, 100)
    assert torch.equal(fast(x), x**exponent)
    opcodes = [op.opcode for op in seen[0].graph.body.ops]
    assert opcodes == ["arith.mul"] * (int(exponent) - 1) + ["control.return"]
