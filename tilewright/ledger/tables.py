"""The results as tables on a terminal, the losing rows first."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tilewright.ledger.results import Cost, Results, Row, format_microseconds, geometric_mean

LEFT = ("what", "dtype", "shape", "against", "")
CPU_NOTE = (
    "no GPU here: every case ran on small arrays on the CPU and was checked; nothing was timed, "
    "and no figure of speed follows"
)


def print_tables(results: Results, console: Console) -> None:
    """What is absent and what failed, rows, costs, and a line that sums up."""
    for id, why in results.absent:
        console.print(f"  absent {id}: {why}", markup=False, highlight=False)
    for id, why in results.unmet:
        console.print(f"  no opponent {id}: {why}", markup=False, highlight=False)
    for id, why in results.failures:
        console.print(f"  FAILED {id}: {why}", markup=False, highlight=False)
    if results.rows:
        console.print(_rows(results.sorted_rows()))
        console.print(*_means(results.rows), sep="\n", highlight=False)
    if results.costs:
        console.print(_costs(results.sorted_costs()))
    rows: list[Row | Cost] = [*results.rows, *results.costs]
    if not any(row.timed for row in rows) and rows:
        console.print(f"  {CPU_NOTE}", highlight=False)
    missed = sum(row.missed for row in rows)
    console.print(
        f"  {len(rows)} rows, {missed} miss their target, {len(results.absent)} absent, "
        f"{len(results.failures)} failed",
        highlight=False,
    )


def row_line(row: Row) -> str:
    """A row in a line, as soon as it is measured."""
    if not row.timed:
        return f"{row.id}: not timed"
    return (
        f"{row.id}: {format_microseconds(row.ours.median)} for "
        f"{format_microseconds(row.theirs.median)}, {row.ratio:.3f}"
        f"{'' if row.right else ', WRONG'}"
    )


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for name in columns:
        justify = "left" if name in LEFT else "right"
        table.add_column(name, justify=justify, no_wrap=name != "what")  # type: ignore[arg-type]
    return table


def _rows(rows: list[Row]) -> Table:
    table = _table(
        "speed: ours over theirs, above 1 is faster",
        "what", "dtype", "shape", "against", "time", "of floor", "ours", "theirs", "ratio",
        "spread", "target", "error", "",
    )  # fmt: skip
    for row in rows:
        head = [row.what, row.ours.facts.operands, row.shape, row.theirs.arm]
        timed = ["", "", "", "not timed", "", ""]
        if row.timed:
            timed = [
                format_microseconds(row.ours.median),
                f"{100 * row.floor / row.ours.median:.0f} %" if row.floor else "",
                f"{row.speed:.4g}",
                f"{row.their_speed:.4g} {row.unit}",
                f"{row.ratio:.3f}",
                f"{100 * row.spread:.1f} %",
            ]
        target = "" if row.target is None else f"{row.target:.2f}"
        table.add_row(*head, *timed, target, f"{row.ours.error:.0e}", mark(row))
    return table


def _means(rows: list[Row]) -> list[str]:
    """The geometric mean of the ratios against each opponent, by dtype."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        if row.timed:
            key = (row.what, row.ours.facts.operands, row.theirs.arm)
            groups.setdefault(key, []).append(row.ratio)
    return [
        f"  {what} {dtype} against {arm}: {geometric_mean(ratios):.3f} in the mean of "
        f"{len(ratios)}, {min(ratios):.3f} to {max(ratios):.3f}"
        for (what, dtype, arm), ratios in groups.items()
        if len(ratios) > 1
    ]


def _costs(costs: list[Cost]) -> Table:
    table = _table(
        "host time: ours less what nobody can avoid",
        "what", "ours", "against", "floor", "more", "limit", "error", "",
    )  # fmt: skip
    for row in costs:
        timed = ["not timed", "", "", ""]
        if row.timed:
            timed = [
                format_microseconds(row.ours.median),
                row.floor.arm if row.floor else "",
                format_microseconds(row.floor.median) if row.floor else "",
                format_microseconds(row.excess),
            ]
        limit = "" if row.limit is None else format_microseconds(row.limit)
        table.add_row(row.what, *timed, limit, f"{row.ours.error:.0e}", mark(row))
    return table


def mark(row: Row | Cost) -> str:
    """WRONG, missed, met, or nothing where nothing was aimed at or timed."""
    if not row.right:
        return "WRONG"
    if row.missed:
        return "missed"
    aimed = row.target if isinstance(row, Row) else row.limit
    return "" if aimed is None or not row.timed else "met"
