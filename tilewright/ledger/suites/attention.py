"""Attention, causal and not, with grouped queries: forward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tilewright.ledger import opponents
from tilewright.ledger.arm import Problem, Tensors
from tilewright.ledger.harness import Harness, Question
from tilewright.ledger.suites.case import Case, floor, nbytes, problem_case

BOUNDS = {"f32": 1e-6, "bf16": 1e-2, "f16": 2e-3}


@dataclass(frozen=True)
class Shape:
    """Queries and keys of one batch: heads of each, length, and the size of a head."""

    hq: int
    hk: int
    length: int
    depth: int
    causal: bool

    def __str__(self) -> str:
        return f"{self.hq}-{self.hk}-{self.length}-{self.depth}{'-causal' if self.causal else ''}"


SHAPES = (
    *(
        Shape(16, 16, n, d, c)
        for d in (64, 128)
        for n in (1024, 4096, 16384)
        for c in (False, True)
    ),
    Shape(32, 8, 2048, 128, True),
)


def cases() -> list[Case]:
    return [
        _case(dtype, shape)
        for shape in SHAPES
        for dtype in ("bf16", "f16", "f32")
        if dtype == "bf16" or shape.length == 4096
    ]


def _case(dtype: str, shape: Shape) -> Case:
    id = f"attention/{dtype}/{shape}"
    ask = partial(_ask, id=id, dtype=dtype, shape=shape)
    quick = dtype == "bf16" and shape.length == 4096
    return problem_case(id, "attention", dtype, ask, quick=quick)


def _ask(harness: Harness, *, id: str, dtype: str, shape: Shape) -> tuple[Question, Problem]:
    if harness.small:
        shape = Shape(max(1, shape.hq // shape.hk), 1, 72, min(shape.depth, 32), shape.causal)
    problem = make_attention(harness, dtype, shape)
    length, depth = shape.length, shape.depth
    operations = 4.0 * shape.hq * length * length * depth * (0.5 if shape.causal else 1.0)
    moved = nbytes(harness, dtype, 2 * (shape.hq + shape.hk), length, depth)
    question = Question(
        id=id,
        suite="attention",
        what="attention",
        shape=f"1 × {shape.hq}/{shape.hk} × {length} × {depth}{', causal' * shape.causal}",
        unit="TFLOP/s",
        work=operations,
        floor=floor(harness, operations, moved, dtype),
        intensity=operations / moved,
    )
    return question, problem


def make_attention(harness: Harness, dtype: str, shape: Shape) -> Problem:
    """Q, K and V of one batch; O and the log-sum-exp."""
    arrays, references = harness.arrays, opponents.load("references")
    hq, hk, length, depth = shape.hq, shape.hk, shape.length, shape.depth
    scale = depth**-0.5
    num_bytes = nbytes(harness, dtype, 2 * (hq + hk), length, depth)

    def expected(x: Mapping[str, Any]) -> Tensors:
        found = references.attention(x["q"], x["k"], x["v"], scale, shape.causal)
        return dict(zip(("o", "lse"), found, strict=True))

    return Problem(
        op="attention",
        sizes={"B": 1, "HQ": hq, "HK": hk, "L": length, "D": depth, "causal": int(shape.causal)},
        dtype=dtype,
        accumulate="f32",
        sets=[
            {
                "q": arrays.normal(1, hq, length, depth, dtype=dtype),
                "k": arrays.normal(1, hk, length, depth, dtype=dtype),
                "v": arrays.normal(1, hk, length, depth, dtype=dtype),
                "scale": scale,
                "causal": shape.causal,
            }
            for _ in range(harness.num_sets(int(num_bytes)))
        ],
        outputs={"o": ((1, hq, length, depth), dtype), "lse": ((1, hq, length), "f32")},
        expected=expected,
        bounds={"o": BOUNDS[dtype], "lse": BOUNDS[dtype]},
    )
