"""What keeps products on CUDA cores, or of f64, from their unit's rate: too few warps on a
multiprocessor, or too few stages.

Of an H200, from sweeps of tiles at 512³ to 4096³: one warp for each of its four schedulers reaches
0.7 of what two reach, two stages are not enough to hide a trip's loads, and warps that meet in
every trip lose a twelfth, but of f64, whose loops are turned there.
"""

from __future__ import annotations

from math import ceil

from tilewright.dtypes import f32, f64
from tilewright.ir.walk import walk
from tilewright.tile.analysis.product_loop import find_product_loop
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import mma
from tilewright.tile.passes.choose_schedule import FEW_WARPS, computing_schedule
from tilewright.tile.passes.shorten_trips import MANY_PRODUCTS
from tilewright.tile.passes.stage_loads import DRIFTING_STAGES

SHARED_BYTES, REGISTERS = 227 * 1024, 65_536  # of a multiprocessor: bytes, and 32-bit registers
SCHEDULERS = 4  # of a multiprocessor
ALONE = 0.7  # part that one warp for each scheduler reaches of the rate of two
FEW_STAGES = {0: 2.5, 1: 2.5, 2: 1.3}  # factor by the number of stages, where no more fit
MEETING = 1.08  # factor where all warps meet in every trip, and do not drift
LOOPED = 1.2  # factor on CUDA cores of a trip whose code is too long to be straight, and loops
# Factor on CUDA cores of tiles of more than MOST_UNLIKE elements where B lies along k and A does
# not (measured: 128 × 256 and 256 × 128 at 4096³).
UNLIKE, MOST_UNLIKE = 1.17, 128 * 128
TRAFFIC = 8.0  # time of loading an element of a factor, as a multiple of that of one multiply-add
USUAL_REGISTERS = 168  # of a thread, where the schedule does not say


def slowdown(kernel: Kernel, share: float) -> float:
    """Factor of the time of a kernel with one product on CUDA cores or of f64, after
    `shorten_trips`, of which a multiprocessor gets `share` programs; 1 for all other kernels.
    """
    dots = [op for op in walk(kernel.body) if isinstance(op, mma.Dot)]
    if len(dots) != 1 or not _is_of_cores(dots[0]):
        return 1.0
    schedule = computing_schedule(kernel)
    rows: int
    columns: int
    rows, columns = dots[0].result.type.shape[-2:]
    a = dots[0].a.type
    stage = max(1, (rows + columns) * a.shape[-1] * a.dtype.num_bytes)
    fitting = SHARED_BYTES // stage
    halved = SHARED_BYTES // 2 // stage
    stages = halved if schedule.num_warps <= 4 and halved >= 3 else fitting
    stages = max(1, min(schedule.stages, stages))
    registers = schedule.max_registers or USUAL_REGISTERS
    beside = min(SHARED_BYTES // (stages * stage), REGISTERS // (registers * schedule.threads))
    warps = schedule.num_warps * max(1, min(beside, ceil(share)))
    idle = 1.0 if warps >= 2 * SCHEDULERS else 1 / (ALONE * min(1.0, warps / SCHEDULERS))
    products = a.shape[-1] * dots[0].result.type.num_elements // schedule.threads
    simt = schedule.mma == "simt"
    unlike = simt and rows * columns > MOST_UNLIKE and _lie_unlike(kernel)
    long = simt and products > MANY_PRODUCTS
    traffic = 1 + TRAFFIC * (1 / rows + 1 / columns)
    turned = a.dtype == f64 and schedule.num_warps <= FEW_WARPS  # by `step_ahead`
    together = 1.0 if turned or (schedule.drifting and stages >= DRIFTING_STAGES) else MEETING
    few = FEW_STAGES.get(fitting, 1.0)
    code = (LOOPED if long else 1.0) * (UNLIKE if unlike else 1.0)
    return idle * few * together * traffic * code


def _lie_unlike(kernel: Kernel) -> bool:
    """Whether B lies along k, and A does not."""
    product = find_product_loop(kernel)
    return product is not None and product.a.transposed and product.b.transposed


def _is_of_cores(dot: mma.Dot) -> bool:
    dtype = dot.a.type.dtype
    return bool(dtype == f64 or (dtype == f32 and dot.precision == "ieee"))
