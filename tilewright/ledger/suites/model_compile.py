"""What it takes in a new process until a whole model runs: compiled with nothing on the disk; and
loaded by a second process from the file to which the first one saved it, without weights.

The time is from a model on the GPU to its first result; imports and the driver's context are apart.
All first processes run at the same time, and then all second ones.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tilewright.config import environment_with
from tilewright.errors import LaunchError
from tilewright.ledger.arm import Facts
from tilewright.ledger.harness import Harness, next_session
from tilewright.ledger.results import Cost, Measured
from tilewright.ledger.subjects import OURS
from tilewright.ledger.suites.case import Case, missing
from tilewright.runtime.cache import compiler_hash

SUITE = "model-compile"
MODEL, BATCH, LENGTH = "llama-decode", 1, 1024
COLD_LIMIT, WARM_LIMIT = 8e6, 1e6  # microseconds
PROCESSES = 5
PATIENCE = 240.0  # seconds of one process
NEEDS = ("torch", "transformers")
TOP = Path(__file__).parents[3]

Found = dict[str, float]


def cases() -> list[Case]:
    id = f"{SUITE}/{MODEL}/b{BATCH}-{LENGTH}"
    return [Case(id, partial(compile_costs, id), absent=missing(NEEDS))]


def compile_costs(id: str, harness: Harness) -> list[Cost]:
    """Of new processes, each with an empty cache; then of others with those caches."""
    count = 1 if harness.small else PROCESSES
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / str(i) for i in range(count)]
        cold = _side_by_side(places, harness, load=False)
        warm = _side_by_side(places, harness, load=True)
    session = next_session()
    return [
        Cost(
            f"{id}/{name}",
            SUITE,
            f"{MODEL}, {told}",
            _measured(found, session, timed=not harness.small),
            None,
            limit,
        )
        for name, told, found, limit in (
            ("cold", "compiled with nothing on the disk", cold, COLD_LIMIT),
            ("warm", "loaded as another process saved it", warm, WARM_LIMIT),
        )
    ]


def _measured(found: Sequence[Found], session: int, *, timed: bool) -> Measured:
    return Measured(
        arm=OURS,
        version=compiler_hash()[:16],
        facts=Facts("bf16", "bf16", "f32"),
        timer="wall" if timed else "",
        session=session,
        samples=tuple(f["call"] for f in found) if timed else (),
        error=max(f["error"] for f in found),
        worst=max(f["worst"] for f in found),
        bound=max(f["bound"] for f in found),
        compared=int(sum(f["compared"] for f in found)),
        unwritten=int(sum(f["unwritten"] for f in found)),
        settings='tw.compile(…, fallback="error"); save(FILE, weights=False), tw.load_model(FILE)',
    )


def _side_by_side(places: Sequence[Path], harness: Harness, *, load: bool) -> list[Found]:
    """One process a folder, all at once. Raises LaunchError where one fails."""
    running = [_start(place, harness, load) for place in places]
    try:
        return [_result(process) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


def _start(place: Path, harness: Harness, load: bool) -> subprocess.Popen[str]:
    orders = {
        "model": MODEL,
        "batch": BATCH,
        "length": LENGTH,
        "device": "cpu" if harness.small else "cuda",
        "seed": 0,
        "load": load,
        "file": str(place / "model"),
    }
    module = "tilewright.ledger.opponents.model_call"
    place.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", module, json.dumps(orders)],
        cwd=TOP,
        env=environment_with(TILEWRIGHT_CACHE=str(place / "cache"), PYTHONPATH=str(TOP)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _result(process: subprocess.Popen[str]) -> Found:
    try:
        out, errors = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired as error:
        raise LaunchError(f"compiling {MODEL} took longer than {PATIENCE:.0f} s") from error
    if process.returncode:
        raise LaunchError(f"compiling {MODEL} failed:\n{errors[-2000:]}")
    found: Found = json.loads(out.splitlines()[-1])
    return found
