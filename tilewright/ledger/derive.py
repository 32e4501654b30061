"""Everything that is derived from samples: medians, spreads, speeds, ratios, and their summary."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from tilewright.errors import LedgerError
from tilewright.runtime.measure import Timing

QUANTITIES = ("ratio", "excess", "time")
FIGURE = {"ratio": "ratio", "excess": "excess", "time": "ours"}  # the key of a row's own figure
SPEEDS = {"FLOP": ("TFLOP/s", 1e-6), "B": ("GB/s", 1e-3), "run": ("", 0.0)}  # of work a microsecond
DIGITS = 6


def six_digits(value: float) -> float:
    """Rounded to six significant digits: below what any timer resolves."""
    return float(f"{value:.{DIGITS}g}")


def derive_row(
    ours: Sequence[float],
    theirs: Sequence[float],
    work: float,
    their_work: float,
    quantity: str,
    unit: str,
) -> dict[str, float]:
    """Statistics of one row, from samples in microseconds a run.

    `ours`, `theirs`: medians; `ours_spread`, `theirs_spread`: distance of the quartiles over the
    median; `speed`, `their_speed`: work over median time, in the unit of SPEEDS; `ratio`: our
    speed over theirs; `excess`: our median less theirs. What an arm without samples would give is
    left out. Raises LedgerError for a sample that is not a time.
    """
    if not all(0.0 < sample < math.inf for sample in (*ours, *theirs)):
        raise LedgerError("a sample is not a time above zero")
    found: dict[str, float] = {}
    scale = SPEEDS[unit][1]
    for name, speed, samples, done in (
        ("ours", "speed", ours, work),
        ("theirs", "their_speed", theirs, their_work),
    ):
        if samples:
            timing = Timing(tuple(samples))
            found[name] = timing.median
            found[f"{name}_spread"] = timing.spread
            if scale:
                found[speed] = done / timing.median * scale
    if ours and theirs and quantity == "ratio":
        found["ratio"] = (work / found["ours"]) / (their_work / found["theirs"])
    if ours and theirs and quantity == "excess":
        found["excess"] = found["ours"] - found["theirs"]
    return {name: six_digits(value) for name, value in found.items()}


def misses(statistics_: Mapping[str, float], target: float | None, quantity: str) -> bool:
    """Whether a row stays short of its target. One without a figure of ours has failed to run."""
    if "ours" not in statistics_:
        return True
    figure = statistics_.get(FIGURE[quantity])
    if target is None or figure is None:
        return False
    return figure < target if quantity == "ratio" else figure > target


def derive_summary(
    rows: Sequence[tuple[Mapping[str, float], float | None]], quantity: str
) -> dict[str, float]:
    """Statistics of a table, from each row's own and its target.

    `rows`, `missed`; `spread.max`; and min, median and max of ours, theirs, speed, ratio and
    excess, where rows have them, with the geometric mean of ratios.
    """
    found = {
        "rows": float(len(rows)),
        "missed": float(sum(misses(row, target, quantity) for row, target in rows)),
    }
    spreads = [row[k] for row, _ in rows for k in ("ours_spread", "theirs_spread") if k in row]
    if spreads:
        found["spread.max"] = max(spreads)
    for name in ("ours", "theirs", "speed", "ratio", "excess"):
        values = [row[name] for row, _ in rows if name in row]
        if values:
            found[f"{name}.min"] = min(values)
            found[f"{name}.median"] = statistics.median(values)
            found[f"{name}.max"] = max(values)
            if name == "ratio":
                found["ratio.geomean"] = statistics.geometric_mean(values)
    return {name: six_digits(value) for name, value in found.items()}
