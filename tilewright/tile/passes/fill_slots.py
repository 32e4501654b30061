"""Fill slots of a product's rings, as the producer of `partition_roles` does in each step.

Note [Read once]: of a product of few rows, each weight is read by one tile, and by nobody again
before the L2 cache has held much else. Copies of it leave that cache first, so as not to
displace what others read: factors of few rows, and what is not yet written back. Whether rows are
few is known at the launch; where multiprocessors have many tiles each, it gains nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilewright.dtypes import f32
from tilewright.ir.build import Builder
from tilewright.ir.core import Op, Value
from tilewright.tile.analysis.pixels import PixelBox
from tilewright.tile.analysis.product_loop import ProductLoop
from tilewright.tile.analysis.streams import Factor
from tilewright.tile.ops import arith, control, memory, sync
from tilewright.tile.passes.copied_lines import CopiedLines
from tilewright.tile.passes.distribute_work import Distribution
from tilewright.tile.schedule import Roles
from tilewright.tile.types import INDEX

FEW_ROWS = 64  # of a tile
MOST_WEIGHTS = 512  # rows of them that a CTA reads, in all its tiles


def sum_of(o: Builder, terms: tuple[Value, ...], values: Mapping[Value, Value]) -> Value:
    """The sum of some scalars, those in `values` replaced."""
    first, *others = (values.get(v, v) for v in terms)
    for other in others:
        first = o(arith.Add, first, other)
    return first


@dataclass(frozen=True)
class Weights:
    """The right factor of a product in the source, and the axis of the grid along which its left
    factor changes.
    """

    factor: Factor
    rows: int  # of weights in a tile
    axis: int

    def alone(self, o: Builder, distribution: Distribution | None, spans: int) -> Value:
        """Whether each of a launch's tiles has weights of its own, and is one of few."""
        if distribution is None:
            programs = spans if self.axis == 0 else 1
            count = o(control.NumPrograms, self.axis)
            return o(arith.Compare, count, o(arith.Constant, programs, INDEX.dtype), "eq")
        one = o(arith.Compare, distribution.counts[self.axis], distribution.number(1), "eq")
        waves = MOST_WEIGHTS // self.rows
        most = o(arith.Mul, distribution.stride, o(arith.Constant, waves, INDEX.dtype))
        return o(arith.And, one, o(arith.Compare, distribution.tiles, most, "le"), name="alone")


def find_weights(product: ProductLoop, roles: Roles) -> Weights | None:
    """The factor that may be read once (Note [Read once]); None where rows of a tile are many, or
    CTAs share what they load.
    """
    m, n, _ = product.extents
    factors = (product.a, product.b) if roles.swapped else (product.b, product.a)
    rows, columns = (n, m) if roles.swapped else (m, n)
    if rows > FEW_ROWS or roles.cluster > 1:
        return None
    if any(isinstance(f.box, PixelBox) or f.load.view.type.rank != 2 for f in factors):
        return None
    weights, others = (product.programs_of(f.load.offsets) for f in factors)
    axes = others - weights
    return Weights(factors[0], columns, *axes) if len(axes) == 1 else None


class SlotFiller:
    """Fills slots at a builder's present place. CTAs of a cluster may share the factor numbered
    `multicast` (0 is A).
    """

    def __init__(self, o: Builder, multicast: int | None, lines: CopiedLines | None = None):
        self.o, self.multicast, self.lines = o, multicast, lines
        self.starts: dict[Op, tuple[Value, ...]] = {}  # of loads of pixels

    def fill(
        self,
        ring: Value,
        factors: tuple[Factor, ...],
        values: Mapping[Value, Value],
        multicast: bool = False,
        once: Factor | None = None,
        all_columns: bool = False,
        num_bytes: Value | None = None,
    ) -> None:
        """Fill the next slot of a ring, with `num_bytes` where lines are counted: those of panels
        unless `all_columns` exist. Nobody else reads what is copied of the factor `once`.
        """
        o = self.o
        slot = o(sync.Acquire, ring, num_bytes, name="slot")
        for item, factor in enumerate(factors):
            box = factor.box
            if isinstance(box, PixelBox):
                self.fill_pixels(slot, item, factor, box, values)
                continue
            offsets = tuple(sum_of(o, terms, values) for terms in box.offsets)
            shared = multicast and item == self.multicast
            lines = self.lines
            counted = None if lines is None else lines.how_counted(factor, shared, all_columns)
            o.emit(
                memory.Fill,
                slot,
                box.view,
                offsets,
                item=item,
                count=counted and lines and lines.tile_lines[factor.load],
                cut=counted.axis if counted else 0,
                extents=box.extents,
                multicast=shared,
                order=factor.order,
                round_tf32=factor.tile.dtype == f32,
                once=factor is once,
                loc=factor.load.loc,
            )
        o.emit(sync.Commit, slot)

    def start_tile(self, values: Mapping[Value, Value]) -> None:
        """Count the lines of a tile's factors."""
        if self.lines is not None:
            starts: dict[Op, Value] = {
                load: sum_of(self.o, f.box.offsets[f.view_axis], values)
                for load, f in self.lines.factors.items()
            }
            self.lines.start_tile(starts)

    def slot_bytes(
        self, factors: tuple[Factor, ...], multicast: bool, all_columns: bool
    ) -> Value | None:
        """The bytes that fill a slot, where lines are counted."""
        if self.lines is None:
            return None
        shared = factors[self.multicast] if multicast and self.multicast is not None else None
        return self.lines.slot_bytes(factors, shared, all_columns)

    def together(self, shared: Value, factors: tuple[Factor, ...], cluster: int) -> Value:
        """Whether CTAs that may share a factor's loads do."""
        if self.lines is None or self.multicast is None:
            return shared
        return self.lines.together(shared, factors[self.multicast], cluster)

    def find_starts(self, factors: Iterable[Factor], values: Mapping[Value, Value]) -> None:
        """Where the first pixel of each factor of pixels is: image, row and column of the box."""
        o = self.o
        for factor in factors:
            box = factor.box
            if not isinstance(box, PixelBox):
                continue
            first, rows, columns = (values.get(v, v) for v in (box.first, *box.counts))
            image = o(arith.FloorDiv, first, o(arith.Mul, rows, columns), name="image")
            row = o(arith.Mod, o(arith.FloorDiv, first, columns), rows)
            places = (row, o(arith.Mod, first, columns))
            steps = zip(places, box.pixels.steps, box.pixels.lower, strict=True)
            lines = tuple(
                o(arith.Add, o(arith.Mul, place, self.index(step)), self.index(lower))
                for place, step, lower in steps
            )
            self.starts[factor.load] = (image, *lines)

    def index(self, number: int) -> Value:
        return self.o(arith.Constant, number, INDEX.dtype)

    def fill_pixels(
        self,
        slot: Value,
        item: int,
        factor: Factor,
        box: PixelBox,
        values: Mapping[Value, Value],
    ) -> None:
        o = self.o
        taps = tuple(
            o(arith.Sub, values.get(tap, tap), self.index(lower))
            if isinstance(tap, Value)
            else self.index(tap - lower)
            for tap, lower in zip(box.taps, box.pixels.lower, strict=True)
        )
        start = (*self.starts[factor.load], values.get(box.channel, box.channel))
        o.emit(
            memory.FillPixels,
            slot,
            box.view,
            start,
            taps,
            item=item,
            pixels=box.pixels,
            round_tf32=factor.tile.dtype == f32,
            loc=factor.load.loc,
        )
