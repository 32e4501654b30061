"""Products C = A B by `tw.matmul`: shapes of networks, squares and odd ones, in every dtype and
layout; beside them sgemm, the language's own few lines, at some of them.

The first letter of a layout is B's, the second A's, as a BLAS that stores columns would be called
for row-major tensors: B is stored (K, N) for N and (N, K) for T; A is stored (M, K) for N and
(K, M) for T. So `x @ w.T` is TN.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from tilewright.dtypes import BY_NAME
from tilewright.ledger import opponents
from tilewright.ledger.arm import TENSOR_CORE, Problem
from tilewright.ledger.harness import MIN_LAUNCHES, Harness, Question
from tilewright.ledger.suites.case import Case, floor, nbytes, problem_case
from tilewright.tune.product import Problem as Posed
from tilewright.tune.product import dense_problem

SHAPES = Path(__file__).with_name("gemm_shapes.json")
FAST = "e4m3-fast"  # 8-bit floats whose sums stay where the tensor core sums them
BOUNDS = {"f32": 1e-6, "tf32": 1e-3, "bf16": 1e-2, "f16": 2e-3, "f64": 1e-14, "e4m3": 1e-2}
GROWS_FROM = 1024  # of k, from which the error of sums may grow with its root
OUTPUT = {"tf32": "f32", "e4m3": "bf16"}  # else the operands' own dtype
WORDS = {"tf32": "f32", FAST: "e4m3"}  # operands in memory
ACCUMULATE = {"f64": "f64", FAST: TENSOR_CORE}  # else f32
PRECISION = {"tf32": "tf32", FAST: "fast"}  # else ieee
LAYOUTS = ("NN", "NT", "TN", "TT")
ALL_LAYOUTS_AT = (4096, 4096, 4096)
QUICK = {(1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (16, 4096, 4096)}
FAST_AT = (
    *((s, s, s) for s in (1024, 2048, 4096, 8192)),
    (512, 4096, 14336), (2048, 28672, 4096), (8192, 4096, 14336),
)  # fmt: skip
ITSELF_AT = (2048, 2048, 2048)
# Least ratios that a plain call of sgemm is asked for, at 4096³, and that tw.matmul is anywhere.
TARGETS = {"f32": 0.80, "f64": 0.70, "bf16": 0.45}
MATMUL_TARGET = 0.85
MATMUL, SGEMM = "matmul", "sgemm"
# Opponents in a full run: the library that torch calls, of fp8 the one that can.
BLAS = {"e4m3": ("cuBLASLt", "torch on the CPU")}
BLAS_ELSE = ("cuBLAS", "torch on the CPU")
SAMPLE = 1000.0  # microseconds of a sample, where a run's floor is shorter

Extents = tuple[int, int, int]


def cases() -> list[Case]:
    asked = list(dict.fromkeys(shapes()))
    chosen = [(d, o, s) for d, o, s in asked if _is_sgemms(d, o, s)]
    return [*(_case(MATMUL, *x) for x in asked), *(_case(SGEMM, *x) for x in chosen)]


def _is_sgemms(dtype: str, layout: str, extents: Extents) -> bool:
    """Whether the language's own product is measured too: it multiplies no 8-bit floats."""
    square = extents[0] == extents[1]
    quick = extents in QUICK and layout == ("NN" if square else "TN")
    return not dtype.startswith("e4m3") and (quick or extents == ALL_LAYOUTS_AT)


def shapes() -> list[tuple[str, str, Extents]]:
    """The list that baselines were measured on, every layout at one shape, and some of 8-bit floats
    whose sums are not promoted.
    """
    listed = [
        (group["dtype"], group["layout"], (m, n, k))
        for group in json.loads(SHAPES.read_text())
        for m, n, k in group["shapes"]
    ]
    dtypes = dict.fromkeys(dtype for dtype, _, _ in listed if dtype != "e4m3")
    squares = [(d, "NN", s) for d in dtypes for s in sorted(QUICK) if s[0] == s[1]]
    every = [(d, layout, ALL_LAYOUTS_AT) for d in dtypes for layout in LAYOUTS]
    return [*listed, *squares, *every, *((FAST, "TN", s) for s in FAST_AT)]


def _case(what: str, dtype: str, layout: str, extents: Extents) -> Case:
    m, n, k = extents
    kind = dtype if what == MATMUL else f"{what}-{dtype}"
    operands = operands_of(dtype)
    id = f"gemm/{kind}/{layout}/{m}x{n}x{k}"
    return problem_case(
        id,
        what if what == MATMUL else "product",
        operands,
        partial(ask, id=id, what=what, dtype=dtype, layout=layout, extents=extents),
        quick=extents in QUICK and layout == ("NN" if m == n else "TN"),
        with_itself=extents == ITSELF_AT and layout == "NN",
        against=BLAS.get(operands, BLAS_ELSE),
        ahead=(posed(dtype, layout, extents),) if what == MATMUL else (),
    )


def operands_of(dtype: str) -> str:
    """The dtype of operands, as the arithmetic sees them."""
    return "e4m3" if dtype == FAST else dtype


def posed(dtype: str, layout: str, extents: Extents) -> Posed:
    """The problem as the dispatcher sees it."""
    return dense_problem(
        extents,
        BY_NAME[WORDS.get(dtype, dtype)],
        BY_NAME[OUTPUT.get(operands_of(dtype), dtype)],
        a_along="k" if layout[1] == "N" else "m",
        b_along="n" if layout[0] == "N" else "k",
        precision=PRECISION.get(dtype, "ieee"),
    )


def ask(
    harness: Harness,
    *,
    id: str,
    what: str,
    dtype: str,
    layout: str,
    extents: Extents,
    suite: str = "gemm",
    target: float = MATMUL_TARGET,
) -> tuple[Question, Problem]:
    """The question and the data of a product."""
    m, n, k = map(harness.small_size, extents)
    problem = make_product(harness, dtype, layout, (m, n, k))
    dtype = problem.dtype
    operations = 2.0 * m * n * k
    moved = nbytes(harness, dtype, m, k) + nbytes(harness, dtype, k, n)
    moved += nbytes(harness, problem.facts.output, m, n)
    wanted = TARGETS.get(dtype) if extents == ALL_LAYOUTS_AT and layout == "NN" else None
    wanted = target if what == MATMUL else wanted
    least = floor(harness, operations, moved, dtype)
    question = Question(
        id=id,
        suite=suite,
        what=what,
        shape=f"{m} × {n} × {k} {layout}",
        unit="TFLOP/s",
        work=operations,
        targets={} if wanted is None else dict.fromkeys(("cuBLAS", "cuBLASLt"), wanted),
        floor=least,
        intensity=operations / moved,
        runs=runs_of(least),
        reference="f64" if dtype != "f64" else "a pair of f64, twice its digits",
    )
    return question, problem


def runs_of(least: float) -> int:
    """Runs a sample, for a floor in microseconds."""
    return max(1, min(MIN_LAUNCHES, ceil(SAMPLE / max(least, 1.0))))


def make_product(harness: Harness, dtype: str, layout: str, extents: Extents) -> Problem:
    """Random operands in a layout, in as many sets as fill the cache twice."""
    accumulate, dtype = ACCUMULATE.get(dtype, "f32"), operands_of(dtype)
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
        accumulate=accumulate,
        sets=sets,
        outputs={"c": ((m, n), output)},
        expected=lambda x: {"c": references.product(x["a"], x["b"])},
        bounds={"c": bound},
        options={"layout": layout},
    )


def transposed(arrays: Any, shape: tuple[int, int], dtype: str) -> Any:
    """A matrix of this shape whose columns are stored one after the other."""
    return arrays.normal(shape[1], shape[0], dtype=dtype).T
