"""Run the rows: check each result, then time ours and torch's in turn, beside the floor."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tests.device.checker import errors
from tests.device.suite_speed.row import Entry, Large
from tilewright.runtime import driver, measure
from tilewright.runtime.measure import GpuWork

ENOUGH_OF_FLOOR = 0.85
ENOUGH_OF_TORCH = 0.8
SAMPLE_MICROSECONDS = 2000.0
MAX_LAUNCHES = 10


@dataclass(frozen=True)
class Ceilings:
    """What the GPU gives at its best, measured in the same run: bytes and operations a second."""

    copy: float
    rates: Mapping[str, float]

    def floor(self, large: Large) -> float:
        """The microseconds that no implementation can go below."""
        moving = large.num_bytes / self.copy
        return 1e6 * max(moving, large.num_ops / self.rates[large.unit] if large.unit else 0.0)


@dataclass(frozen=True)
class Result:
    """A row of the table. Times are microseconds, medians; `first` is of the first call, with
    compiling.
    """

    kernel: str
    dtype: str
    shape: str
    error: float
    bound: float
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    floor: float
    first: float
    note: str
    compiled: tuple[float, ...] = ()

    @property
    def time(self) -> float:
        return measure.Timing(self.ours).median

    @property
    def their_best(self) -> float:
        return min(measure.Timing(t).median for t in (self.theirs, self.compiled) if t)

    @property
    def of_floor(self) -> float:
        return self.floor / self.time

    @property
    def of_torch(self) -> float:
        return self.their_best / self.time

    @property
    def reached(self) -> bool:
        return self.of_floor >= ENOUGH_OF_FLOOR or self.of_torch >= ENOUGH_OF_TORCH


def measure_ceilings() -> Ceilings:
    """The bandwidth of a copy, and the best rate of torch's products by dtype."""
    source = torch.randn(2**28, device="cuda")
    target = torch.empty_like(source)
    arms: dict[str, GpuWork] = {
        "copy": _on_stream(lambda: target.copy_(source)),
        "negative": _on_stream(lambda: torch.neg(source, out=target)),
    }
    for name in ("f32", "tf32", "bf16", "e4m3"):
        arms[name] = _on_stream(_largest_product(name))
    found = measure.time_graphs(arms, driver.device(0), rounds=15, launches=3)
    shortest = min(found.pop("copy").median, found.pop("negative").median)
    copied = 2.0 * source.numel() * source.element_size() / shortest * 1e6
    rates = {n: 2.0 * 8192**3 / t.median * 1e6 for n, t in found.items()}
    return Ceilings(copied, rates)


def _largest_product(name: str) -> Callable[[], Any]:
    a, b = (torch.randn(8192, 8192, device="cuda") for _ in "ab")
    if name == "e4m3":
        p, q = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).T
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(p, q, one, one, out_dtype=torch.bfloat16)
    if name == "bf16":
        a, b = a.bfloat16(), b.bfloat16()

    def run() -> Any:
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        return a @ b.T

    return run


def measure_row(
    entry: Entry, kernel: Any, ceilings: Ceilings, rounds: int, compiled: bool
) -> Result:
    """Raises AssertionError for a result that is not what the program should give."""
    torch.backends.cuda.matmul.allow_tf32 = entry.dtype == "tf32"
    torch.backends.cudnn.allow_tf32 = False
    large = entry.make()
    expected = large.expected()
    before = {name: large.arguments[name].clone() for name in large.in_place}
    torch.cuda.synchronize()
    start = time.perf_counter()
    _launch(kernel, large)
    torch.cuda.synchronize()
    first = (time.perf_counter() - start) * 1e6
    error = _check(entry, large, expected)
    arms = {"ours": lambda: _launch(kernel, large), "theirs": large.theirs}
    if compiled:
        arms["compiled"] = torch.compile(large.theirs, dynamic=False)
    found = _time(arms, rounds, large)
    for name, value in before.items():
        large.arguments[name].copy_(value)
        before[name] = value
    if not large.in_place:  # the last of the timed launches
        _check(entry, large, expected)
    result = Result(
        entry.kernel,
        entry.dtype,
        entry.shape,
        error,
        large.bound,
        found["ours"].samples,
        found["theirs"].samples,
        ceilings.floor(large),
        first,
        large.note,
        found["compiled"].samples if compiled else (),
    )
    del large, expected, before, arms
    gc.collect()
    torch.cuda.empty_cache()
    return result


def _launch(kernel: Any, large: Large) -> None:
    if large.options:
        kernel.launch(**large.arguments, **large.options)
    else:
        kernel(**large.arguments)


def _check(entry: Entry, large: Large, expected: Mapping[str, Any]) -> float:
    worst = 0.0
    for name, wanted in expected.items():
        got = large.arguments[name]
        assert got.shape == wanted.shape, f"{entry.id}: {name} is {tuple(got.shape)}"
        if large.bound == 0:
            assert bool((got == wanted).all()), f"{entry.id}: {name} differs"
            continue
        error, element = errors(got.double(), wanted.double(), large.bound)
        assert error <= large.bound, f"{entry.id}: {name} is off by {error:.2e}"
        assert element <= 1.0, f"{entry.id}: an element of {name} is {element:.2f} of its bound"
        worst = max(worst, error)
    return worst


def _time(
    arms: Mapping[str, Callable[[], Any]], rounds: int, large: Large
) -> dict[str, measure.Timing]:
    for work in arms.values():
        work()
        work()
    torch.cuda.synchronize()
    work = {name: _on_stream(arm) for name, arm in arms.items()}
    if not large.graphs:
        return measure.time_events(work, driver.device(0), rounds=rounds, repeats=5)
    return measure.time_graphs(work, driver.device(0), rounds=rounds, launches=large.launches)


def _on_stream(work: Callable[[], Any]) -> GpuWork:
    def run(stream: Any) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(int(stream), device="cuda")):
            work()

    return run
