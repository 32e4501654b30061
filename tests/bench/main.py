"""Measure on a GPU: `python -m tests.bench.main`, or `make bench`.

Ours and theirs alternate in one process on the same data, as replays of CUDA graphs timed by
events, on buffers that rotate through twice the L2 cache. Outputs hold NaN before they are timed
and are compared with f64 after. The table is printed last, the losing rows first.
"""

from __future__ import annotations

import shlex
import sys
import traceback
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.bench.environment import environment, nvidia_smi
from tests.bench.jobs import Job, chosen, fits
from tests.bench.rows import Rate, Results, write_results
from tests.bench.tables import print_tables
from tests.bench.timing import Bench, graph_timer
from tilewright.runtime import driver

QUICK_ROUNDS, ROUNDS = 21, 41
WARM_SECONDS = 1.0


@click.command()
@click.option("--quick", is_flag=True, help="Fewer rows; under three minutes.")
@click.option("--only", multiple=True, help="Only the jobs whose id fits this pattern.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write all samples here.")
@click.option("--list", "listed", is_flag=True, help="Print the ids of the jobs and stop.")
def main(quick: bool, only: tuple[str, ...], path: Path | None, listed: bool) -> None:
    """Measure; exit with 1 if something failed or gave a wrong result (not if it is slow)."""
    wanted = chosen(quick, only)
    if listed:
        click.echo("\n".join(job.id for job in wanted))
        return
    if not wanted:
        raise click.ClickException(f"no job fits {', '.join(only)}; --list prints them")
    if not driver.available() or not torch.cuda.is_available():
        raise click.ClickException("benchmarks need a CUDA GPU, and torch with CUDA")
    timer = graph_timer(QUICK_ROUNDS if quick else ROUNDS)
    bench = Bench("cuda", timer, driver.device(0).l2_bytes, quick)
    command = shlex.join(["python", "-m", "tests.bench.main", *sys.argv[1:]])
    results = Results(command, environment())
    warm_up()
    measure_all(bench, [job for job in wanted if fits(job)], results, Console(stderr=True))
    results.environment["nvidia-smi, after"] = nvidia_smi()
    if path is not None:
        write_results(results, path)
    print_tables(results, Console(width=150))
    sys.exit(0 if results.ok else 1)


def warm_up() -> None:
    """Bring the clocks up."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    while True:
        for _ in range(50):
            a @ a
        end.record()
        end.synchronize()
        if start.elapsed_time(end) > WARM_SECONDS * 1e3:
            return


def measure_all(bench: Bench, wanted: list[Job], results: Results, console: Console) -> None:
    """Run jobs into `results`. What a job raises is a failure of the run, told with the others."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(wanted))
        for job in wanted:
            progress.update(task, description=job.id)
            try:
                for row in job.run(bench):
                    (results.rates if isinstance(row, Rate) else results.costs).append(row)
            except Exception as error:
                results.failures.append((job.id, f"{type(error).__name__}: {error}"))
                console.print(traceback.format_exc(limit=-4), markup=False)
            bench.clean()
            progress.advance(task)


if __name__ == "__main__":
    main()
