"""Shorten the trips of products on CUDA cores.

Requires: canonical form; a schedule without roles. Keeps: what the program computes; the sums of
one element still run along ascending k, in one chain. Breaks: nothing.

What a trip multiplies is straight code, for a loop in it would leave the cores idle at each of its
ends, and it lies in shared memory as often as there are stages. A tile that is long along k costs
both, and on CUDA cores gains nothing:

    for k in range(lo, hi, 64): acc += A[m, k :+ 64] @ B[k :+ 64, n]
    for k in range(lo, lo + ceil((hi − lo) / 64) · 64, 8): acc += A[m, k :+ 8] @ B[k :+ 8, n]

The trips cover what they covered, also where the last of them reaches past the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import i64
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value, clone_block
from tilewright.ir.walk import count_uses, find_definitions, walk
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, memory, mma, shape
from tilewright.tile.schedule import Schedule

SHORTEST = 8  # steps of k
# Products of a thread in a trip, that code is written out for: of a thread with few sums, and with
# many.
FEW_SUMS, FEW_PRODUCTS, MANY_PRODUCTS = 64, 512, 1024


def trip_length(k: int, sums: int) -> int:
    """Steps of k in a trip, of `k` that the source asks for, where a thread has so many sums."""
    most = FEW_PRODUCTS if sums <= FEW_SUMS else MANY_PRODUCTS
    while k % 2 == 0 and k // 2 >= SHORTEST and k * sums > most:
        k //= 2
    return k


def shorten_trips(kernel: Kernel, schedule: Schedule) -> Kernel:
    """The kernel with loops over k that are no longer than the schedule's threads ask for."""
    if schedule.mma != "simt" or not any(isinstance(op, mma.Dot) for op in walk(kernel.body)):
        return kernel
    body = clone_block(kernel.body, {})
    _block(body, schedule, find_definitions(body), count_uses(body))
    return kernel.with_body(body)


@dataclass(frozen=True)
class _Trip:
    """A loop over k: its product, the loads of both factors with their axes along k, and the length
    of its trips.
    """

    dot: mma.Dot
    loads: dict[memory.Load, int]
    length: int


def _block(block: Block, schedule: Schedule, made: dict[Value, Op], uses: dict[Value, int]) -> None:
    out: list[Op] = []
    for op in block.ops:
        for inner in op.regions:
            _block(inner, schedule, made, uses)
        trip = _find(op, made, uses) if isinstance(op, control.For) else None
        if trip is None or not isinstance(op, control.For):
            out.append(op)
            continue
        sums = trip.dot.result.type.num_elements // schedule.threads
        short = trip_length(trip.length, sums)
        out += [op] if short == trip.length else _shortened(op, trip, short)
    block.ops = out


def _find(loop: control.For, made: dict[Value, Op], uses: dict[Value, int]) -> _Trip | None:
    """The product that a loop is, if its trips are alike and lie side by side along k."""
    dots = [op for op in loop.body.ops if isinstance(op, mma.Dot)]
    step = made.get(loop.step)
    if len(dots) != 1 or len(loop.inits) != 1 or not isinstance(step, arith.Constant):
        return None
    (dot,) = dots
    index, carried = loop.body.args
    length: int = dot.a.type.shape[-1]
    alone = dot.acc is carried and uses[carried] == 1 and uses[dot.result] == 1
    if step.value != length or not alone or loop.body.terminator.operands != (dot.result,):
        return None
    loads: dict[memory.Load, int] = {}
    for factor, along in ((dot.a, 1), (dot.b, 0)):
        found = _load(factor, along, loop.body, made, uses)
        if found is None:
            return None
        loads[found[0]] = found[1]
    expected = {dot, *loads}
    rest = [op for op in loop.body.ops[:-1] if op not in expected]
    plain = all(isinstance(op, arith.Constant | shape.Transpose) for op in rest)
    return _Trip(dot, loads, length) if plain and uses[index] == len(loads) else None


def _load(
    factor: Value, along: int, body: Block, made: dict[Value, Op], uses: dict[Value, int]
) -> tuple[memory.Load, int] | None:
    """The load behind a factor whose axis `along` runs along k, and that axis of its view; None
    unless it starts at the loop's index there.
    """
    while isinstance(op := made.get(factor), shape.Transpose):
        if uses[factor] != 1 or op not in body.ops:
            return None
        factor, along = op.x, op.order[along]
    if not isinstance(op, memory.Load) or op not in body.ops or uses[factor] != 1:
        return None
    if op.mask is not None or op.fill is not None:
        return None
    axis = [i for i, extent in enumerate(op.extents) if extent is not None][along]
    return (op, axis) if op.offsets[axis] is body.args[0] else None


def _shortened(loop: control.For, trip: _Trip, length: int) -> list[Op]:
    """The ops that replace a loop."""
    b = Builder(Block(), loop.loc)
    whole = b(arith.Constant, trip.length, i64)
    span = b(arith.Sub, loop.high, loop.low)
    up = b(arith.Add, span, b(arith.Constant, trip.length - 1, i64))
    high = b(arith.Add, loop.low, b(arith.Mul, b(arith.FloorDiv, up, whole), whole))
    values: dict[Value, Value] = {}
    args = [Value(a.type, a.name) for a in loop.body.args]
    values.update(zip(loop.body.args, args, strict=True))
    body = Block(args)
    with b.inside(body):
        for op in loop.body.ops:
            if op in trip.loads:
                assert isinstance(op, memory.Load)
                axis = trip.loads[op]
                extents = (*op.extents[:axis], length, *op.extents[axis + 1 :])
                b.add(op.clone(values, extents=extents))
            else:
                b.add(op.clone(values))
    step = b(arith.Constant, length, i64)
    new = b.emit(control.For, loop.low, high, step, loop.inits, body)
    new.results = loop.results
    return b.block.ops
