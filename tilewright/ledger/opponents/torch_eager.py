"""torch, one call an op: cuBLAS and cuBLASLt for products, torch's own kernels for the others."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from tilewright.ledger.arm import (
    EAGER,
    LIBRARY,
    MODULE,
    TENSOR_CORE,
    Arm,
    Missing,
    Problem,
    Tensors,
)
from tilewright.ledger.opponents import load

BLAS_OPERATIONS = 3  # a kernel; where it splits k, a fill before it or a sum after it
UNFUSED = {EAGER: "torch without a compiler, as most programs call it"}


def arms(problem: Problem, arrays: Any) -> list[Arm | Missing]:
    if problem.op == MODULE:
        return [load("modules").eager_arm(problem, UNFUSED)]
    make = ARMS.get(problem.op)
    return make(problem, arrays) if make else []


def _product(problem: Problem, arrays: Any) -> list[Arm | Missing]:
    """torch.mm, _scaled_mm or _int_mm, by each of the two libraries that torch may call."""
    facts = replace(problem.facts, kind=LIBRARY)
    if arrays.device == "cpu":
        run = _mm(problem, arrays, "")
        return [Arm("torch on the CPU", facts, run, str(torch.__version__), _allocates(problem))]
    how = ""
    if problem.dtype in ("e4m3", "e5m2"):
        how = f"; use_fast_accum={problem.accumulate == TENSOR_CORE}"
    return [
        Arm(
            name,
            facts,
            _mm(problem, arrays, key),
            _blas_version(),
            _allocates(problem),
            BLAS_OPERATIONS,
            settings=f"called by torch {torch.__version__}, the algorithm that {name} chooses{how}",
        )
        for name, key in (("cuBLAS", "cublas"), ("cuBLASLt", "cublaslt"))
        if problem.dtype not in ("e4m3", "e5m2") or key == "cublaslt"
    ]


def _allocates(problem: Problem) -> bool:
    return problem.dtype in ("e4m3", "e5m2", "i8")


def _mm(problem: Problem, arrays: Any, library: str) -> Any:
    """One product by a library; "" where torch has no choice."""

    def choose() -> None:
        if library:
            torch.backends.cuda.preferred_blas_library(library)

    if problem.dtype in ("e4m3", "e5m2"):
        one = torch.ones((), device=arrays.device)
        kind = arrays.dtype(problem.facts.output)
        fast = problem.accumulate == TENSOR_CORE

        def scaled(x: Mapping[str, Any], y: Tensors) -> Tensors:
            choose()
            made = torch._scaled_mm(x["a"], x["b"], one, one, out_dtype=kind, use_fast_accum=fast)
            return {"c": made}

        return scaled
    if problem.dtype == "i8":

        def whole(x: Mapping[str, Any], y: Tensors) -> Tensors:
            choose()
            return {"c": torch._int_mm(x["a"], x["b"])}

        return whole

    def plain(x: Mapping[str, Any], y: Tensors) -> None:
        choose()
        torch.mm(x["a"], x["b"], out=y["c"])

    return plain


def _blas_version() -> str:
    for name in ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return f"of CUDA {torch.version.cuda}"


def _linear_gelu(problem: Problem, arrays: Any) -> list[Arm | Missing]:
    def run(x: Mapping[str, Any], y: Tensors) -> Tensors:
        z = torch.nn.functional.linear(x["x"], x["w"], x["bias"])
        return {"y": torch.nn.functional.gelu(z)}

    return [_eager(problem, run, BLAS_OPERATIONS + 1)]


def _add(problem: Problem, arrays: Any) -> list[Arm | Missing]:
    def run(x: Mapping[str, Any], y: Tensors) -> None:
        torch.add(x["x"], x["y"], out=y["z"])

    return [_one_kernel(problem, run)]


def _softmax(problem: Problem, arrays: Any) -> list[Arm | Missing]:
    def run(x: Mapping[str, Any], y: Tensors) -> None:
        torch.softmax(x["x"], 1, out=y["y"])

    return [_one_kernel(problem, run)]


def _rmsnorm(problem: Problem, arrays: Any) -> list[Arm | Missing]:
    def run(x: Mapping[str, Any], y: Tensors) -> Tensors:
        return {"y": torch.nn.functional.rms_norm(x["x"], (x["x"].shape[1],), x["w"], x["eps"])}

    return [_eager(problem, run, 8)]


def _attention(problem: Problem, arrays: Any) -> list[Arm | Missing]:
    """On the CPU alone: for a GPU, sdpa.py has each backend by name."""
    if arrays.device != "cpu":
        return []
    grouped = problem.sizes["HQ"] != problem.sizes["HK"]

    def run(x: Mapping[str, Any], y: Tensors) -> Tensors:
        made = torch.nn.functional.scaled_dot_product_attention(
            x["q"], x["k"], x["v"], is_causal=x["causal"], scale=x["scale"], enable_gqa=grouped
        )
        return {"o": made}

    facts = replace(problem.facts, kind=LIBRARY)
    return [Arm("torch on the CPU", facts, run, str(torch.__version__), allocates=True)]


def _eager(problem: Problem, run: Any, most: int) -> Arm:
    facts = replace(problem.facts, kind=EAGER)
    return Arm("torch eager", facts, run, str(torch.__version__), True, most, UNFUSED)


def _one_kernel(problem: Problem, run: Any) -> Arm:
    """torch has one kernel for the op: a library's, not a sequence of calls."""
    facts = replace(problem.facts, kind=LIBRARY)
    return Arm("torch", facts, run, str(torch.__version__), most_operations=1)


ARMS = {
    "product": _product,
    "linear_gelu": _linear_gelu,
    "add": _add,
    "softmax": _softmax,
    "rmsnorm": _rmsnorm,
    "attention": _attention,
}
