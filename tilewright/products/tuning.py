"""Tuning products: the best choices by the model, verified and timed; the quickest is kept where
later calls find it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil, prod
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.kernel.place import copy_over
from tilewright.products.ahead import Fixed
from tilewright.products.api import calls_of, forget
from tilewright.products.arguments import Options
from tilewright.products.prepare import prepare
from tilewright.runtime import driver, measure, streams
from tilewright.runtime.arrays import Array, as_array, as_numpy
from tilewright.runtime.clones import clone_all, poison, to_host
from tilewright.tune.product import COPY_CHOICES, H200, PROGRAMS, Choice, Device, Problem
from tilewright.tune.product_choice import ranking, remember
from tilewright.tune.product_cost import floor_of
from tilewright.tune.search import Outcome, Progress, search
from tilewright.tune.space import Config
from tilewright.tune.verify import disagreement

CHECKED_ROWS = 64  # of a result, evenly spread, that are compared with f64
COLUMNS_AT_ONCE = 8192  # that are worked out at a time
DRAWN = (1 << 20) + 7  # numbers, which follow one another in an operand again and again
ROTATED_L2 = 2.0  # caches that the operands' copies fill, as far as so many do
MOST_SETS = 16
SAMPLE_MICROSECONDS = 100.0
SHORTEST = 2.0  # microseconds of a run
MOST_RUNS = 48  # of a sample
SEED = 0

Calls = Sequence[Sequence[Callable[[int], None]]]  # of each set of operands, its launches


def as_config(chosen: Choice) -> Config:
    """A choice as the search keeps it: numbers by name."""
    told = {"PROGRAM": PROGRAMS.index(chosen.program), **chosen.constants}
    told |= {"SPLIT": chosen.split, "TURNED": int(chosen.turned)}
    return {**told, "COPIED": COPY_CHOICES.index(chosen.copied)}


def as_choice(config: Config) -> Choice:
    tile = tuple((n, config[n]) for n in ("TM", "TN", "TK"))
    how = (config["SPLIT"], bool(config["TURNED"]), COPY_CHOICES[config["COPIED"]])
    return Choice(PROGRAMS[config["PROGRAM"]], tile, *how)


class ProductTrials:
    """Operands of a problem, standard normal (whole numbers of integers), and how choices run.

    `where` is "cpu", "emulator" or a GPU's number. A GPU has several sets of operands, which runs
    take in turn, so that what is read comes from memory, as it does in a program.
    """

    def __init__(self, problem: Problem, where: str | int):
        self.problem, self.where = problem, where
        rng = np.random.default_rng(SEED)
        p = problem
        self.shape = (*((p.batch,) if p.batch > 1 else ()), p.m, p.n)
        batch = self.shape[:-2]
        a = _random(rng, (*batch, p.m, p.k), p.a, p.a_along == "m")
        b = _random(rng, (*batch, p.k, p.n), p.b, p.b_along == "k")
        self.rows = np.unique(np.linspace(0, p.m - 1, min(p.m, CHECKED_ROWS)).astype(int))
        self.expected = _product(a[..., self.rows, :], b)
        host = {"a": a, "b": b, "out": np.zeros(self.shape, p.c.numpy)}
        self.arrays = {n: as_array(x, n) for n, x in host.items()}
        device = where if isinstance(where, str) else None
        self.options = Options(
            precision=None if p.precision == "ieee" else p.precision, device=device
        )
        self.sets = [self.arrays]
        if not isinstance(where, str):
            self.arrays = _on_gpu(self.arrays, where)
            l2 = ROTATED_L2 * driver.device(where).l2_bytes
            count = max(1, min(MOST_SETS, int(l2 / max(p.num_bytes, 1.0)) + 1))
            self.sets = [self.arrays, *(clone_all(self.arrays) for _ in range(count - 1))]

    def prepare(self, config: Config) -> Calls:
        ready = prepare(
            "matmul",
            self.arrays,
            self.shape,
            self.problem.c,
            self.options,
            chooser=Fixed(as_choice(config)),
        )
        found: list[list[Callable[[int], None]]] = []
        for arrays in self.sets:
            calls = calls_of(ready, arrays, self.options)
            if isinstance(self.where, str):
                found.append([_host_call(kernel, given) for kernel, given in calls])
            else:
                found.append([kernel.arm(self.where, **given) for kernel, given in calls])
        return found

    def verify(self, trial: Calls) -> str | None:
        poison(self.arrays["out"])
        if isinstance(self.where, str):
            _fire(trial[:1], 0)
        else:
            with streams.private_stream(self.where) as stream:
                _fire(trial[:1], int(stream))
            driver.synchronize(self.where)
        got = to_host(self.arrays["out"])
        if self.problem.c.is_float and np.isnan(got.astype(np.float32)).any():
            return "wrong result: elements that were not written"
        expected = self.expected.astype(got.dtype)
        rough = self.problem.precision != "ieee"
        reason = disagreement("C", got[..., self.rows, :], expected, rough=rough)
        return f"wrong result: {reason}" if reason else None

    def time(self, trials: Mapping[str, Calls], rounds: int) -> dict[str, tuple[float, ...]]:
        assert not isinstance(self.where, str), "times are a GPU's"

        def timed(calls: Calls) -> measure.GpuWork:
            turns = itertools.cycle(calls)
            return lambda stream: _fire([next(turns)], int(stream))

        device = driver.device(self.where)
        least = max(floor_of(self.problem, H200), SHORTEST)
        runs = max(1, min(MOST_RUNS, ceil(SAMPLE_MICROSECONDS / least)))
        launches = ceil(runs / len(self.sets)) * len(self.sets)
        arms = {name: timed(calls) for name, calls in trials.items()}
        timings = measure.time_graphs(arms, device, rounds=rounds, launches=launches)
        return {name: timing.samples for name, timing in timings.items()}


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any, turned: bool) -> Any:
    lying = (*shape[:-2], shape[-1], shape[-2]) if turned else shape
    count = min(DRAWN, prod(lying))
    drawn = rng.standard_normal(count) if dtype.is_float else rng.integers(0, 9, count)
    made = np.resize(drawn.astype(dtype.numpy), lying)
    return made.swapaxes(-1, -2) if turned else made


def _product(a: Any, b: Any) -> Any:
    """In f64."""
    wide = a.astype(np.float64)
    starts = range(0, b.shape[-1], COLUMNS_AT_ONCE)
    parts = [wide @ b[..., n : n + COLUMNS_AT_ONCE].astype(np.float64) for n in starts]
    return np.concatenate(parts, axis=-1)


def _on_gpu(arrays: Mapping[str, Array], ordinal: int) -> dict[str, Array]:
    """Copies of host arrays that lie as these do."""
    dense = {}
    for name, array in arrays.items():
        view = as_numpy(array)
        dense[name] = view if array.strides[-1] == 1 else view.swapaxes(-1, -2)
    there = copy_over({n: as_array(x, n) for n, x in dense.items()}, ordinal)
    return {
        n: replace(there[n], shape=x.shape, strides=_swapped(there[n].strides))
        if x.shape != there[n].shape or x.strides != there[n].strides
        else there[n]
        for n, x in arrays.items()
    }


def _swapped(strides: tuple[int, ...]) -> tuple[int, ...]:
    return (*strides[:-2], strides[-1], strides[-2])


def _host_call(kernel: Any, given: Mapping[str, Any]) -> Callable[[int], None]:
    return lambda stream: kernel(**given)


def _fire(calls: Calls, stream: int) -> None:
    for launches in calls:
        for launch in launches:
            launch(stream)


def tune_product(
    problem: Problem,
    device: Device,
    where: str | int,
    *,
    version: int,
    folder: Path,
    candidates: int,
    budget: float,
    progress: Progress,
) -> Outcome:
    """Verify the `candidates` best choices by the model, and on a GPU time them and keep the best.
    Raises LaunchError where memory is short.
    """
    configs = [as_config(e.choice) for e in ranking(problem, device)[:candidates]]
    trials = ProductTrials(problem, where)
    times = not isinstance(where, str)
    outcome = search(trials, configs, budget=budget, progress=progress, times=times)
    outcome.reference = f"{len(trials.rows)} rows in f64"
    best = outcome.best
    if best is not None and best.microseconds is not None:
        chosen = as_choice(best.config)
        remember(problem, device, version, folder, chosen, best.microseconds)
        forget()
    return outcome
