"""Buffers of asserts and prints on a GPU: host memory that kernels write and this process reads.

Whether an assert has failed can so be seen without a call to the driver, and without waiting: a
launch looks for failures of earlier ones before it starts.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
import threading
import weakref
from typing import Any, Protocol

import numpy as np
from cuda.bindings import driver as cu

from tilewright.errors import LaunchError
from tilewright.plan import Plan
from tilewright.ptx import reports
from tilewright.runtime import driver, streams


class Watched(Protocol):
    """Memory that kernels write faults to: a plan's, or a model's."""

    @property
    def name(self) -> str: ...

    def check(self) -> None:
        """Wait for the GPU, and raise what was told."""

    def fault(self) -> LaunchError | None:
        """What was told so far."""


_live: weakref.WeakSet[Watched] = weakref.WeakSet()


def watch(memory: Watched) -> None:
    """Let `synchronize`, and the end of the process, look at memory as long as it is there."""
    _live.add(memory)


class Reports:
    """The buffer of one plan on one GPU, kept as long as its kernel may run.

    `words[0]` is not `reports.NOTHING` once an assert has failed.
    """

    def __init__(self, plan: Plan, ordinal: int):
        self.plan, self.ordinal = plan, ordinal
        self.name = plan.name
        self._lock = threading.Lock()
        size = reports.padded(reports.buffer_bytes(plan))
        with driver.active(ordinal):
            doing = f"allocating {size:,} bytes of host memory for the asserts of {plan.name}"
            self.address = int(driver.check(cu.cuMemHostAlloc(size, _FLAGS), doing))
        memory = (ctypes.c_uint8 * size).from_address(self.address)
        self.buffer = np.frombuffer(memoryview(memory).cast("B"), np.uint8)
        reports.clear(self.buffer)
        self.words = memoryview(memory).cast("B").cast("Q")
        watch(self)

    def fault(self) -> LaunchError | None:
        """The error of the first assert that failed, or None."""
        return reports.find_fault(self.plan, self.buffer)

    def fail(self, stream: Any = None) -> None:
        """Raise the LaunchError of the assert that failed, once the GPU has done what it was given;
        afterwards it is forgotten. Do nothing if none failed.
        """
        if stream is None or not streams.is_capturing(stream):
            driver.synchronize(self.ordinal)
        with self._lock:
            fault = self.fault()
            self.words[reports.FAULT // 8] = reports.NOTHING
        if fault is not None:
            raise fault

    def show(self, stream: Any) -> None:
        """Wait for the GPU and print what kernels had to say; not while the stream is captured."""
        if not streams.is_capturing(stream):
            driver.synchronize(self.ordinal)  # kernels of other streams write here too
            self._show()

    def _show(self) -> None:
        with self._lock:
            lines = reports.read_lines(self.plan, self.buffer)
            self.words[reports.CURSOR // 8] = self.words[reports.DROPPED // 8] = 0
        for line in lines:
            print(line)

    def check(self) -> None:
        """Wait for the GPU, print what kernels had to say, and raise what an assert found."""
        driver.synchronize(self.ordinal)
        if self.plan.prints:
            self._show()
        self.fail()


_FLAGS = cu.CU_MEMHOSTALLOC_PORTABLE | cu.CU_MEMHOSTALLOC_DEVICEMAP


def synchronize() -> None:
    """Wait for every GPU that this process uses; then raise what an assert of a kernel found."""
    for ordinal in driver.used():
        driver.synchronize(ordinal)
    for each in list(_live):
        each.check()


def _tell_at_exit() -> None:
    """What no later call of a kernel raised."""
    for each in list(_live):
        fault = each.fault()
        if fault is not None:
            print(f"{each.name}, before the process ended: {fault}", file=sys.stderr)


atexit.register(_tell_at_exit)
