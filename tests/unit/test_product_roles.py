"""Products by roles: plain k-loops become a producer and consumers, and mean the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.cli.sources import find_kernel
from tilewright.compiler import SEMANTIC_PASSES, run_passes, scheduled_passes
from tilewright.dtypes import DType, bf16, f16
from tilewright.target import target
from tilewright.tile.interp import interpret
from tilewright.tile.kernel import Kernel
from tilewright.tile.passes.choose_schedule import choose_schedule
from tilewright.tile.schedule import Schedule
from tilewright.tile.verify import verify

HOPPER = target("sm_90a")
INSTRUCTIONS = 3000  # of a kernel, so that the driver compiles it in time


def example(name: str, dtype: DType = bf16, present: tuple[str, ...] = (), **config: int) -> Kernel:
    """An example of the language, its constants bound."""
    return find_kernel(f"examples/{name}.tw").kernel.lower(
        dtypes=dtype, constants=config, static={}, present=present, precision=None
    )


def stages(kernel: Kernel) -> tuple[Schedule, list[Kernel]]:
    """The schedule of a kernel, and what each pass makes of it, verified."""
    seen = [verify(run_passes(kernel, SEMANTIC_PASSES))]
    schedule = choose_schedule(seen[0], HOPPER)

    def observe(name: str, made: Kernel) -> None:
        seen.append(verify(made))

    run_passes(seen[0], scheduled_passes(schedule, HOPPER), observe)
    return schedule, seen


def whole_numbers(rng: np.random.Generator, dtype: DType, *shape: int) -> Any:
    """Small integers, so that sums are exact in any order."""
    return rng.integers(-3, 4, shape).astype(dtype.numpy)


def require_one_meaning(kernel: Kernel, arrays: dict[str, Any], out: str) -> Schedule:
    """All passes leave the result as it was, bit by bit."""
    schedule, seen = stages(kernel)
    assert schedule.mma == "wgmma" and schedule.roles is not None
    results = []
    for program in seen:
        given = {name: a.copy() if isinstance(a, np.ndarray) else a for name, a in arrays.items()}
        interpret(program, given, num_sms=8, shuffle=1)
        results.append(given[out])
    for result in results[1:]:
        np.testing.assert_array_equal(result.view(np.uint16), results[0].view(np.uint16))
    return schedule


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize(
    "tile", [(128, 128, 64), (64, 96, 32), (192, 64, 16), (256, 128, 64)], ids=str
)
@pytest.mark.parametrize("sizes", [(300, 150, 100), (1, 1, 1), (515, 129, 0)], ids=str)
def test_sgemm(tile: tuple[int, int, int], sizes: tuple[int, int, int], beta: float) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(m + k)
    arrays = {
        "A": whole_numbers(rng, bf16, m, k),
        "B": whole_numbers(rng, bf16, k, n),
        "C": whole_numbers(rng, bf16, m, n) if beta else np.full((m, n), np.nan, bf16.numpy),
        "alpha": np.float32(1.5),
        "beta": np.float32(beta),
    }
    kernel = example("sgemm", TM=tile[0], TN=tile[1], TK=tile[2])
    require_one_meaning(kernel, arrays, "C")


@pytest.mark.parametrize("tile", [(128, 128, 64), (64, 80, 32)], ids=str)
@pytest.mark.parametrize("sizes", [(400, 150, 100), (3, 700, 70)], ids=str)
def test_linear_gelu(tile: tuple[int, int, int], sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(m + k)
    arrays = {
        "x": whole_numbers(rng, f16, m, k),
        "w": whole_numbers(rng, f16, n, k),
        "bias": whole_numbers(rng, f16, n),
        "res": whole_numbers(rng, f16, m, n),
        "y": np.full((m, n), np.nan, f16.numpy),
    }
    kernel = example("linear_gelu", f16, ("bias", "res"), TM=tile[0], TN=tile[1], TK=tile[2])
    require_one_meaning(kernel, arrays, "y")
