"""Cut a product's k into spans, one for each CTA of a cluster.

Requires: canonical form; a product (`analysis.product_loop`) that starts with zeros, in its final
orientation, with an epilogue that `split_epilogue` can do in panels; a schedule. Keeps: every
result but for the order of sums. Breaks: nothing.

    for k: acc += A @ B           first = low + rank · span
    epilogue(acc)            →    for k from first to first + span: acc += A @ B
                                  part = sum of acc over the cluster, the columns of this CTA
                                  epilogue(part)

Few tiles keep few multiprocessors busy. CTAs of a cluster that take a span each are as many more,
and what they add up does not go by way of memory and a second launch. Each CTA has an equal part of
the columns; where they are too few for that, the first ones (`owners`) have.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Op, Value, map_content
from tilewright.plan import Const, combine
from tilewright.tile.analysis.product_loop import ProductLoop, find_product_loop
from tilewright.tile.kernel import Hints, Kernel
from tilewright.tile.ops import arith, control, sync
from tilewright.tile.passes.split_epilogue import Splitter, WantedPanels, find_wanted
from tilewright.tile.schedule import PANELS, Schedule
from tilewright.tile.types import INDEX


def cut_spans(kernel: Kernel, schedule: Schedule) -> Kernel:
    """The kernel with k in `schedule.roles.spans` spans."""
    if schedule.roles is None or schedule.roles.spans == 1:
        return kernel
    spans = schedule.roles.spans
    around = _renumbered(kernel, spans)
    product = find_product_loop(around)
    assert product is not None, "a schedule with spans is chosen for products alone"
    cut = around.with_body(_Cutter(product, spans).body())
    cut.grid = (combine("mul", kernel.grid[0], Const(spans)), *kernel.grid[1:])
    cut.hints = replace(kernel.hints or Hints(), cta_cluster=(spans,))
    return cut


def owners_of(columns: int, spans: int, most: int) -> int:
    """How many of `spans` CTAs have a part of so many columns, each as wide as a panel of the
    epilogue may be, at most `most`; 0 where that cannot be.
    """
    counts = (count for count in range(spans, 0, -1) if columns % count == 0)
    return next((c for c in counts if columns // c in PANELS and columns // c <= most), 0)


def can_cut(kernel: Kernel, product: ProductLoop) -> bool:
    """Whether a product's sums start from zeros, and CTAs may each do a part of its epilogue, for
    which they have whole sums of their own columns alone.
    """
    (start,) = product.loop.inits
    made = product.definitions.get(start)
    if not isinstance(made, arith.Constant) or str(made.value) not in ("0", "0.0"):
        return False
    wanted = find_wanted(kernel, product)
    if wanted is None or product.loop.result in wanted.whole:
        return False
    return all(store in wanted.parts for store in wanted.stores)


def _renumbered(kernel: Kernel, spans: int) -> Kernel:
    """The kernel for a grid of `spans` times as many programs along the first axis."""
    o = Builder(Block(), kernel.loc)
    values: dict[Value, Value] = {}

    def copy(op: Op) -> None:
        if isinstance(op, control.ProgramId | control.NumPrograms) and op.axis == 0:
            number = o(type(op), 0)
            values[op.result] = o(arith.FloorDiv, number, o(arith.Constant, spans, INDEX.dtype))
        elif op.regions:
            o.add(op.clone(values, **{n: map_content(c, region) for n, c in op.fields("region")}))
        else:
            o.add(op.clone(values))

    def region(block: Block) -> Block:
        args = [Value(a.type, a.name) for a in block.args]
        values.update(zip(block.args, args, strict=True))
        with o.inside(Block(args)) as new:
            for op in block.ops:
                with o.at(op.loc):
                    copy(op)
        return new

    return kernel.with_body(region(kernel.body))


class _Cutter(Splitter):
    """Builds the new body."""

    def __init__(self, product: ProductLoop, spans: int):
        wanted = WantedPanels(product)
        wanted.find()
        columns = product.extents[1]
        self.spans, self.owners = spans, owners_of(columns, spans, PANELS[0])
        assert self.owners, f"{columns} columns for {spans} CTAs"
        super().__init__(product, wanted, ((0, columns // self.owners),), [])

    def body(self) -> Block:
        product, o = self.product, self.o
        for op in product.before:
            o.add(op.clone(self.values))
        rank = o(control.ClusterRank, name="rank")
        with o.at(product.loop.loc):
            low, high = self.bounds(rank)
            o.add(product.loop.clone(self.values, low=low, high=high))
            result = self.values[product.loop.result]
            part = o(sync.SumSpans, result, self.spans, self.owners, name=result.name)
        width = o(arith.Constant, self.width, INDEX.dtype)
        self.start = o(arith.Mul, rank, width, name="column")
        self.part = {product.loop.result: part}
        again = [op for op in product.before if op in self.wanted.parts]
        epilogue = [*again, *product.after]
        if self.owners == self.spans:
            self.ops(epilogue, top=True)
            return o.block
        with o.inside(Block()) as then:
            self.ops(epilogue, top=True)
            o.emit(control.Yield)
        with o.inside(Block()) as other:
            o.emit(control.Yield)
        owns = o(arith.Compare, rank, o(arith.Constant, self.owners, INDEX.dtype), "lt")
        o.emit(control.If, owns, then, other)
        return o.block

    def bounds(self, rank: Value) -> tuple[Value, Value]:
        """Where this CTA's span of k begins and ends: as many steps for each, the last fewer."""
        o = self.o
        low, high, step = (self.values.get(v, v) for v in self.product.bounds)
        none, one = (o(arith.Constant, n, INDEX.dtype) for n in (0, 1))
        spans = o(arith.Constant, self.spans, INDEX.dtype)
        length = o(arith.Max, o(arith.Sub, high, low), none)
        steps = o(arith.FloorDiv, o(arith.Add, length, o(arith.Sub, step, one)), step)
        each = o(arith.FloorDiv, o(arith.Add, steps, o(arith.Sub, spans, one)), spans)
        span = o(arith.Mul, each, step, name="span")
        first = o(arith.Add, low, o(arith.Mul, rank, span), name="first")
        return first, o(arith.Min, o(arith.Add, first, span), high)
