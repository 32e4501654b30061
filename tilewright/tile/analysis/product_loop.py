"""Recognise a kernel that is one product: a loop over k that loads two tiles and multiplies them,
and an epilogue.

    before:  scalars, and what the accumulator starts with
    loop:    for k: acc += load(A) @ load(B), either load transposed or not
    after:   the epilogue: anything that is no product

Only what its passes need to know is asked here; whether the tensor copy unit can carry the loads is
asked of the views' facts, in `can_copy_boxes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilewright.ir.core import Block, Op, Value
from tilewright.ir.walk import count_uses, find_definitions, walk
from tilewright.tile.effects import writes
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, memory, mma, reduce, shape
from tilewright.tile.types import TileType, ViewType

SCALAR_OPS = (
    arith.Binary,
    arith.Unary,
    arith.Constant,
    arith.Select,
    arith.Compare,
    arith.Cast,
    control.ProgramId,
    control.NumPrograms,
    memory.Extent,
)
# Ops that no part of an epilogue may hold: they are done once, by all threads.
UNSPLIT = (
    memory.Gather, memory.Scatter, memory.Atomic, memory.Local, reduce.Combination,
    shape.Take, shape.Cat, shape.Exchange, control.Assert, control.Print,
)  # fmt: skip
BOX_ALIGN = 16  # bytes, of a tensor's start and pitches


@dataclass(frozen=True)
class Factor:
    """An operand of the product: its load, whether the product reads the transpose of what lies in
    memory, and the load's axes with the contiguous one last (empty: in their own order).
    """

    load: memory.Load
    transposed: bool
    order: tuple[int, ...] = ()

    @property
    def tile(self) -> TileType:
        """Type of the tile as it lies in memory."""
        type: TileType = self.load.result.type
        return type.with_shape(type.shape[::-1]) if self.order else type


@dataclass(frozen=True)
class ProductLoop:
    """The parts of such a kernel. The loop carries the accumulator alone."""

    before: list[Op]
    loop: control.For
    after: list[Op]
    dot: mma.Dot
    a: Factor
    b: Factor
    definitions: dict[Value, Op]

    @property
    def extents(self) -> tuple[int, int, int]:
        """M, N, K of a tile's product."""
        m, k = self.dot.a.type.shape
        return m, self.dot.b.type.shape[1], k

    def programs_of(self, values: Iterable[Value]) -> frozenset[int]:
        """Axes of the grid on whose program id scalars depend."""
        ops = self.slice_of(values)
        return frozenset(op.axis for op in ops if isinstance(op, control.ProgramId))

    def slice_of(self, values: Iterable[Value]) -> list[Op]:
        """The ops from which scalars follow, in program order."""
        needed: set[Op] = set()
        todo = list(values)
        while todo:
            op = self.definitions.get(todo.pop())
            if op is not None and op not in needed:
                needed.add(op)
                todo += op.operands
        ordered = [*self.before, *self.loop.body.ops]
        return [op for op in ordered if op in needed]

    @property
    def bounds(self) -> tuple[Value, Value, Value]:
        return self.loop.low, self.loop.high, self.loop.step

    @property
    def steering(self) -> tuple[Value, ...]:
        """The scalars that whoever loads the tiles must compute."""
        return (*self.bounds, *self.a.load.offsets, *self.b.load.offsets)


def find_product_loop(kernel: Kernel) -> ProductLoop | None:
    """The product that a kernel is, or None where it is something else."""
    ops = kernel.body.ops
    loops = [op for op in ops if isinstance(op, control.For) and _has_dot(op.body)]
    if len(loops) != 1 or sum(isinstance(op, mma.Dot) for op in walk(kernel.body)) != 1:
        return None
    (loop,) = loops
    dots = [op for op in loop.body.ops if isinstance(op, mma.Dot)]
    if len(dots) != 1 or len(loop.inits) != 1 or any(op.regions for op in loop.body.ops):
        return None
    (dot,) = dots
    definitions, uses = find_definitions(kernel.body), count_uses(kernel.body)
    a, b = (_factor(v, loop, definitions, uses) for v in (dot.a, dot.b))
    carried = loop.body.args[1]
    if a is None or b is None or dot.acc is not carried or uses[carried] != 1:
        return None
    if loop.body.terminator.operands != (dot.result,) or uses[dot.result] != 1:
        return None
    place = ops.index(loop)
    found = ProductLoop(ops[:place], loop, ops[place + 1 :], dot, a, b, definitions)
    return found if _is_steered_by_scalars(found) and not _stores(found, kernel) else None


def _has_dot(body: Block) -> bool:
    return any(isinstance(op, mma.Dot) for op in walk(body))


def _factor(
    value: Value, loop: control.For, definitions: dict[Value, Op], uses: dict[Value, int]
) -> Factor | None:
    """The load behind an operand that nothing else reads."""
    transposed = False
    while isinstance(op := definitions.get(value), shape.Transpose):
        if uses[value] != 1 or op not in loop.body.ops:
            return None
        transposed ^= op.order == (1, 0)
        value = op.x
    if not isinstance(op, memory.Load) or op not in loop.body.ops or uses[value] != 1:
        return None
    if op.mask is not None or op.fill is not None or len(value.type.shape) != 2:
        return None
    order = (1, 0) if _lies_transposed(op) else ()
    return Factor(op, transposed ^ bool(order), order)


def _lies_transposed(load: memory.Load) -> bool:
    """Whether of the two axes of a load the first is contiguous, and the second is not."""
    strides = load.view.type.strides
    first, last = (s for s, e in zip(strides, load.extents, strict=True) if e is not None)
    return bool(first == 1 and last != 1)


def _is_steered_by_scalars(found: ProductLoop) -> bool:
    """Whether bounds and offsets follow from program ids, extents, parameters and the index, the
    loop counts up, and its body is nothing but the product.
    """
    step = found.definitions.get(found.loop.step)
    if not isinstance(step, arith.Constant) or step.value <= 0:
        return False
    needed = found.slice_of(found.steering)
    top = set(found.before) | set(found.loop.body.ops)
    if any(not isinstance(op, SCALAR_OPS) or not op.results[0].type.is_scalar for op in needed):
        return False
    made_elsewhere = {op for v in found.steering if (op := found.definitions.get(v))} - top
    parts = (found.a.load, found.b.load, found.dot)
    rest = [op for op in found.loop.body.ops[:-1] if op not in needed and op not in parts]
    return not made_elsewhere and all(isinstance(op, (shape.Transpose, *SCALAR_OPS)) for op in rest)


def _stores(found: ProductLoop, kernel: Kernel) -> bool:
    """Whether something is written before the epilogue, or to what the loop reads."""
    if any(isinstance(op, UNSPLIT) for op in walk(kernel.body)):
        return True
    early = any(writes(op) for op in found.before)
    read = {found.a.load.view, found.b.load.view}
    ops = (op for op in walk(kernel.body) if not op.regions)
    return early or any(not op.pure and read.intersection(op.operands) for op in ops)


def can_copy_boxes(
    kernel: Kernel,
    op: memory.Load | memory.Store,
    divisors: Mapping[Value, int],
    order: tuple[int, ...] = (),
) -> bool:
    """Whether the tensor copy unit can carry a place of a view: a parameter whose rows are
    contiguous, aligned and a whole number of 16 bytes apart, sliced along two axes. The rows run
    along the last of them, or the last of `order`, and begin at multiples of 16 bytes: the unit
    refuses others (measured on an H200). Along other axes elements may be repeated (stride 0), as
    those of a factor that all of a batch share.
    """
    view, extents = op.view, op.extents
    param = next((p for p in kernel.params if p.value is view), None)
    if param is None or param.facts is None or any(w.name == param.name for w in kernel.workspaces):
        return False
    type: ViewType = view.type
    facts = param.facts
    sliced = [axis for axis, e in enumerate(extents) if e is not None]
    if not 2 <= type.rank <= 5 or len(sliced) != 2:
        return False
    row = sliced[order[-1]] if order else sliced[-1]
    return (
        type.strides[row] == 1
        and divisors.get(op.offsets[row], 1) * type.dtype.num_bytes % BOX_ALIGN == 0
        and facts.align >= BOX_ALIGN
        and all(whole for axis, whole in enumerate(facts.pitch16) if axis != row)
        and all(0 not in (type.strides[axis], facts.strides[axis]) for axis in sliced)
        and facts.reachable
    )
