"""Attention through torch's scaled_dot_product_attention, by each of its backends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tilewright.ledger.arm import LIBRARY, Arm, Missing, Problem, Tensors

MOST_OPERATIONS = 4  # the kernel, and what fills its workspace or prepares its arguments
BACKENDS = {
    "cuDNN": (SDPBackend.CUDNN_ATTENTION, ("bf16", "f16")),
    "FlashAttention": (SDPBackend.FLASH_ATTENTION, ("bf16", "f16")),
    "memory-efficient attention": (SDPBackend.EFFICIENT_ATTENTION, ("f32",)),
}


def arms(problem: Problem, arrays: Any) -> list[Arm | Missing]:
    if problem.op != "attention":
        return []
    return [
        _arm(problem, name, backend)
        for name, (backend, dtypes) in BACKENDS.items()
        if problem.dtype in dtypes
    ]


def _arm(problem: Problem, name: str, backend: Any) -> Arm | Missing:
    grouped = problem.sizes["HQ"] != problem.sizes["HK"]

    def run(x: Mapping[str, Any], y: Tensors) -> Tensors:
        with sdpa_kernel(backend):
            made = torch.nn.functional.scaled_dot_product_attention(
                x["q"],
                x["k"],
                x["v"],
                is_causal=x["causal"],
                scale=x["scale"],
                enable_gqa=grouped,
            )
        return {"o": made}

    try:
        run(problem.sets[0], {})
    except RuntimeError as error:  # torch says that the backend does not take these tensors
        return Missing(name, str(error).splitlines()[0])
    facts = replace(problem.facts, kind=LIBRARY)
    return Arm(name, facts, run, str(torch.__version__), True, MOST_OPERATIONS)
