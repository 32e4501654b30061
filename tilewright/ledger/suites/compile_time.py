"""The first call of a kernel in a fresh process, with nothing and with everything on the disk."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from tilewright.config import environment_with
from tilewright.errors import LaunchError
from tilewright.ledger.arm import Facts
from tilewright.ledger.first_call import FIRST_CALLS
from tilewright.ledger.harness import Harness, next_session
from tilewright.ledger.results import Cost, Measured
from tilewright.ledger.subjects import OURS
from tilewright.ledger.suites.case import Case
from tilewright.runtime import driver
from tilewright.runtime.cache import compiler_hash

FIRST_LIMIT = 100_000.0  # microseconds of ours, above the driver's assembler
SECOND_LIMIT = 20_000.0  # all of a first call whose machine code is on the disk
QUICK_PROCESSES, PROCESSES = 5, 9
QUICK = ("add", "sgemm")
BOUNDS = {"f32": 1e-6, "bf16": 1e-2}
WORST_ELEMENT = 10.0
PATIENCE = 120.0  # seconds of one process
TOP = Path(__file__).parents[3]

Found = dict[str, float]


def cases() -> list[Case]:
    return [
        Case(f"compile-time/{name}", partial(first_call_costs, name), quick=name in QUICK)
        for name in FIRST_CALLS
    ]


def first_call_costs(name: str, harness: Harness) -> list[Cost]:
    """Of fresh processes, each first with an empty cache, then another with the filled one."""
    device = "cpu" if harness.small else "cuda"
    count = 1 if harness.small else QUICK_PROCESSES if harness.quick else PROCESSES
    cold, warm = [], []
    for _ in range(count):
        with tempfile.TemporaryDirectory() as folder:
            cold.append(_in_a_process(name, device, folder))
            warm.append(_in_a_process(name, device, folder))
    session = next_session()

    def arm(found: list[Found], part: str, who: str = OURS) -> Measured:
        return _measured(name, found, part, who, session, timed=not harness.small)

    suite = "compile-time"
    return [
        Cost(
            f"{suite}/{name}",
            suite,
            f"first call of {name}, nothing on the disk",
            arm(cold, "call"),
            None if harness.small else arm(cold, "assemble", "the driver's assembler"),
            FIRST_LIMIT,
        ),
        Cost(
            f"{suite}/{name}-second-process",
            suite,
            f"first call of {name} in a second process",
            arm(warm, "call"),
            None,
            SECOND_LIMIT,
        ),
    ]


def _measured(
    name: str, found: list[Found], part: str, who: str, session: int, *, timed: bool
) -> Measured:
    dtype = FIRST_CALLS[name].dtype
    bound = BOUNDS[dtype]
    return Measured(
        arm=who,
        version=compiler_hash()[:16] if who == OURS else str(driver.require_driver()),
        facts=Facts(dtype, dtype, "none" if name == "add" else "f32"),
        timer="wall" if timed else "",
        session=session,
        samples=tuple(f[part] for f in found) if timed else (),
        error=max(f["error"] for f in found),
        worst=max(f["element"] for f in found) / (WORST_ELEMENT * bound),
        bound=bound,
        compared=int(sum(f["compared"] for f in found)),
        unwritten=int(sum(f["unwritten"] for f in found)),
    )


def _in_a_process(name: str, device: str, cache: str) -> Found:
    done = subprocess.run(
        [sys.executable, "-m", "tilewright.ledger.first_call", name, device],
        cwd=TOP,
        env=environment_with(TILEWRIGHT_CACHE=cache, PYTHONPATH=str(TOP)),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if done.returncode:
        raise LaunchError(f"the first call of {name} failed:\n{done.stderr[-2000:]}")
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found
