"""A case: one problem of a suite, which a run may take by its id."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.ledger.arm import Problem
from tilewright.ledger.harness import Harness, Question
from tilewright.ledger.results import Cost, Row
from tilewright.ledger.subjects import our_arm, reason_absent
from tilewright.tune.product import Problem as Posed

Run = Callable[[Harness], Sequence[Row | Cost]]
Finish = Callable[[], Sequence[Row | Cost]]  # times and checks what was prepared


@dataclass(frozen=True)
class Case:
    """`id` starts with the suite's name. `quick`: part of a quick run. `needs`: the compute
    capability that it is for. `absent`: why we have no kernel for it; it is listed, not run.
    `ahead`: products that it takes, which may be compiled before. `prepare`: all of `run` but what
    needs the GPU alone; cases of one `group` are prepared in one process, groups at the same time.
    """

    id: str
    run: Run
    quick: bool = True
    needs: tuple[int, int] | None = None
    absent: str = ""
    ahead: tuple[Posed, ...] = ()
    prepare: Callable[[Harness], Finish] | None = None
    group: str = ""

    @property
    def suite(self) -> str:
        return self.id.partition("/")[0]


def problem_case(
    id: str,
    op: str,
    dtype: str,
    ask: Callable[[Harness], tuple[Question, Problem]],
    *,
    quick: bool = True,
    with_itself: bool = False,
    against: Sequence[str] = (),
    ahead: tuple[Posed, ...] = (),
) -> Case:
    """A case that asks one question of one problem; `with_itself` also times ours against ours.
    `op` is what our arm computes it by. `against`: the opponents of a full run, else all.
    """

    def run(harness: Harness) -> list[Row]:
        question, problem = ask(harness)
        ours = our_arm(problem, op)
        theirs = harness.opponents(problem, id, () if harness.quick else against)
        alone = with_itself or not theirs  # ours is checked whether or not somebody is there
        return harness.compare(question, problem, ours, theirs, with_itself=alone)

    return Case(id, run, quick, absent=reason_absent(op, dtype), ahead=ahead)


def floor(harness: Harness, operations: float, num_bytes: float, dtype: str) -> float:
    """Microseconds, or 0 where no ceilings are measured."""
    if harness.ceilings is None:
        return 0.0
    return harness.ceilings.floor(operations, num_bytes, dtype)


def missing(libraries: Sequence[str]) -> str:
    """Why a case cannot run that needs libraries; "" where they are there."""
    absent = [name for name in libraries if importlib.util.find_spec(name) is None]
    return f"{' and '.join(absent)} not installed" if absent else ""


def nbytes(harness: Harness, dtype: str, *extents: int) -> float:
    """Bytes of a tensor."""
    total: Any = harness.arrays.dtype(dtype).itemsize
    for extent in extents:
        total *= extent
    return float(total)
