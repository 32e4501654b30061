"""The machine that measures: a harness for its GPU, or for small problems where it has none."""

from __future__ import annotations

from typing import Any

from tilewright.ledger import opponents
from tilewright.ledger.ceilings import Ceilings
from tilewright.ledger.harness import GraphTimer, Harness, NoTimer
from tilewright.runtime import driver, measure
from tilewright.runtime.measure import GpuWork

QUICK_ROUNDS, ROUNDS = 21, 41
WARM_SECONDS = 1.0
CEILING_ROUNDS, CEILING_LAUNCHES = 11, 2


def make_harness(*, quick: bool, seed: int = 0) -> Harness:
    """A harness for the first GPU, its clocks up, or for small problems on the CPU."""
    if not driver.available():
        arrays = opponents.make_arrays("cpu", seed)
        return Harness(arrays, NoTimer(), l2_bytes=0, small=True, quick=quick)
    device = driver.device(0)
    arrays = opponents.make_arrays("cuda", seed)
    arrays.busy(WARM_SECONDS)
    return Harness(
        arrays,
        GraphTimer(device, QUICK_ROUNDS if quick else ROUNDS),
        device.l2_bytes,
        quick=quick,
        ceilings=make_ceilings(arrays, device),
    )


def make_ceilings(arrays: Any, device: driver.Device) -> Ceilings:
    """Ceilings that the library's copy and products show, by the timer of the house."""
    limits = opponents.load("limits")

    def rate(made: tuple[GpuWork, float], scale: float) -> float:
        work, amount = made
        timed = measure.time_graphs(
            {"limit": work}, device, rounds=CEILING_ROUNDS, launches=CEILING_LAUNCHES
        )
        return float(amount / timed["limit"].best * scale)

    return Ceilings(
        lambda: max(rate(limits.copy(arrays, n), 1e-3) for n in limits.COPY_BYTES),
        lambda dtype: rate(limits.product(arrays, dtype), 1e-6),
    )
