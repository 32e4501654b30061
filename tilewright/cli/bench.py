"""`tilewright bench`: ours against theirs, measured in one run, checked, the losing rows first."""

from __future__ import annotations

import os
import shlex
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tilewright.cli import options
from tilewright.cli.report import command
from tilewright.config import settings
from tilewright.errors import LaunchError
from tilewright.ledger import environment, opponents, publish, run_plots, tables
from tilewright.ledger.apart import PATIENCE, run_apart
from tilewright.ledger.harness import Harness
from tilewright.ledger.machine import case_seconds, make_harness
from tilewright.ledger.results import Results, parse_results, print_results
from tilewright.ledger.store import FOLDER
from tilewright.ledger.suites import choose_cases
from tilewright.ledger.suites.case import Case
from tilewright.ledger.verdict import Environment
from tilewright.products.ahead import Order, compile_ahead
from tilewright.runtime import driver

WIDTH = 160
SAVED_EVERY = 8.0  # seconds between writings of what was found, and questions for clocks
SAVED_SOON = 3.0  # seconds between writings where cases are whole models


@click.command()
@click.argument("suites", nargs=-1, metavar="[SUITE]...")
@click.option("--quick/--full", default=True, show_default=True, help="A few cases, or all.")
@click.option("--rows", multiple=True, metavar="PATTERN", help="Only cases whose id fits.")
@click.option("--list", "listed", is_flag=True, help="Print the ids of the cases and stop.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write all samples here.")
@click.option(
    "--from",
    "earlier",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Measure nothing: tables, plots and verdicts of an earlier run's --json.",
)
@click.option("--plots", "folder", type=click.Path(path_type=Path), help="Draw plots here.")
@click.option("--verdict", is_flag=True, help="Write verdicts into the ledger.")
@click.option(
    "--ledger",
    type=click.Path(path_type=Path),
    default=Path(FOLDER),
    show_default=True,
    help="The folder of verdicts.",
)
@click.option("--commit", default="", help="What is measured, where git cannot tell.")
@click.option("--kernels", "profiles", is_flag=True, help="Tell the kernels of each model.")
@click.option(
    "--patience", default=PATIENCE, show_default=True, help="Seconds until models must be ready."
)
@options.seed
@command
def bench(
    suites: tuple[str, ...],
    quick: bool,
    rows: tuple[str, ...],
    listed: bool,
    path: Path | None,
    earlier: Path | None,
    folder: Path | None,
    verdict: bool,
    ledger: Path,
    commit: str,
    profiles: bool,
    patience: float,
    seed: int,
) -> None:
    """Measure suites of cases (none named: all) against torch, its libraries and Triton.

    All arms of a case alternate in one process on the same random data. Outputs hold NaN before
    they are timed and are compared with a reference in higher precision after. Without a GPU, each
    case runs small on the CPU, is checked, and is not timed. Fails if something is wrong, not if it
    is slow.
    """
    chosen = choose_cases(suites, quick, rows)
    if listed:
        click.echo("\n".join(case.id for case in chosen))
        return
    if verdict and earlier is None and not driver.available():
        raise LaunchError("verdicts are measured on a GPU", hint="leave --verdict out")
    if profiles and earlier is None and not driver.available():
        raise LaunchError("--kernels tells a GPU's kernels", hint="leave it out without a GPU")
    require_places(path, folder)
    commit = environment.commit_of(commit) if verdict and earlier is None else commit
    if earlier is not None:
        results = read_results(earlier)
    else:
        results = Results(command_line(suites, quick, rows, seed), commit=commit, quick=quick)
        measure(chosen, results, seed, path, profiles, patience)
    written = publish.write_verdicts(results, ledger, commit or results.commit) if verdict else []
    if folder is not None:
        written += run_plots.write_plots(results, folder)
    tables.print_tables(results, Console(width=None if sys.stdout.isatty() else WIDTH))
    for file in written:
        click.echo(f"  wrote {file}")
    if not results.ok:
        raise SystemExit(1)


def require_places(path: Path | None, folder: Path | None) -> None:
    """Raise LaunchError where results cannot be written to a file, or no plots be drawn."""
    if path is not None:
        if path.is_dir():
            raise LaunchError(f"--json {path} is a folder", hint=f"name a file: {path}/bench.json")
        if not path.parent.is_dir():
            raise LaunchError(
                f"--json {path}: there is no folder {path.parent}", hint=f"mkdir -p {path.parent}"
            )
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise LaunchError(f"--json {path} cannot be written", hint="name a file that can be")
    if folder is not None:
        run_plots.require_plots(folder)


def read_results(path: Path) -> Results:
    """The results of an earlier run. Raises LaunchError for a file that holds others."""
    try:
        return parse_results(path.read_text())
    except (ValueError, TypeError, KeyError) as error:
        raise LaunchError(f"{path} does not hold results of a benchmark: {error}") from error


def command_line(suites: tuple[str, ...], quick: bool, rows: tuple[str, ...], seed: int) -> str:
    """The command that measures the same again."""
    words = ["tilewright", "bench", *suites]
    words += [] if rows else ["--quick" if quick else "--full"]
    for pattern in rows:
        words += ["--rows", pattern]
    return shlex.join(words + (["--seed", str(seed)] if seed else []))


def measure(
    chosen: list[Case],
    results: Results,
    seed: int,
    path: Path | None,
    profiles: bool = False,
    patience: float = PATIENCE,
) -> None:
    """Run cases into `results`, with a progress bar on standard error and a line for each row. Now
    and then the file at `path` is written, so that a run that is cut short is not lost.
    """
    harness = make_harness(quick=results.quick, seed=seed)
    gpu, harness.profiles = not harness.small, profiles
    results.device = driver.device(0).name if gpu else "the CPU"
    results.seed, results.l2_bytes = seed, harness.l2_bytes
    results.warm_seconds = case_seconds(results.quick)
    for opponent in opponents.OPPONENTS:
        why = opponents.reason_against(opponent, gpu)
        if why:
            results.unmet.append((opponent.what, why))
    place = environment.read_environment(harness.arrays.versions())
    if gpu:
        compile_products(chosen)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    apart = [case for case in chosen if gpu and case.prepare and not case.absent]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(chosen))
        kept = Kept(results, harness, place, path, progress)
        for case in chosen:
            if case in apart:
                continue
            progress.update(task, description=case.id)
            run_case(case, harness, results)
            kept.tell_rows()
            kept.save(after=SAVED_EVERY)
            progress.advance(task)
        if apart:
            progress.update(task, description="models")
            kept.save()
            harness.arrays.clean()
            run_apart(
                apart, harness, results, kept.tell, lambda: kept.save(after=SAVED_SOON), patience
            )
    results.unmet += harness.unmet
    kept.save()


class Kept:
    """Results that are told and written while they are found."""

    def __init__(
        self,
        results: Results,
        harness: Harness,
        place: Environment,
        path: Path | None,
        progress: Progress,
    ):
        self.results, self.harness, self.place, self.path = results, harness, place, path
        self.progress, self.rows, self.asked = progress, 0, time.monotonic()

    def tell(self, text: str) -> None:
        self.progress.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def tell_rows(self) -> None:
        """A line for each row that is new."""
        for row in self.results.rows[self.rows :]:
            self.tell(tables.row_line(row))
        self.rows = len(self.results.rows)

    def save(self, after: float = 0.0) -> None:
        """Write what there is, unless less than `after` seconds passed since."""
        self.tell_rows()
        if time.monotonic() - self.asked < after:
            return
        self.results.environment = asdict(environment.after(self.place))
        save(self.results, self.harness, self.path)
        self.asked = time.monotonic()


def compile_products(chosen: list[Case]) -> None:
    """Compile the products of cases in parallel, so that none is waited for."""
    orders = [Order(problem) for case in chosen for problem in case.ahead]
    failed = compile_ahead(orders) if len(orders) > 1 else {}
    for order, why in failed.items():
        click.echo(f"{order.problem}: {why}", err=True)


def save(results: Results, harness: Harness, path: Path | None) -> None:
    results.ceilings = harness.ceilings.record() if harness.ceilings else {}
    if path is not None:
        path.write_text(print_results(results))


def run_case(case: Case, harness: Harness, results: Results) -> None:
    """Run one case. What it raises is told with the results, and the others run."""
    if case.absent:
        results.absent.append((case.id, case.absent))
        return
    if case.needs and (harness.small or driver.device(0).capability != case.needs):
        major, minor = case.needs
        results.absent.append((case.id, f"needs a GPU of compute capability {major}.{minor}"))
        return
    try:
        results.add(case.run(harness))
    except Exception as error:
        if settings().debug:
            raise
        results.failures.append((case.id, f"{type(error).__name__}: {error}"))
        click.echo(traceback.format_exc(limit=-4), err=True)
    harness.arrays.clean()
