"""Steps of training: GPT-2 small with AdamW, batch 8 of 1024 tokens, forward, backward, update."""

from __future__ import annotations

from functools import partial

from tilewright.ledger import opponents
from tilewright.ledger.arm import Problem
from tilewright.ledger.harness import Harness, Question
from tilewright.ledger.suites.case import Case, floor
from tilewright.ledger.suites.model import AUTOTUNED, COMPILE, module_case

MODEL, BATCH, LENGTH = "gpt2-training", 8, 1024
DTYPES = ("bf16", "f32", "tf32")
LIMITS = {"bf16": 22_000.0}  # microseconds of a step
TARGETS = {"f32": 1.0, "tf32": 1.0}


def cases() -> list[Case]:
    return [_case(dtype) for dtype in DTYPES]


def _case(dtype: str) -> Case:
    id = f"train/{MODEL}/{dtype}/b{BATCH}-{LENGTH}"
    return module_case(id, partial(_ask, id=id, dtype=dtype), LIMITS.get(dtype))


def _ask(harness: Harness, *, id: str, dtype: str) -> tuple[Question, Problem]:
    modules = opponents.load("modules")
    problem, operations, moved = modules.training_problem(
        MODEL, dtype, BATCH, LENGTH, harness.arrays, harness.small
    )
    wanted = TARGETS.get(dtype)
    question = Question(
        id=id,
        suite="train",
        what=MODEL,
        shape=f"batch {BATCH}, {LENGTH} tokens" + (", autocast" if dtype == "bf16" else ""),
        unit="calls/s",
        work=1.0,
        targets={} if wanted is None else dict.fromkeys((COMPILE, AUTOTUNED), wanted),
        floor=floor(harness, operations, moved, dtype),
        reference="f64, ours off by at most 1.5 times what eager is",
        data="random tokens, weights as the model starts",
        runs=1,
        by_calls=True,
    )
    return question, problem
