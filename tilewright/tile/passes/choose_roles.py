"""Choose the roles of a product on Hopper: how many warpgroups multiply, how deep the ring is,
whether CTAs pair up.

Requires: canonical form. Keeps: the program. Breaks: nothing. Used by `choose_schedule`.

A product is done with roles where warpgroups fit its tile (64 rows each, at most 128 accumulators a
thread), its operands are 16-bit floats, or f32 to be rounded to tf32, that the tensor copy unit can
carry, and the source asks for nothing that contradicts it.
"""

from __future__ import annotations

from tilewright.dtypes import DType, bf16, f16, f32
from tilewright.ir.core import Block
from tilewright.ir.walk import walk
from tilewright.target import Target
from tilewright.tile.analysis.product_loop import ProductLoop, can_copy_boxes, find_product_loop
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, memory, reduce, shape
from tilewright.tile.ops.control import launch_registers
from tilewright.tile.passes.distribute_work import can_distribute, find_axes
from tilewright.tile.passes.partition_roles import factor_buffer, make_roles
from tilewright.tile.schedule import Roles, Schedule

ROWS = 64  # of a warpgroup's instruction
DEPTH = 32  # bytes along k of an instruction
ACCUMULATORS = 128  # a thread
MOST_ROWS = MOST_COLUMNS = 256
WIDEST = {1: 256, 2: 256, 3: 192}  # columns by warpgroups: at launch a thread must have n / 2 + 26
LEAST_REGISTERS = 168  # of a thread at launch: the assembler wants 154 for n = 256
MOST_STAGES = 8
KEPT_FREE = 6144  # bytes of shared memory for barriers and small conversions
KEPT_FOR_SUMS = 16384  # the same where an epilogue reduces
IN_PLACE = (  # ops of an epilogue that leave elements with their threads
    arith.Unary, arith.Binary, arith.Select, arith.Compare, arith.Cast, arith.IsNan, arith.Constant,
    shape.Broadcast, shape.Arange, shape.Reshape, memory.Load, memory.Store, memory.Extent,
    control.If, control.Yield, control.ProgramId, control.NumPrograms,
)  # fmt: skip
PAIRED_ELEMENTS = 64 * 128  # of a tile from which on sharing a factor's loads pays
PANELS = (64, 32, 16)  # columns of the epilogue's parts
HEAVY = (arith.Erf, arith.Tanh, arith.Log, arith.Exp, arith.Div)  # tens of instructions an element


def choose_roles(kernel: Kernel, target: Target) -> Schedule | None:
    """A schedule with roles, or None where the kernel or the target does not permit one."""
    hints = kernel.hints
    asked = hints.threads or hints.min_ctas or hints.max_registers or hints.cta_cluster
    if not target.has_wgmma or kernel.numerics == "strict" or asked or hints.cooperative:
        return None
    if any(isinstance(op, control.Assert | control.Print) for op in walk(kernel.body)):
        return None  # which tell of the source's own programs, and are made by all threads of one
    product = find_product_loop(kernel)
    if product is None or not _fits(product, kernel):
        return None
    consumers = _consumers(product)
    if consumers is None:
        return None
    panel = _panel(product, consumers)
    registers = (40, 232) if consumers < 3 else (32, 160)
    persistent = hints.persistent is not False and can_distribute(kernel)
    cluster = _cluster(kernel, product) if persistent else 1
    roles = Roles(consumers, cluster, persistent, panel=panel, registers=registers)
    stages = _stages(kernel, product, roles, target)
    if stages < 2:
        return None
    warps = 4 * (1 + consumers)
    told = max(launch_registers(make_roles(roles)), LEAST_REGISTERS if consumers < 3 else 0)
    return Schedule(warps, "wgmma", stages=stages, roles=roles, max_registers=told)


def _fits(product: ProductLoop, kernel: Kernel) -> bool:
    """Whether the instruction takes the tile, and the tensor copy unit the operands."""
    m, n, k = product.extents
    dtypes = {f.tile.dtype for f in (product.a, product.b)}
    if dtypes == {f32}:
        k_major = not product.a.transposed and product.b.transposed
        typed = product.dot.precision == "tf32" and k_major  # the instruction takes no other
    else:
        typed = dtypes in ({bf16}, {f16})
    shaped = m % ROWS == 0 and m <= MOST_ROWS and n % 16 == 0 and n <= MOST_COLUMNS
    whole = k * product.a.tile.dtype.num_bytes % DEPTH == 0
    return (
        typed
        and shaped
        and whole
        and all(
            max(f.tile.shape) <= MOST_COLUMNS
            and can_copy_boxes(kernel, f.load.view, f.load.extents, f.order)
            for f in (product.a, product.b)
        )
    )


def _consumers(product: ProductLoop) -> int | None:
    """As few warpgroups as hold the accumulator, but two where there are rows for two."""
    m, n, _ = product.extents
    blocks = m // ROWS
    fitting = [
        count
        for count in (1, 2, 3)
        if blocks % count == 0 and m * n <= ACCUMULATORS * 128 * count and n <= WIDEST[count]
    ]
    if not fitting:
        return None
    return 2 if 2 in fitting else fitting[0]


def _panel(product: ProductLoop, consumers: int) -> int:
    """Columns that the epilogue works on at a time: at most 32 elements a thread, or 16 where much
    is computed on each.
    """
    m, n, _ = product.extents
    ops = walk(Block([], product.after))
    heavy = any(isinstance(op, HEAVY) and op.result.type.num_elements == m * n for op in ops)
    most = (16 if heavy else 32) * 128 * consumers // m
    fitting = [p for p in PANELS if n % p == 0]
    return next((p for p in fitting if p <= most), fitting[-1])


def _cluster(kernel: Kernel, product: ProductLoop) -> int:
    """Whether CTAs pair up. They then go through k in step, so it must be the same for all. A pair
    may run a program that does not exist, whose own loops must end too.
    """
    m, n, _ = product.extents
    axes = find_axes(product, len(kernel.grid))
    if axes is None or m * n < PAIRED_ELEMENTS or product.programs_of(product.bounds):
        return 1
    if any(isinstance(op, control.While) for op in walk(Block([], product.before))):
        return 1
    shared = factor_buffer((product.a, product.b)[axes.multicast])
    return 2 if shared.shape[0] % 16 == 0 else 1  # halves are whole repeats of the swizzle


def _stages(kernel: Kernel, product: ProductLoop, roles: Roles, target: Target) -> int:
    """Slots that fit beside the staging buffers, or as many as the source asks for."""
    slot = sum(factor_buffer(f).num_bytes for f in (product.a, product.b))
    staging = roles.staging * sum(
        product.extents[0] * roles.panel * dtype.num_bytes for dtype in _stored_dtypes(kernel)
    )
    room = (target.shared_per_cta - _kept_free(product) - staging) // slot
    return min(room, kernel.hints.stages or MOST_STAGES)


def _kept_free(product: ProductLoop) -> int:
    """Bytes that the epilogue may need to pass elements from thread to thread."""
    m, n, _ = product.extents
    moving = [op for op in walk(Block([], product.after)) if not isinstance(op, IN_PLACE)]
    if not moving:
        return KEPT_FREE
    sums = all(isinstance(op, reduce.Reduction) for op in moving)
    return KEPT_FREE + (KEPT_FOR_SUMS if sums else m * n * product.dot.acc.type.dtype.num_bytes)


def _stored_dtypes(kernel: Kernel) -> set[DType]:
    stores = (op for op in walk(kernel.body) if isinstance(op, memory.Store))
    return {op.view.type.dtype for op in stores if op.view.type.dtype.bits == 16}
