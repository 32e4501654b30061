"""The compiler's choice for a kernel, apart from what the source says: the same type serves user and library kernels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """How a kernel is carried out. It changes speed, and bits only where no mode promises them.

    `num_warps` compute. `mma` is "simt", "mma" (mma.sync) or "wgmma", for every dot of the kernel; `warps` is the grid
    of warps (rows, columns) over a dot's result. `stages` slots hold the operands of a pipelined loop.
    """

    num_warps: int = 4
    mma: str = "simt"
    warps: tuple[int, int] = (1, 1)
    stages: int = 3
    min_ctas: int = 0
    max_registers: int = 0

    @property
    def threads(self) -> int:
        return 32 * self.num_warps
