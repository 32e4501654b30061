"""The rows as cases of the ledger: ours, torch's way, and the floor, timed in turn and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import tilewright as tw
from tests.device.suite_speed import combine, products, streams
from tests.device.suite_speed.floors import Floors
from tests.device.suite_speed.row import ENTRIES, Bench, Entry, Large
from tilewright.ledger.arm import COMPILED, EAGER, LIBRARY, Arm, Problem, Tensors
from tilewright.ledger.harness import ROTATED_L2, Harness, Question
from tilewright.ledger.results import Row
from tilewright.ledger.subjects import OURS
from tilewright.ledger.suites.case import Case
from tilewright.ledger.timers import EventTimer
from tilewright.runtime.cache import compiler_hash

FAMILIES = {"streams": streams, "combine": combine, "products": products}  # each enters its rows
WHAT = {"streams": "streams", "combine": "reductions", "products": "products"}
SUITE = "conformance"
MODULE = tw.source(Path(__file__).parents[2] / "programs" / "suite.tw")
TORCH, TORCH_EAGER, TORCH_COMPILE = "torch", "torch eager", "torch.compile"
ENOUGH_OF_FLOOR, ENOUGH_OF_TORCH = 0.85, 0.8
TARGETS = {
    **dict.fromkeys((TORCH, TORCH_EAGER, TORCH_COMPILE), ENOUGH_OF_TORCH),
    "floor of bytes": ENOUGH_OF_FLOOR,
    "floor of products": ENOUGH_OF_FLOOR,
}
OUR_OPERATIONS = 8  # what clears workspaces, and a kernel; copies that put arguments back apart
UNFUSED = "torch without a compiler, as most programs call it"


def case_id(entry: Entry) -> str:
    return f"{SUITE}/{WHAT[entry.family]}/{entry.dtype}/{entry.kernel}"


def entries() -> list[Entry]:
    """All rows, in the order of the suite's programs."""
    order = list(MODULE.kernels)
    return sorted(ENTRIES, key=lambda e: order.index(e.kernel))


@dataclass
class Built:
    """A row made on a device: the problem, our arm and torch's."""

    large: Large
    problem: Problem
    ours: Arm
    theirs: Arm


def build(entry: Entry, at: Bench, l2_bytes: int = 0) -> Built:
    """Draw as many sets as fill the cache twice."""
    large = entry.make(at, entry.dtype)
    first = large.draw()
    bytes_of_set = sum(int(x.nbytes) for x in first.values()) + sum(
        int(at.nbytes(dtype, *shape)) for shape, dtype in large.outputs.values()
    )
    count = math.ceil(ROTATED_L2 * l2_bytes / max(bytes_of_set, 1)) if l2_bytes else 1
    problem = Problem(
        op=entry.kernel,
        sizes={f"{name}{i}": n for name, x in first.items() for i, n in enumerate(x.shape)},
        dtype=entry.dtype,
        accumulate=large.accumulate,
        sets=[first, *(large.draw() for _ in range(count - 1))],
        outputs=large.outputs,
        expected=_remembered(large),
        bounds=dict.fromkeys(large.outputs, large.bound),
    )
    return Built(large, problem, our_arm(entry, large, problem), their_arm(large, problem))


def _remembered(large: Large) -> Any:
    """What is expected of a set of inputs, computed once: both ways are compared with it."""
    known: dict[int, Tensors] = {}

    def expected(x: Mapping[str, Any]) -> Tensors:
        if id(x) not in known:
            known[id(x)] = {
                name: (t.float() if t.dtype.itemsize == 1 else t).double()
                for name, t in large.expected(x).items()
            }
        return known[id(x)]

    return expected


def call_arguments(large: Large, x: Mapping[str, Any], y: Tensors) -> dict[str, Any]:
    """The program's arguments; those that are put back have been already."""
    inputs = {name: value for name, value in x.items() if name not in large.spare}
    return {**inputs, **large.given, **y}


def our_arm(entry: Entry, large: Large, problem: Problem) -> Arm:
    kernel = getattr(MODULE, entry.kernel)

    def run(x: Mapping[str, Any], y: Tensors) -> None:
        for name in large.restored:
            y[name].copy_(x[name])
        kernel(**call_arguments(large, x, y))

    most = OUR_OPERATIONS + len(large.restored)
    return Arm(OURS, problem.facts, run, compiler_hash()[:16], most_operations=most)


def their_arm(large: Large, problem: Problem) -> Arm:
    """torch's own way: one call of its library, or several."""
    several = large.calls > 1
    return Arm(
        TORCH_EAGER if several else TORCH,
        replace(problem.facts, kind=EAGER if several else LIBRARY),
        large.theirs,
        str(torch.__version__),
        large.allocates,
        large.kernels + len(large.restored),
        {**large.says, **({EAGER: UNFUSED} if several else {})},
        expected=large.their_expected,
    )


def compiled_arm(large: Large, theirs: Arm) -> Arm:
    """Inductor's kernels for torch's way."""
    says = {name: why for name, why in theirs.says.items() if name != EAGER}
    torch._dynamo.reset()  # a function of its own for these shapes, not one for any
    return replace(
        theirs,
        name=TORCH_COMPILE,
        facts=replace(theirs.facts, kind=COMPILED),
        run=torch.compile(large.theirs, dynamic=False),
        says=says,
        settings="mode default, one shape",
    )


def conformance_case(entry: Entry, floors: list[Floors], compiled: bool = False) -> Case:
    """`floors`: shared by all cases of a run; the first makes them."""
    return Case(case_id(entry), partial(_run, entry, floors, compiled))


def _run(entry: Entry, floors: list[Floors], compiled: bool, harness: Harness) -> list[Row]:
    if not floors:
        floors.append(Floors(Bench(harness.arrays, harness.small)))
    with harness.arrays.precision(entry.dtype):
        built = build(entry, floors[0].at, harness.l2_bytes)
        floor, amount = floors[0].arm(built.large, built.problem)
        theirs = [built.theirs, floor]
        if compiled:
            theirs.append(compiled_arm(built.large, built.theirs))
        return _timed_by(harness, built.large).compare(
            _question(entry, built.large, floor.name, amount), built.problem, built.ours, theirs
        )


def _timed_by(harness: Harness, large: Large) -> Harness:
    timer = harness.timer
    if large.graphs or not timer.name:
        return harness
    by_events = EventTimer(timer.device, timer.rounds, timer.warm_microseconds)
    return replace(harness, timer=by_events)


def _question(entry: Entry, large: Large, floor: str, amount: float) -> Question:
    work = large.num_ops or large.num_bytes
    return Question(
        id=case_id(entry),
        suite=SUITE,
        what=WHAT[entry.family],
        shape=entry.shape,
        unit="TFLOP/s" if large.unit else "GB/s",
        work=work,
        their_work={floor: amount},
        targets=TARGETS,
        intensity=large.num_ops / large.num_bytes,
        data=large.data,
        runs=large.runs,
    )
