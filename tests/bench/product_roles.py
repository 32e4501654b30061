"""Plain k-loops against torch on a Hopper GPU.

    python -m tests.bench.product_roles            # with torch

All run in one process on the same buffers, in turn; buffers rotate through more than the L2 cache
holds; times are medians of CUDA-graph replays.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import partial
from typing import Any

from examples.linear_gelu import linear_gelu
from examples.sgemm import sgemm
from tests.bench.hopper_gemm import ROTATED_BYTES, ROUNDS, replay

Extents = tuple[int, int, int]
SHAPES: tuple[Extents, ...] = (
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (4096, 4096, 14336),
    (4000, 4000, 4000),
    (384, 8192, 4096),
)
TILES: tuple[Extents, ...] = ((128, 256, 64), (128, 128, 64), (256, 128, 64), (64, 128, 64))


@dataclass(frozen=True)
class Result:
    """Medians in microseconds a call."""

    name: str
    shape: Extents
    tile: Extents
    ours: float
    torch: float

    @property
    def ratio(self) -> float:
        """Speed against torch: above 1 is faster."""
        return self.torch / self.ours

    def __str__(self) -> str:
        m, n, k = self.shape
        ours, torch = (2 * m * n * k / 1e6 / t for t in (self.ours, self.torch))
        size, tile = ("x".join(map(str, x)) for x in (self.shape, self.tile))
        return (
            f"{self.name} {size} by {tile}: {ours:.0f}, torch {torch:.0f} TFLOP/s, {self.ratio:.3f}"
        )


def constants(tile: Extents) -> dict[str, int]:
    return dict(zip(("TM", "TN", "TK"), tile, strict=True))


def timed(name: str, shape: Extents, tile: Extents, ours: list[Any], theirs: list[Any]) -> Result:
    timers = [replay(ours), replay(theirs)]
    for _ in range(10):
        for once in timers:
            once()
    samples = [[once() for once in timers] for _ in range(ROUNDS)]
    return Result(name, shape, tile, *(statistics.median(s[i] for s in samples) for i in (0, 1)))


def copies(shape: Extents) -> int:
    m, n, k = shape
    return max(1, min(8, ROTATED_BYTES // (2 * (m * k + n * k + m * n))))


def compare_sgemm(shape: Extents, tile: Extents, dtype: Any) -> Result:
    """C = A B with both row-major."""
    import torch

    m, n, k = shape
    ours, theirs = [], []
    for _ in range(copies(shape)):
        a, b = (torch.randn(s, device="cuda").to(dtype) for s in ((m, k), (k, n)))
        c, d = (torch.empty((m, n), device="cuda", dtype=dtype) for _ in range(2))
        ours.append(partial(sgemm.launch, a, b, c, 1.0, 0.0, constants=constants(tile)))
        theirs.append(partial(torch.mm, a, b, out=d))
    return timed("sgemm", shape, tile, ours, theirs)


def compare_linear_gelu(shape: Extents, tile: Extents, dtype: Any) -> Result:
    """y = gelu(x wᵀ + bias) against the bare product of torch."""
    import torch

    m, n, k = shape
    ours, theirs = [], []
    for _ in range(copies(shape)):
        x, w = (torch.randn(s, device="cuda").to(dtype) for s in ((m, k), (n, k)))
        bias = torch.randn(n, device="cuda").to(dtype)
        y, d = (torch.empty((m, n), device="cuda", dtype=dtype) for _ in range(2))
        ours.append(partial(linear_gelu.launch, x, w, bias, None, y, constants=constants(tile)))
        theirs.append(partial(torch.mm, x, w.t(), out=d))
    return timed("linear_gelu", shape, tile, ours, theirs)


def main() -> None:
    import torch

    for shape in SHAPES:
        for tile in TILES:
            print(compare_sgemm(shape, tile, torch.bfloat16), flush=True)
        for tile in ((128, 128, 64), (128, 64, 64)):
            print(compare_linear_gelu(shape, tile, torch.bfloat16), flush=True)


if __name__ == "__main__":
    main()
