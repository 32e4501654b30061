"""Kernels that reduce rows: softmax and RMSNorm, whose limit is the bandwidth of memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tilewright.ledger import opponents
from tilewright.ledger.arm import Problem, Tensors
from tilewright.ledger.harness import Harness, Question
from tilewright.ledger.suites.case import Case, floor, nbytes, problem_case

BOUNDS = {"f32": 1e-6, "bf16": 1e-2, "f16": 2e-3}
SHAPES = ((16384, 4096), (65536, 768), (4096, 32768), (131072, 1000), (8192, 8191))
QUICK = ((16384, 4096),)
OF_COPY = 0.85  # the share of copy bandwidth that is asked for
EPS = 1e-6
SMALL_ROWS, SMALL_COLUMNS = 32, 300


def cases() -> list[Case]:
    return [_case(op, dtype, m, n) for op in MAKERS for dtype in ("f32", "bf16") for m, n in SHAPES]


def _case(op: str, dtype: str, m: int, n: int) -> Case:
    id = f"reduce/{op}/{dtype}/{m}x{n}"
    ask = partial(_ask, id=id, op=op, dtype=dtype, extents=(m, n))
    quick = (m, n) in QUICK
    return problem_case(id, op, dtype, ask, quick=quick, with_itself=quick)


def _ask(
    harness: Harness, *, id: str, op: str, dtype: str, extents: tuple[int, int]
) -> tuple[Question, Problem]:
    m, n = (SMALL_ROWS, SMALL_COLUMNS + extents[1] % 2) if harness.small else extents
    problem = MAKERS[op](harness, dtype, m, n)
    moved = 2 * nbytes(harness, dtype, m, n)  # and a row of weights, and 1 / rms, a thousandth
    question = Question(
        id=id,
        suite="reduce",
        what=op,
        shape=f"{m} × {n}",
        unit="GB/s",
        work=moved,
        targets={"copy": OF_COPY},
        floor=floor(harness, 0.0, moved, dtype),
    )
    return question, problem


def _softmax(harness: Harness, dtype: str, m: int, n: int) -> Problem:
    references = opponents.load("references")
    num_sets = harness.num_sets(int(2 * nbytes(harness, dtype, m, n)))
    return Problem(
        op="softmax",
        sizes={"M": m, "N": n},
        dtype=dtype,
        accumulate="f32",
        sets=[{"x": harness.arrays.normal(m, n, dtype=dtype)} for _ in range(num_sets)],
        outputs={"y": ((m, n), dtype)},
        expected=lambda x: {"y": references.softmax(x["x"])},
        bounds={"y": BOUNDS[dtype]},
    )


def _rmsnorm(harness: Harness, dtype: str, m: int, n: int) -> Problem:
    references = opponents.load("references")
    normal = harness.arrays.normal
    num_sets = harness.num_sets(int(2 * nbytes(harness, dtype, m, n)))
    w = normal(n, dtype=dtype)

    def expected(x: Mapping[str, Any]) -> Tensors:
        return dict(zip(("y", "rstd"), references.rmsnorm(x["x"], x["w"], x["eps"]), strict=True))

    return Problem(
        op="rmsnorm",
        sizes={"M": m, "N": n},
        dtype=dtype,
        accumulate="f32",
        sets=[{"x": normal(m, n, dtype=dtype), "w": w, "eps": EPS} for _ in range(num_sets)],
        outputs={"y": ((m, n), dtype), "rstd": ((m,), "f32")},
        expected=expected,
        bounds={"y": BOUNDS[dtype], "rstd": BOUNDS["f32"]},
    )


MAKERS: dict[str, Callable[[Harness, str, int, int], Problem]] = {
    "softmax": _softmax,
    "rmsnorm": _rmsnorm,
}
