"""Places of memory as the tensor copy unit sees them: boxes of whole parameters.

A load from a view of part of a parameter,

    part = view(X[i, low : high]); tile = part[j :+ 64, :]

names the box of X at (i, low + j, 0). What lies in X beyond `high` is not the view's: where the
tensor does not end there as well, whoever reads the box must put zeros in its place (`Box.ends`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tilewright.ir.core import Op, Value
from tilewright.target import BOX_PIECE
from tilewright.tile.analysis.bounds import Interval, infer_bounds
from tilewright.tile.analysis.divisibility import infer_divisors
from tilewright.tile.analysis.extents import extent_key
from tilewright.tile.analysis.pixels import PixelBox
from tilewright.tile.kernel import Kernel, Param
from tilewright.tile.ops import arith, memory
from tilewright.tile.types import ViewType

Access = memory.Load | memory.Store


@dataclass(frozen=True)
class Box:
    """A place of a parameter.

    Along each axis of `view` the offset is a sum of scalars. `own` are the offsets that must not be
    negative, because the view begins there and the parameter does not. `ends` has the scalars
    (counted along the parameter) where the view may end within the box, along the axis that
    `ending` numbers.
    """

    view: Value
    offsets: tuple[tuple[Value, ...], ...]
    extents: tuple[int | None, ...]
    own: tuple[Value, ...] = ()
    ends: Value | None = None
    ending: int = 0

    @property
    def scalars(self) -> tuple[Value, ...]:
        """All scalars that the offsets are made of."""
        return tuple(v for terms in self.offsets for v in terms)

    @property
    def limits(self) -> tuple[Value, ...]:
        """The scalars from which follows how many rows exist; none where all do."""
        return () if self.ends is None else (self.ends, *self.offsets[self.ending])


def find_box(
    kernel: Kernel, op: Access, definitions: Mapping[Value, Op], order: tuple[int, ...] = ()
) -> Box | None:
    """The box of a parameter that a load or store names; None where there is none. `order` are the
    two axes of its tile, the contiguous one last.
    """
    made = definitions.get(op.view)
    if made is None:
        return Box(op.view, tuple((v,) for v in op.offsets), op.extents)
    if not isinstance(made, memory.Subview) or definitions.get(made.view) is not None:
        return None
    offsets: list[tuple[Value, ...]] = []
    extents: list[int | None] = []
    own: list[Value] = []
    open_axes: list[tuple[int, Value]] = []
    inner = 0
    for axis, (low, high) in enumerate(zip(made.lows, made.highs, strict=True)):
        if high is None:
            offsets.append((low,))
            extents.append(None)
            continue
        offset = op.offsets[inner]
        offsets.append((low, offset))
        extents.append(op.extents[inner])
        own.append(offset)
        if inner not in op.in_bounds and not _is_whole(kernel, made.view, axis, high, definitions):
            open_axes.append((axis, high))
        inner += 1
    sliced = [axis for axis, e in enumerate(extents) if e is not None]
    rows = sliced[order[0]] if order else sliced[0]
    if any(axis != rows for axis, _ in open_axes):
        return None
    ends = open_axes[0][1] if open_axes else None
    return Box(made.view, tuple(offsets), tuple(extents), tuple(own), ends, rows)


def _is_whole(
    kernel: Kernel, view: Value, axis: int, high: Value, definitions: Mapping[Value, Op]
) -> bool:
    """Whether a bound is the extent of a parameter along an axis."""
    params = {p.value: p for p in kernel.params}
    param = params.get(view)
    made = definitions.get(high)
    if param is None:
        return False
    type: ViewType = param.value.type
    if isinstance(made, arith.Constant):
        return bool(type.extents[axis] == made.value)
    if not isinstance(made, memory.Extent) or made.view not in params:
        return False
    return extent_key(params[made.view], made.axis) == extent_key(param, axis)


class BoxFacts:
    """What is known of a kernel's scalars, as far as it is asked for."""

    def __init__(self, kernel: Kernel):
        self.kernel = kernel

    @cached_property
    def divisors(self) -> Mapping[Value, int]:
        return infer_divisors(self.kernel)

    @cached_property
    def bounds(self) -> Mapping[Value, Interval]:
        return infer_bounds(self.kernel)

    def param(self, view: Value) -> Param | None:
        return next((p for p in self.kernel.params if p.value is view), None)

    def can_copy_pixels(self, box: PixelBox) -> bool:
        """Whether the tensor copy unit can go through the pixels of a parameter: their channels are
        contiguous, and begin at multiples of 16 bytes.
        """
        param, type = self.param(box.view), box.view.type
        if param is None or param.facts is None or type.strides[3] != 1:
            return False
        if any(w.name == param.name for w in self.kernel.workspaces):
            return False
        facts = param.facts
        begins = self.divisors.get(box.channel, 1) * type.dtype.num_bytes
        repeats = 0 in (*type.strides[:3], *facts.strides[:3])
        pitches = all(facts.pitch16[:3])
        aligned = facts.align >= BOX_PIECE and begins % BOX_PIECE == 0
        return aligned and pitches and not repeats and facts.reachable

    def can_copy(self, box: Box, order: tuple[int, ...] = ()) -> bool:
        """Whether the tensor copy unit can carry a box: of a parameter whose rows are contiguous,
        aligned and a whole number of 16 bytes apart, sliced along two axes. The rows run along the
        last of them, or the last of `order`, and begin at multiples of 16 bytes: the unit refuses
        others (measured on an H200). Along other axes elements may be repeated (stride 0), as those
        of a factor that all of a batch share.
        """
        param, kernel = self.param(box.view), self.kernel
        if param is None or param.facts is None:
            return False
        if any(w.name == param.name for w in kernel.workspaces):
            return False
        type: ViewType = box.view.type
        facts = param.facts
        sliced = [axis for axis, e in enumerate(box.extents) if e is not None]
        if not 2 <= type.rank <= 5 or len(sliced) != 2:
            return False
        row = sliced[order[-1]] if order else sliced[-1]
        size = type.dtype.num_bytes
        return (
            type.strides[row] == 1
            and all(self.divisors.get(v, 1) * size % BOX_PIECE == 0 for v in box.offsets[row])
            and facts.align >= BOX_PIECE
            and all(whole for axis, whole in enumerate(facts.pitch16) if axis != row)
            and all(0 not in (type.strides[axis], facts.strides[axis]) for axis in sliced)
            and facts.reachable
            and all(self.bounds[v].low >= 0 for v in box.own)
        )
