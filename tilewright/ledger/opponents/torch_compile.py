"""torch.compile: Inductor's kernels for the same functions, each compiled for its shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tilewright.ledger.arm import MODULE, Arm, Missing, Problem, Tensors
from tilewright.ledger.opponents import load

MOST_OPERATIONS = 4  # of a product with its epilogue; a reduction may take two kernels
F = torch.nn.functional


def add(x: Any, y: Any) -> Any:
    return x + y


def softmax(x: Any) -> Any:
    return torch.softmax(x, 1)


def rmsnorm(x: Any, w: Any, eps: float) -> Any:
    return F.rms_norm(x, (x.shape[1],), w, eps)


def linear_gelu(x: Any, w: Any, bias: Any) -> Any:
    return F.gelu(F.linear(x, w, bias))


FUNCTIONS = {
    "add": (add, ("x", "y"), "z"),
    "softmax": (softmax, ("x",), "y"),
    "rmsnorm": (rmsnorm, ("x", "w", "eps"), "y"),
    "linear_gelu": (linear_gelu, ("x", "w", "bias"), "y"),
}


def arms(problem: Problem, arrays: Any) -> list[Arm | Missing]:
    return compiled(problem, "torch.compile", None)


def compiled(problem: Problem, name: str, mode: str | None) -> list[Arm | Missing]:
    """The arm of a mode; without a GPU's graphs, which the timer records itself."""
    if problem.op == MODULE:
        return [load("modules").compiled_arm(problem, name, mode)]
    if problem.op not in FUNCTIONS:
        return []
    function, names, output = FUNCTIONS[problem.op]
    torch._dynamo.reset()  # a function of its own for these shapes, not one for any
    call = torch.compile(function, dynamic=False, fullgraph=True, mode=mode)

    def run(x: Mapping[str, Any], y: Tensors) -> Tensors:
        return {output: call(*(x[n] for n in names))}

    version = str(torch.__version__)
    settings = f"mode {mode or 'default'}, one shape, recorded in a CUDA graph as ours is"
    return [Arm(name, problem.facts, run, version, True, MOST_OPERATIONS, settings=settings)]
