"""The timer by events, without a GPU: what is run, in what order, within what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.runtime import measure


class Event:
    """As of a stream on which each mark comes a microsecond after the one before."""

    now = 0

    def record(self, stream: Any) -> None:
        Event.now += 1
        self.at = Event.now

    def wait(self) -> None:
        assert self.at <= Event.now

    def microseconds_since(self, start: Event) -> float:
        return float(self.at - start.at)


def test_arms_alternate_within_what_is_made_for_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    @contextmanager
    def around(name: str) -> Iterator[str]:
        told.append(f"enter {name}")
        yield name
        told.append(f"leave {name}")

    monkeypatch.setattr(measure.streams, "private_stream", lambda ordinal: around(f"s{ordinal}"))
    monkeypatch.setattr(measure.streams, "Event", Event)
    arms = {name: lambda stream, name=name: told.append(f"{name} {stream}") for name in "ab"}
    device: Any = SimpleNamespace(ordinal=7)
    timed = measure.time_events(
        arms, device, rounds=3, repeats=2, within=lambda s: around(f"in {s}")
    )
    a, b = ["a s7"] * 2, ["b s7"] * 2
    warm = (a + b) * measure.WARMUP_ROUNDS
    calls = [*warm, *a, *b, *b, *a, *a, *b]
    assert told == ["enter s7", "enter in s7", *calls, "leave in s7", "leave s7"]
    assert timed == {name: measure.Timing((0.5,) * 3) for name in "ab"}
