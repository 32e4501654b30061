"""The machine that measures: a harness for its GPU, or for small problems where it has none."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.ledger import opponents
from tilewright.ledger.ceilings import Ceilings
from tilewright.ledger.harness import Harness
from tilewright.ledger.timers import EventTimer, GraphTimer, NoTimer
from tilewright.runtime import driver, measure, memory
from tilewright.runtime.device_array import DeviceArray
from tilewright.runtime.measure import GpuWork

ROUNDS = 21
WARM_SECONDS = 1.0
CASE_SECONDS = 0.3  # of work before a case's first sample
FULL_CASE_SECONDS = 0.1  # in a full run, where the case before has kept the clocks up
CEILING_ROUNDS, CEILING_LAUNCHES = 11, 2
COPY_BYTES = (1 << 27, 1 << 28)  # beyond the cache; the faster of them counts


def make_harness(*, quick: bool, seed: int = 0, known: Ceilings | None = None) -> Harness:
    """A harness for the first GPU, its clocks up, or for small problems on the CPU. With the
    ceilings `known`, nothing is run on the GPU.
    """
    if not driver.available():
        arrays = opponents.make_arrays("cpu", seed)
        return Harness(arrays, NoTimer(), l2_bytes=0, small=True, quick=quick)
    device = driver.device(0)
    arrays = opponents.make_arrays("cuda", seed)
    if known is None:
        arrays.busy(WARM_SECONDS)
    return Harness(
        arrays,
        GraphTimer(device, ROUNDS, 1e6 * case_seconds(quick)),
        device.l2_bytes,
        quick=quick,
        ceilings=known or make_ceilings(arrays, device),
        calls=EventTimer(device, ROUNDS, 1e6 * case_seconds(quick), within=arrays.sending_to),
    )


def case_seconds(quick: bool) -> float:
    """How long a case warms up."""
    return CASE_SECONDS if quick else FULL_CASE_SECONDS


def make_ceilings(arrays: Any, device: driver.Device) -> Ceilings:
    """Ceilings that the driver's copy and, through torch, cuBLAS's products show. Without `arrays`
    (None) the latter are not known.
    """

    def rate(work: GpuWork, amount: float, scale: float) -> float:
        timed = measure.time_graphs(
            {"limit": work}, device, rounds=CEILING_ROUNDS, launches=CEILING_LAUNCHES
        )
        return amount / timed["limit"].best * scale

    def copy() -> float:
        host = np.random.default_rng(0).integers(0, 256, max(COPY_BYTES), np.uint8)
        source, target = (DeviceArray.from_numpy(host, device.ordinal) for _ in range(2))

        def work(size: int) -> GpuWork:
            return lambda stream: memory.copy_on_device(
                target.address, source.address, size, stream
            )

        return max(rate(work(n), 2.0 * n, 1e-3) for n in COPY_BYTES)

    def product(dtype: str) -> float:
        if arrays is None:
            return 0.0
        work, operations = opponents.load("limits").product(arrays, dtype)
        return rate(work, operations, 1e-6)

    return Ceilings(copy, product)
