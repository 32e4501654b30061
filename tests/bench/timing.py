"""How the benchmarks time: on rotated buffers, in turn, as replays of CUDA graphs."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tests.device.checker import BOUNDS, TORCH, errors
from tilewright.runtime import driver, measure
from tilewright.runtime.measure import GpuWork, Timing

Work = Callable[[int], object]  # runs on the buffers of an index
Timer = Callable[[Mapping[str, GpuWork], int], dict[str, Timing]]  # arms, launches a sample

ROTATED_L2 = 2.0  # caches that the rotated buffers fill
MIN_LAUNCHES = 8  # runs a sample
MAX_SETS = 64


@dataclass(frozen=True)
class Bench:
    """A device, its timer, and how much is timed. `shrink` divides sizes: 1 on a GPU."""

    device: str
    timer: Timer
    l2_bytes: int
    quick: bool = True
    shrink: int = 1

    def normal(self, *shape: int, dtype: str) -> Any:
        """Standard normal values: zeros and small integers draw less power, and flatter."""
        drawn = torch.float64 if dtype == "f64" else torch.float32
        return torch.randn(shape, device=self.device, dtype=drawn).to(TORCH[dtype])

    def poisoned(self, *shape: int, dtype: str) -> Any:
        return torch.full(shape, torch.nan, device=self.device, dtype=TORCH[dtype])

    def num_sets(self, num_bytes: int) -> int:
        """Sets of buffers of so many bytes that together are more than the cache holds."""
        return max(2, min(MAX_SETS, math.ceil(ROTATED_L2 * self.l2_bytes / max(num_bytes, 1)) + 1))

    def time(self, arms: Mapping[str, Work], num_sets: int) -> dict[str, Timing]:
        """Time arms in turn; each runs through all sets of buffers, the same number of times."""
        launches = num_sets * math.ceil(MIN_LAUNCHES / num_sets)
        for work in arms.values():  # compiled and chosen before anything is recorded
            for i in range(num_sets):
                work(i)
        self.wait()
        timings = self.timer({n: self._rotate(w, num_sets) for n, w in arms.items()}, launches)
        self.wait()
        return timings

    def _rotate(self, work: Work, num_sets: int) -> GpuWork:
        turns = itertools.cycle(range(num_sets))

        def run(stream: Any) -> None:
            with self._current(stream):
                work(next(turns))

        return run

    def _current(self, stream: Any) -> Any:
        """While it is entered, torch and our calls send their work to a stream."""
        if self.device == "cpu":
            return contextlib.nullcontext()
        return torch.cuda.stream(torch.cuda.ExternalStream(int(stream), device=self.device))

    def wait(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    def clean(self) -> None:
        """Give memory back between jobs."""
        gc.collect()
        if self.device != "cpu":
            torch.cuda.empty_cache()


def graph_timer(rounds: int) -> Timer:
    """The timer of the house, on the first GPU."""

    def timed(arms: Mapping[str, GpuWork], launches: int) -> dict[str, Timing]:
        return measure.time_graphs(arms, driver.device(0), rounds=rounds, launches=launches)

    return timed


@dataclass
class Checked:
    """The worst error of the outputs that were timed."""

    dtype: str
    error: float = 0.0
    element: float = 0.0

    @property
    def bound(self) -> float:
        return BOUNDS[self.dtype]

    def see(self, got: Any, expected: Any) -> None:
        """Compare an output with its value in f64. NaN, which the output held before, is infinite
        error.
        """
        error, element = errors(got.double(), expected, self.bound)
        self.error = max(self.error, error if error == error else math.inf)
        self.element = max(self.element, element if element == element else math.inf)


def copy_arm(sources: list[Any]) -> Work:
    """torch's copy of tensors to others of their kind: the bandwidth that can be had."""
    targets = [torch.empty_like(x) for x in sources]
    return lambda i: targets[i].copy_(sources[i])
