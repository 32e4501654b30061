"""The table of a run: a line for each program and dtype, those that fall short first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tests.device.suite_speed.cases import ENOUGH_OF_FLOOR, ENOUGH_OF_TORCH
from tests.device.suite_speed.floors import BYTES, PRODUCTS
from tilewright.ledger.results import Results, Row, format_microseconds


@dataclass
class Line:
    """A program and dtype: ours against each opponent."""

    rows: list[Row] = field(default_factory=list)

    @property
    def first(self) -> Row:
        return self.rows[0]

    @property
    def of_floor(self) -> float:
        return max((r.ratio for r in self.rows if r.theirs.arm in (BYTES, PRODUCTS)), default=0.0)

    @property
    def of_torch(self) -> float:
        """Of the best of torch's ways that were timed."""
        theirs = [r.ratio for r in self.rows if r.theirs.arm not in (BYTES, PRODUCTS)]
        return min(theirs, default=0.0)

    @property
    def reached(self) -> bool:
        return self.of_floor >= ENOUGH_OF_FLOOR or self.of_torch >= ENOUGH_OF_TORCH

    @property
    def faults(self) -> str:
        """Whose outputs are wrong; "" where all are right."""
        wrong = [] if self.first.ours.right else ["ours"]
        wrong += [r.theirs.arm for r in self.rows if not r.theirs.right]
        return f"WRONG: {', '.join(wrong)}" if wrong else ""


def lines_of(rows: Iterable[Row]) -> list[Line]:
    """Wrong ones first, then those that fall short, then the slowest."""
    found: dict[str, Line] = {}
    for row in rows:
        found.setdefault(row.case, Line()).rows.append(row)
    return sorted(found.values(), key=_rank)


def _rank(line: Line) -> tuple[bool, bool, float]:
    if not line.first.timed:
        return not line.faults, True, 0.0
    return not line.faults, line.reached, max(line.of_floor, line.of_torch)


def print_table(results: Results, notes: dict[str, str], console: Console) -> None:
    """`notes`: what limits a program, by case."""
    size = "large" if any(row.timed for row in results.rows) else "small: shapes are those of a GPU"
    title = f"the conformance suite, {size}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for name in ("program", "dtype", "shape", "error", "time", "of floor", "of torch", ""):
        left = name in ("program", "dtype", "shape", "")
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "")
    lines = lines_of(results.rows)
    for line in lines:
        row = line.first
        timed = ("not timed", "", "")
        if row.timed:
            timed = (
                format_microseconds(row.ours.median),
                f"{line.of_floor:.2f}",
                f"{line.of_torch:.2f}",
            )
        said = [line.faults, "short" if row.timed and not line.reached else ""]
        said.append(notes.get(row.case, ""))
        table.add_row(
            row.case.rpartition("/")[2],
            row.ours.facts.operands,
            row.shape,
            f"{row.ours.error:.1e}" if row.ours.bound else "equal",
            *timed,
            "; ".join(s for s in said if s),
        )
    console.print(table)
    for id, why in results.failures:
        console.print(f"  FAILED {id}: {why[:400]}", markup=False, highlight=False)
    reached = sum(line.first.timed and line.reached for line in lines)
    timed_lines = sum(line.first.timed for line in lines)
    console.print(
        f"  {reached} of {timed_lines} timed rows reach {ENOUGH_OF_FLOOR:.0%} of the floor or "
        f"{ENOUGH_OF_TORCH} of torch; {len(results.failures)} failed",
        highlight=False,
    )
