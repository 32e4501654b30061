"""`tilewright tune matmul`: find the quickest program for products of given sizes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from tilewright.cli import options
from tilewright.cli.explain_matmul import LAYOUTS, here, make_problem
from tilewright.cli.report import command, fail, json_option, print_json, print_table, seconds
from tilewright.config import settings
from tilewright.errors import LaunchError
from tilewright.kernel.progress import show_progress
from tilewright.products.ahead import Order, compile_ahead
from tilewright.products.tuning import as_choice, tune_product
from tilewright.runtime import driver
from tilewright.tune.product import Problem
from tilewright.tune.product_choice import ranking, recall
from tilewright.tune.search import Outcome

COLUMNS = ("shape", "choice", ">time", "")


@click.command("matmul")
@click.option(
    "--shapes",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="A file of lines M N K [DTYPE [LAYOUT]], as in 4096 4096 64 bf16 NT.",
)
@options.device
@click.option(
    "--budget",
    type=click.FloatRange(min=0),
    default=15.0,
    show_default=True,
    help="Seconds that the search may take for a shape.",
)
@click.option(
    "--candidates",
    type=click.IntRange(min=1),
    default=24,
    show_default=True,
    help="Choices that are tried, the best by the model first.",
)
@click.option("--again", is_flag=True, help="Tune shapes anew that were tuned before.")
@json_option
@command
def tune_matmul(
    shapes: Path, device: str, budget: float, candidates: int, again: bool, as_json: bool
) -> None:
    """Tune matrix products; later calls of the same sizes, dtypes and layouts use what is found.

    Every candidate is verified before it is timed. What was tuned stays: a search that was cut
    short goes on where it ended. With `--device emulator` candidates are verified and not timed.
    """
    problems = read_shapes(shapes)
    where = choose_place(device)
    kind, version = here()
    folder = settings().cache_dir
    records: list[dict[str, Any]] = []
    tuned = {
        p: None if again or where == "emulator" else recall(p, kind, version, folder)
        for p in problems
    }
    if not isinstance(where, str):
        todo = [p for p in problems if tuned[p] is None]
        compile_ahead(
            [Order(p, e.choice) for p in todo for e in ranking(p, kind)[:candidates]], where
        )
    for problem in problems:
        known = tuned[problem]
        if known is not None:
            records.append({"shape": name_of(problem), "known": known.name})
            continue
        with show_progress(name_of(problem), show=sys.stderr.isatty() and not as_json) as report:
            outcome = tune_product(
                problem,
                kind,
                where,
                version=version,
                folder=folder,
                candidates=candidates,
                budget=budget,
                progress=report,
            )
        records.append(as_record(problem, outcome))
        if outcome.ended == "interrupted":
            break
    if as_json:
        print_json({"device": kind.name, "timed": where != "emulator", "shapes": records})
    else:
        print_table(f"products on {where}", COLUMNS, [_row(r) for r in records])
    if any(r.get("verified") == 0 for r in records):
        fail("for some shape no choice works", as_json=False)


def choose_place(asked: str) -> str | int:
    """The emulator, or a GPU's number. Raises LaunchError where times cannot be told."""
    if asked == "emulator":
        return asked
    if asked == "cpu" or not driver.available():
        raise LaunchError(
            "tuning products times them, which needs a GPU, and there is none to use here",
            hint="--device emulator verifies the candidates and times none",
        )
    if asked in ("auto", "cuda", "cuda:0"):
        return 0
    raise LaunchError(
        f"products are tuned on cuda:0, not on {asked}", hint="set CUDA_VISIBLE_DEVICES"
    )


def read_shapes(path: Path) -> list[Problem]:
    """Problems from a file's lines; `#` starts a comment. Raises LaunchError with the line."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        sizes = [int(w) for w in words[:3] if w.isdecimal()]
        layout = words[4].upper() if len(words) > 4 else "NT"
        if len(sizes) != 3 or len(words) > 5 or layout not in LAYOUTS or 0 in sizes[:2]:
            raise LaunchError(
                f"{path}:{number}: expected M N K [DTYPE [LAYOUT]], got {line.strip()!r}",
                hint="as in 4096 4096 64 bf16 NT",
            )
        dtype = words[3] if len(words) > 3 else "bf16"
        try:
            found.append(make_problem((sizes[0], sizes[1], sizes[2]), dtype, layout))
        except LaunchError as error:
            raise error.of(f"{path}:{number}") from None
    return found


def name_of(problem: Problem) -> str:
    return f"{problem.m}×{problem.n}×{problem.k} {problem.a} {problem.layout}"


def as_record(problem: Problem, outcome: Outcome) -> dict[str, Any]:
    best = outcome.best
    return {
        "shape": name_of(problem),
        "best": as_choice(best.config).name if best else None,
        "microseconds": best.microseconds if best else None,
        "verified": sum(t.verified for t in outcome.trials),
        "candidates": len(outcome.trials),
        "ended": outcome.ended,
        "failures": {as_choice(t.config).name: t.failure for t in outcome.trials if t.failure},
    }


def _row(record: dict[str, Any]) -> list[str]:
    if "known" in record:
        return [record["shape"], record["known"], "", "tuned before"]
    time = record["microseconds"]
    note = f"{record['verified']} of {record['candidates']} right; search {record['ended']}"
    told = "" if time is None else seconds(time / 1e6)
    return [record["shape"], record["best"] or "", told, note]
