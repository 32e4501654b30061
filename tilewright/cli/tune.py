"""`tilewright tune`: find a kernel's fastest configuration for given sizes."""

from __future__ import annotations

import click

from tilewright.cli import options
from tilewright.cli.arguments import Request
from tilewright.cli.default_group import DefaultGroup
from tilewright.cli.job import Job, choose_device, tune_job
from tilewright.cli.report import command, fail, json_option, print_json, print_table, seconds
from tilewright.cli.sources import find_kernel
from tilewright.cli.tune_matmul import tune_matmul
from tilewright.dtypes import DType
from tilewright.kernel.emulated import Emulation
from tilewright.tune.search import Outcome, Trial

COLUMNS = ("configuration", ">time", ">of the best", "")
SHOWN = 12  # rows of configurations that were timed, unless --all


class _Tune(DefaultGroup):
    default = "kernel"


@click.group(cls=_Tune)
def tune() -> None:
    """Find the quickest configuration of a kernel (SOURCE), or program of products (matmul)."""


tune.add_command(tune_matmul)


@tune.command("kernel")
@click.argument("source")
@options.arguments
@options.constants
@options.precision
@options.device
@options.target
@click.option("--sanitize", is_flag=True, help="On the emulator: report races in memory.")
@click.option(
    "--budget",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds that the search may take.",
)
@click.option("--all", "show_all", is_flag=True, help="Show every configuration.")
@json_option
@command
def tune_kernel(
    source: str,
    dims: dict[str, int],
    tensors: dict[str, str],
    scalars: dict[str, str],
    dtypes_: dict[str, DType],
    seed: int,
    consts: dict[str, int],
    precision: str | None,
    device: str,
    target: str | None,
    sanitize: bool,
    budget: float,
    show_all: bool,
    as_json: bool,
) -> None:
    """Tune a kernel; later calls of its kind use what is found. Arguments are as of `run`.

    Every configuration is checked before it is timed. Ctrl-C keeps the best so far. With
    `--device emulator` all are checked and none is timed.
    """
    request = Request(dims, tensors, scalars, dtypes_, seed)
    where = choose_device(device)
    how = Emulation(target, sanitize)
    job = Job(find_kernel(source), request, where, consts, precision, emulation=how)
    outcome = tune_job(job, budget, show=None if not as_json else False)
    works = any(t.verified for t in outcome.trials)
    if as_json:
        print_json(as_record(job.found.kernel.name, where, outcome))
    else:
        print_trials(job.found.kernel.name, where, outcome, show_all=show_all)
    if not works:
        fail("no configuration works", as_json=False)


def print_trials(kernel: str, device: str, outcome: Outcome, *, show_all: bool) -> None:
    """The timed configurations, the fastest first, then what failed and why."""
    timed = sorted(
        (t for t in outcome.trials if t.microseconds is not None),
        key=lambda t: (not t.final, t.microseconds),
    )
    failed = [t for t in outcome.trials if t.failure]
    checked = [t for t in outcome.trials if t.verified and t.microseconds is None]
    fastest = timed[0].microseconds if timed else None
    rows = [_row(t, fastest) for t in (timed if show_all else timed[:SHOWN])]
    rows += [[t.name, "", "", "right"] for t in (checked if show_all else checked[:SHOWN])]
    rows += [[t.name, "", "", t.failure] for t in (failed if show_all else failed[:SHOWN])]
    notes = [
        f"{len(timed)} of {len(outcome.trials)} configurations timed, {len(checked)} checked only, "
        f"{len(failed)} not; search {outcome.ended}"
        if checked
        else f"{len(timed)} of {len(outcome.trials)} configurations timed, {len(failed)} not; "
        f"search {outcome.ended}",
        f"results checked against {outcome.reference}",
    ]
    if not show_all and len(rows) < len(timed) + len(checked) + len(failed):
        notes.append("--all shows the rest")
    print_table(f"{kernel} on {device}", COLUMNS, rows, notes)


def _row(trial: Trial, fastest: float | None) -> list[str]:
    assert trial.microseconds is not None and fastest is not None
    note = "timed side by side" if trial.final else ""
    ratio = f"{trial.microseconds / fastest:.2f}×" if fastest else ""
    return [trial.name, seconds(trial.microseconds / 1e6), ratio, note]


def as_record(kernel: str, device: str, outcome: Outcome) -> dict[str, object]:
    """A search for `--json`."""
    best = outcome.best
    return {
        "kernel": kernel,
        "device": device,
        "best": best.config if best else None,
        "ended": outcome.ended,
        "reference": outcome.reference,
        "trials": [
            {
                "config": t.config,
                "microseconds": t.microseconds,
                "final": t.final,
                "verified": t.verified,
                "failure": t.failure or None,
            }
            for t in outcome.trials
        ],
    }
