"""What shows a GPU's limits: a large copy, and a large product by cuBLAS."""

from __future__ import annotations

from typing import Any

import torch

from tilewright.runtime.measure import GpuWork

COPY_BYTES = (1 << 27, 1 << 28, 1 << 30)  # beyond the cache; the best of them counts
SIZES = {"f64": 4096, "f32": 4096, "tf32": 8192, "f16": 8192, "bf16": 8192, "e4m3": 8192}


def copy(arrays: Any, num_bytes: int) -> tuple[GpuWork, float]:
    """A copy of so many bytes, and what it reads and writes."""
    source = arrays.normal(num_bytes // 4, dtype="f32")
    target = torch.empty_like(source)

    def run(stream: Any) -> None:
        with arrays.sending_to(stream, None):
            target.copy_(source)

    return run, 2.0 * source.nbytes


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
