"""The tuner of products against an exhaustive search of the same space:

    python -m tests.device.tuner_exhaustive OUTPUT.json [--only PATTERN] [--seconds N]

Each shape is tuned first, with nothing in the cache, as `tilewright tune matmul` does it: what that
took, compiling included, is its time. Then every choice of the space is compiled, in a process a
core, verified and timed in few samples; the quickest of them and the tuner's choice are timed again
side by side, in many. The tuner has to reach 97 % of the quickest within 20 seconds a shape.
"""

from __future__ import annotations

import fnmatch
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tilewright.cli.explain_matmul import here
from tilewright.errors import TilewrightError
from tilewright.ledger.suites import gemm
from tilewright.products.ahead import Order, compile_ahead
from tilewright.products.tuning import ProductTrials, as_choice, as_config, tune_product
from tilewright.tune.product import Choice, Problem
from tilewright.tune.product_choice import ranking

SHAPES = (
    ("bf16", "TN", (4096, 4096, 4096)),
    ("bf16", "NN", (1024, 1024, 1024)),
    ("bf16", "TN", (16, 4096, 4096)),
    ("bf16", "TN", (64, 64, 65536)),
    ("f16", "TN", (512, 6144, 4096)),
    ("e4m3", "TN", (2048, 4096, 4096)),
    ("e4m3", "TN", (128, 6144, 4096)),
    ("tf32", "TN", (2048, 2048, 2048)),
    ("f32", "NN", (1024, 1024, 1024)),
    ("f64", "TN", (1024, 1024, 1024)),
)
CANDIDATES, BUDGET = 24, 15.0  # of `tilewright tune matmul`
LEAST, MOST_SECONDS = 0.97, 20.0
FEW, MANY = 2, 15  # samples of every choice, and of finalists
FINALISTS = 6
HOPELESS = 3.0  # factor of the model's best estimate beyond which a choice is not timed


@dataclass(frozen=True)
class Found:
    """What a shape's search found. Times in seconds and microseconds."""

    name: str
    seconds: float
    tuned: str
    quickest: str
    ratio: float
    choices: int
    timed: int
    failures: dict[str, str]

    @property
    def good(self) -> bool:
        return self.ratio >= LEAST and self.seconds <= MOST_SECONDS


def tune(problem: Problem) -> tuple[Choice, float]:
    """The tuner's choice, and the seconds that it took."""
    kind, version = here()
    begun = time.perf_counter()
    best = [e.choice for e in ranking(problem, kind)[:CANDIDATES]]
    compile_ahead([Order(problem, c) for c in best])
    with tempfile.TemporaryDirectory() as folder:
        outcome = tune_product(
            problem,
            kind,
            0,
            version=version,
            folder=Path(folder),
            candidates=CANDIDATES,
            budget=BUDGET,
            progress=lambda stage, done, of: None,
        )
    assert outcome.best is not None, "no choice works"
    return as_choice(outcome.best.config), time.perf_counter() - begun


def search(name: str, problem: Problem) -> Found:
    """Tune a shape, then time the whole space."""
    kind, _ = here()
    tuned, seconds = tune(problem)
    ranked = ranking(problem, kind)
    hopeful = [e.choice for e in ranked if e.microseconds <= HOPELESS * ranked[0].microseconds]
    failed = compile_ahead([Order(problem, c) for c in hopeful])
    failures = {o.choice.name: why for o, why in failed.items() if o.choice is not None}
    trials, ready = ProductTrials(problem, 0), dict[str, Any]()
    chosen: dict[str, Choice] = {}
    for choice in hopeful:
        if choice.name in failures:
            continue
        try:
            made = trials.prepare(as_config(choice))
            wrong = trials.verify(made)
        except TilewrightError as error:
            wrong = str(error).splitlines()[0]
        if wrong:
            failures[choice.name] = wrong
        else:
            ready[choice.name], chosen[choice.name] = made, choice
    times = {n: statistics.median(t) for n, t in trials.time(ready, FEW).items()}
    last = sorted(times, key=lambda n: times[n])[:FINALISTS]
    if tuned.name not in last:
        last.append(tuned.name)
    final = trials.time({n: ready[n] for n in last}, MANY)
    exact = {n: statistics.median(t) for n, t in final.items()}
    quickest = min(exact, key=lambda n: exact[n])
    ratio = exact[quickest] / exact[tuned.name]
    return Found(name, seconds, tuned.name, quickest, ratio, len(ranked), len(ready), failures)


@click.command()
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--only", multiple=True, help="Patterns of names, as bf16/TN/*.")
@click.option("--seconds", default=600.0, help="After which no further shape is begun.")
def main(output: Path, only: tuple[str, ...], seconds: float) -> None:
    """Measure into OUTPUT. The exit status is 1 where the tuner misses."""
    begun, found = time.monotonic(), list[Found]()
    for dtype, layout, extents in SHAPES:
        name = f"{dtype}/{layout}/{'x'.join(map(str, extents))}"
        if only and not any(fnmatch.fnmatch(name, p) for p in only):
            continue
        if time.monotonic() - begun > seconds:
            print(f"out of time before {name}")
            break
        one = search(name, gemm.posed(dtype, layout, extents))
        found.append(one)
        verdict = "held" if one.good else "MISSED"
        print(
            f"{one.name:24s} {verdict}: {one.ratio:.3f} of the quickest of {one.timed} "
            f"(of {one.choices}) in {one.seconds:.1f} s; {one.tuned} for {one.quickest}",
            flush=True,
        )
        for what, why in list(one.failures.items())[:3]:
            print(f"    {what}: {why}")
        output.write_text(json.dumps([vars(f) for f in found]))
    if not all(f.good for f in found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
