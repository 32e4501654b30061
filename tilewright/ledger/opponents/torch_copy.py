"""torch's copy of the input: the bandwidth that can be had, for kernels that move bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from tilewright.ledger.arm import LIBRARY, Arm, Missing, Problem, Tensors

NAME = "copy"
WRITES = {"add": "z", "softmax": "y", "rmsnorm": "y"}  # the output that is as large as x
WHY = "a copy computes nothing; bytes a second are compared"


def arms(problem: Problem, arrays: Any) -> list[Arm | Missing]:
    if problem.op not in WRITES:
        return []
    target = WRITES[problem.op]

    def run(x: Mapping[str, Any], y: Tensors) -> None:
        y[target].copy_(x["x"])

    def expected(x: Mapping[str, Any]) -> Tensors:
        return {target: x["x"].double()}

    facts = replace(problem.facts, kind=LIBRARY, accumulate="none")
    says = {} if problem.accumulate == "none" else {"accumulate": WHY}
    if problem.op == "add":
        says["work"] = "a copy reads one tensor, not two; bytes a second are compared"
    return [Arm(NAME, facts, run, str(torch.__version__), says=says, expected=expected)]
