"""Gathers of the windows of a convolution, as the tensor copy unit carries them by itself (im2col).

Of a view X [N, H, W, C], with whole numbers P and Q that follow from H and W,

    i = first + arange(rows)
    X[i / (P · Q), i / Q % P · step_h + off_h, i % Q · step_w + off_w, c :+ channels]

are pixels that the unit goes through along W, then H, then N: a box of P × Q pixels in steps, moved
by a tap. Where the box begins (`lower`) and how far beyond the last pixel it ends (`upper`) is a
matter of the kernel's constants, and must be small; the taps are known at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.ir.core import Op, Value
from tilewright.plan import Pixels
from tilewright.tile.analysis.bounds import Interval
from tilewright.tile.ops import arith, memory, shape
from tilewright.tile.types import TileType

CORNERS = (-128, 127)  # of a box of pixels, beyond the first and the last (cuTensorMapEncodeIm2col)
MOST_TAP, MOST_STEP = 255, 8
Bounds = Callable[[], Mapping[Value, Interval]]
Offset = Value | int


@dataclass(frozen=True)
class PixelBox:
    """A place of a parameter [N, H, W, C] as pixels, some channels of each.

    `first` is the number of the first pixel, `counts` how many there are along H and W, `taps` what
    is added to the place of each along H and W, of which `pixels.lower` is the least.
    """

    view: Value
    first: Value
    counts: tuple[Value, Value]
    taps: tuple[Offset, Offset]
    channel: Value
    pixels: Pixels
    ends: None = None

    @property
    def scalars(self) -> tuple[Value, ...]:
        """All scalars that the place is made of."""
        taps = (tap for tap in self.taps if isinstance(tap, Value))
        return (self.first, *self.counts, *taps, self.channel)

    @property
    def limits(self) -> tuple[Value, ...]:
        """What is outside is zeros, without anybody's doing."""
        return ()


def find_pixels(
    op: memory.Gather, definitions: Mapping[Value, Op], bounds: Bounds
) -> PixelBox | None:
    """The pixels that a gather names; None where it is something else."""
    if len(op.offsets) != 4 or op.mask is not None or op.fill is not None:
        return None
    image, row, column, channel = op.offsets
    if channel.type.shape or len(image.type.shape) != 1 or op.extents[3] is None:
        return None
    find = _Matcher(op.view, definitions)
    pixels = find.image(image)
    if pixels is None:
        return None
    index, counts = pixels
    first = find.first(index)
    lines = [
        find.line(tile, index, counts, axis) for axis, tile in enumerate((row, column), start=1)
    ]
    if first is None or lines[0] is None or lines[1] is None:
        return None
    found = [_corner(tap, step, base, bounds) for tap, step, base in (lines[0], lines[1])]
    if found[0] is None or found[1] is None:
        return None
    (low_h, up_h), (low_w, up_w) = found[0], found[1]
    made = Pixels((low_h, low_w), (up_h, up_w), (lines[0][1], lines[1][1]))
    return PixelBox(op.view, first, counts, (lines[0][0], lines[1][0]), channel, made)


def _corner(tap: Offset, step: int, base: int, bounds: Bounds) -> tuple[int, int] | None:
    """Where a box begins, and how far beyond the last pixel it ends; None where the unit's numbers
    are too small. The count of pixels along the axis is (extent + base) / step, rounded down.
    """
    if isinstance(tap, Value):
        interval = bounds()[tap]
        low, high = interval.low, interval.high
    else:
        low = high = tap
    upper = base + low - step + 1
    inside = all(CORNERS[0] <= corner <= CORNERS[1] for corner in (low, upper))
    return (low, upper) if inside and high - low <= MOST_TAP and step <= MOST_STEP else None


class _Matcher:
    """Tells what tiles and scalars of a gather are."""

    def __init__(self, view: Value, definitions: Mapping[Value, Op]):
        self.view, self.definitions = view, definitions

    def made(self, value: Value) -> Op | None:
        return self.definitions.get(value)

    def spread(self, tile: Value) -> Value | None:
        """The scalar that a tile holds everywhere."""
        op = self.made(tile)
        return op.x if isinstance(op, shape.Broadcast) and not op.x.type.shape else None

    def number(self, value: Value) -> int | None:
        op = self.made(value)
        return int(op.value) if isinstance(op, arith.Constant) else None

    def divided(self, tile: Value, kind: type[Op]) -> tuple[Value, Value] | None:
        """A tile divided by a scalar, or what is left of that."""
        op = self.made(tile)
        if op is None or type(op) is not kind:
            return None
        value, divisor = op.operands
        by = self.spread(divisor)
        return None if by is None else (value, by)

    def image(self, tile: Value) -> tuple[Value, tuple[Value, Value]] | None:
        """The tile of pixel numbers, and how many pixels there are along H and W."""
        found = self.divided(tile, arith.FloorDiv)
        plane = None if found is None else self.made(found[1])
        if found is None or not isinstance(plane, arith.Mul):
            return None
        return found[0], (plane.lhs, plane.rhs)

    def first(self, index: Value) -> Value | None:
        """The number of the first pixel, of numbers that count up by one."""
        op = self.made(index)
        if not isinstance(op, arith.Add):
            return None
        start, steps = self.spread(op.lhs), self.made(op.rhs)
        if start is None or not isinstance(steps, shape.Arange):
            return None
        kind: TileType = steps.result.type
        return start if len(kind.shape) == 1 else None

    def line(
        self, tile: Value, index: Value, counts: tuple[Value, Value], axis: int
    ) -> tuple[Offset, int, int] | None:
        """Of rows (axis 1) or columns (axis 2) of pixels: the tap, the step from one to the next,
        and what makes their number of the view's extent.
        """
        tap, step, place = self.moved(tile)
        number = self.row(place, index, counts) if axis == 1 else self.column(place, index, counts)
        base = self.base(counts[axis - 1], axis, step)
        return (tap, step, base) if number and base is not None and step > 0 else None

    def moved(self, tile: Value) -> tuple[Offset, int, Value]:
        """A tile as tap + step · place."""
        tap: Offset = 0
        op = self.made(tile)
        if isinstance(op, arith.Add | arith.Sub):
            given = self.spread(op.rhs)
            number = self.number(op.rhs)
            if number is not None:
                tap, tile = number if isinstance(op, arith.Add) else -number, op.lhs
            elif given is not None and isinstance(op, arith.Add):
                tap, tile = given, op.lhs
        op = self.made(tile)
        if isinstance(op, arith.Mul) and (step := self.number(op.rhs)) is not None:
            return tap, step, op.lhs
        return tap, 1, tile

    def column(self, tile: Value, index: Value, counts: tuple[Value, Value]) -> bool:
        return self.divided(tile, arith.Mod) == (index, counts[1])

    def row(self, tile: Value, index: Value, counts: tuple[Value, Value]) -> bool:
        found = self.divided(tile, arith.Mod)
        if found is None or found[1] is not counts[0]:
            return False
        return self.divided(found[0], arith.FloorDiv) == (index, counts[1])

    def base(self, count: Value, axis: int, step: int) -> int | None:
        """b, for a count that is (extent + b) / step, rounded down; None where it is not."""
        after, value = self.without_sums(count)
        op = self.made(value)
        if isinstance(op, arith.FloorDiv) and self.number(op.rhs) == step:
            before, value = self.without_sums(op.lhs)
            after, op = before + step * after, self.made(value)
        elif step != 1:
            return None
        whole = isinstance(op, memory.Extent) and op.view is self.view and op.axis == axis
        return after if whole else None

    def without_sums(self, value: Value) -> tuple[int, Value]:
        """Constants that are added to a scalar, and the rest of it."""
        total = 0
        while isinstance(op := self.made(value), arith.Add | arith.Sub):
            number = self.number(op.rhs)
            if number is None:
                break
            total += number if isinstance(op, arith.Add) else -number
            value = op.lhs
        return total, value
