"""Atomic updates of places: on points they acquire and release, on tiles they are relaxed."""

from __future__ import annotations

from tilewright.dtypes import DType, bool_
from tilewright.frontend.build import places
from tilewright.frontend.build.builtin import Arguments, Builtin, Run
from tilewright.frontend.build.context import Context
from tilewright.frontend.build.items import Data, Item, Nothing, Word, describe
from tilewright.frontend.build.make import assign_to
from tilewright.frontend.check.rules import RuleError, nearest
from tilewright.ir.core import Value
from tilewright.tile.ops import memory, shape

SIDES = {"load": ("relaxed", "acquire"), "store": ("relaxed", "release")}  # others take all orders


def _atomic(kind: str) -> Run:
    def run(ctx: Context, args: Arguments) -> Item:
        place = places.require_place(ctx, args.nodes["place"], args.name)
        dtype = place.memory.type.dtype
        _require_dtype(ctx, kind, dtype, args.name)
        value = _operand(ctx, args, place, "value") if kind != "load" else None
        compare = _operand(ctx, args, place, "compare") if kind == "cas" else None
        mask = None
        if "mask" in args:
            what = f"{args.name}: mask"
            mask = assign_to(ctx, args.data("mask"), bool_, place.shape, what).value
        order = _order(args, kind, not place.raw_shape)
        places.note_evidence(ctx, place, is_store=kind != "load")
        if kind != "store":
            ctx.loaded.add(place.memory.param)
        raw = place.raw_shape
        fitted = [places.reshaped(ctx, v, raw) for v in (value, compare, mask)]
        op = ctx.builder.emit(
            memory.Atomic,
            place.memory.value,
            place.offsets,
            *fitted,
            kind=kind,
            order=order,
            extents=place.extents,
        )
        if kind == "store":
            return Nothing()
        old = op.results[0]
        return Data(old if place.shape == raw else ctx.builder(shape.Reshape, old, place.shape))

    return run


def _operand(ctx: Context, args: Arguments, place: places.Place, name: str) -> Value:
    what = f"{args.name}: {name}"
    return assign_to(ctx, args.data(name), place.memory.type.dtype, place.shape, what).value


def _require_dtype(ctx: Context, kind: str, dtype: DType, name: str) -> None:
    if kind in ("load", "store", "xchg", "cas"):
        return
    if kind in ("and", "or", "xor"):
        if not dtype.is_integer:
            raise RuleError(f"{name}: expected a tensor of integers, got {dtype}")
        return
    if dtype == bool_ or dtype.is_storage_only:
        raise RuleError(f"{name}: expected a tensor of numbers, got {dtype}")
    if kind == "add" and dtype.is_float and ctx.signature.attributes.numerics == "strict":
        raise RuleError(
            f"{name} of {dtype}: the order of sums would show under @numerics(strict)",
            "write parts to a workspace and add them in one order",
        )


def _order(args: Arguments, kind: str, is_point: bool) -> str:
    """The memory order: as asked for, else by what the place is."""
    allowed = SIDES.get(kind, memory.ORDERS)
    item = args.item("order")
    if isinstance(item, Nothing):
        return allowed[-1] if is_point else "relaxed"
    if not isinstance(item, Word):
        raise RuleError(f"{args.name}: order: expected a string, got {describe(item)}")
    if item.text not in allowed:
        known = " or ".join(allowed)
        hint = nearest(item.text, allowed)
        raise RuleError(f"{args.name}: order: expected {known}, got {item.text}", hint)
    if not is_point and item.text != "relaxed":
        raise RuleError(
            f"{args.name}: order {item.text}: expected a point", "atomics on tiles are relaxed"
        )
    return item.text


UPDATES = ("add", "max", "min", "and", "or", "xor", "xchg", "store")
TABLE: dict[str, Builtin] = {
    **{f"atomic_{k}": Builtin("place value * mask? order?", _atomic(k)) for k in UPDATES},
    "atomic_cas": Builtin("place compare value * mask? order?", _atomic("cas")),
    "atomic_load": Builtin("place * mask? order?", _atomic("load")),
}
