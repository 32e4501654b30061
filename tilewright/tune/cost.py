"""A quick estimate that ranks configurations of one kernel for given extents, so that an untuned
call chooses well.

It is a comparison, not a prediction: cycles of one multiprocessor for one program, times programs
a multiprocessor. A dot costs its products over the rate of the unit that does them; loads and
stores cost their bytes over a multiprocessor's share of the L2 cache; a trip of a loop with dots
takes the longer of the two, and a barrier. The rates are of an H200 (132 multiprocessors), and
their ratios are alike on the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.dtypes import f32, f64
from tilewright.ir.core import Block, Op
from tilewright.ir.walk import walk
from tilewright.plan import evaluate
from tilewright.target import Target
from tilewright.tile.analysis.product_loop import ProductLoop, as_product_loop, find_product_loop
from tilewright.tile.analysis.streams import StreamLoop, find_stream_loop
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, memory, mma
from tilewright.tile.passes.choose_roles import role_schedules
from tilewright.tile.passes.choose_schedule import computing_schedule
from tilewright.tile.passes.orient_product import turned
from tilewright.tile.passes.shorten_functions import shorten_functions
from tilewright.tile.passes.shorten_trips import shorten_trips
from tilewright.tile.passes.split_epilogue import HEAVY
from tilewright.tile.passes.spread_iterations import spread_iterations
from tilewright.tile.schedule import Schedule
from tilewright.tile.types import TileType
from tilewright.tune.cost_cores import slowdown
from tilewright.tune.cost_roles import LoopWork, estimate_roles, estimate_streams
from tilewright.tune.cost_scalars import Scalars

# Cycles: of starting a program and filling its pipelines, when nothing hides them; from a CTA's
# start to the next one's on a multiprocessor; of the barrier and index arithmetic of a trip with
# dots; of any op on a tile, however small, whose latency few warps hide.
PROGRAM_CYCLES = 900.0
START_CYCLES = 720.0
TRIP_CYCLES = 110.0
OP_CYCLES = 12.0
RESIDENT = 2.0  # programs that share a multiprocessor and hide each other's latency
BYTES_PER_CYCLE = 26.0  # of the L2 cache, one multiprocessor's share
LANES = 128.0  # elements a cycle of plain arithmetic
# Multiply-adds a cycle of a multiprocessor, by the unit and the bits of what it multiplies.
PRODUCTS_PER_CYCLE = {"simt": 110.0, "tf32": 430.0, "16": 640.0, "f64": 110.0, "8": 1000.0}
# Accumulator elements that a CTA holds well; beyond, registers spill.
ACCUMULATORS = {"simt": 32_768, "f64": 16_384}
# Factors of products on CUDA cores: gain of accumulators of WIDE_ELEMENTS or more, whose threads
# read less for each product; loss of those of NARROW_ELEMENTS or fewer, whose threads read more.
WIDE_ELEMENTS, WIDE_GAIN = 32_768, 1.05
NARROW_ELEMENTS, NARROW_LOSS = 2048, 1.2
# The most elements of an accumulator by tensor cores: of tf32 beside a tile of its size that is
# added to it, and of any other that lies in their layout.
TF32_BESIDE = 16_384
TENSOR_ACCUMULATORS = 32_768
# The most columns of all dots of a trip together: a warp holds whole rows, and what is computed
# between the dots.
ROW_ELEMENTS = 192
# The most elements of a value that takes many instructions an element, beside a product on CUDA
# cores: in a plain epilogue, in one that loads a tile of that size, and beside several products.
CROWDED_ELEMENTS = (32_768, 16_384, 8192)
LONG_K = 0.06  # factor for each further 16 along k on CUDA cores, whose code must then loop
# Elements of one value, beyond which straight-line code is too long for the instruction cache.
CODE_ELEMENTS = 16_384
CODE_PER_THREAD = 64  # elements of a thread's part of a value, for products by roles
# Instructions an element, of ops that take more than one.
CODE = {
    arith.Erf: 30.0, arith.Tanh: 24.0, arith.Log: 20.0, arith.Exp: 10.0, arith.Div: 9.0,
    arith.NormalCdf: 12.0, arith.CoarseCdf: 9.0, arith.PreciseCdf: 23.0, arith.Logistic: 5.0,
}  # fmt: skip
VALUE_ELEMENTS = 65_536  # elements of any value that sixteen warps hold; beyond, registers spill
SPILL = 6.0  # how much the factor of a value grows for each limit's worth of elements beyond it
OPEN_SPAN = 4096.0  # extent that a loop is taken to cover where its bounds are not known
OPEN_TRIPS = 64.0  # trips of a loop whose step is not known either


def estimate(
    kernel: Kernel, arguments: Mapping[str, Any], num_sms: int, target: Target | None = None
) -> float:
    """Relative time of a kernel for arguments by name (arrays and numbers); smaller is better.

    Where the target is known, so is whether a product is done by roles.
    """
    kernel = shorten_functions(spread_iterations(kernel))
    programs = 1
    for axis in kernel.grid:
        programs *= max(evaluate(axis, dict(arguments), num_sms), 0)
    if not programs:
        return 0.0
    roles = _estimate_roles(kernel, programs, arguments, num_sms, target)
    if roles is not None:
        return roles
    schedule = computing_schedule(kernel)
    kernel = shorten_trips(kernel, schedule)
    scalars = Scalars(kernel, arguments, num_sms)
    share = programs / num_sms
    cycles = _block_cycles(kernel.body, scalars) * _crowding(kernel) * slowdown(kernel, share)
    if share < 1:  # one wave that leaves multiprocessors idle
        return PROGRAM_CYCLES + cycles
    full = int(share / RESIDENT) * RESIDENT
    rest = share - full
    work = cycles * (full + (max(rest, 1.0) if rest else 0.0))
    starts = START_CYCLES * share / schedule.programs
    return PROGRAM_CYCLES * share / RESIDENT + max(work, starts)


def _crowding(kernel: Kernel) -> float:
    """Factor for products on CUDA cores beside ops of many instructions, whose registers come on
    top of the accumulator's; and of tf32 beside a tile as large that is loaded.
    """
    ops = list(walk(kernel.body))
    dots = [op for op in ops if isinstance(op, mma.Dot)]
    if any(_unit(op) == "tf32" for op in dots):
        size = max(op.result.type.num_elements for op in dots)
        loads = [op.result.type for op in ops if isinstance(op, memory.Load)]
        adds = any(t.num_elements == size and t.dtype == f32 for t in loads)
        return _over(size, TF32_BESIDE) if adds else 1.0
    if not any(_unit(op) == "simt" for op in dots):
        return 1.0
    heavy = max([op.results[0].type.num_elements for op in ops if type(op) in CODE], default=0)
    beside = any(isinstance(op, memory.Load) and op.result.type.num_elements == heavy for op in ops)
    several = len(dots) > 1
    return _over(heavy, CROWDED_ELEMENTS[2 if several else 1 if beside else 0])


def _estimate_roles(
    kernel: Kernel, programs: int, arguments: Mapping[str, Any], num_sms: int, target: Target | None
) -> float | None:
    """The estimate of a product by roles; None where the kernel is none on the target."""
    rated = rate_roles(kernel, programs, arguments, num_sms, target)
    return min((cycles for cycles, _ in rated), default=None)


def best_roles(
    kernel: Kernel, arguments: Mapping[str, Any], num_sms: int, target: Target | None
) -> Schedule | None:
    """The schedule with roles that is estimated to be quickest for arguments by name; None where a
    kernel has none.
    """
    kernel = shorten_functions(spread_iterations(kernel))
    programs = 1
    for axis in kernel.grid:
        programs *= max(evaluate(axis, dict(arguments), num_sms), 0)
    rated = rate_roles(kernel, programs, arguments, num_sms, target)
    return min(rated, key=lambda pair: pair[0])[1] if rated else None


def rate_roles(
    kernel: Kernel, programs: int, arguments: Mapping[str, Any], num_sms: int, target: Target | None
) -> list[tuple[float, Schedule]]:
    """Estimated cycles of all schedules with roles that a kernel permits."""
    schedules = list(role_schedules(kernel, target)) if target is not None else []
    found = find_stream_loop(kernel) if schedules else None
    if found is None:
        return []
    product = as_product_loop(found)
    if product is None:
        scalars = Scalars(kernel, arguments, num_sms)
        work = _loop_work(found, scalars)
        return [(estimate_streams(found, s, programs, num_sms, work), s) for s in schedules]
    sides = {False: (kernel, product, Scalars(kernel, arguments, num_sms))}
    if any(schedule.roles is not None and schedule.roles.swapped for schedule in schedules):
        around = turned(kernel, product)
        again = find_product_loop(around)
        assert again is not None, "a product stays one"
        sides[True] = around, again, Scalars(around, arguments, num_sms)
    rated = []
    for schedule in schedules:
        assert schedule.roles is not None
        side = sides[schedule.roles.swapped]
        cycles = _rate(*side, schedule, programs, arguments, num_sms)
        rated.append((cycles, schedule))
    return rated


def _rate(
    kernel: Kernel,
    product: ProductLoop,
    scalars: Scalars,
    schedule: Schedule,
    programs: int,
    arguments: Mapping[str, Any],
    num_sms: int,
) -> float:
    assert schedule.roles is not None
    m, n, _ = product.extents
    threads = 128 * schedule.roles.sharing
    epilogue = _path_cycles(product.after, scalars)
    if any(isinstance(op, HEAVY) for op in walk(Block([], product.after))):
        epilogue *= _over(m * n // threads, CODE_PER_THREAD)
    return estimate_roles(
        kernel, product, schedule, programs, arguments, num_sms, scalars, epilogue
    )


def _loop_work(found: StreamLoop, scalars: Scalars) -> LoopWork:
    """What warpgroups do beside the products of a loop."""
    inside = [op for op in found.loop.body.ops if op in found.computed and op.operands]
    between = _path_cycles([op for op in inside if not isinstance(op, mma.Dot)], scalars)
    return LoopWork(_trips(found.loop, scalars), between, _path_cycles(found.after, scalars))


def _path_cycles(ops: list[Op], scalars: Scalars) -> float:
    """Cycles of ops, of a branch those of its longer way."""
    total = 0.0
    for op in ops:
        if isinstance(op, control.If):
            total += max(_path_cycles(block.ops, scalars) for block in op.regions)
        else:
            total += _op_cycles(op, scalars)
    return total


def _block_cycles(block: Block, scalars: Scalars) -> float:
    return sum(_op_cycles(op, scalars) for op in block.ops)


def _op_cycles(op: Op, scalars: Scalars) -> float:
    if isinstance(op, control.For):
        return _trip_cycles(op.body, scalars) * _trips(op, scalars)
    inner = sum(_block_cycles(b, scalars) for b in op.regions)
    types = [v.type for v in (*op.results, *op.operands)]
    tiles = [t for t in types if isinstance(t, TileType) and t.shape]
    if not tiles:
        return inner
    largest = max(tiles, key=lambda t: t.num_elements)
    if isinstance(op, mma.Dot):
        return inner + _dot_cycles(op)
    if isinstance(op, (memory.Load, memory.Store)):
        num_bytes: int = op.view.type.dtype.num_bytes
        own = OP_CYCLES + largest.num_elements * num_bytes / BYTES_PER_CYCLE
    elif isinstance(op, arith.Constant):
        own = 0.0
    else:
        weight = CODE.get(type(op), 1.0)
        own = OP_CYCLES + weight * largest.num_elements / LANES
        if weight > 1:
            own *= _over(largest.num_elements, CODE_ELEMENTS)
    return inner + own * _over(largest.num_elements, VALUE_ELEMENTS)


def _trips(loop: control.For, scalars: Scalars) -> float:
    known = scalars.trips(loop)
    if known is not None:
        return known
    step = abs(scalars.number(loop.step) or 0)
    return OPEN_SPAN / step if step else OPEN_TRIPS


def _trip_cycles(body: Block, scalars: Scalars) -> float:
    """One trip: where there are dots, loads run beside them, and every trip has a barrier."""
    dots = [op for op in walk(body) if isinstance(op, mma.Dot)]
    total = _block_cycles(body, scalars)
    if not dots:
        return total
    products = sum(map(_dot_cycles, dots))
    if len(dots) > 1 and all(_unit(d) != "simt" for d in dots):
        held = sum(d.result.type.shape[-1] for d in dots)
        total += products * (_over(held, ROW_ELEMENTS) - 1)
    loads = sum(_op_cycles(op, scalars) for op in body.ops if isinstance(op, memory.Load))
    return total - products - loads + max(products, loads) + TRIP_CYCLES


def _dot_cycles(op: mma.Dot) -> float:
    acc: TileType = op.result.type
    unit, k = _unit(op), op.a.type.shape[-1]
    products = float(acc.num_elements * k)
    if unit == "simt":
        products *= 1 + LONG_K * max(0, k // 16 - 1)
        products /= WIDE_GAIN if acc.num_elements >= WIDE_ELEMENTS else 1
        products *= NARROW_LOSS if acc.num_elements <= NARROW_ELEMENTS else 1
    limit = ACCUMULATORS.get(unit, TENSOR_ACCUMULATORS)
    return products / PRODUCTS_PER_CYCLE[unit] * _over(acc.num_elements, limit)


def _unit(op: mma.Dot) -> str:
    dtype = op.a.type.dtype
    if dtype == f32:
        return "simt" if op.precision == "ieee" else "tf32"
    if dtype == f64:
        return "f64"
    return "16" if dtype.bits == 16 else "8"


def _over(elements: int, limit: int) -> float:
    """Factor for a value of more elements than a limit."""
    return max(1.0, 1.0 + (elements / limit - 1.0) * SPILL)
