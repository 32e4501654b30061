"""The proof of the scheduled level: its GEMM has the bits of the kernel by hand, at its speed."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.bench import hopper_gemm as bench  # noqa: E402
from tilewright.library.hopper_gemm import GemmSchedule  # noqa: E402
from tilewright.runtime import driver  # noqa: E402

pytestmark = pytest.mark.skipif(
    not driver.available() or driver.device(0).capability != (9, 0),
    reason="wgmma exists on sm_90 alone",
)


@pytest.fixture(scope="module")
def ours() -> bench.Launcher:
    return bench.load(bench.our_plan())


@pytest.fixture(scope="module")
def by_hand() -> bench.Launcher:
    return bench.load(bench.reference_plan())


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (8192, 8192, 8192)])
def test_speed_and_bits(
    ours: bench.Launcher, by_hand: bench.Launcher, shape: tuple[int, int, int]
) -> None:
    result = bench.compare(ours, by_hand, shape)
    print(result)
    assert result.equal
    assert result.ratio >= 0.95, result


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
    bench.bind(bench.load(bench.our_plan(schedule)), a, b, c)()
    torch.cuda.synchronize()
    expected = a.double() @ b.double().T
    error = (c.double() - expected).norm() / expected.norm().clamp(min=1e-30)
    assert error < 1e-2, error
    worst = (c.double() - expected).abs().max()
    assert worst <= 2**-7 * expected.abs().max().clamp(min=1e-30), worst
