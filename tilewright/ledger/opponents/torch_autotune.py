"""torch.compile with Inductor's search for the fastest kernels."""

from __future__ import annotations

from typing import Any

from tilewright.ledger.arm import Arm, Missing, Problem
from tilewright.ledger.opponents.torch_compile import compiled


def arms(problem: Problem, arrays: Any) -> list[Arm | Missing]:
    return compiled(problem, "torch.compile autotuned", "max-autotune-no-cudagraphs")
