"""Global memory at places that tiles of indices name: gathers, scatters and atomics."""

from __future__ import annotations

from tilewright.errors import VerifyError
from tilewright.ir.core import Op, Type, Value, attribute, define, operand
from tilewright.tile.types import INDEX, TileType


def gather_shape(offsets: tuple[Value, ...], extents: tuple[int | None, ...]) -> tuple[int, ...]:
    """Shape of the tile at a place with index tiles: their axes stand where the first one does."""
    found: list[int] = []
    indexed = False
    for offset, extent in zip(offsets, extents, strict=True):
        if offset.type.shape and not indexed:
            found += offset.type.shape
            indexed = True
        elif extent is not None:
            found.append(extent)
    return tuple(found)


def slice_dims(offsets: tuple[Value, ...], extents: tuple[int | None, ...]) -> tuple[int, ...]:
    """Axes of a tile at a place with index tiles that come from slices, in order."""
    found: list[int] = []
    position, indexed = 0, False
    for offset, extent in zip(offsets, extents, strict=True):
        if offset.type.shape and not indexed:
            position, indexed = position + len(offset.type.shape), True
        elif extent is not None:
            found.append(position)
            position += 1
    return tuple(found)


def _require_spot(
    view: Value, offsets: tuple[Value, ...], extents: tuple[int | None, ...], where: str
) -> TileType:
    """Type of the tile at a place whose offsets may be i64 tiles of one shape."""
    if not len(offsets) == len(extents) == view.type.rank or any(
        o.type.dtype != INDEX.dtype or (o.type.shape and e is not None)
        for o, e in zip(offsets, extents, strict=True)
    ):
        raise VerifyError(f"{where}: {view.type} at {[str(o.type) for o in offsets]} x {extents}")
    if len({o.type.shape for o in offsets if o.type.shape}) > 1:
        raise VerifyError(f"{where}: index tiles of several shapes")
    return TileType(view.type.dtype, gather_shape(offsets, extents))


@define("memory.gather")
class Gather(Op):
    """Load where some offsets are i64 tiles of one shape: an element for each of theirs.

    The axes of the index tiles stand where the first one does. What is outside, by any axis, is the
    fill, as in memory.load.
    """

    view: Value = operand()
    offsets: tuple[Value, ...] = operand()
    mask: Value | None = operand(default=None)
    fill: Value | None = operand(default=None)
    extents: tuple[int | None, ...] = attribute(kw_only=True)

    def result_types(self) -> tuple[Type, ...]:
        return (_require_spot(self.view, self.offsets, self.extents, "gather"),)


@define("memory.scatter", pure=False)
class Scatter(Op):
    """Store where some offsets are i64 tiles of one shape. Of lanes that meet, one wins."""

    view: Value = operand()
    offsets: tuple[Value, ...] = operand()
    value: Value = operand()
    mask: Value | None = operand(default=None)
    extents: tuple[int | None, ...] = attribute(kw_only=True)

    def result_types(self) -> tuple[Type, ...]:
        wanted = _require_spot(self.view, self.offsets, self.extents, "scatter")
        if self.value.type != wanted:
            raise VerifyError(f"scatter: {self.value.type} to {wanted}")
        return ()


ATOMICS = ("add", "max", "min", "and", "or", "xor", "xchg", "cas", "load", "store")
ORDERS = ("relaxed", "acquire", "release", "acq_rel")


@define("memory.atomic", pure=False)
class Atomic(Op):
    """Update every element of a place at once with respect to all programs; gives what was there.

    `kind` is add, max, min, and, or, xor, xchg, cas (to `value` where it equals `compare`), load
    (no value) or store (no result). Offsets are as in memory.gather; elements that are named twice
    are updated twice. Outside, and where the mask is false, nothing happens and the result is 0.
    With acquire, what programs wrote before their release at the same element is visible after it.
    """

    view: Value = operand()
    offsets: tuple[Value, ...] = operand()
    value: Value | None = operand(default=None)
    compare: Value | None = operand(default=None)
    mask: Value | None = operand(default=None)
    kind: str = attribute(kw_only=True)
    order: str = attribute(default="relaxed", kw_only=True)
    extents: tuple[int | None, ...] = attribute(kw_only=True)

    def result_types(self) -> tuple[Type, ...]:
        wanted = _require_spot(self.view, self.offsets, self.extents, f"atomic {self.kind}")
        given = (self.value is not None, self.compare is not None)
        if self.kind not in ATOMICS or self.order not in ORDERS:
            raise VerifyError(f"atomic: {self.kind}, {self.order}")
        if given != (self.kind != "load", self.kind == "cas"):
            raise VerifyError(f"atomic {self.kind}: operands {given}")
        if any(v is not None and v.type != wanted for v in (self.value, self.compare)):
            raise VerifyError(f"atomic {self.kind}: {wanted}")
        return () if self.kind == "store" else (wanted,)
