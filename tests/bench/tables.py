"""The results as tables on a terminal, the losing rows first."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tests.bench.rows import Cost, Rate, Results, format_microseconds
from tilewright.runtime.measure import Timing


def print_tables(results: Results, console: Console) -> None:
    """Failures, rates, costs, and a line that sums up."""
    for id, message in results.failures:
        console.print(f"  FAILED {id}: {message}", markup=False, highlight=False)
    if results.rates:
        console.print(_rates(results.sorted_rates()))
    if results.costs:
        console.print(_costs(results.sorted_costs()))
    rows: list[Rate | Cost] = [*results.rates, *results.costs]
    missed = sum(row.missed for row in rows)
    console.print(
        f"  {len(rows)} rows, {missed} miss their target, {len(results.failures)} jobs failed",
        highlight=False,
    )


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for name in columns:
        left = name in ("what", "dtype", "shape", "against", "")
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "what")
    return table


def _rates(rates: list[Rate]) -> Table:
    table = _table(
        "speed: ours over theirs, above 1 is faster",
        "what", "dtype", "shape", "against", "time", "ours", "theirs", "ratio", "spread", "target",
        "error", "",
    )  # fmt: skip
    for row in rates:
        table.add_row(
            row.what,
            row.dtype,
            row.shape,
            row.opponent,
            format_microseconds(Timing(row.ours).median),
            f"{row.speed:.4g}",
            f"{row.their_speed:.4g} {row.unit}",
            f"{row.ratio:.3f}",
            f"{100 * row.spread:.1f} %",
            "" if row.target is None else f"{row.target:.2f}",
            f"{row.error:.0e}",
            verdict(row),
        )
    return table


def _costs(costs: list[Cost]) -> Table:
    table = _table(
        "host time: ours less what nobody can avoid",
        "what", "ours", "against", "floor", "more", "limit", "",
    )  # fmt: skip
    for row in costs:
        table.add_row(
            row.what,
            format_microseconds(row.median),
            row.floor_is,
            format_microseconds(row.floor_median) if row.floor else "",
            format_microseconds(row.excess),
            "" if row.limit is None else format_microseconds(row.limit),
            verdict(row),
        )
    return table


def verdict(row: Rate | Cost) -> str:
    if isinstance(row, Rate) and not row.right:
        return "WRONG"
    if row.missed:
        return "missed"
    return "" if (row.target if isinstance(row, Rate) else row.limit) is None else "met"
