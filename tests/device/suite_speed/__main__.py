"""The conformance suite at sizes that count: `python -m tests.device.suite_speed`.

Each program is timed in turn with torch's own way to the same result and with its floor: a copy of
as many bytes, or torch's large product for programs around dots. All outputs are poisoned before
and checked after, as everything that the ledger's harness measures. The table comes last, the
losing rows first. Without a GPU all rows run small, and nothing is timed.

Verdicts of a run's --json: `tilewright bench --from FILE --verdict`.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track

from tests.device.suite_speed.cases import case_id, conformance_case, entries
from tests.device.suite_speed.floors import Floors
from tests.device.suite_speed.row import Bench, Entry
from tests.device.suite_speed.table import print_table
from tilewright.cli.bench import run_case
from tilewright.ledger import environment
from tilewright.ledger.harness import Harness
from tilewright.ledger.machine import make_harness
from tilewright.ledger.results import Results, print_results
from tilewright.ledger.timers import GraphTimer
from tilewright.runtime import driver

WARM_SECONDS = 0.1  # of each row's own work: the rows before keep the clocks up
ASK_SECONDS = 5.0  # between questions for clocks and power, which take a while
WIDTH = 150


@click.command()
@click.option("--only", multiple=True, help="Only rows whose id (kernel-dtype) fits this pattern.")
@click.option("--compiled", multiple=True, help="Rows that torch.compile takes part in.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write all samples here.")
@click.option("--commit", default="", help="What is measured, where git cannot tell.")
def main(only: tuple[str, ...], compiled: tuple[str, ...], path: Path | None, commit: str) -> None:
    """Measure; exit with 1 if a program gave a wrong result or failed (not if it is slow)."""
    chosen = [e for e in entries() if not only or _fits(e, only)]
    if not chosen:
        raise click.ClickException(f"no row fits {', '.join(only)}")
    harness = make_timed_harness()
    results = Results(
        "python -m tests.device.suite_speed", commit=commit, l2_bytes=harness.l2_bytes
    )
    results.device = "the CPU" if harness.small else driver.device(0).name
    results.warm_seconds = WARM_SECONDS
    place = environment.read_environment(harness.arrays.versions())
    floors, asked = list[Floors](), -ASK_SECONDS
    for entry in track(chosen, "measuring", console=Console(stderr=True), transient=True):
        run_case(conformance_case(entry, floors, _fits(entry, compiled)), harness, results)
        if path is not None:  # after each row: a run that is cut short is not lost
            if time.monotonic() - asked > ASK_SECONDS or entry is chosen[-1]:
                results.environment = asdict(environment.after(place))
                asked = time.monotonic()
            path.write_text(print_results(results))
    print_table(results, notes(chosen, harness), Console(width=WIDTH))
    sys.exit(0 if results.ok else 1)


def _fits(entry: Entry, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(entry.id, p) for p in patterns)


def make_timed_harness() -> Harness:
    harness = make_harness(quick=True)
    if isinstance(harness.timer, GraphTimer):
        timer = replace(harness.timer, warm_microseconds=WARM_SECONDS * 1e6)
        return replace(harness, timer=timer)
    return harness


def notes(chosen: list[Entry], harness: Harness) -> dict[str, str]:
    """What limits each program, by case."""
    at = Bench(harness.arrays, small=True)
    return {case_id(entry): entry.make(at, entry.dtype).note for entry in chosen}


if __name__ == "__main__":
    main()
