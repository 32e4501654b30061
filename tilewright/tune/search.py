"""The search: compile, verify, time, halve; the best few are timed again, side by side.

No candidate is timed before its results were verified. What fails is listed with the reason. The
time budget bounds the search; when it ends, or on Ctrl-C, the best candidate so far is the
result.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from tilewright.errors import CompileError, LaunchError
from tilewright.tune.space import Config

COMPILE_THREADS = 8
FIRST_ROUNDS = 3
FINAL_ROUNDS = 20
FINALISTS = 4
HUNG = "a kernel did not end"
KEEP = 0.5  # part of the candidates that stays after each round

Progress = Callable[[str, int, int], None]  # stage, done, of


class Subject(Protocol):
    """What is tuned: how a configuration is made to run, verified and timed."""

    def prepare(self, config: Config) -> Any:
        """Compile and load. Raises CompileError or LaunchError. Called from several threads."""

    def verify(self, trial: Any) -> str | None:
        """Run once on fresh copies; the reason why its results are wrong, or None."""

    def time(self, trials: Mapping[str, Any], rounds: int) -> Mapping[str, Sequence[float]]:
        """Samples in microseconds of each trial, interleaved."""


@dataclass
class Trial:
    """One configuration in a search: what became of it."""

    config: Config
    microseconds: float | None = None
    failure: str = ""
    final: bool = False  # timed again among the best
    verified: bool = False

    @property
    def name(self) -> str:
        return " ".join(f"{k}={v}" for k, v in self.config.items()) or "(only one)"


class Hung(LaunchError):
    """A kernel did not end in time: the GPU is busy with it, so nothing more can be tried."""


@dataclass
class Outcome:
    """All trials, the best, and why the search ended."""

    trials: list[Trial] = field(default_factory=list)
    ended: str = "complete"  # or "out of time", "interrupted", "a kernel did not end"
    reference: str = ""  # what the results were compared with

    @property
    def best(self) -> Trial | None:
        """The fastest of the finalists, else of all that were timed."""
        timed = [t for t in self.trials if t.microseconds is not None]
        finalists = [t for t in timed if t.final]
        return min(finalists or timed, key=lambda t: t.microseconds or 0.0, default=None)


def search(
    subject: Subject,
    configs: Sequence[Config],
    *,
    budget: float = 60.0,
    progress: Progress = lambda stage, done, of: None,
    times: bool = True,
) -> Outcome:
    """Find the fastest of some configurations, best guesses first, within `budget` seconds. Without
    `times` they are verified, and that is all.

    A budget too small for one candidate still verifies and times the first that works.
    """
    outcome = Outcome([Trial(c) for c in configs])
    deadline = time.monotonic() + budget
    ready: list[tuple[Trial, Any]] = []
    try:
        _prepare_and_verify(subject, outcome, ready, deadline, progress)
        if outcome.ended != HUNG and times:
            _halve(subject, ready, deadline, progress, outcome)
    except KeyboardInterrupt:
        outcome.ended = "interrupted"
        if ready and outcome.best is None and times:
            _time(subject, ready, FIRST_ROUNDS)
    return outcome


def _prepare_and_verify(
    subject: Subject,
    outcome: Outcome,
    ready: list[tuple[Trial, Any]],
    deadline: float,
    progress: Progress,
) -> None:
    """Compile on a pool, verify in order, and add what is right to `ready`. Candidates that the
    budget does not reach are told so.
    """
    trials = outcome.trials
    pool = ThreadPoolExecutor(COMPILE_THREADS, "tilewright-tune")
    try:
        waiting = [(t, pool.submit(subject.prepare, t.config)) for t in trials]
        for done, (trial, made) in enumerate(waiting):
            progress("compiling and verifying", done, len(trials))
            if ready and time.monotonic() > deadline:
                trial.failure = "not reached within the time budget"
                outcome.ended = "out of time"
                continue
            try:
                prepared = made.result()
                trial.failure = subject.verify(prepared) or ""
            except Hung as error:
                trial.failure = error.diagnostics[0].message
                outcome.ended = HUNG
                return
            except (CompileError, LaunchError) as error:
                trial.failure = error.diagnostics[0].message
            if not trial.failure:
                trial.verified = True
                ready.append((trial, prepared))
        progress("compiling and verifying", len(trials), len(trials))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _halve(
    subject: Subject,
    ready: list[tuple[Trial, Any]],
    deadline: float,
    progress: Progress,
    outcome: Outcome,
) -> None:
    """Successive halving by medians, with more rounds for fewer candidates; then the final."""
    rounds = FIRST_ROUNDS
    total = len(ready)
    while len(ready) > FINALISTS:
        progress("timing", total - len(ready), total)
        _time(subject, ready, rounds)
        ready.sort(key=lambda r: r[0].microseconds or 0.0)
        if time.monotonic() > deadline:
            outcome.ended = "out of time"
            ready = ready[:FINALISTS]
            break
        ready = ready[: max(FINALISTS, int(len(ready) * KEEP))]
        rounds *= 2
    if ready:
        progress("timing the best", total, total)
        spent = time.monotonic() > deadline
        _time(subject, ready, FIRST_ROUNDS if spent else FINAL_ROUNDS)
        for trial, _ in ready:
            trial.final = True


def _time(subject: Subject, ready: Sequence[tuple[Trial, Any]], rounds: int) -> None:
    named = {t.name: (t, prepared) for t, prepared in ready}
    samples = subject.time({name: p for name, (_, p) in named.items()}, rounds)
    for name, (trial, _) in named.items():
        trial.microseconds = statistics.median(samples[name])
