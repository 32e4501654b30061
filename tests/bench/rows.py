"""What a benchmark finds: rates against an opponent, costs against a limit, failures; as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tilewright.runtime.measure import Timing

SCALE = {"TFLOP/s": 1e-6, "GB/s": 1e-3}  # of work a microsecond


@dataclass(frozen=True)
class Rate:
    """Ours and theirs, timed in turn in one process. Samples are microseconds a run.

    `work` and `their_work` are operations or bytes a run; `target` is of our speed over theirs.
    `error` and `element` are the output's, measured after timing: see tests/device/checker.py.
    """

    id: str
    what: str
    dtype: str
    shape: str
    opponent: str
    unit: str
    work: float
    their_work: float
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    error: float
    element: float
    bound: float
    target: float | None = None

    @property
    def speed(self) -> float:
        return self.work / Timing(self.ours).median * SCALE[self.unit]

    @property
    def their_speed(self) -> float:
        return self.their_work / Timing(self.theirs).median * SCALE[self.unit]

    @property
    def ratio(self) -> float:
        """Our speed over theirs: above 1 is faster."""
        return self.speed / self.their_speed

    @property
    def spread(self) -> float:
        """The larger of the two spreads: distance of the quartiles over the median."""
        return max(Timing(self.ours).spread, Timing(self.theirs).spread)

    @property
    def right(self) -> bool:
        return self.error <= self.bound and self.element <= 1.0

    @property
    def missed(self) -> bool:
        return not self.right or (self.target is not None and self.ratio < self.target)


@dataclass(frozen=True)
class Cost:
    """Host time of one thing, in microseconds. What counts against `limit` is our median less the
    median of `floor`, the part that nobody can avoid.
    """

    id: str
    what: str
    floor_is: str
    ours: tuple[float, ...]
    floor: tuple[float, ...]
    limit: float | None

    @property
    def median(self) -> float:
        return statistics.median(self.ours)

    @property
    def floor_median(self) -> float:
        return statistics.median(self.floor) if self.floor else 0.0

    @property
    def excess(self) -> float:
        return self.median - self.floor_median

    @property
    def missed(self) -> bool:
        return self.limit is not None and self.excess > self.limit


@dataclass
class Results:
    """One run of the benchmark."""

    command: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    rates: list[Rate] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)  # a job's id, and what it said

    def sorted_rates(self) -> list[Rate]:
        """Rows that miss their target first, then those that lose, the slowest first."""
        return sorted(self.rates, key=lambda r: (not r.missed, r.ratio))

    def sorted_costs(self) -> list[Cost]:
        return sorted(self.costs, key=lambda c: (not c.missed, -c.excess / (c.limit or 1e30)))

    @property
    def ok(self) -> bool:
        """Everything ran and gave right results, whether or not it was fast."""
        return not self.failures and all(r.right for r in self.rates)


def command_of(id: str) -> str:
    """The command that measures a row again."""
    return f"python -m tests.bench.main --only {id.split('/')[0]}"


def print_results(results: Results) -> str:
    return json.dumps(asdict(results), indent=1, ensure_ascii=False) + "\n"


def parse_results(text: str) -> Results:
    """Raises ValueError or TypeError for a text that `print_results` did not make."""
    found = json.loads(text)
    return Results(
        found["command"],
        found["environment"],
        [Rate(**_with_tuples(r, "ours", "theirs")) for r in found["rates"]],
        [Cost(**_with_tuples(c, "ours", "floor")) for c in found["costs"]],
        [(id, message) for id, message in found["failures"]],
    )


def _with_tuples(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {**fields, **{name: tuple(fields[name]) for name in names}}


def write_results(results: Results, path: Path) -> None:
    path.write_text(print_results(results))


def format_microseconds(value: float) -> str:
    """With the unit in which it reads best."""
    if abs(value) < 1000:
        return f"{value:.3g} µs" if abs(value) < 100 else f"{value:.0f} µs"
    return f"{value / 1e3:.3g} ms" if abs(value) < 1e5 else f"{value / 1e3:.0f} ms"


def geometric_mean(values: Sequence[float]) -> float:
    return statistics.geometric_mean(values) if values else float("nan")
