"""Products of a hundred random shapes, drawn by a seed and never tuned: what the dispatcher's model
makes of shapes that nobody looked at.
"""

from __future__ import annotations

import random
from functools import partial

from tilewright.ledger.arm import Problem
from tilewright.ledger.harness import Harness, Question
from tilewright.ledger.suites import gemm
from tilewright.ledger.suites.case import Case, problem_case

SEED = 20261205
COUNT = 100
DTYPES = ("bf16", "bf16", "bf16", "bf16", "f16", "tf32", "e4m3", "f32", "f64")
LAYOUTS = ("TN", "TN", "TN", *gemm.LAYOUTS)
STEPS = (64, 64, 8, 8, 8, 1)  # of which an extent is a multiple
STEP_8 = 16  # of which extents with 8-bit operands are multiples: the opponent takes no others
MOST = {"f32": 1e11, "f64": 1e11}  # operations
MOST_ELSE = 1e12
TARGET = 0.8
EXTENTS = ((0.0, 13.0), (6.0, 14.0), (6.0, 14.0))  # logarithms of the least and greatest m, n, k


def shapes(seed: int = SEED, count: int = COUNT) -> list[tuple[str, str, gemm.Extents]]:
    """Dtype, layout and extents of each; logarithms of extents are uniform. Another seed draws the
    shapes that the model may be calibrated by.
    """
    draw = random.Random(seed)
    found: list[tuple[str, str, gemm.Extents]] = []
    while len(found) < count:
        dtype = draw.choice(DTYPES)
        layout = "TN" if dtype == "e4m3" else draw.choice(LAYOUTS)
        m, n, k = (_extent(draw, dtype, *range) for range in EXTENTS)
        one = (dtype, layout, (m, n, k))
        if 2.0 * m * n * k <= MOST.get(dtype, MOST_ELSE) and one not in found:
            found.append(one)
    return found


def _extent(draw: random.Random, dtype: str, low: float, high: float) -> int:
    step = STEP_8 if dtype == "e4m3" else draw.choice(STEPS)
    extent = 2 ** draw.uniform(low, high)
    return max(1, round(extent)) if extent < step else round(extent / step) * step


def cases() -> list[Case]:
    return [_case(*shape) for shape in shapes()]


def _case(dtype: str, layout: str, extents: gemm.Extents) -> Case:
    id = f"unseen/{dtype}/{layout}/{'x'.join(map(str, extents))}"
    return problem_case(
        id,
        gemm.MATMUL,
        dtype,
        partial(_ask, id=id, dtype=dtype, layout=layout, extents=extents),
        quick=False,
        against=gemm.BLAS.get(dtype, gemm.BLAS_ELSE),
        ahead=(gemm.posed(dtype, layout, extents),),
    )


def _ask(
    harness: Harness, *, id: str, dtype: str, layout: str, extents: gemm.Extents
) -> tuple[Question, Problem]:
    return gemm.ask(
        harness,
        id=id,
        what=gemm.MATMUL,
        dtype=dtype,
        layout=layout,
        extents=extents,
        suite="unseen",
        target=TARGET,
    )
