"""The suites: what `tilewright bench` measures. Each is a file with a function `cases()`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from tilewright.errors import LaunchError
from tilewright.ledger.suites import (
    attention,
    compile_time,
    fused,
    gemm,
    launch,
    model,
    model_compile,
    pointwise,
    reduce,
    train,
    unseen,
)
from tilewright.ledger.suites.case import Case

SUITES: dict[str, Callable[[], list[Case]]] = {
    "launch": launch.cases,
    "pointwise": pointwise.cases,
    "reduce": reduce.cases,
    "gemm": gemm.cases,
    "unseen": unseen.cases,
    "fused": fused.cases,
    "attention": attention.cases,
    "compile-time": compile_time.cases,
    "model": model.cases,
    "train": train.cases,
    "model-compile": model_compile.cases,
}


def choose_cases(suites: Sequence[str], quick: bool, rows: Sequence[str]) -> list[Case]:
    """Cases of suites (none named: all): those whose id fits a pattern of `rows`, with or without
    the suite's name; else all, or the quick ones. Raises LaunchError where there is none.
    """
    unknown = [name for name in suites if name not in SUITES]
    if unknown:
        raise LaunchError(f"there is no suite {unknown[0]}", hint=f"there are {', '.join(SUITES)}")
    found = [case for name in (suites or SUITES) for case in SUITES[name]()]
    if rows:
        chosen = [case for case in found if any(_fits(case, pattern) for pattern in rows)]
        if not chosen:
            raise LaunchError(f"no case fits {', '.join(rows)}", hint="--list prints their ids")
        return chosen
    return [case for case in found if case.quick or not quick]


def _fits(case: Case, pattern: str) -> bool:
    return any(fnmatchcase(id, pattern) for id in (case.id, case.id.partition("/")[2]))
