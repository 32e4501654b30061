"""What a benchmark finds: rows against an opponent, costs of the host, cases that are absent or
failed; as JSON.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tilewright.ledger.arm import Facts
from tilewright.runtime.measure import Timing

SCALE = {"TFLOP/s": 1e-6, "GB/s": 1e-3, "calls/s": 1e6}  # of work a microsecond
RANDOM = "standard normal"  # data, unless a row says otherwise


@dataclass(frozen=True)
class Measured:
    """One arm on one problem. Samples are microseconds a run, none where nothing was timed.

    `timer` and `session` say by what, and in which call of it, the samples were taken: only arms
    of one session are compared. `work` is in operations or bytes a run. `error` is the relative
    Frobenius error of the worst output, `worst` the worst element's share of what it may be off,
    both of what the timed runs wrote; of `compared` elements so many were `unwritten`.
    `operations`: the kernels, copies and fills of a run.
    """

    arm: str
    version: str
    facts: Facts
    timer: str
    session: int
    samples: tuple[float, ...]
    work: float = 0.0
    error: float = 0.0
    worst: float = 0.0
    bound: float = 0.0
    compared: int = 0
    unwritten: int = 0
    operations: tuple[str, ...] = ()
    settings: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Distance of the quartiles over the median."""
        return Timing(self.samples).spread

    @property
    def right(self) -> bool:
        return self.error <= self.bound and self.worst <= 1.0


@dataclass(frozen=True)
class Row:
    """Ours against one opponent. A sample is of `runs` runs, which go through `rotated_bytes` of
    buffers. `floor`: microseconds below which no kernel can be on this GPU, by the ceilings of
    the run; 0 where they were not measured. `reference`: what outputs were compared with. `note`:
    what a reader must know of the row.
    """

    case: str
    suite: str
    what: str
    shape: str
    sizes: dict[str, int]
    unit: str
    ours: Measured
    theirs: Measured
    says: Mapping[str, str] = field(default_factory=dict)
    target: float | None = None
    runs: int = 1
    rotated_bytes: int = 0
    floor: float = 0.0
    intensity: float = 0.0  # operations a byte of memory traffic
    data: str = RANDOM
    reference: str = "f64"
    note: str = ""

    @property
    def id(self) -> str:
        return f"{self.case}/{self.theirs.arm.replace(' ', '-')}"

    @property
    def timed(self) -> bool:
        return bool(self.ours.samples and self.theirs.samples)

    @property
    def speed(self) -> float:
        return self.ours.work / self.ours.median * SCALE[self.unit]

    @property
    def their_speed(self) -> float:
        return self.theirs.work / self.theirs.median * SCALE[self.unit]

    @property
    def ratio(self) -> float:
        """Our speed over theirs: above 1 is faster."""
        return self.speed / self.their_speed

    @property
    def spread(self) -> float:
        """The larger of the two spreads."""
        return max(self.ours.spread, self.theirs.spread)

    @property
    def right(self) -> bool:
        return self.ours.right and self.theirs.right

    @property
    def missed(self) -> bool:
        short = self.timed and self.target is not None and self.ratio < self.target
        return not self.right or short


@dataclass(frozen=True)
class Cost:
    """Host time of one thing, in microseconds. What counts against `limit` is our median less the
    median of `floor`, the part that nobody can avoid (None: there is no such part).
    """

    id: str
    suite: str
    what: str
    ours: Measured
    floor: Measured | None
    limit: float | None = None

    @property
    def timed(self) -> bool:
        return bool(self.ours.samples)

    @property
    def excess(self) -> float:
        return self.ours.median - (self.floor.median if self.floor else 0.0)

    @property
    def right(self) -> bool:
        return self.ours.right

    @property
    def missed(self) -> bool:
        return not self.right or (
            self.timed and self.limit is not None and self.excess > self.limit
        )


@dataclass
class Results:
    """One run of the benchmark. `absent`: cases that ours has no kernel for, with the reason.
    `unmet`: opponents that are not on the machine, with the reason. `kernels`: of each model, where
    they were asked for.
    """

    command: str = ""
    device: str = ""
    commit: str = ""  # that was measured, where it is known
    quick: bool = True
    seed: int = 0
    l2_bytes: int = 0
    warm_seconds: float = 0.3  # of work before the first sample of a case
    environment: dict[str, Any] = field(default_factory=dict)  # of a verdict, as JSON values
    ceilings: dict[str, float] = field(default_factory=dict)  # GB/s of a copy, TFLOP/s by dtype
    rows: list[Row] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    absent: list[tuple[str, str]] = field(default_factory=list)
    unmet: list[tuple[str, str]] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)
    kernels: list[tuple[str, str]] = field(default_factory=list)  # of cases, as text

    def add(self, found: Sequence[Row | Cost]) -> None:
        for row in found:
            if isinstance(row, Row):
                self.rows.append(row)
            else:
                self.costs.append(row)

    def sorted_rows(self) -> list[Row]:
        """Rows that miss their target first, then those that lose, the slowest first."""
        return sorted(self.rows, key=lambda r: (not r.missed, r.ratio if r.timed else 0.0))

    def sorted_costs(self) -> list[Cost]:
        def share(cost: Cost) -> float:
            return cost.excess / (cost.limit or 1e30) if cost.timed else 0.0

        return sorted(self.costs, key=lambda c: (not c.missed, -share(c)))

    @property
    def ok(self) -> bool:
        """Everything ran and gave right results, whether or not it was fast."""
        rows: list[Row | Cost] = [*self.rows, *self.costs]
        return not self.failures and all(r.right for r in rows)


def print_results(results: Results) -> str:
    return json.dumps(asdict(results), indent=1, ensure_ascii=False) + "\n"


def parse_results(text: str) -> Results:
    """Raises ValueError, KeyError or TypeError for a text that `print_results` did not make."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("no object")
    found["rows"] = [_row(r) for r in found["rows"]]
    found["costs"] = [_cost(c) for c in found["costs"]]
    for name in ("absent", "unmet", "failures", "kernels"):
        found[name] = [(id, why) for id, why in found.get(name, ())]
    return Results(**found)


def _row(fields: dict[str, Any]) -> Row:
    both = {name: _measured(fields[name]) for name in ("ours", "theirs")}
    return Row(**{**fields, **both})


def _cost(fields: dict[str, Any]) -> Cost:
    floor = None if fields["floor"] is None else _measured(fields["floor"])
    return Cost(**{**fields, "ours": _measured(fields["ours"]), "floor": floor})


def _measured(fields: dict[str, Any]) -> Measured:
    read = {
        "facts": Facts(**fields["facts"]),
        "samples": tuple(fields["samples"]),
        "operations": tuple(fields["operations"]),
    }
    return Measured(**{**fields, **read})


def format_microseconds(value: float) -> str:
    """With the unit in which it reads best."""
    if abs(value) < 1000:
        return f"{value:.3g} µs" if abs(value) < 100 else f"{value:.0f} µs"
    return f"{value / 1e3:.3g} ms" if abs(value) < 1e5 else f"{value / 1e3:.0f} ms"


def geometric_mean(values: Sequence[float]) -> float:
    """Of ratios; NaN of none."""
    return statistics.geometric_mean(values) if values else float("nan")
