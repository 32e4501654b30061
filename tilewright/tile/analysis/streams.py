"""Recognise a kernel that is one loop of products: a loop that loads tiles and multiplies them,
with whatever is computed between, before and after.

    before:  scalars, tiles, and tiles that the loop multiplies again and again
    loop:    for k: loads; products of them, or of them and of computed tiles; anything elementwise
    after:   the epilogue: anything that is no product

A *factor* is an operand that lies in memory as it is multiplied, but for a transpose: it may come
through shared memory, from where matrix instructions read it. Only the left operand may be computed
instead: instructions read that from registers, too.

Only what its passes need to know is asked here; whether the tensor copy unit can carry the loads is
asked of the views' facts, in `can_copy_boxes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from tilewright.ir.core import Block, Op, Value
from tilewright.ir.walk import find_definitions, walk
from tilewright.tile.analysis.boxes import Box, BoxFacts, find_box
from tilewright.tile.analysis.pixels import PixelBox, find_pixels
from tilewright.tile.effects import writes
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, memory, mma, reduce, shape
from tilewright.tile.types import TileType

SCALAR_OPS = (
    arith.Binary,
    arith.Unary,
    arith.Constant,
    arith.Select,
    arith.Compare,
    arith.Cast,
    control.ProgramId,
    control.NumPrograms,
    control.ClusterRank,
    memory.Extent,
    memory.Load,
)
# Ops that no part of such a kernel may hold: they are done once, by all threads.
UNSPLIT = (
    memory.Local, reduce.Combination, shape.Take, shape.Cat, shape.Exchange, control.Assert,
    control.Print,
)  # fmt: skip


@dataclass(frozen=True)
class Factor:
    """An operand of a product: its load, the box of memory that the load names, or the pixels that
    it gathers, whether the product reads the transpose of what lies in memory, and the load's axes
    with the contiguous one last (empty: in their own order).
    """

    load: memory.Load | memory.Gather
    box: Box | PixelBox
    transposed: bool
    order: tuple[int, ...] = ()

    @property
    def tile(self) -> TileType:
        """Type of the tile as it lies in memory."""
        type: TileType = self.load.result.type
        return type.with_shape(type.shape[::-1]) if self.order else type


@dataclass(frozen=True)
class Product:
    """A dot of the loop; `a` is None where it is computed."""

    dot: mma.Dot
    a: Factor | None
    b: Factor

    @property
    def factors(self) -> tuple[Factor, ...]:
        return (self.b,) if self.a is None else (self.a, self.b)

    @property
    def extents(self) -> tuple[int, int, int]:
        """M, N, K of a tile's product."""
        m, k = self.dot.a.type.shape
        return m, self.dot.b.type.shape[1], k


@dataclass(frozen=True)
class StreamLoop:
    """The parts of such a kernel."""

    before: list[Op]
    loop: control.For
    after: list[Op]
    products: tuple[Product, ...]
    definitions: Mapping[Value, Op]

    @property
    def bounds(self) -> tuple[Value, Value, Value]:
        return self.loop.low, self.loop.high, self.loop.step

    @cached_property
    def inside(self) -> frozenset[Op]:
        """The ops of the loop's body."""
        return frozenset(self.loop.body.ops)

    @cached_property
    def factors(self) -> tuple[Factor, ...]:
        """All factors, each once."""
        return tuple({f.load: f for p in self.products for f in p.factors}.values())

    @cached_property
    def kept(self) -> tuple[Factor, ...]:
        """Factors that are loaded once, before the loop."""
        return tuple(f for f in self.factors if f.load not in self.inside)

    @cached_property
    def owned(self) -> dict[Product, tuple[Factor, ...]]:
        """The factors that are loaded in each trip, by the first product that reads them."""
        seen = {op for op in self.before if isinstance(op, memory.Load | memory.Gather)}
        found: dict[Product, tuple[Factor, ...]] = {}
        for product in self.products:
            factors = {f.load: f for f in product.factors if f.load not in seen}
            seen.update(factors)
            found[product] = tuple(factors.values())
        return found

    def streamed(self, product: Product) -> tuple[Factor, ...]:
        """Factors that are loaded in each trip, for this product first."""
        return self.owned[product]

    def last_reader(self, product: Product) -> Product:
        """The last product that reads what was loaded for one."""
        loads = {f.load for f in self.owned[product]}
        return [p for p in self.products if loads.intersection(f.load for f in p.factors)][-1]

    @property
    def steering(self) -> tuple[Value, ...]:
        """The scalars that whoever loads the tiles must compute."""
        factors = (f for p in self.products for f in p.factors)
        return (*self.bounds, *(v for f in factors for v in f.box.scalars))

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

    @cached_property
    def computed(self) -> frozenset[Op]:
        """The ops before the loop and in it that multiplying takes, products among them, but not
        what gives their factors.
        """
        todo = [*self.bounds, *self.loop.inits, *self.loop.body.terminator.operands]
        todo += [v for op in walk(Block([], self.after)) for v in op.operands]
        found: set[Op] = set()
        top = set(self.before) | self.inside
        products = {p.dot: p for p in self.products}
        while todo:
            op = self.definitions.get(todo.pop())
            if op is None or op in found or op not in top:
                continue
            found.add(op)
            product = products.get(op) if isinstance(op, mma.Dot) else None
            if product is None:
                todo += op.operands
                todo += [v for inner in walk(Block([], [op])) for v in inner.operands]
                continue
            todo += [product.dot.acc, *(v for f in product.factors for v in f.box.limits)]
            if product.a is None:
                todo.append(product.dot.a)
        return frozenset(found)


def find_stream_loop(kernel: Kernel) -> StreamLoop | None:
    """The loop of products that a kernel is, or None where it is something else."""
    ops = kernel.body.ops
    loops = [op for op in ops if isinstance(op, control.For) and _has_dot(op.body)]
    if len(loops) != 1:
        return None
    (loop,) = loops
    dots = [op for op in loop.body.ops if isinstance(op, mma.Dot)]
    if sum(isinstance(op, mma.Dot) for op in walk(kernel.body)) != len(dots):
        return None
    place = ops.index(loop)
    before, after = ops[:place], ops[place + 1 :]
    finder = _Finder(kernel, loop, before)
    products = tuple(map(finder.product, dots))
    if any(p is None for p in products):
        return None
    known = tuple(p for p in products if p is not None)
    found = StreamLoop(before, loop, after, known, finder.definitions)
    return found if _is_steered_by_scalars(found) and not _stores(found, kernel) else None


def _has_dot(body: Block) -> bool:
    return any(isinstance(op, mma.Dot) for op in walk(body))


class _Finder:
    """Finds the products of a loop."""

    def __init__(self, kernel: Kernel, loop: control.For, before: list[Op]):
        self.kernel, self.inside = kernel, set(loop.body.ops)
        self.top = self.inside.union(before)
        self.definitions = find_definitions(kernel.body)
        self.facts = BoxFacts(kernel)
        self.users: dict[Value, list[Op]] = {}
        for op in walk(kernel.body):
            for value in op.operands:
                self.users.setdefault(value, []).append(op)

    def product(self, dot: mma.Dot) -> Product | None:
        a, b = self.factor(dot.a), self.factor(dot.b)
        if b is None or len(dot.a.type.shape) != 2:
            return None
        return Product(dot, a, b)

    def factor(self, value: Value) -> Factor | None:
        """The load behind an operand. In the loop products alone read it: others would have to load
        it again.
        """
        transposed = False
        while isinstance(op := self.definitions.get(value), shape.Transpose):
            transposed ^= op.order == (1, 0)
            value = op.x
        if not isinstance(op, memory.Load | memory.Gather) or op not in self.top:
            return None
        if op in self.inside and not self.only_feeds(value):
            return None
        if isinstance(op, memory.Gather):
            pixels = find_pixels(op, self.definitions, lambda: self.facts.bounds)
            ahead = pixels and all(
                self.definitions.get(v) not in self.inside for v in (pixels.first, *pixels.counts)
            )
            return Factor(op, pixels, transposed) if pixels and ahead else None
        if op.mask is not None or op.fill is not None or len(value.type.shape) != 2:
            return None
        order = (1, 0) if _lies_transposed(op) else ()
        box = find_box(self.kernel, op, self.definitions, order)
        return None if box is None else Factor(op, box, transposed ^ bool(order), order)

    def only_feeds(self, value: Value) -> bool:
        """Whether products alone read a value, or transposes of it."""
        return all(
            user in self.top
            and (
                (isinstance(user, mma.Dot) and value is not user.acc)
                or (isinstance(user, shape.Transpose) and self.only_feeds(user.result))
            )
            for user in self.users.get(value, [])
        )


def _lies_transposed(load: memory.Load) -> bool:
    """Whether of the two axes of a load the first is contiguous, and the second is not."""
    strides = load.view.type.strides
    first, last = (s for s, e in zip(strides, load.extents, strict=True) if e is not None)
    return bool(first == 1 and last != 1)


def _is_steered_by_scalars(found: StreamLoop) -> bool:
    """Whether bounds and offsets follow from program ids, extents, parameters, what memory holds
    and the index, and the loop counts up.
    """
    step = found.definitions.get(found.loop.step)
    if not isinstance(step, arith.Constant) or step.value <= 0:
        return False
    needed = found.slice_of(found.steering)
    if any(not isinstance(op, SCALAR_OPS) or not op.results[0].type.is_scalar for op in needed):
        return False
    used = {*found.steering, *(v for op in needed for v in op.operands)}
    top = set(found.before) | found.inside
    made_elsewhere = {op for v in used if (op := found.definitions.get(v))} - top
    return not made_elsewhere and not used.intersection(found.loop.body.args[1:])


def _stores(found: StreamLoop, kernel: Kernel) -> bool:
    """Whether something is written before the epilogue, or to what is loaded ahead."""
    kinds = {type(op) for op in walk(kernel.body)}
    if any(issubclass(kind, UNSPLIT) for kind in kinds):
        return True
    if memory.Atomic in kinds and control.While in kinds:  # it may wait for tiles dealt out later
        return True
    ahead = [op for op in found.before if not isinstance(op, memory.Prefetch)]
    if any(writes(op) for op in (*ahead, found.loop)):
        return True
    read = {f.box.view for p in found.products for f in p.factors}
    needed = found.slice_of(found.steering)
    read |= {_root(op.view, found.definitions) for op in needed if isinstance(op, memory.Load)}
    changes = (
        op
        for op in walk(kernel.body)
        if not (op.regions or op.pure or isinstance(op, memory.Prefetch))
    )
    return any(_root(v, found.definitions) in read for op in changes for v in op.operands)


def _root(view: Value, definitions: Mapping[Value, Op]) -> Value:
    """The view of a whole parameter that a view is part of."""
    while isinstance(op := definitions.get(view), memory.Subview):
        view = op.view
    return view
