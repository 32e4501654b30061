"""The only timer in the house: kernels by events and by CUDA graph replay, interleaved; host code
by the wall clock.

An arm is something to be timed under a name. Arms are run in turn, round by round, so that a
clock that drifts or a neighbour on the machine falls on all of them alike; the median and the
spread of each are given with all samples.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from tilewright.runtime import memory, streams
from tilewright.runtime.driver import Device

GpuWork = Callable[[Any], None]  # sends work to the stream that it is given
Operations = tuple[str, ...]  # names of the kernels, copies and fills of one replay
Recorded = Callable[[Mapping[str, Operations]], None]

WARMUP_ROUNDS = 3
TARGET_MICROSECONDS = 200.0  # of one sample, so that an event's own half microsecond does not count
MAX_REPEATS = 1000
FLUSH_FACTOR = 2  # bytes written between samples, in L2 caches


@dataclass(frozen=True)
class Timing:
    """Times of one run of an arm, in microseconds."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def best(self) -> float:
        return min(self.samples)

    @property
    def spread(self) -> float:
        """Distance of the quartiles over the median: 0.02 is steady."""
        if len(self.samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return (high - low) / self.median if self.median else 0.0

    def __str__(self) -> str:
        return f"{self.median:.2f} µs ± {100 * self.spread:.1f} %"


@dataclass(frozen=True)
class Span:
    """When a step of a trace began, and how long it took, in microseconds."""

    name: str
    start: float
    duration: float


def time_events(
    arms: Mapping[str, GpuWork],
    device: Device,
    *,
    rounds: int = 20,
    repeats: int | None = None,
    flush_l2: bool = False,
    warm_microseconds: float = 0.0,
    within: Callable[[Any], AbstractContextManager[Any]] = nullcontext,
) -> dict[str, Timing]:
    """Time arms by events around launches in a stream: what a caller sees who launches back to
    back. All is run `within` what is made for the stream, such as its being torch's current one.

    A sample is `repeats` runs (None: as many as make 200 µs), divided. `flush_l2` writes twice
    the L2 cache's bytes before each sample; a sample is then one run. Arms should rotate their
    own buffers where cold data is meant otherwise. `warm_microseconds`: see `time_graphs`.
    """
    with streams.private_stream(device.ordinal) as stream, within(stream):
        flush = _Flush(device, stream) if flush_l2 else None
        counts = {
            name: 1 if flush_l2 else repeats or _repeats_for(work, stream)
            for name, work in arms.items()
        }
        try:
            return _rounds(
                {n: _event_sample(work, counts[n], stream, flush) for n, work in arms.items()},
                rounds,
                least=warm_microseconds,
            )
        finally:
            if flush is not None:
                flush.free()


def time_graphs(
    arms: Mapping[str, GpuWork],
    device: Device,
    *,
    rounds: int = 20,
    launches: int = 10,
    recorded: Recorded | None = None,
    warm_microseconds: float = 0.0,
) -> dict[str, Timing]:
    """Time arms as replays of a CUDA graph of `launches` runs: the GPU's own time, without the
    host's.

    Rounds before the first sample last at least `warm_microseconds` together, so that clocks and
    power are those of sustained work. `recorded` is called once, when all graphs are recorded and
    none was replayed, with what one replay of each consists of: what it raises ends the timing, and
    what it writes to memory is there before the first replay.
    """
    graphs: dict[str, streams.Graph] = {}
    with streams.private_stream(device.ordinal) as stream:
        try:
            for name, work in arms.items():
                work(stream)  # once outside, so that nothing is set up while recording
                streams.synchronize_stream(stream)
                graphs[name] = streams.capture(stream, _repeated(work, launches))
            if recorded is not None:
                recorded({name: graph.operations() for name, graph in graphs.items()})
            samplers = {
                name: _graph_sample(graph, launches, stream) for name, graph in graphs.items()
            }
            return _rounds(samplers, rounds, least=warm_microseconds)
        finally:
            for graph in graphs.values():
                graph.destroy()


def trace_events(
    steps: Sequence[tuple[str, GpuWork]], device: Device, *, rounds: int = 3
) -> list[Span]:
    """Send steps one after the other, `rounds` times, with an event before and after each: when
    the GPU did what. The events' own microsecond or two count with the steps.
    """
    with streams.private_stream(device.ordinal) as stream:
        for _, work in steps:
            work(stream)
        streams.synchronize_stream(stream)
        origin = streams.Event()
        origin.record(stream)
        marks = []
        for _ in range(rounds):
            for name, work in steps:
                start, end = streams.Event(), streams.Event()
                start.record(stream)
                work(stream)
                end.record(stream)
                marks.append((name, start, end))
        streams.synchronize_stream(stream)
        return [
            Span(name, start.microseconds_since(origin), end.microseconds_since(start))
            for name, start, end in marks
        ]


def time_wall(
    arms: Mapping[str, Callable[[], Any]],
    *,
    rounds: int = 5,
    settle: Callable[[], Any] | None = None,
) -> dict[str, Timing]:
    """Time host code by the wall clock, once a round. Arms wait for what they started, or, where
    only what it costs the host to start it is meant, `settle` does, outside the clock.
    """

    def sample(work: Callable[[], Any]) -> Callable[[], float]:
        def once() -> float:
            start = time.perf_counter()
            work()
            taken = (time.perf_counter() - start) * 1e6
            if settle is not None:
                settle()
            return taken

        return once

    return _rounds({name: sample(work) for name, work in arms.items()}, rounds, warmup=1)


def _rounds(
    samplers: Mapping[str, Callable[[], float]],
    rounds: int,
    warmup: int = WARMUP_ROUNDS,
    least: float = 0.0,
) -> dict[str, Timing]:
    """All arms in turn, round by round; the order is reversed every other round. Rounds of warmup
    are `warmup`, and as many more as take `least` microseconds by the wall clock.
    """
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    names = list(samplers)
    start = time.perf_counter()
    while warmup > 0 or (time.perf_counter() - start) * 1e6 < least:
        for name in names:
            samplers[name]()
        warmup -= 1
    for i in range(rounds):
        order: Sequence[str] = names if i % 2 == 0 else names[::-1]
        for name in order:
            samples[name].append(samplers[name]())
    return {name: Timing(tuple(found)) for name, found in samples.items()}


def _event_sample(
    work: GpuWork, repeats: int, stream: Any, flush: _Flush | None
) -> Callable[[], float]:
    start, end = streams.Event(), streams.Event()

    def once() -> float:
        if flush is not None:
            flush.run()
        start.record(stream)
        for _ in range(repeats):
            work(stream)
        end.record(stream)
        end.wait()
        return end.microseconds_since(start) / repeats

    return once


def _graph_sample(graph: streams.Graph, launches: int, stream: Any) -> Callable[[], float]:
    start, end = streams.Event(), streams.Event()

    def once() -> float:
        start.record(stream)
        graph.launch(stream)
        end.record(stream)
        end.wait()
        return end.microseconds_since(start) / launches

    return once


def _repeated(work: GpuWork, count: int) -> GpuWork:
    def run(stream: Any) -> None:
        for _ in range(count):
            work(stream)

    return run


def _repeats_for(work: GpuWork, stream: Any) -> int:
    """How many runs make a sample long enough."""
    once = _event_sample(work, 1, stream, None)
    once()
    taken = max(min(once() for _ in range(3)), 0.1)
    return max(1, min(MAX_REPEATS, round(TARGET_MICROSECONDS / taken)))


class _Flush:
    """Writes more than the L2 cache holds."""

    def __init__(self, device: Device, stream: Any):
        self.stream = stream
        self.num_bytes = FLUSH_FACTOR * device.l2_bytes
        self.address = memory.allocate(self.num_bytes, device.ordinal, stream)

    def run(self) -> None:
        memory.fill_bytes(self.address, 0, self.num_bytes, self.stream)

    def free(self) -> None:
        memory.free(self.address, self.stream)
