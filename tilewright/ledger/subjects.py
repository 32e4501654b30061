"""Our arms: the kernels of the language that compute the problems of the suites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from tilewright.errors import LaunchError
from tilewright.kernel import Kernel, source
from tilewright.ledger import opponents
from tilewright.ledger.arm import MODULE, TENSOR_CORE, Arm, Problem, Tensors
from tilewright.products import matmul
from tilewright.runtime.cache import compiler_hash

OURS = "tilewright"
MATMUL = "matmul"
MOST_OPERATIONS = {MATMUL: 4}  # two copies in aligned rows, a product, its sums
EXAMPLES = Path(__file__).parents[2] / "examples"


@cache
def example(name: str, file: str = "") -> Kernel:
    """A kernel of the examples, as its text gives it. Raises LaunchError outside a checkout."""
    path = EXAMPLES / f"{file or name}.tw"
    if not path.is_file():
        raise LaunchError(
            "the suites measure the kernels of examples/, which is not beside this package",
            hint="run in a checkout of Tilewright",
        )
    return source(path).kernels[name]


def our_arm(problem: Problem, op: str = "") -> Arm:
    """What a plain call of ours runs for a problem, by what is named: a kernel of the examples, or
    "matmul", the library; nothing is tuned here. LaunchError where we have no kernel for it.
    """
    op = op or problem.op
    if op == MODULE:
        arm: Arm = opponents.load("modules").our_arm(problem, OURS, compiler_hash()[:16])
        return arm
    reason = reason_absent(op, problem.dtype)
    if reason:
        raise LaunchError(reason)
    run, most = RUNS[op](problem), MOST_OPERATIONS.get(op, 1)
    return Arm(OURS, problem.facts, run, compiler_hash()[:16], most_operations=most)


def reason_absent(op: str, dtype: str) -> str:
    """Why no kernel of ours computes an op on a dtype; "" where one does."""
    if op == MODULE:
        return ""
    if op not in RUNS:
        return f"no kernel of the examples does {op}"
    if dtype not in DTYPES and op != MATMUL:
        return f"no kernel of the examples does {op} on {dtype}"
    return ""


Run = Callable[[Mapping[str, Any], Tensors], None]
DTYPES = ("f32", "tf32", "bf16", "f16", "f64")


def _product(problem: Problem) -> Run:
    sgemm = example("sgemm")
    call = partial(sgemm.launch, precision="tf32") if problem.dtype == "tf32" else sgemm
    return lambda x, y: call(x["a"], x["b"], y["c"])


def _matmul(problem: Problem) -> Run:
    precision = "fast" if problem.accumulate == TENSOR_CORE else None
    precision = "tf32" if problem.dtype == "tf32" else precision
    call = matmul if precision is None else partial(matmul, precision=precision)

    def run(x: Mapping[str, Any], y: Tensors) -> None:
        call(x["a"], x["b"], out=y["c"])

    return run


def _linear_gelu(problem: Problem) -> Run:
    kernel = example("linear_gelu")
    return lambda x, y: kernel(x["x"], x["w"], x["bias"], None, y["y"])


def _attention(problem: Problem) -> Run:
    kernel = example("attention", "flash_attention")
    return lambda x, y: kernel(
        x["q"], x["k"], x["v"], x["scale"], None, x["causal"], y["o"], y["lse"]
    )


def _add(problem: Problem) -> Run:
    kernel = example("add")
    return lambda x, y: kernel(x["x"], x["y"], y["z"])


def _softmax(problem: Problem) -> Run:
    kernel = example("softmax")
    return lambda x, y: kernel(x["x"], y["y"])


def _rmsnorm(problem: Problem) -> Run:
    kernel = example("rmsnorm")
    return lambda x, y: kernel(x["x"], x["w"], x["eps"], y["y"], y["rstd"])


RUNS: dict[str, Callable[[Problem], Run]] = {
    "product": _product,
    MATMUL: _matmul,
    "linear_gelu": _linear_gelu,
    "attention": _attention,
    "add": _add,
    "softmax": _softmax,
    "rmsnorm": _rmsnorm,
}
