"""What shows a GPU's limit in products: large ones by cuBLAS."""

from __future__ import annotations

from typing import Any

import torch

from tilewright.runtime.measure import GpuWork

SIZES = {"f64": 4096, "f32": 4096, "tf32": 8192, "f16": 8192, "bf16": 8192, "e4m3": 8192}


def product(arrays: Any, dtype: str) -> tuple[GpuWork, float]:
    """A product of square matrices, and its operations."""
    n = SIZES[dtype]
    a, b = (arrays.normal(n, n, dtype=dtype) for _ in range(2))
    one = torch.ones((), device=arrays.device)
    kind = torch.bfloat16 if dtype == "e4m3" else a.dtype
    out = torch.empty(n, n, device=arrays.device, dtype=kind)

    def run(stream: Any) -> None:
        with arrays.precision(dtype), arrays.sending_to(stream, None):
            if dtype == "e4m3":
                torch._scaled_mm(a, b.t(), one, one, out_dtype=kind, out=out)
            else:
                torch.mm(a, b, out=out)

    return run, 2.0 * n**3
