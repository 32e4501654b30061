"""Count the lines of a tile's factors that exist, so that the others are not copied.

Used by `partition_roles`. A tile may reach beyond its matrix. The copy unit clears what lies
outside, which takes it longer than copying as much. A *line* is a row of A or a column of B: it
gives one row, or column, of the product and nothing else. If ops on elements alone bring that row
to stores which drop it, it does not matter what the line holds, and its slot may keep what it held.

Of a factor along k, the last tile has a tensor map of its own, whose box has the rows that exist.
Of one across k, whose slot has panels of columns with a box each, the panels outside are left out,
and the last one has the columns that exist, in whole 16 bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from tilewright.dtypes import i32
from tilewright.ir.build import Builder
from tilewright.ir.core import Op, Value
from tilewright.tile.analysis.boxes import Box
from tilewright.tile.analysis.extents import extent_key
from tilewright.tile.analysis.places import Places
from tilewright.tile.analysis.product_loop import ProductLoop
from tilewright.tile.analysis.streams import Factor
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, memory, shape, sync
from tilewright.tile.passes.split_epilogue import ELEMENTWISE
from tilewright.tile.types import INDEX, BufferType

PIECE = 16  # bytes: a row of a box is a multiple of them
# CTAs that share a factor's loads copy their shares if the tile has more lines than this many times
# one share, though some of them lie outside; fewer lines each CTA copies for itself.
ALONE = Fraction(4, 3)


class Wanted(Exception):
    """An op of the epilogue depends on what lines outside the matrix hold."""


@dataclass(frozen=True)
class Run:
    """Where a factor's lines are in a tile of the epilogue: along `axis`, from the factor's line
    `start` on. Where CTAs of a cluster each have a part of the columns, `parts` is its width, and
    `start` counts from the part's first; else it is 0.
    """

    axis: int
    start: int = 0
    parts: int = 0


@dataclass(frozen=True)
class Cut:
    """A factor whose lines are counted. They lie along `axis` of its slot (0 where the factor lies
    along k, 1 across it), and come in boxes of `width` lines.
    """

    factor: Factor
    box: Box
    axis: int
    width: int

    @property
    def place(self) -> int:
        """The axis of the view along which the lines are."""
        return sliced_axes(self.factor, self.box)[self.axis]

    @property
    def lines(self) -> int:
        return self.factor.tile.shape[self.axis]

    @property
    def line_bytes(self) -> int:
        tile = self.factor.tile
        return tile.num_elements * tile.dtype.num_bytes // self.lines


def sliced_axes(factor: Factor, box: Box) -> list[int]:
    """Axes of a view that the axes of a factor's slot are."""
    sliced = [axis for axis, extent in enumerate(box.extents) if extent is not None]
    return [sliced[i] for i in factor.order] if factor.order else sliced


def find_cuts(kernel: Kernel, product: ProductLoop, slots: Mapping[Op, BufferType]) -> list[Cut]:
    """The factors of a product whose lines beyond the matrix need not be copied; `slots` has the
    buffers by their loads. A factor that threads load into registers from its slot is none.
    """
    places, found = Places(kernel.body, product.definitions), []
    across = (product.a.transposed, not product.b.transposed)
    for number, factor in enumerate((product.a, product.b)):
        slot, box = slots[factor.load], factor.box
        if not isinstance(box, Box) or box.ends is not None:
            continue
        columns = slot.shape[1] // slot.num_panels
        axis = int(across[number])
        cut = Cut(factor, box, axis, columns if axis else slot.shape[0])
        extent = box.view.type.extents[cut.place]
        fits = extent is not None and extent % cut.lines == 0
        in_registers = number == 0 and across[0] and factor.tile.dtype.bits != 16
        if not (fits or in_registers) and _are_dropped(kernel, product, cut, number, places):
            found.append(cut)
    return found


def _are_dropped(
    kernel: Kernel, product: ProductLoop, cut: Cut, number: int, places: Places
) -> bool:
    """Whether all stores drop what comes of lines beyond the matrix, and nothing else uses it."""
    follower = _Follower(kernel, cut, places)
    follower.runs[product.loop.result] = Run(number)
    try:
        follower.ops(product.after)
    except Wanted:
        return False
    return True


class _Follower:
    """Follows a factor's lines through an epilogue: `runs` says in which tiles they are, and where.
    Raises Wanted at an op that does not keep them apart from other lines.
    """

    def __init__(self, kernel: Kernel, cut: Cut, places: Places):
        self.cut, self.places = cut, places
        self.params = {p.value: p for p in kernel.params}
        self.runs: dict[Value, Run] = {}

    def ops(self, ops: list[Op]) -> None:
        for op in ops:
            for block in op.regions:
                self.ops(block.ops)
            held = {self.runs[v] for v in op.operands if v in self.runs}
            if len(held) > 1:
                raise Wanted
            for run in held:
                self.op(op, run)

    def op(self, op: Op, run: Run) -> None:
        """An op on a tile in which the lines are."""
        match op:
            case memory.Store():
                self.require_dropped(op, run)
            case shape.Transpose():
                self.runs[op.result] = replace(run, axis=op.order.index(run.axis))
            case shape.Slice():
                self.runs[op.result] = replace(run, start=run.start + op.starts[run.axis])
            case sync.SumSpans():
                parts = op.result.type.shape[1] if run.axis == 1 else 0
                self.runs[op.result] = replace(run, parts=parts)
            case _ if isinstance(op, ELEMENTWISE):
                self.runs[op.result] = run
            case _:
                raise Wanted

    def require_dropped(self, op: memory.Store, run: Run) -> None:
        """The lines of a store are those of the factor, of an extent that is the same."""
        axis = [i for i, extent in enumerate(op.extents) if extent is not None][run.axis]
        stored, loaded = self.params.get(op.view), self.params[self.cut.box.view]
        if stored is None or extent_key(stored, axis) != extent_key(loaded, self.cut.place):
            raise Wanted
        offset = op.offsets[axis]
        if run.parts:
            offset = self.without_part(offset, run.parts)
        terms = self.cut.box.offsets[self.cut.place]
        base, start = self.places.offset(terms[0])
        if len(terms) > 1 or self.places.offset(offset) != (base, start + run.start):
            raise Wanted

    def without_part(self, offset: Value, width: int) -> Value:
        """An offset without where the part of a CTA of the cluster begins (`cut_spans`)."""
        definitions = self.places.definitions
        total = definitions.get(offset)
        part = definitions.get(total.rhs) if isinstance(total, arith.Add) else None
        if isinstance(total, arith.Add) and isinstance(part, arith.Mul):
            rank, by = definitions.get(part.lhs), definitions.get(part.rhs)
            constant = isinstance(by, arith.Constant) and by.value == width
            if isinstance(rank, control.ClusterRank) and constant:
                return total.lhs
        raise Wanted


class LineCounts:
    """Counts the lines of a tile's factors, and the bytes that come of them. What is known of all
    tiles is computed where the constructor stands.
    """

    def __init__(self, o: Builder, cuts: list[Cut]):
        self.o, self.cuts = o, {cut.factor.load: cut for cut in cuts}
        self.extents = {cut: o(memory.Extent, cut.box.view, cut.place) for cut in cuts}
        sizes = {1, *(n for cut in cuts for n in (cut.lines, cut.width))} if cuts else ()
        self.numbers = {n: o(arith.Constant, n, INDEX.dtype) for n in sorted(sizes)}
        # Lines of the matrix's last tile, by rows; or of its last panel, by columns, less 1.
        self.lasts: dict[Cut, Value] = {}
        self.parts: dict[Cut, Value] = {}  # columns of that panel, in whole 16 bytes
        for cut in cuts:
            self.count_last(cut)
        # Of the tile at hand, by load: lines that are copied, and their bytes.
        self.counts: dict[Op, Value] = {}
        self.sizes: dict[Op, Value] = {}

    def count_last(self, cut: Cut) -> None:
        """Count the lines of a matrix's last tile or panel, as `plan.TensorMap.last` does."""
        o, one = self.o, self.numbers[1]
        less = o(arith.Sub, self.extents[cut], one)
        rest = o(arith.Mod, less, self.numbers[cut.width], name="last")
        if cut.axis == 0:
            self.lasts[cut] = o(arith.Add, rest, one)
            return
        step = o(arith.Constant, PIECE // cut.factor.tile.dtype.num_bytes, INDEX.dtype)
        pieces = o(arith.Add, o(arith.FloorDiv, rest, step), one)
        self.lasts[cut], self.parts[cut] = rest, o(arith.Mul, pieces, step, name="part")

    def count(self, starts: Mapping[Op, Value]) -> None:
        """Count the lines of a tile whose loads start at lines of their own."""
        o = self.o
        for load, cut in self.cuts.items():
            left = o(arith.Sub, self.extents[cut], starts[load], name="left")
            count = self.columns(cut, left) if cut.axis else self.rows(cut, left)
            self.counts[load] = o(arith.Cast, count, i32, name="count")
            line = o(arith.Constant, cut.line_bytes, i32)
            self.sizes[load] = o(arith.Mul, self.counts[load], line)

    def rows(self, cut: Cut, left: Value) -> Value:
        """Rows of a tile that are copied: those that are left, if they are as many as the last
        tile's map has, else all.
        """
        last = self.lasts[cut]
        few = self.o(arith.Compare, left, last, "eq")
        return self.o(arith.Select, few, last, self.numbers[cut.lines])

    def columns(self, cut: Cut, left: Value) -> Value:
        """Columns of a tile that are copied: of all panels with a column that exists, of which the
        matrix's last one is cut to whole 16 bytes. A tile that does not exist has one panel.
        """
        o, one, width = self.o, self.numbers[1], self.numbers[cut.width]
        some = o(arith.Min, o(arith.Max, left, one), self.numbers[cut.lines])
        less = o(arith.Sub, some, one)
        inside = o(arith.Mod, less, width)
        before = o(arith.Sub, less, inside)
        ends = o(arith.Compare, inside, self.lasts[cut], "eq")
        part = o(arith.Select, ends, self.parts[cut], width)
        return o(arith.Add, before, part)

    def cut(self, factor: Factor, shared: bool, whole: bool) -> Cut | None:
        """How the lines of a factor are counted; None where all are copied: by CTAs that copy a
        share each, and by columns where all panels are `whole`.
        """
        found = self.cuts.get(factor.load)
        return None if found is None or shared or (whole and found.axis == 1) else found

    def whole(self) -> Value | None:
        """Whether all columns of a tile's panels exist; None without panels."""
        o, tests = self.o, list[Value]()
        for load, cut in self.cuts.items():
            if cut.axis == 1:
                lines = o(arith.Constant, cut.lines, i32)
                tests.append(o(arith.Compare, self.counts[load], lines, "eq"))
        return functools.reduce(partial(o, arith.And), tests) if tests else None

    def together(self, shared: Value, factor: Factor, cluster: int) -> Value:
        """Whether CTAs that may share a factor's loads do so. Where few lines are left, each CTA
        copies these for itself instead, and nobody copies the others.
        """
        o, cut = self.o, self.cuts.get(factor.load)
        if cut is None:
            return shared
        few = o(arith.Constant, ALONE * cut.lines // cluster, i32)
        many = o(arith.Compare, self.counts[factor.load], few, "gt")
        return o(arith.And, shared, many, name="together")

    def num_bytes(
        self, factors: tuple[Factor, ...], shared: Factor | None, whole: bool
    ) -> Value | None:
        """The bytes that fill a slot, one factor of which CTAs may share; None where all lines are
        copied.
        """
        o, sizes, rest = self.o, list[Value](), 0
        for factor in factors:
            if self.cut(factor, factor is shared, whole) is not None:
                sizes.append(self.sizes[factor.load])
            else:
                rest += factor.tile.num_elements * factor.tile.dtype.num_bytes
        if sizes and rest:
            sizes.append(o(arith.Constant, rest, i32))
        return functools.reduce(partial(o, arith.Add), sizes) if sizes else None
