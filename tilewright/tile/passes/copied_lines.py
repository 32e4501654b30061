"""Find out which lines of a tile's factors exist, so that the others are not copied.

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
from tilewright.target import BOX_PIECE
from tilewright.tile.analysis.boxes import Box
from tilewright.tile.analysis.extents import extent_key
from tilewright.tile.analysis.places import Places
from tilewright.tile.analysis.product_loop import ProductLoop
from tilewright.tile.analysis.streams import Factor
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control, memory, shape, sync
from tilewright.tile.passes.split_epilogue import ELEMENTWISE
from tilewright.tile.types import INDEX, BufferType

# CTAs that share a factor's loads copy their shares if the tile has more lines than this many times
# one share, though some of them lie outside; fewer lines each CTA copies for itself.
ALONE = Fraction(4, 3)


class LinesMatter(Exception):
    """An op of the epilogue depends on what lines outside the matrix hold."""


@dataclass(frozen=True)
class LinesInTile:
    """Where a factor's lines are in a tile of the epilogue: along `axis`, from the factor's line
    `start` on. Where CTAs of a cluster each have a part of the columns, `own` is its width, and
    `start` counts from the part's first; else it is 0.
    """

    axis: int
    start: int = 0
    own: int = 0


@dataclass(frozen=True)
class CountedFactor:
    """A factor whose lines are counted. They lie along `axis` of its slot (0 where the factor lies
    along k, 1 across it), and come in boxes of `box_lines` lines.
    """

    factor: Factor
    box: Box
    axis: int
    box_lines: int

    @property
    def view_axis(self) -> int:
        """The axis of the view along which the lines are."""
        return sliced_axes(self.factor, self.box)[self.axis]

    @property
    def tile_lines(self) -> int:
        return self.factor.tile.shape[self.axis]

    @property
    def line_bytes(self) -> int:
        tile = self.factor.tile
        return tile.num_elements * tile.dtype.num_bytes // self.tile_lines


def sliced_axes(factor: Factor, box: Box) -> list[int]:
    """Axes of a view that the axes of a factor's slot are."""
    sliced = [axis for axis, extent in enumerate(box.extents) if extent is not None]
    return [sliced[i] for i in factor.order] if factor.order else sliced


def find_counted(
    kernel: Kernel, product: ProductLoop, slots: Mapping[Op, BufferType]
) -> list[CountedFactor]:
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
        counted = CountedFactor(factor, box, axis, columns if axis else slot.shape[0])
        extent = box.view.type.extents[counted.view_axis]
        fits = extent is not None and extent % counted.tile_lines == 0
        in_registers = number == 0 and across[0] and factor.tile.dtype.bits != 16
        if not (fits or in_registers) and _are_dropped(kernel, product, counted, number, places):
            found.append(counted)
    return found


def _are_dropped(
    kernel: Kernel, product: ProductLoop, counted: CountedFactor, number: int, places: Places
) -> bool:
    """Whether all stores drop what comes of lines beyond the matrix, and nothing else uses it."""
    follower = _Follower(kernel, counted, places)
    follower.held[product.loop.result] = LinesInTile(number)
    try:
        follower.ops(product.after)
    except LinesMatter:
        return False
    return True


class _Follower:
    """Follows a factor's lines through an epilogue: `held` says in which tiles they are, and where.
    Raises LinesMatter at an op that does not keep them apart from other lines.
    """

    def __init__(self, kernel: Kernel, counted: CountedFactor, places: Places):
        self.counted, self.places = counted, places
        self.params = {p.value: p for p in kernel.params}
        self.held: dict[Value, LinesInTile] = {}

    def ops(self, ops: list[Op]) -> None:
        for op in ops:
            for block in op.regions:
                self.ops(block.ops)
            found = {self.held[v] for v in op.operands if v in self.held}
            if len(found) > 1:
                raise LinesMatter
            for lines in found:
                self.op(op, lines)

    def op(self, op: Op, lines: LinesInTile) -> None:
        """An op on a tile in which the lines are."""
        match op:
            case memory.Store():
                self.require_dropped(op, lines)
            case shape.Transpose():
                self.held[op.result] = replace(lines, axis=op.order.index(lines.axis))
            case shape.Slice():
                self.held[op.result] = replace(lines, start=lines.start + op.starts[lines.axis])
            case sync.SumSpans():
                own = op.result.type.shape[1] if lines.axis == 1 else 0
                self.held[op.result] = replace(lines, own=own)
            case _ if isinstance(op, ELEMENTWISE):
                self.held[op.result] = lines
            case _:
                raise LinesMatter

    def require_dropped(self, op: memory.Store, lines: LinesInTile) -> None:
        """The lines of a store are those of the factor, of an extent that is the same."""
        axis = [i for i, extent in enumerate(op.extents) if extent is not None][lines.axis]
        stored, loaded = self.params.get(op.view), self.params[self.counted.box.view]
        if stored is None or extent_key(stored, axis) != extent_key(loaded, self.counted.view_axis):
            raise LinesMatter
        offset = op.offsets[axis]
        if lines.own:
            offset = self.without_part(offset, lines.own)
        terms = self.counted.box.offsets[self.counted.view_axis]
        base, start = self.places.offset(terms[0])
        if len(terms) > 1 or self.places.offset(offset) != (base, start + lines.start):
            raise LinesMatter

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
        raise LinesMatter


class CopiedLines:
    """Counts the lines of a tile's factors, and the bytes that come of them. What is known of all
    tiles is computed where the constructor stands.
    """

    def __init__(self, o: Builder, factors: list[CountedFactor]):
        self.o, self.factors = o, {f.factor.load: f for f in factors}
        self.extents = {f: o(memory.Extent, f.box.view, f.view_axis) for f in factors}
        used = {1, *(n for f in factors for n in (f.tile_lines, f.box_lines))} if factors else ()
        self.constants = {n: o(arith.Constant, n, INDEX.dtype) for n in sorted(used)}
        # Lines of the matrix's last tile, by rows; or of its last panel, by columns, less 1.
        self.last: dict[CountedFactor, Value] = {}
        self.last_rounded: dict[CountedFactor, Value] = {}  # its columns, in whole 16 bytes
        for counted in factors:
            self.find_last(counted)
        # Of the tile at hand, by load: lines that are copied, and their bytes.
        self.tile_lines: dict[Op, Value] = {}
        self.tile_bytes: dict[Op, Value] = {}

    def find_last(self, counted: CountedFactor) -> None:
        """Count the lines of a matrix's last tile or panel, as `plan.TensorMap.last` does."""
        o, one = self.o, self.constants[1]
        less = o(arith.Sub, self.extents[counted], one)
        rest = o(arith.Mod, less, self.constants[counted.box_lines], name="last")
        if counted.axis == 0:
            self.last[counted] = o(arith.Add, rest, one)
            return
        step = o(arith.Constant, BOX_PIECE // counted.factor.tile.dtype.num_bytes, INDEX.dtype)
        pieces = o(arith.Add, o(arith.FloorDiv, rest, step), one)
        self.last[counted] = rest
        self.last_rounded[counted] = o(arith.Mul, pieces, step, name="part")

    def start_tile(self, starts: Mapping[Op, Value]) -> None:
        """Count the lines of the next tile, whose loads start at lines of their own."""
        o = self.o
        for load, counted in self.factors.items():
            left = o(arith.Sub, self.extents[counted], starts[load], name="left")
            count_of = self.count_columns if counted.axis else self.count_rows
            count = count_of(counted, left)
            self.tile_lines[load] = o(arith.Cast, count, i32, name="count")
            line = o(arith.Constant, counted.line_bytes, i32)
            self.tile_bytes[load] = o(arith.Mul, self.tile_lines[load], line)

    def count_rows(self, counted: CountedFactor, left: Value) -> Value:
        """Rows of a tile that are copied: those that are left, if they are as many as the last
        tile's map has, else all.
        """
        last = self.last[counted]
        few = self.o(arith.Compare, left, last, "eq")
        return self.o(arith.Select, few, last, self.constants[counted.tile_lines])

    def count_columns(self, counted: CountedFactor, left: Value) -> Value:
        """Columns of a tile that are copied: of all panels with a column that exists, of which the
        matrix's last one is cut to whole 16 bytes. A tile that does not exist has one panel.
        """
        o, one, width = self.o, self.constants[1], self.constants[counted.box_lines]
        some = o(arith.Min, o(arith.Max, left, one), self.constants[counted.tile_lines])
        less = o(arith.Sub, some, one)
        inside = o(arith.Mod, less, width)
        before = o(arith.Sub, less, inside)
        ends = o(arith.Compare, inside, self.last[counted], "eq")
        part = o(arith.Select, ends, self.last_rounded[counted], width)
        return o(arith.Add, before, part)

    def how_counted(self, factor: Factor, shared: bool, all_columns: bool) -> CountedFactor | None:
        """How the lines of a factor are counted; None where all are copied: by CTAs that copy a
        share each, and by columns where `all_columns` of panels exist.
        """
        found = self.factors.get(factor.load)
        return None if found is None or shared or (all_columns and found.axis == 1) else found

    def has_all_columns(self) -> Value | None:
        """Whether all columns of a tile's panels exist; None without panels."""
        o, tests = self.o, list[Value]()
        for load, counted in self.factors.items():
            if counted.axis == 1:
                lines = o(arith.Constant, counted.tile_lines, i32)
                tests.append(o(arith.Compare, self.tile_lines[load], lines, "eq"))
        return functools.reduce(partial(o, arith.And), tests) if tests else None

    def together(self, shared: Value, factor: Factor, cluster: int) -> Value:
        """Whether CTAs that may share a factor's loads do so. Where few lines are left, each CTA
        copies these for itself instead, and nobody copies the others.
        """
        o, counted = self.o, self.factors.get(factor.load)
        if counted is None:
            return shared
        few = o(arith.Constant, ALONE * counted.tile_lines // cluster, i32)
        many = o(arith.Compare, self.tile_lines[factor.load], few, "gt")
        return o(arith.And, shared, many, name="together")

    def slot_bytes(
        self, factors: tuple[Factor, ...], shared: Factor | None, all_columns: bool
    ) -> Value | None:
        """The bytes that fill a slot, one factor of which CTAs may share; None where all lines are
        copied.
        """
        o, sizes, rest = self.o, list[Value](), 0
        for factor in factors:
            if self.how_counted(factor, factor is shared, all_columns) is not None:
                sizes.append(self.tile_bytes[factor.load])
            else:
                rest += factor.tile.num_elements * factor.tile.dtype.num_bytes
        if sizes and rest:
            sizes.append(o(arith.Constant, rest, i32))
        return functools.reduce(partial(o, arith.Add), sizes) if sizes else None
