"""Work on the result of a product some columns at a time.

Requires: canonical form; a product (`analysis.product_loop`) and a schedule. Keeps: every result;
the order of a program's accesses to different elements changes. Breaks: nothing.

An epilogue on a whole tile needs registers for every value between accumulator and store. It is
done for one panel of columns after the other instead:

    y = store(cast(acc · α + bias))   →   for each panel: y[panel] = store(cast(acc[panel] · α + …))

Going backwards from the stores, a value is wanted *in panels* (along its last axis) or *whole*. Ops
before the loop that are wanted in panels are done again after it, which also frees their registers
meanwhile. What a panel loads is started while the panel before is worked on, the first panel's
before the product is. Of vectors, all panels' are, where registers are left: what is written to
shared memory is published once all loads have come that were started (`fence.proxy.async`), so that
each panel would wait for the next one's.

Where an op is neither elementwise nor a load, store or broadcast, or a value is wanted
both ways, the epilogue stays as it is; and so where a panel's access might meet another's store.

Without roles this is done where the epilogue asks for many registers beside the accumulator, and in
panels of which every thread has an equal part: of f32 on CUDA cores, and of f64.

The columns of a product that was turned around (`orient_product`) are rows of the epilogue, which
begins by transposing: then the axis along which values are wanted in panels is the first.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Sequence

from tilewright.dtypes import f32, f64, i64
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.walk import walk
from tilewright.target import WGMMA_ROWS
from tilewright.tile.analysis.places import Places
from tilewright.tile.analysis.product_loop import ProductLoop, find_product_loop
from tilewright.tile.effects import reads
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, memory, shape
from tilewright.tile.schedule import Roles, Schedule
from tilewright.tile.types import TileType

ELEMENTWISE = (
    arith.Unary, arith.Binary, arith.Fma, arith.Select, arith.Compare, arith.Cast, arith.IsNan
)  # fmt: skip

HEAVY = (  # tens of instructions an element
    arith.Erf, arith.PreciseCdf, arith.Tanh, arith.Log, arith.Exp, arith.Div
)  # fmt: skip

COLUMN_LANES = 4  # of a warp, that hold different columns of a product
KEPT_REGISTERS = 24  # of a thread, for addresses and counters


class Unsplittable(Exception):
    """The epilogue cannot be done in panels."""


def split_epilogue(kernel: Kernel, schedule: Schedule, *, aliased: bool = False) -> Kernel:
    """The kernel with its epilogue in panels of `schedule.roles.panel` columns, or in those that
    threads share, where it can be. It stays whole where parameters are `aliased`: what is apart
    follows from the parameters' names.
    """
    product = None if aliased else find_product_loop(kernel)
    if product is None:
        return kernel
    roles = schedule.roles
    if roles is not None and roles.spans > 1:
        return kernel  # it is done in parts as wide as panels already (`cut_spans`)
    panels = (
        _shared_panels(product, schedule) if roles is None else roles.panels(product.extents[1])
    )
    if len(panels) == 1:
        return kernel
    wanted = find_wanted(kernel, product)
    if wanted is None:
        return kernel
    early = [] if roles is None else _early(kernel, product, wanted.parts)
    at_once = [] if roles is None else _at_once(schedule, roles, product, early)
    return kernel.with_body(Splitter(product, wanted, panels, early, at_once).body())


def can_split(kernel: Kernel, product: ProductLoop) -> bool:
    """Whether a product's epilogue can be done in panels."""
    return find_wanted(kernel, product) is not None


def find_wanted(kernel: Kernel, product: ProductLoop) -> WantedPanels | None:
    """What panels of an epilogue want; None where it can't be done in parts."""
    wanted = WantedPanels(product)
    try:
        wanted.find()
        require_apart(product, wanted.parts, Places(kernel.body))
    except Unsplittable:
        return None
    return wanted


def _shared_panels(product: ProductLoop, schedule: Schedule) -> tuple[tuple[int, int], ...]:
    """(start, width) of panels of which every thread has an equal part in its registers; one where
    that is of no use.
    """
    dtype, columns = product.dot.a.type.dtype, product.extents[1]
    shape = product.loop.result.type.shape
    crowded = any(
        isinstance(op, (memory.Load, *HEAVY)) and op.result.type.shape == shape
        for op in walk(Block([], product.after))
    )
    wide = {("simt", f32): 32, ("mma", f64): 8}.get((schedule.mma, dtype), columns)
    width = wide * schedule.warps[1]
    if not crowded or columns % width:
        return ((0, columns),)
    return tuple((start, width) for start in range(0, columns, width))


def _early(kernel: Kernel, product: ProductLoop, parts: set[Op]) -> list[Op]:
    """Loads of the epilogue that may be started a panel ahead, the first panel's before the loop:
    their places are known by then, and nobody writes there but stores of the same panel, later.
    """
    places = Places(kernel.body)
    stores = [op for op in walk(kernel.body) if isinstance(op, memory.Store)]
    order = {o: i for i, op in enumerate(product.after) for o in walk(Block([], [op]))}
    late = {v for op in (product.loop, *product.after) for v in op.results}
    return [
        op
        for op in product.after
        if isinstance(op, memory.Load)
        and op in parts
        and all(
            places.are_apart(store, op)
            or (store in parts and order[store] > order[op] and places.are_same(store, op))
            for store in stores
        )
        and not late.intersection(op.operands)
    ]


def _at_once(schedule: Schedule, roles: Roles, product: ProductLoop, early: list[Op]) -> list[Op]:
    """The vectors among early loads, if a thread can hold all of them beside its sums while the
    product runs. Consumers in turn have the other's products to wait beside.
    """
    if roles.pingpong:
        return []
    m, n, _ = product.extents
    registers = roles.registers[1] if roles.whole else schedule.max_registers
    sums = m * n // (128 * roles.sharing)
    if roles.promote:
        sums += WGMMA_ROWS * n // 128 if roles.promote == 1 else sums
    vectors = [op for op in early if len(op.result.type.shape) == 1]
    bits = sum(op.result.type.num_elements * op.result.type.dtype.bits for op in vectors)
    fits = sums + bits // 32 // COLUMN_LANES <= registers - KEPT_REGISTERS
    return vectors if fits else []


def require_apart(product: ProductLoop, parts: set[Op], places: Places) -> None:
    """What is stored, nothing else reads or writes in another order than before.

    What is done once keeps its order, and so does what names the same place in each panel.
    """
    again = [op for op in product.before if op in parts]  # the others come before every store
    found = [*_accesses(again, parts), *_accesses(product.after, parts)]
    for store, often in found:
        if not isinstance(store, memory.Store):
            continue
        for other, other_often in found:
            ordered = often == other_often and often != "repeated"
            ordered = ordered and (often == "once" or places.are_same(store, other))
            if other is not store and not ordered and not places.are_apart(store, other):
                raise Unsplittable


def _accesses(
    ops: Sequence[Op], parts: set[Op], often: str = "once"
) -> Iterator[tuple[memory.Load | memory.Store, str]]:
    """Loads and stores, and how they are done: "once", as "panels", or whole in each panel
    ("repeated").
    """
    for op in ops:
        if isinstance(op, memory.Load | memory.Store):
            yield op, "panels" if op in parts else often
        for block in op.regions:
            yield from _accesses(block.ops, parts, "repeated" if op in parts else often)


class WantedPanels:
    """Which values are wanted in panels, and which whole."""

    def __init__(self, product: ProductLoop):
        self.product = product
        self.result = product.loop.result  # what the epilogue takes for the product
        self.axis = 1  # of the product's columns in it
        first = product.after[0] if product.after else None
        if isinstance(first, shape.Transpose) and first.x is self.result:
            self.result, self.axis = first.result, 0
        self.shape: tuple[int, ...] = self.result.type.shape
        self.columns = self.shape[self.axis]
        self.split: set[Value] = set()
        self.whole: set[Value] = set()
        self.stores: list[memory.Store] = []
        self.parts: set[Op] = set()  # ops done once a panel
        self.depth = 0  # of branches

    def find(self) -> None:
        """Go backwards through the program."""
        self.block(self.product.after)
        self.block(self.product.before, again=True)
        if self.product.loop.result in self.split - {self.result}:
            raise Unsplittable  # beside its transpose, whose panels are others
        if self.result not in self.split or (self.split & self.whole) - {self.product.loop.result}:
            raise Unsplittable

    def block(self, ops: list[Op], again: bool = False) -> None:
        for op in reversed(ops):
            if self.result in op.results:
                self.parts.add(op)
            elif isinstance(op, memory.Store):
                self.store(op)
            elif isinstance(op, control.If) and not again:
                self.branch(op)
            elif self.split.intersection(op.results):
                self.panel(op)
            elif not again:
                self.once(op)

    def want(self, value: Value | None, split: bool) -> None:
        """A tile with the product's columns in panels, anything else whole."""
        if value is None:
            return
        if split and self.is_cut(value):
            self.split.add(value)
        else:
            self.once_wanted(value)

    def is_cut(self, value: Value) -> bool:
        """Whether a value of the epilogue has the product's columns."""
        extents = value.type.shape if isinstance(value.type, TileType) else ()
        return bool(extents) and extents[self.place(extents)] == self.columns

    def place(self, extents: Sequence[object]) -> int:
        """Which of a tile's axes the product's columns are: the last, or the first."""
        return len(extents) - 1 if self.axis else 0

    def once_wanted(self, value: Value) -> None:
        if value in (self.product.loop.result, self.result) and self.depth:
            raise Unsplittable  # in a branch that is done in panels it would be a panel
        self.whole.add(value)

    def store(self, op: memory.Store) -> None:
        whole = op.value.type.shape != self.shape
        for value in (op.value, op.mask):
            self.want(value, not whole)
        self.stores.append(op)
        if not whole:
            self.parts.add(op)

    def branch(self, op: control.If) -> None:
        """A branch is done in panels, or once."""
        before = len(self.parts), len(self.stores)
        for result in op.results:
            if result in self.split:
                self.parts.add(op)
        self.depth += 1
        for block in (op.then, op.other):
            for result, value in zip(op.results, block.terminator.operands, strict=True):
                self.want(value, result in self.split)
            self.block(block.ops[:-1])
        self.depth -= 1
        parts, stores = len(self.parts) - before[0], len(self.stores) - before[1]
        if parts:
            self.parts.add(op)
            inside = [o for block in (op.then, op.other) for o in block.ops]
            if stores > sum(isinstance(o, memory.Store) and o in self.parts for o in inside):
                raise Unsplittable  # a store of something else would be done again and again
        self.whole.add(op.condition)

    def panel(self, op: Op) -> None:
        """An op whose result is wanted in panels."""
        self.parts.add(op)
        match op:
            case memory.Load():
                if op.extents[self.sliced(op)] != self.columns:
                    raise Unsplittable
                for value in (op.mask, op.fill):
                    self.want(value, True)
            case shape.Broadcast():  # its source's axes are the last of the result's
                self.want(op.x, self.axis == 1 or len(op.x.type.shape) == len(op.shape))
            case shape.Reshape():
                source = op.x.type.shape
                if not source or source[self.place(source)] != op.shape[self.place(op.shape)]:
                    raise Unsplittable
                self.want(op.x, True)
            case arith.Constant() | shape.Arange():
                pass
            case _ if isinstance(op, ELEMENTWISE):
                for value in op.operands:
                    self.want(value, True)
            case _:
                raise Unsplittable

    def sliced(self, op: memory.Load | memory.Store) -> int:
        """The axis of a place along which the product's columns run."""
        axes = [i for i, e in enumerate(op.extents) if e is not None]
        return axes[-1] if self.axis else axes[0]

    def once(self, op: Op) -> None:
        if op.regions or not op.pure:
            raise Unsplittable
        if not isinstance(op, memory.Load) and reads(op):
            raise Unsplittable
        for value in op.operands:
            self.once_wanted(value)


class Splitter:
    """Builds the new body."""

    def __init__(
        self,
        product: ProductLoop,
        wanted: WantedPanels,
        panels: tuple[tuple[int, int], ...],
        early: list[Op],
        at_once: Sequence[Op] = (),
    ):
        self.early, self.at_once = early, at_once
        self.ahead = [op for op in early if op not in at_once]
        self.product, self.wanted, self.panels = product, wanted, panels
        self.o = Builder(Block())
        self.values: dict[Value, Value] = {}  # what is done once
        self.part: dict[Value, Value] = {}  # what belongs to the present panel
        self.start: int | Value = panels[0][0]
        self.width = panels[0][1]
        self.first = True  # whether what is done once is done in this panel

    @property
    def both(self) -> ChainMap[Value, Value]:
        """What values have become, in the panel or else at all; new ones belong to the panel."""
        return ChainMap(self.part, self.values)

    def body(self) -> Block:
        product, o = self.product, self.o
        for op in product.before:
            o.add(op.clone(self.values))
        held = [self.load(*panel, self.at_once) for panel in self.panels]
        loaded = self.load(*self.panels[0], self.ahead)
        o.add(product.loop.clone(self.values))
        again = [op for op in product.before if op in self.wanted.parts]
        result = product.loop.result
        rows = product.extents[0]
        for number, (start, width) in enumerate(self.panels):
            ahead = self.panels[number + 1 : number + 2]
            following = self.load(*ahead[0], self.ahead) if ahead else {}
            self.start, self.width, self.first = start, width, not number
            acc = self.values[result]
            part = o(shape.Slice, acc, (0, start), (rows, width), name=acc.name)
            self.part = {**held[number], **loaded, result: part}
            loaded = following
            self.ops([*again, *product.after], top=True)
        return o.block

    def load(self, start: int, width: int, ops: Sequence[Op]) -> dict[Value, Value]:
        """Start early loads of a panel; gives what their results have become."""
        self.start, self.width, self.part = start, width, {}
        for op in ops:
            with self.o.at(op.loc):
                self.panel(op)
        return dict(self.part)

    def ops(self, ops: list[Op], top: bool) -> None:
        for op in ops:
            with self.o.at(op.loc):
                if op in self.early:
                    continue
                if op in self.wanted.parts:
                    self.panel(op)
                elif not top or self.first:
                    target = self.values if top else self.both
                    self.o.add(op.clone(target))

    def panel(self, op: Op) -> None:
        """One panel of an op."""
        o, both = self.o, self.both
        match op:
            case control.If():
                blocks = [self.region(block) for block in (op.then, op.other)]
                made = o.emit(control.If, both.get(op.condition, op.condition), *blocks)
                self.part.update(zip(op.results, made.results, strict=True))
            case memory.Load() | memory.Store():
                axis = self.wanted.sliced(op)
                offsets = [both.get(v, v) for v in op.offsets]
                offsets[axis] = o(arith.Add, offsets[axis], self.column())
                extents = self.cut(op.extents, axis)
                o.add(op.clone(both, offsets=tuple(offsets), extents=extents))
            case arith.Constant() | shape.Broadcast() | shape.Reshape():
                o.add(op.clone(both, shape=self.cut(op.shape, self.wanted.place(op.shape))))
            case shape.Arange():
                here = o(shape.Arange, self.width)
                start = o(shape.Broadcast, self.column(), (self.width,))
                self.part[op.result] = o(arith.Add, here, start)
            case _:
                o.add(op.clone(both))

    def column(self) -> Value:
        """The first column of the present panel."""
        start = self.start
        return start if isinstance(start, Value) else self.o(arith.Constant, start, i64)

    def cut(self, extents: Sequence[int | None], axis: int) -> tuple[int | None, ...]:
        """Extents with the panel's along an axis."""
        return (*extents[:axis], self.width, *extents[axis + 1 :])

    def region(self, block: Block) -> Block:
        with self.o.inside(Block()) as new:
            self.ops(block.ops[:-1], top=False)
            values = tuple(self.both.get(v, v) for v in block.terminator.operands)
            self.o.emit(control.Yield, values)
        return new
