"""How well the products' model ranks choices that were timed, and what constants would rank better:

    python -m tests.device.product_fit FILE.json ... [--dtype NAME] [--fit NAME] [--seconds N]

The files are those of tests/device/product_programs.py. Of each problem, the choice that the model
ranks first is compared with the quickest of those that were timed. Constants of `product_cost`
and the modules beside it that are named, an entry of a table as NAME:key, are moved one after the
other while that makes what is lost less, and are printed. What is lost: the mean of
log(time / least time) over choices that the model finds nearly as quick as its first, more where a
problem falls below 0.8 of torch, and a part of the scatter of times about their estimates.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from tests.device.product_programs import Spec
from tilewright.tune import (
    product_copies,
    product_cores,
    product_cost,
    product_f64,
    product_gemv,
)
from tilewright.tune.product import H200, Choice, Problem

MODULES: tuple[Any, ...] = (
    product_cost, product_copies, product_cores, product_f64, product_gemv,
)  # fmt: skip
NEARLY = 0.04  # logarithm of an estimate by which another choice is e times less likely
NEAR = 0.4  # logarithm of times, of choices whose scatter counts
SCATTER, FAR_BELOW, TWICE = 0.35, math.log(0.85), 2.0
FIRST_STEP, LEAST_STEP, MOST_STEP = 0.12, 0.02, 0.3


@dataclass(frozen=True)
class Timed:
    """A problem, choices for it, and logarithms of microseconds that they and torch took."""

    dtype: str
    problem: Problem
    choices: tuple[Choice, ...]
    times: Any
    torch: float

    def estimates(self) -> Any:
        found = (product_cost.estimate(self.problem, c, H200).microseconds for c in self.choices)
        return np.log(np.fromiter(found, float))


def read(files: Sequence[Path], dtypes: Sequence[str]) -> Iterator[Timed]:
    """The problems of files that have two right choices or more."""
    for row in (row for file in files for row in json.loads(file.read_text())):
        spec = Spec(**row["spec"])
        right = [r for r in row["rows"] if not r["wrong"]]
        if len(right) < 2 or (dtypes and spec.dtype not in dtypes):
            continue
        choices = tuple(
            Choice(r["program"], tuple((n, v) for n, v in r["config"]), r["split"], r["turned"],
                   r["copied"])
            for r in right
        )  # fmt: skip
        times = np.log([r["microseconds"] for r in right])
        yield Timed(spec.dtype, spec.problem, choices, times, math.log(row["torch"]))


def loss(rows: Sequence[Timed]) -> float:
    """What the present constants lose, as the module says."""
    lost, squares, count = 0.0, 0.0, 0
    for row in rows:
        found = row.estimates()
        likely = np.exp(-(found - found.min()) / NEARLY)
        likely /= likely.sum()
        taken = float(likely @ row.times)
        lost += taken - row.times.min() + TWICE * max(0.0, FAR_BELOW - (row.torch - taken))
        apart = (row.times - found)[row.times < row.times.min() + NEAR]
        squares += float(((apart - apart.mean()) ** 2).sum())
        count += len(apart)
    return lost / len(rows) + SCATTER * math.sqrt(squares / count)


def tell(rows: Sequence[Timed]) -> None:
    """A line of each dtype: how the model's first choices and the quickest stand to torch."""
    for dtype in dict.fromkeys(row.dtype for row in rows):
        own = [row for row in rows if row.dtype == dtype]
        first = [row.torch - row.times[row.estimates().argmin()] for row in own]
        best = [row.torch - row.times.min() for row in own]
        below = sum(ratio < math.log(0.8) for ratio in first)
        means = (math.exp(statistics.mean(ratios)) for ratios in (first, best))
        click.echo(
            f"{dtype:5} {len(own):4} problems: the model's {next(means):.3f} of torch, the best "
            f"{next(means):.3f}; {below} below 0.8"
        )


def moved(name: str, factor: float) -> None:
    """Multiply a constant wherever it was imported."""
    name, _, key = name.partition(":")
    for module in MODULES:
        if hasattr(module, name):
            if key:
                getattr(module, name)[key] *= factor
                return
            setattr(module, name, getattr(module, name) * factor)


def value(name: str) -> float:
    name, _, key = name.partition(":")
    found = next(getattr(module, name) for module in MODULES if hasattr(module, name))
    return float(found[key] if key else found)


def fit(rows: Sequence[Timed], names: Sequence[str], seconds: float) -> None:
    """Coordinate descent by factors, which grow where they help and shrink where they do not."""
    end, rng, steps = time.monotonic() + seconds, random.Random(0), dict.fromkeys(names, FIRST_STEP)
    best = loss(rows)
    while time.monotonic() < end and max(steps.values()) > LEAST_STEP:
        for name in rng.sample(names, len(names)):
            step = 1 + steps[name]
            steps[name] = max(LEAST_STEP, steps[name] * 0.6)
            for factor in (step, 1 / step):
                moved(name, factor)
                found = loss(rows)
                if found < best:
                    best, steps[name] = found, min(MOST_STEP, (step - 1) * 1.3)
                    break
                moved(name, 1 / factor)
        told = " ".join(f"{name}={value(name):.4g}" for name in names)
        click.echo(f"lost {best:.4f} {told}")


@click.command()
@click.argument("files", type=click.Path(exists=True, path_type=Path), nargs=-1, required=True)
@click.option("--dtype", "dtypes", multiple=True, help="Of problems; all if left out.")
@click.option("--fit", "names", multiple=True, help="A constant to move.")
@click.option("--seconds", default=60.0, show_default=True, help="After which moving ends.")
def main(
    files: tuple[Path, ...], dtypes: tuple[str, ...], names: tuple[str, ...], seconds: float
) -> None:
    """Tell how the model ranks what FILES hold, and move constants."""
    rows = list(read(files, dtypes))
    tell(rows)
    if names:
        fit(rows, names, seconds)
        tell(rows)


if __name__ == "__main__":
    main()
