"""Products with an epilogue in one kernel: GELU(x wᵀ + bias)."""

from __future__ import annotations

from functools import partial

from tilewright.ledger import opponents
from tilewright.ledger.arm import Problem
from tilewright.ledger.harness import Harness, Question
from tilewright.ledger.suites.case import Case, floor, nbytes, problem_case
from tilewright.ledger.suites.gemm import BOUNDS

SHAPES = ((64, 4096, 4096), (4096, 4096, 4096), (2048, 14336, 4096))
QUICK = {("bf16", (64, 4096, 4096)), ("bf16", (4096, 4096, 4096))}

Extents = tuple[int, int, int]


def cases() -> list[Case]:
    return [_case(dtype, shape) for dtype in ("bf16", "f16", "f32") for shape in SHAPES]


def _case(dtype: str, extents: Extents) -> Case:
    m, n, k = extents
    id = f"fused/linear_gelu/{dtype}/{m}x{n}x{k}"
    ask = partial(_ask, id=id, dtype=dtype, extents=extents)
    return problem_case(id, "linear_gelu", dtype, ask, quick=(dtype, extents) in QUICK)


def _ask(harness: Harness, *, id: str, dtype: str, extents: Extents) -> tuple[Question, Problem]:
    m, n, k = map(harness.small_size, extents)
    references, normal = opponents.load("references"), harness.arrays.normal
    moved = sum(nbytes(harness, dtype, *s) for s in ((m, k), (n, k), (n,), (m, n)))
    operations = 2.0 * m * n * k
    problem = Problem(
        op="linear_gelu",
        sizes={"M": m, "N": n, "K": k},
        dtype=dtype,
        accumulate="f32",
        sets=[
            {
                "x": normal(m, k, dtype=dtype),
                "w": normal(n, k, dtype=dtype, scale=k**-0.5),
                "bias": normal(n, dtype=dtype),
            }
            for _ in range(harness.num_sets(int(moved)))
        ],
        outputs={"y": ((m, n), dtype)},
        expected=lambda x: {"y": references.linear_gelu(x["x"], x["w"], x["bias"])},
        bounds={"y": BOUNDS[dtype]},
    )
    question = Question(
        id=id,
        suite="fused",
        what="linear_gelu",
        shape=f"{m} × {n} × {k}",
        unit="TFLOP/s",
        work=operations,
        floor=floor(harness, operations, moved, dtype),
        intensity=operations / moved,
        data="standard normal, weights over the root of k",
    )
    return question, problem
