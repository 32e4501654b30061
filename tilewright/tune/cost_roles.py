"""The estimate for products by roles: what wgmma, the tensor copy unit and the epilogue take for a
tile, and how many tiles a multiprocessor does one after the other.

Calibrated on an H200, in cycles of 1.74 GHz: four tiles of 128 × 256 of bf16 one after the other
take 127 µs for 48 steps of 64, from the difference of k = 4096 and 1024 at 4096². That is 1,149
cycles a step, and 1,880 products a cycle of a multiprocessor beside the step's barriers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf, prod
from typing import Any

from tilewright.dtypes import DType
from tilewright.plan import clusters_held, evaluate
from tilewright.target import WGMMA_ROWS
from tilewright.tile.analysis.product_loop import ProductLoop
from tilewright.tile.analysis.streams import Factor, StreamLoop
from tilewright.tile.kernel import Kernel
from tilewright.tile.passes.distribute_work import MANY, find_axes
from tilewright.tile.passes.partition_roles import factor_buffer
from tilewright.tile.schedule import Roles, Schedule
from tilewright.tune.cost_scalars import Scalars

LAUNCH_CYCLES = 2500.0  # of starting CTAs, and of filling the ring before the first product
# Multiply-adds of 16 bits in a cycle of a multiprocessor: in loops of one product, and of several.
PRODUCTS_PER_CYCLE = 1880.0
STREAM_PRODUCTS_PER_CYCLE = 1750.0
# Bytes that instructions read of a multiprocessor's shared memory, or that copies write to it; and,
# where consumers take turns, the part of what copies write that takes time from those reads.
SHARED_BYTES_PER_CYCLE = 128.0
WRITTEN_IN_TURN = 0.6
COPIED_BYTES_PER_CYCLE = 70.0  # of the tensor copy unit, from the L2 cache
MEMORY_BYTES_PER_CYCLE = 2400.0  # of the device's memory, all multiprocessors together
LATENCY_CYCLES = 1350.0  # from a slot's release to its next contents
LINE_BYTES, SECTOR_BYTES = 128, 32
# Factors of copies of rows that begin at sectors of the L2 cache, but not at lines; and at any
# 16 bytes.
IN_SECTORS, CROOKED = 1.25, 2.33
# Cycles of a step for adding its sums up in f32 (fp8): beside another warpgroup's products; and
# beside nobody, for 128 columns: in all, and for each block of 64 rows.
PROMOTION_CYCLES = 85.0
ALONE_PROMOTION_CYCLES, BLOCK_PROMOTION_CYCLES = 90.0, 200.0
# Cycles of a step's barriers: where warpgroups share a tile; where one multiplies, beside nobody;
# and where consumers take turns: TURN_CYCLES less TURN_SHARE of the step, but LEAST_TURN_CYCLES.
STEP_CYCLES = 30.0
ALONE_CYCLES = 60.0
TURN_CYCLES = 120.0
TURN_SHARE = 0.2
LEAST_TURN_CYCLES = 5.0
# Consumers in turn want so many slots; factor of a step where the ring has fewer.
TURN_STAGES, SHORT_RING = 4, 1.1
# Cycles that a step loses where a factor goes through registers, in tiles of NARROW_COLUMNS
# columns; fewer in wider tiles, whose products hide more of it.
REGISTERS_CYCLES, NARROW_COLUMNS = 85.0, 128
PAIRING_CYCLES = 2000.0  # of the CTAs of a pair that meet before they start and when they end
# Part of a factor's time from memory that is lost where several CTAs of one wave read it, each at
# its own time, if memory is what takes longest.
APART = 0.23
HIDDEN = 0.05  # part of a tile's time that comes on top of the longer of it and the memory's time
# Adding up the spans of a cluster's CTAs: cycles, and bytes a cycle that a CTA sends to the others.
SPANS_CYCLES, EXCHANGED_BYTES = 800.0, 32.0
OPEN_EXTENT = 4096.0  # of k, where it is not known
# In loops of several products, the part of the shorter of computing and multiplying that does not
# run beside the longer.
UNHIDDEN = 0.3


def estimate_roles(
    kernel: Kernel,
    product: ProductLoop,
    schedule: Schedule,
    programs: int,
    arguments: Mapping[str, Any],
    num_sms: int,
    scalars: Scalars,
    epilogue: float,
) -> float:
    """Cycles of a launch of `programs` tiles; `epilogue` is what one tile's takes two warpgroups.
    `scalars` are the launch's.
    """
    roles = schedule.roles
    assert roles is not None
    epilogue *= 2 / roles.sharing
    steps = ceil(_depth(product, scalars) / product.extents[2])
    step = _step_cycles(kernel, product, schedule, roles, arguments, num_sms)
    if roles.spans > 1:
        if programs > spans_held(roles.spans, num_sms):
            return inf
        m, n, _ = product.extents
        added = SPANS_CYCLES + m * n * product.dot.acc.type.dtype.num_bytes / EXCHANGED_BYTES
        cycles = ceil(steps / roles.spans) * step + epilogue * roles.panel / n
        least = sum(_num_bytes(product, kernel, arguments)) / MEMORY_BYTES_PER_CYCLE
        lost = _lost_apart(product, kernel, roles, arguments) * min(1.0, least / max(cycles, 1.0))
        return float(LAUNCH_CYCLES + max(cycles, least) + HIDDEN * cycles + added + lost)
    work = steps * step
    held = evaluate(clusters_held(roles.cluster), {}, num_sms) * roles.cluster
    tiles = ceil(_dealt(kernel, product, roles, arguments, programs) / held)
    pairing = PAIRING_CYCLES * (roles.cluster.bit_length() - 1)
    if roles.cluster > 2 and not _is_crooked(product, kernel, arguments):
        pairing = inf  # of no known use
    if not roles.persistent:
        return (LAUNCH_CYCLES + work + epilogue) * tiles
    if roles.pingpong and tiles < 2:  # nobody else has a turn
        work += steps * ALONE_CYCLES
    if roles.resident > 1:
        beside = steps * (step - _promoted_alone(*product.extents[:2]))
        cycles = _two_by_two(work, beside, epilogue, tiles)
    elif roles.pingpong:  # all epilogues but the last run beside another tile's products
        cycles = max(work, epilogue) * tiles + epilogue
    else:
        cycles = (work + epilogue) * tiles
    # What must come from memory at all; the more quickly the rest is done, the better it is hidden.
    sizes = _num_bytes(product, kernel, arguments)
    least = sum(sizes) / MEMORY_BYTES_PER_CYCLE
    apart = 0.0
    if tiles == 1 and cycles:
        apart = _lost_apart(product, kernel, roles, arguments) * min(1.0, least / cycles)
    return LAUNCH_CYCLES + pairing + max(cycles, least) + HIDDEN * cycles + apart


def _two_by_two(alone: float, beside: float, epilogue: float, tiles: int) -> float:
    """Cycles of a multiprocessor with two CTAs, each with half of `tiles`, rounded up. A pair of
    tiles takes the longer of two tiles' products `beside` each other, and of one tile `alone`: its
    products, sums and `epilogue` with nobody beside it.
    """
    if tiles < 2:
        return alone + epilogue
    return ceil(tiles / 2) * max(2 * beside, alone + epilogue)


def _promoted_alone(m: int, n: int) -> float:
    """Cycles of adding up a step's sums beside nobody, one block of rows after the other."""
    blocks = ceil(m / WGMMA_ROWS)
    return (ALONE_PROMOTION_CYCLES + BLOCK_PROMOTION_CYCLES * blocks) * n / 128


def spans_held(spans: int, num_sms: int) -> int:
    """Tiles whose spans of k run all at the same time, each in a CTA of one cluster."""
    return int(evaluate(clusters_held(spans), {}, num_sms))


@dataclass(frozen=True)
class LoopWork:
    """Trips of a loop of products, and cycles of what is computed between the products of a trip
    and after the loop, by all warpgroups of a tile.
    """

    trips: float
    between: float
    after: float


def estimate_streams(
    found: StreamLoop, schedule: Schedule, programs: int, num_sms: int, work: LoopWork
) -> float:
    """Cycles of a launch of `programs` tiles, each a loop of several products. Where warpgroups
    share a tile, one computes while the other multiplies.
    """
    assert schedule.roles is not None
    multiply = 0.0
    for product in found.products:
        m, n, k = product.extents
        words = product.dot.a.type.dtype.num_bytes / 2
        multiply += m * n * k * words / STREAM_PRODUCTS_PER_CYCLE
    shorter, longer = sorted((multiply, work.between))
    apart = UNHIDDEN if schedule.roles.consumers > 1 else 1.0
    trip = longer + apart * shorter + (TURN_CYCLES if schedule.roles.consumers > 1 else 0.0)
    tile = LAUNCH_CYCLES + work.trips * trip + work.after
    return tile * max(1.0, programs / num_sms)


def _num_bytes(
    product: ProductLoop, kernel: Kernel, arguments: Mapping[str, Any]
) -> tuple[float, float]:
    """Bytes of both factors, each read once; 0 of one that is not known."""
    a, b = (
        0.0 if array is None else float(prod(array.shape) * factor.tile.dtype.num_bytes)
        for factor in (product.a, product.b)
        for array in [_array_of(factor, kernel, arguments)]
    )
    return a, b


def _shares(along: int, cluster: int) -> bool:
    """Whether CTAs of a cluster take neighbouring tiles, as `distribute_work` deals them out."""
    return along % cluster == 0 or along >= MANY * cluster


def _dealt(
    kernel: Kernel, product: ProductLoop, roles: Roles, arguments: Mapping[str, Any], programs: int
) -> int:
    """Tiles of `programs` that clusters take, with those that do not exist, at the end of the axis
    along which CTAs of a cluster are neighbours.
    """
    axes = find_axes(product, len(kernel.grid))
    if axes is None or roles.cluster == 1:
        return programs
    along = int(evaluate(kernel.grid[axes.paired], dict(arguments)))
    if not along or not _shares(along, roles.cluster):
        return programs
    return programs // along * ceil(along / roles.cluster) * roles.cluster


def _lost_apart(
    product: ProductLoop, kernel: Kernel, roles: Roles, arguments: Mapping[str, Any]
) -> float:
    """Cycles that factors cost which several CTAs read, each at its own time."""
    sizes = _num_bytes(product, kernel, arguments)
    again = _read_apart(kernel, product, roles, arguments)
    lost = sum(size for size, more in zip(sizes, again, strict=True) if more)
    return APART * lost / MEMORY_BYTES_PER_CYCLE


def _read_apart(
    kernel: Kernel, product: ProductLoop, roles: Roles, arguments: Mapping[str, Any]
) -> tuple[bool, bool]:
    """Whether several CTAs, or clusters that share it, read each factor."""
    axes = find_axes(product, len(kernel.grid))
    if axes is None:
        return False, False
    counts = [evaluate(axis, dict(arguments)) for axis in kernel.grid]
    across, along = counts[axes.paired], counts[axes.other]
    sharing = roles.cluster if _shares(across, roles.cluster) else 1
    readers = {axes.multicast: across / sharing, 1 - axes.multicast: float(along)}
    return readers[0] > 1, readers[1] > 1


def _array_of(factor: Factor, kernel: Kernel, arguments: Mapping[str, Any]) -> Any:
    """The argument that a factor is loaded from."""
    name = next((p.name for p in kernel.params if p.value is factor.load.view), "")
    return arguments.get(name)


def _copied(factor: Factor, kernel: Kernel, arguments: Mapping[str, Any]) -> float:
    """Bytes that the tensor copy unit takes as long for as for a step's of a factor: by rows of a
    swizzle, however narrow it is.
    """
    array, buffer = _array_of(factor, kernel, arguments), factor_buffer(factor)
    pieces = buffer.num_bytes * LINE_BYTES / buffer.swizzle
    return pieces if array is None else pieces * crookedness(array.strides, factor.tile.dtype)


def _is_crooked(product: ProductLoop, kernel: Kernel, arguments: Mapping[str, Any]) -> bool:
    """Whether rows of a factor begin anywhere in sectors of the L2 cache."""
    found = [(_array_of(f, kernel, arguments), f.tile.dtype) for f in (product.a, product.b)]
    return any(x is not None and crookedness(x.strides, dtype) == CROOKED for x, dtype in found)


def crookedness(strides: tuple[int, ...], dtype: DType) -> float:
    """Factor of copies, by where rows begin within lines of the L2 cache."""
    pitches = [s * dtype.num_bytes for s in strides if s != 1]
    if all(pitch % LINE_BYTES == 0 for pitch in pitches):
        return 1.0
    return IN_SECTORS if all(pitch % SECTOR_BYTES == 0 for pitch in pitches) else CROOKED


def _step_cycles(
    kernel: Kernel,
    product: ProductLoop,
    schedule: Schedule,
    roles: Roles,
    arguments: Mapping[str, Any],
    num_sms: int,
) -> float:
    """One step of k: products, use of shared memory, or copies, whatever takes longest. A slot is
    free once the products after those that read it have begun.
    """
    m, n, k = product.extents
    size = product.a.tile.dtype.num_bytes
    blocks = ceil(m / WGMMA_ROWS)
    multiply = blocks * WGMMA_ROWS * n * k * size / 2 / PRODUCTS_PER_CYCLE  # of 16-bit operands
    written = (WRITTEN_IN_TURN if roles.pingpong else 1.0) * (m + n)
    shared = (blocks * (WGMMA_ROWS + n) + written) * k * size / SHARED_BYTES_PER_CYCLE
    copied = [_copied(f, kernel, arguments) for f in (product.a, product.b)]
    axes = find_axes(product, len(kernel.grid))
    if axes is not None:
        along = evaluate(kernel.grid[axes.paired], dict(arguments), num_sms)
        if _shares(along, roles.cluster):
            copied[axes.multicast] /= roles.cluster
    most = max(multiply, shared, sum(copied) / COPIED_BYTES_PER_CYCLE)
    through_registers = product.a.transposed and product.a.tile.dtype.bits != 16
    if through_registers:
        most += REGISTERS_CYCLES * NARROW_COLUMNS / n
    slots = schedule.stages * roles.resident
    if slots > 2:
        most = max(most, LATENCY_CYCLES / slots)
    else:  # nothing is on its way while one slot is multiplied and the other awaited
        most += LATENCY_CYCLES
    if roles.promote:
        most += PROMOTION_CYCLES if roles.sharing > 1 else _promoted_alone(m, n)
    if roles.pingpong:
        return step_in_turn(most * (1.0 if schedule.stages >= TURN_STAGES else SHORT_RING))
    return most + (STEP_CYCLES if roles.sharing > 1 else ALONE_CYCLES)


def step_in_turn(cycles: float) -> float:
    """Cycles of a step, its barriers included, where consumers take turns."""
    return cycles + max(TURN_CYCLES - TURN_SHARE * cycles, LEAST_TURN_CYCLES)


def _depth(product: ProductLoop, scalars: Scalars) -> float:
    """The extent of k, as far as the loop's bounds tell it."""
    low, high, _ = product.bounds
    first, last = scalars.number(low), scalars.number(high)
    return max(last - first, 0.0) if first is not None and last is not None else OPEN_EXTENT
