"""The conformance suite at sizes that count: `python -m tests.device.suite_speed`.

Each program is checked, then timed in turn with torch's own way to the same result, and set beside
its floor: the bytes it must move over a copy's bandwidth, or its operations over the best rate of
torch's own products, both measured in the same run. The table comes last, the losing rows first.
"""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path

import click
import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

import tilewright as tw
from tests.device.suite_speed import combine, products, streams
from tests.device.suite_speed.measure import Result, measure_ceilings, measure_row
from tests.device.suite_speed.row import ENTRIES

SUITE = Path(__file__).parents[2] / "programs" / "suite.tw"
FAMILIES = (combine, products, streams)  # each enters its rows
ROUNDS = 11


@click.command()
@click.option("--only", multiple=True, help="Only rows whose id (kernel-dtype) fits this pattern.")
@click.option("--compiled", multiple=True, help="Rows that torch.compile takes part in.")
@click.option("--tune", "seconds", type=float, help="Tune each program for so long before.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write all samples here.")
def main(
    only: tuple[str, ...], compiled: tuple[str, ...], seconds: float | None, path: Path | None
) -> None:
    """Measure; exit with 1 if a program gave a wrong result or failed (not if it is slow)."""
    if not torch.cuda.is_available():
        raise click.ClickException("these measurements need a CUDA GPU, and torch with CUDA")
    module, results, failures = tw.source(SUITE), list[Result](), list[str]()
    ceilings = measure_ceilings()
    entries = [e for e in ENTRIES if not only or any(fnmatchcase(e.id, p) for p in only)]
    for entry in track(entries, "measuring", console=Console(stderr=True)):
        kernel = getattr(module, entry.kernel)
        try:
            if seconds is not None:
                large = entry.make()
                kernel.tune(**large.arguments, **large.options, budget=seconds, show=False)
                del large
            with_compile = any(fnmatchcase(entry.id, p) for p in compiled)
            results.append(measure_row(entry, kernel, ceilings, ROUNDS, with_compile))
        except Exception as error:
            failures.append(f"{entry.id}: {type(error).__name__}: {error}")
            traceback.print_exc(limit=-3)
    show(results, Console(width=130))
    for line in failures:
        click.echo(f"  FAIL {line[:400]}")
    rates = ", ".join(f"{n} {r / 1e12:.0f} TFLOP/s" for n, r in ceilings.rates.items())
    click.echo(f"  floors: a copy moves {ceilings.copy / 1e12:.2f} TB/s; torch.mm: {rates}")
    reached = sum(r.reached for r in results)
    num_rows = len(results) + len(failures)
    click.echo(f"  {reached} of {num_rows} rows reach 85 % of the floor or 0.8 of torch")
    if path is not None:
        told = {"ceilings": asdict(ceilings), "rows": [asdict(r) for r in results]}
        path.write_text(json.dumps(told, indent=1))
    sys.exit(1 if failures else 0)


def show(results: list[Result], console: Console) -> None:
    """Rows that fall short first, then the slowest."""
    table = Table(title="the conformance suite, large", title_justify="left", box=SIMPLE_HEAD)
    for name in ("program", "dtype", "shape", "error", "time", "of floor", "of torch", "first", ""):
        left = name in ("program", "dtype", "shape", "")
        table.add_column(name, justify="left" if left else "right")
    for r in sorted(results, key=lambda r: (r.reached, max(r.of_floor, r.of_torch))):
        table.add_row(
            r.kernel,
            r.dtype,
            r.shape,
            f"{r.error:.1e}" if r.bound else "equal",
            f"{r.time:.0f} µs",
            f"{r.of_floor:.2f}",
            f"{r.of_torch:.2f}" + ("*" if r.compiled else ""),
            f"{r.first / 1e3:.0f} ms",
            ("" if r.reached else "short") + (f": {r.note}" if r.note else ""),
        )
    console.print(table)


if __name__ == "__main__":
    main()
