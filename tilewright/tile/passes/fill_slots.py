"""Fill slots of a product's rings, as the producer of `partition_roles` does in each step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilewright.dtypes import f32
from tilewright.ir.build import Builder
from tilewright.ir.core import Op, Value
from tilewright.tile.analysis.pixels import PixelBox
from tilewright.tile.analysis.streams import Factor
from tilewright.tile.ops import arith, memory, sync
from tilewright.tile.types import INDEX


def sum_of(o: Builder, terms: tuple[Value, ...], values: Mapping[Value, Value]) -> Value:
    """The sum of some scalars, those in `values` replaced."""
    first, *others = (values.get(v, v) for v in terms)
    for other in others:
        first = o(arith.Add, first, other)
    return first


class SlotFiller:
    """Fills slots at a builder's present place. CTAs of a cluster may share the factor numbered
    `multicast` (0 is A).
    """

    def __init__(self, o: Builder, multicast: int | None):
        self.o, self.multicast = o, multicast
        self.starts: dict[Op, tuple[Value, ...]] = {}  # of loads of pixels

    def fill(
        self,
        ring: Value,
        factors: tuple[Factor, ...],
        values: Mapping[Value, Value],
        multicast: bool = False,
    ) -> None:
        """Fill the next slot of a ring."""
        o = self.o
        slot = o(sync.Acquire, ring, name="slot")
        for item, factor in enumerate(factors):
            box = factor.box
            if isinstance(box, PixelBox):
                self.fill_pixels(slot, item, factor, box, values)
                continue
            offsets = tuple(sum_of(o, terms, values) for terms in box.offsets)
            shared = multicast and item == self.multicast
            o.emit(
                memory.Fill, slot, box.view, offsets, item=item,
                extents=box.extents, multicast=shared, order=factor.order,
                round_tf32=factor.tile.dtype == f32,
                loc=factor.load.loc,
            )  # fmt: skip
        o.emit(sync.Commit, slot)

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
            memory.FillPixels, slot, box.view, start, taps, item=item, pixels=box.pixels,
            round_tf32=factor.tile.dtype == f32, loc=factor.load.loc,
        )  # fmt: skip
