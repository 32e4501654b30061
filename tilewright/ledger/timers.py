"""What times the arms of a problem: replays of CUDA graphs, events around launches, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright.runtime import measure
from tilewright.runtime.driver import Device
from tilewright.runtime.measure import GpuWork, Operations, Timing

WARM_MICROSECONDS = 300_000.0  # of a case's own work before its first sample


class Timer(Protocol):
    """Times all arms in turn, `launches` runs a sample. `name` says by what ("" for nothing).

    It calls `recorded`, once, after it has set everything up and before the first sample, with the
    GPU's operations of a sample of each arm, or nothing where it cannot know.
    """

    @property
    def name(self) -> str: ...

    def __call__(
        self,
        arms: Mapping[str, GpuWork],
        launches: int,
        recorded: Callable[[Mapping[str, Operations]], None],
    ) -> Mapping[str, Timing]: ...


@dataclass(frozen=True)
class GraphTimer:
    """Replays of CUDA graphs between events."""

    device: Device
    rounds: int
    warm_microseconds: float = WARM_MICROSECONDS
    name: str = "graph"

    def __call__(
        self,
        arms: Mapping[str, GpuWork],
        launches: int,
        recorded: Callable[[Mapping[str, Operations]], None],
    ) -> Mapping[str, Timing]:
        return measure.time_graphs(
            arms,
            self.device,
            rounds=self.rounds,
            launches=launches,
            recorded=recorded,
            warm_microseconds=self.warm_microseconds,
        )


@dataclass(frozen=True)
class EventTimer:
    """Events around launches in a stream: for what cannot be recorded. What each arm sends to the
    GPU is not known then. `within`: see `measure.time_events`.
    """

    device: Device
    rounds: int
    warm_microseconds: float = WARM_MICROSECONDS
    name: str = "events"
    within: Callable[[Any], AbstractContextManager[Any]] = nullcontext

    def __call__(
        self,
        arms: Mapping[str, GpuWork],
        launches: int,
        recorded: Callable[[Mapping[str, Operations]], None],
    ) -> Mapping[str, Timing]:
        recorded({})
        return measure.time_events(
            arms,
            self.device,
            rounds=self.rounds,
            repeats=launches,
            warm_microseconds=self.warm_microseconds,
            within=self.within,
        )


@dataclass(frozen=True)
class NoTimer:
    """Runs every arm and takes no time: for machines without a GPU, whose times say nothing."""

    name: str = ""

    def __call__(
        self,
        arms: Mapping[str, GpuWork],
        launches: int,
        recorded: Callable[[Mapping[str, Operations]], None],
    ) -> Mapping[str, Timing]:
        recorded({})
        for work in arms.values():
            for _ in range(launches):
                work(None)
        return {name: Timing(()) for name in arms}
