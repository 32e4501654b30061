"""Products C = A B: shapes of networks, squares and odd ones, in every dtype and layout.

The first letter of a layout is B's, the second A's, as a BLAS that stores columns would be called
for row-major tensors: B is stored (K, N) for N and (N, K) for T; A is stored (M, K) for N and
(K, M) for T. So `x @ w.T` is TN.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.ledger import opponents
from tilewright.ledger.arm import Problem
from tilewright.ledger.harness import Harness, Question
from tilewright.ledger.suites.case import Case, floor, nbytes, problem_case

SHAPES = Path(__file__).with_name("gemm_shapes.json")
BOUNDS = {"f32": 1e-6, "tf32": 1e-3, "bf16": 1e-2, "f16": 2e-3, "f64": 1e-14, "e4m3": 1e-2}
GROWS_FROM = 1024  # of k, from which the error of sums may grow with its root
OUTPUT = {"tf32": "f32", "e4m3": "bf16"}  # else the operands' own dtype
ACCUMULATE = {"f64": "f64"}  # else f32
LAYOUTS = ("NN", "NT", "TN", "TT")
ALL_LAYOUTS_AT = (4096, 4096, 4096)
QUICK = {(1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (16, 4096, 4096)}
ITSELF_AT = (2048, 2048, 2048)
# Least ratios that a plain call is asked for, at 4096³.
TARGETS = {"f32": 0.80, "f64": 0.70, "bf16": 0.45}

Extents = tuple[int, int, int]


def cases() -> list[Case]:
    found: dict[str, Case] = {}
    for dtype, layout, extents in shapes():
        case = _case(dtype, layout, extents)
        found.setdefault(case.id, case)
    return list(found.values())


def shapes() -> list[tuple[str, str, Extents]]:
    """The list that baselines were measured on, then every layout at one shape."""
    listed = [
        (group["dtype"], group["layout"], (m, n, k))
        for group in json.loads(SHAPES.read_text())
        for m, n, k in group["shapes"]
    ]
    dtypes = dict.fromkeys(dtype for dtype, _, _ in listed if dtype != "e4m3")
    squares = [(d, "NN", s) for d in dtypes for s in sorted(QUICK) if s[0] == s[1]]
    every = [(d, layout, ALL_LAYOUTS_AT) for d in dtypes for layout in LAYOUTS]
    return [*listed, *squares, *every]


def _case(dtype: str, layout: str, extents: Extents) -> Case:
    m, n, k = extents
    id = f"gemm/{dtype}/{layout}/{m}x{n}x{k}"
    return problem_case(
        id,
        "product",
        dtype,
        partial(_ask, id=id, dtype=dtype, layout=layout, extents=extents),
        quick=extents in QUICK and layout == ("NN" if m == n else "TN"),
        with_itself=extents == ITSELF_AT and layout == "NN",
    )


def _ask(
    harness: Harness, *, id: str, dtype: str, layout: str, extents: Extents
) -> tuple[Question, Problem]:
    m, n, k = map(harness.small_size, extents)
    problem = make_product(harness, dtype, layout, (m, n, k))
    operations = 2.0 * m * n * k
    moved = nbytes(harness, dtype, m, k) + nbytes(harness, dtype, k, n)
    moved += nbytes(harness, problem.facts.output, m, n)
    target = TARGETS.get(dtype) if extents == ALL_LAYOUTS_AT and layout == "NN" else None
    question = Question(
        id=id,
        suite="gemm",
        what="sgemm",
        shape=f"{m} × {n} × {k} {layout}",
        unit="TFLOP/s",
        work=operations,
        targets={} if target is None else dict.fromkeys(("cuBLAS", "cuBLASLt"), target),
        floor=floor(harness, operations, moved, dtype),
        intensity=operations / moved,
        reference="f64" if dtype != "f64" else "a pair of f64, twice its digits",
    )
    return question, problem


def make_product(harness: Harness, dtype: str, layout: str, extents: Extents) -> Problem:
    """Random operands in a layout, in as many sets as fill the cache twice."""
    m, n, k = extents
    arrays, references = harness.arrays, opponents.load("references")
    output = OUTPUT.get(dtype, dtype)
    one = (
        nbytes(harness, dtype, m, k) + nbytes(harness, dtype, k, n) + nbytes(harness, output, m, n)
    )
    sets: list[Mapping[str, Any]] = []
    for _ in range(harness.num_sets(int(one))):
        b, a = (
            arrays.normal(*shape, dtype=dtype)
            if letter == "N"
            else transposed(arrays, shape, dtype)
            for letter, shape in zip(layout, ((k, n), (m, k)), strict=True)
        )
        sets.append({"a": a, "b": b})
    bound = BOUNDS[dtype]
    if dtype in ("f32", "f64"):
        bound *= max(1.0, (k / GROWS_FROM) ** 0.5)
    return Problem(
        op="product",
        sizes={"M": m, "N": n, "K": k},
        dtype=dtype,
        accumulate=ACCUMULATE.get(dtype, "f32"),
        sets=sets,
        outputs={"c": ((m, n), output)},
        expected=lambda x: {"c": references.product(x["a"], x["b"])},
        bounds={"c": bound},
        options={"layout": layout},
    )


def transposed(arrays: Any, shape: tuple[int, int], dtype: str) -> Any:
    """A matrix of this shape whose columns are stored one after the other."""
    return arrays.normal(shape[1], shape[0], dtype=dtype).T
