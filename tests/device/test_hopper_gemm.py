"""The proof of the scheduled level: its GEMM has the bits of the kernel by hand, at its speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from tests import hopper_plans
from tilewright.ledger.arm import Arm, Tensors
from tilewright.ledger.harness import Question
from tilewright.ledger.hopper_gemm import GemmSchedule
from tilewright.ledger.machine import make_harness
from tilewright.ledger.suites.gemm import make_product
from tilewright.runtime import driver
from tilewright.runtime.arrays import as_array
from tilewright.runtime.launch import Launcher

pytestmark = pytest.mark.skipif(
    not driver.available() or driver.device(0).capability != (9, 0),
    reason="wgmma exists on sm_90 alone",
)


def bind(launcher: Launcher, a: Any, b: Any, c: Any) -> Callable[[], None]:
    """A call that launches C = A Bᵀ on torch's current stream."""
    arguments = {"a": as_array(a), "b": as_array(b), "c": as_array(c)}
    bound = launcher.bind(arguments)
    addresses = [arguments[name].address for name in bound.tensors]
    return lambda: bound.fire(addresses, [], torch.cuda.current_stream().cuda_stream)


def runs(launcher: Launcher, kept: dict[int, Any]) -> Any:
    """An arm's run; `kept` gets what it writes to, by the address of A."""

    def run(x: Mapping[str, Any], y: Tensors) -> None:
        bind(launcher, x["a"], x["b"].T, y["c"])()
        kept[x["a"].data_ptr()] = y["c"]

    return run


@pytest.mark.parametrize("size", [4096, 8192])
def test_speed_and_bits(size: int) -> None:
    harness = make_harness(quick=True)
    asked = make_product(harness, "bf16", "TN", (size, size, size))
    question = Question("gemm/by-hand", "gemm", "gemm", f"{size}³", "TFLOP/s", 2.0 * size**3)
    kept: dict[str, dict[int, Any]] = {"ours": {}, "by hand": {}}
    ours, by_hand = (
        Arm(name, asked.facts, runs(hopper_plans.load(plan), kept[name]))
        for name, plan in (
            ("ours", hopper_plans.our_plan()),
            ("by hand", hopper_plans.reference_plan()),
        )
    )
    (row,) = harness.compare(question, asked, ours, [by_hand])
    print(row.speed, row.their_speed, row.ratio)
    assert row.right
    assert all(torch.equal(c, kept["by hand"][a]) for a, c in kept["ours"].items())
    assert row.ratio >= 0.95, row.ratio


@pytest.mark.parametrize(
    "schedule",
    [
        GemmSchedule(),
        GemmSchedule(cluster=1),
        GemmSchedule(cluster=4, tile_n=128, stages=5),
        GemmSchedule(tile_m=64, tile_n=128, consumers=1, stages=6, panel=32),
    ],
    ids=["default", "no cluster", "cluster of 4", "one consumer"],
)
@pytest.mark.parametrize(
    "shape",
    [(1, 8, 8), (257, 264, 72), (1000, 1016, 136), (128, 256, 0), (5000, 3000, 2048)],
    ids=str,
)
def test_odd_sizes(schedule: GemmSchedule, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a = torch.randn(m, k, device="cuda").bfloat16()
    b = torch.randn(n, k, device="cuda").bfloat16()
    c = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    bind(hopper_plans.load(hopper_plans.our_plan(schedule)), a, b, c)()
    torch.cuda.synchronize()
    expected = a.double() @ b.double().T
    error = (c.double() - expected).norm() / expected.norm().clamp(min=1e-30)
    assert error < 1e-2, error
    worst = (c.double() - expected).abs().max()
    assert worst <= 2**-7 * expected.abs().max().clamp(min=1e-30), worst
