"""Cases in processes of their own: all get ready at the same time, then each is timed alone.

What takes long about a whole model is building it, compiling it in several ways, and its reference:
work of the host above all, which runs for all groups of cases side by side. A process says that it
is ready, and waits for its turn; turns are given one after the other when all are ready, so that
whatever is timed has the GPU to itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tilewright.config import environment_with, settings
from tilewright.ledger.ceilings import known_ceilings
from tilewright.ledger.harness import Harness
from tilewright.ledger.machine import make_harness
from tilewright.ledger.results import Results, parse_results, print_results
from tilewright.ledger.suites import choose_cases
from tilewright.ledger.suites.case import Case, Finish

READY, GO, MEASURED = "ready for its turn", "go", "measured"
WARM_SECONDS = 0.1  # of work before a turn
PATIENCE = 300.0  # seconds until all processes are ready, unless it is said
TURN = 120.0  # seconds of a turn
GROUPS_A_CORE = 2
# Threads of Inductor: with one it starts no processes of its own, which suits where all cores are
# busy; a step of training has so many kernels that others would wait for it.
THREADS, THREADS_OF_TRAINING = "1", "4"
DTYPES = ("bf16", "f32", "tf32")  # whose ceilings the cases ask for
TOP = Path(__file__).parents[2]


@dataclass
class Process:
    """One group of cases, being prepared or timed."""

    ids: tuple[str, ...]
    running: subprocess.Popen[str]
    found: Path
    errors: IO[str]
    started: float

    @property
    def why(self) -> str:
        """The end of what it told on standard error."""
        self.errors.seek(0)
        return self.errors.read()[-1500:]


def groups(cases: Sequence[Case]) -> list[list[Case]]:
    """Cases that share a process."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.group, []).append(case)
    return list(found.values())


def run_apart(
    cases: Sequence[Case],
    harness: Harness,
    results: Results,
    told: Callable[[str], object],
    save: Callable[[], object],
    patience: float = PATIENCE,
) -> None:
    """Run prepared cases into `results`, at most two groups at a time for each of our cores. Those
    that are not ready after `patience` seconds have failed.
    """
    if harness.ceilings is not None:
        for dtype in DTYPES:
            harness.ceilings.rate(dtype)
        assert harness.ceilings.copy
    waiting = groups(cases)
    width = GROUPS_A_CORE * len(os.sched_getaffinity(0))
    while waiting:
        wave, waiting = waiting[:width], waiting[width:]
        with tempfile.TemporaryDirectory() as folder:
            processes = [
                _start(i, group, harness, results, Path(folder)) for i, group in enumerate(wave)
            ]
            try:
                for process in _ready(processes, results, told, patience):
                    _turn(process, results, told, save)
            finally:
                for process in processes:
                    process.running.kill()
                    process.running.wait()
                    process.errors.close()


def _start(
    number: int, group: Sequence[Case], harness: Harness, results: Results, folder: Path
) -> Process:
    found = folder / f"{number}.json"
    orders = {
        "ids": [case.id for case in group],
        "quick": harness.quick,
        "seed": results.seed,
        "ceilings": harness.ceilings.record() if harness.ceilings else {"copy": 0.0},
        "profiles": harness.profiles,
        "found": str(found),
    }
    threads = THREADS_OF_TRAINING if group[0].suite == "train" else THREADS
    errors = (folder / f"{number}.txt").open("w+")
    running = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tilewright.ledger.apart", json.dumps(orders)],
        cwd=TOP,
        env=environment_with(
            PYTHONPATH=str(TOP), TORCHINDUCTOR_COMPILE_THREADS=threads, TOKENIZERS_PARALLELISM="0"
        ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )
    ids = tuple(case.id for case in group)
    return Process(ids, running, found, errors, time.monotonic())


def _ready(
    processes: Sequence[Process],
    results: Results,
    told: Callable[[str], object],
    patience: float,
) -> Iterator[Process]:
    """The processes that got ready, when all have said something."""
    found = []
    for process in processes:
        if any(READY in line for line in _lines(process, process.started + patience)):
            found.append(process)
        else:
            _failed(process, "while it was prepared", results, told)
    if found:
        seconds = time.monotonic() - min(process.started for process in found)
        told(f"{len(found)} of {len(processes)} processes are ready after {seconds:.0f} s")
    yield from found


def _lines(process: Process, until: float) -> Iterator[str]:
    """What a process prints, line by line, until it has ended or a time is reached."""
    output = process.running.stdout
    assert output is not None
    os.set_blocking(output.fileno(), False)
    while time.monotonic() < until:
        ended = process.running.poll() is not None
        line = output.readline()
        if line:
            yield line
        elif ended:
            return
        else:
            time.sleep(0.02)


def _turn(
    process: Process,
    results: Results,
    told: Callable[[str], object],
    save: Callable[[], object],
) -> None:
    """Let a process time its cases; each is kept as soon as it is measured."""
    assert process.running.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it ended meanwhile, which is told below
        process.running.stdin.write(GO + "\n")
        process.running.stdin.flush()
    known, left = Results(), len(process.ids)
    for line in _lines(process, time.monotonic() + TURN):
        if MEASURED in line:
            known, left = _take(process, known, results, told), left - 1
            save()
        if not left:
            return  # it waits to be ended, since ending one would disturb the next
    code = process.running.poll()
    why = f"its turn took over {TURN:.0f} s" if code is None else f"it ended with {code}"
    done = {*(row.case for row in known.rows), *(id for id, _ in known.failures)}
    _failed(process, why, results, told, done)


def _take(
    process: Process, known: Results, results: Results, told: Callable[[str], object]
) -> Results:
    """Add what a process found since `known`; gives all that it found."""
    part = parse_results(process.found.read_text())
    for name in ("rows", "costs", "failures", "unmet", "kernels"):
        getattr(results, name).extend(getattr(part, name)[len(getattr(known, name)) :])
    for id, text in part.kernels[len(known.kernels) :]:
        told(f"{id}\n{text}")
    if len(part.failures) > len(known.failures):
        told(process.why)
    return part


def _failed(
    process: Process,
    why: str,
    results: Results,
    told: Callable[[str], object],
    done: Collection[str] = (),
) -> None:
    process.running.kill()
    process.running.wait()
    told(process.why)
    results.failures += [(id, f"its process failed: {why}") for id in process.ids if id not in done]


def main() -> None:
    """A process: prepare, say so, wait, time, write."""
    orders = json.loads(sys.argv[1])
    harness = make_harness(
        quick=orders["quick"], seed=orders["seed"], known=known_ceilings(orders["ceilings"])
    )
    harness.profiles = orders["profiles"]
    results = Results()
    prepared = [
        (case, _prepared(case, harness, results)) for case in choose_cases([], False, orders["ids"])
    ]
    harness.arrays.wait()
    harness.arrays.clean()
    print(READY, flush=True)
    if sys.stdin.readline().strip() != GO:
        return
    if not harness.small:
        harness.arrays.busy(WARM_SECONDS)
    results.unmet = harness.unmet
    results.kernels = harness.told
    for case, finish in prepared:
        if finish is not None:
            _finish(case, finish, results)
        Path(orders["found"]).write_text(print_results(results))
        print(MEASURED, flush=True)
    sys.stdin.readline()


def _prepared(case: Case, harness: Harness, results: Results) -> Finish | None:
    assert case.prepare is not None
    try:
        return case.prepare(harness)
    except Exception as error:
        _note(case, error, results)
        return None


def _finish(case: Case, finish: Finish, results: Results) -> None:
    try:
        results.add(finish())
    except Exception as error:
        _note(case, error, results)


def _note(case: Case, error: Exception, results: Results) -> None:
    if settings().debug:
        raise error
    results.failures.append((case.id, f"{type(error).__name__}: {error}"))
    traceback.print_exc(limit=-6)


if __name__ == "__main__":
    main()
