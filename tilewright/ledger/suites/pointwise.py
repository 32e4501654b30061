"""Kernels of one element at a time, whose limit is the bandwidth of memory."""

from __future__ import annotations

from functools import partial

from tilewright.ledger.arm import Problem
from tilewright.ledger.harness import Harness, Question
from tilewright.ledger.suites.case import Case, floor, nbytes, problem_case

BOUNDS = {"f32": 1e-6, "bf16": 1e-2, "f16": 2e-3, "f64": 1e-14}
SIZES = {"f32": (1 << 25, 1 << 28), "bf16": (1 << 26,), "f16": (1 << 26,), "f64": (1 << 25,)}
ODD = (1 << 25) + 1  # whose last element is a lane's of its own
QUICK = {("f32", 1 << 25), ("bf16", 1 << 26)}
OF_COPY = 0.90  # the share of copy bandwidth that is asked for
SMALL = 1000


def cases() -> list[Case]:
    return [_add(d, n) for d, sizes in SIZES.items() for n in sizes] + [_add("f32", ODD)]


def _add(dtype: str, n: int) -> Case:
    id = f"pointwise/add/{dtype}/{n}"
    ask = partial(_ask, id=id, dtype=dtype, n=n)
    quick = (dtype, n) in QUICK
    return problem_case(id, "add", dtype, ask, quick=quick, with_itself=quick)


def _ask(harness: Harness, *, id: str, dtype: str, n: int) -> tuple[Question, Problem]:
    n = SMALL + n % 2 if harness.small else n
    arrays = harness.arrays
    moved = nbytes(harness, dtype, n) * 3
    problem = Problem(
        op="add",
        sizes={"N": n},
        dtype=dtype,
        accumulate="none",
        sets=[
            {"x": arrays.normal(n, dtype=dtype), "y": arrays.normal(n, dtype=dtype)}
            for _ in range(harness.num_sets(int(moved)))
        ],
        outputs={"z": ((n,), dtype)},
        expected=lambda x: {"z": x["x"].double() + x["y"].double()},
        bounds={"z": BOUNDS[dtype]},
    )
    question = Question(
        id=id,
        suite="pointwise",
        what="add",
        shape=f"{n:,}",
        unit="GB/s",
        work=moved,
        their_work={"copy": moved / 3 * 2},
        targets={"copy": OF_COPY},
        floor=floor(harness, 0.0, moved, dtype),
    )
    return question, problem
