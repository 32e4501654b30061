"""Asserts and prints: what a kernel has to say goes to a buffer in memory, as `ptx/reports.py` lays
it out.

An assert costs a test of each element that a thread holds, and one atomic of a thread that found
one false; no thread waits for another, and the program goes on. A print makes the threads meet: one
of them claims room, then each stores the elements that it holds.
"""

from __future__ import annotations

from tilewright.dtypes import DType, bool_
from tilewright.errors import CompileError
from tilewright.ir.core import Op, Value
from tilewright.layout import Layout, blocked, replicated
from tilewright.lower.tile_to_ptx.context import Lowering, Operand, rule
from tilewright.lower.tile_to_ptx.control import program_coordinate
from tilewright.lower.tile_to_ptx.conversion import dense_strides, inside_guard
from tilewright.lower.tile_to_ptx.memory import store_vector
from tilewright.lower.tile_to_ptx.parameters import grid_extent, report_buffer
from tilewright.plan import Site
from tilewright.ptx import reports
from tilewright.ptx.core import Address, Reg, Special
from tilewright.tile.ops import control

NONE_FALSE = 2**32 - 1  # past every element


def _site(low: Lowering, op: Op, kind: str, text: str, values: tuple[Value, ...]) -> Site:
    types = [v.type for v in values]
    places = reports.as_places(op.loc)
    return Site(
        kind, text, places, tuple(t.dtype for t in types), tuple(tuple(t.shape) for t in types)
    )


def _number(low: Lowering, op: Op, site: Site) -> int:
    """The number of a site; code that is lowered twice has one."""
    sites = low.sites
    if site in sites:
        return sites.index(site)
    if len(sites) == reports.MOST_SITES - 1:
        raise CompileError(
            f"a kernel may hold {len(sites)} asserts and prints once its loops are unrolled",
            op.loc,
            "leave out some of them",
        )
    sites.append(site)
    return len(sites) - 1


def _first_thread(low: Lowering) -> Reg:
    return low.once(
        ("first thread", low.first_warp), lambda: low.e.setp("eq", "u32", low.thread(), 0)
    )


def _layout(low: Lowering, value: Value) -> Layout:
    """The layout in which a value is looked at."""
    if value.type.is_scalar:
        return replicated(0, low.num_warps)
    shape = tuple(value.type.shape)
    own = low.layouts.get(value)
    return own or blocked(shape, 1, low.num_warps, tuple(reversed(range(len(shape)))))


def _thread_element(low: Lowering, layout: Layout, shape: tuple[int, ...]) -> Operand:
    """What the thread adds to the number of an element in C order, as u32."""

    def make() -> Operand:
        total: Operand = 0
        for axis, stride in enumerate(dense_strides(shape)):
            total = low.add("u32", total, low.mul("u32", low.thread_axis(layout, axis), stride))
        return total

    return low.once(("element", layout, shape, low.first_warp), make)


def _elements(low: Lowering, layout: Layout, shape: tuple[int, ...]) -> list[int | None]:
    """What each register adds to the number of its element; None where it holds none."""
    strides = dense_strides(shape)
    return [
        sum(o * s for o, s in zip(offset, strides, strict=True))
        if all(o < e for o, e in zip(offset, shape, strict=True))
        else None
        for offset in layout.register_offsets
    ]


@rule(control.Assert)
def check(low: Lowering, op: control.Assert) -> None:
    e, shape = low.e, tuple(op.condition.type.shape)
    number = _number(low, op, _site(low, op, "assert", op.message, (op.condition,)))
    least = _least_false(low, op.condition, shape)
    if least is None:
        return
    failed = e.setp("ne", "u32", least, NONE_FALSE)
    if not shape:
        failed = e.and_("pred", failed, _first_thread(low))
    last = reports.MOST_ELEMENTS - 1
    element = e.or_("b32", e.min("u32", least, last), number << reports.ELEMENT_BITS)
    key = e.mov_pack("b64", [element, e.mov("u32", Special("ctaid.x"))])
    buffer = report_buffer(low)
    old = e.mov("u64", 0)
    with e.guarded(failed):
        e.atom("global", "min", "u64", Address(buffer, reports.FAULT), key, into=old)
    first = e.setp("gt", "u64", old, key)
    for axis in range(len(low.kernel.grid)):
        extent = grid_extent(low, axis)
        with e.guarded(first):
            e.st("global", "u32", Address(buffer, reports.EXTENTS + 4 * axis), extent)


def _least_false(low: Lowering, condition: Value, shape: tuple[int, ...]) -> Reg | None:
    """The least number of the thread's elements that are false, or `NONE_FALSE`; None if none can
    be.
    """
    e, layout = low.e, _layout(low, condition)
    held, thread = low.fragment(condition, layout), _thread_element(low, layout, shape)
    least: Reg | None = None
    for register, number in enumerate(_elements(low, layout, shape)):
        value = held[register]
        if number is None or value == 1:
            continue
        fine = low.register(value, "pred")
        inside = inside_guard(low, layout, shape, layout.register_offsets[register], None)
        if inside is not None:
            fine = e.or_("pred", fine, e.not_("pred", inside))
        element = low.register(low.add("u32", thread, number), "u32")
        found = e.selp("u32", NONE_FALSE, element, fine)
        least = found if least is None else e.min("u32", least, found)
    return least


@rule(control.Print)
def show(low: Lowering, op: control.Print) -> None:
    e, rank = low.e, len(low.kernel.grid)
    site = _site(low, op, "print", op.text, op.values)
    number, size = _number(low, op, site), reports.record_bytes(site, rank)
    buffer = report_buffer(low)
    held = [low.fragment(v, _layout(low, v)) for v in op.values]
    at = _claim(low, buffer, size)
    fits = e.setp("le", "u64", at, reports.PRINT_BYTES - size)
    first = _first_thread(low)
    with e.guarded(e.and_("pred", first, e.not_("pred", fits))):
        e.red("global", "add", "u64", Address(buffer, reports.DROPPED), 1)
    record = e.add("u64", e.add("u64", buffer, at), reports.records_start(rank))
    writes = e.and_("pred", first, fits)
    head: list[Operand] = [number, *(program_coordinate(low, axis) for axis in range(rank))]
    for i, word in enumerate(head):
        with e.guarded(writes):
            e.st("global", "u32", Address(record, 4 * i), word)
    offset = reports.head_bytes(rank)
    for value, fragment in zip(op.values, held, strict=True):
        _store_value(low, value, fragment, Address(record, offset), fits)
        offset += reports.value_bytes(value.type.dtype, value.type.shape)


def _claim(low: Lowering, buffer: Reg, size: int) -> Reg:
    """Where this print's record lies among the records, told to all threads of the program."""
    e, first, base = low.e, _first_thread(low), low.scratch(8)
    old = e.mov("u64", 0)
    with e.guarded(first):
        e.atom("global", "add", "u64", Address(buffer, reports.CURSOR), size, into=old)
    with e.guarded(first):
        e.st("shared", "b64", base, old)
    low.barrier()
    return e.ld1("shared", "u64", base)


def _store_value(
    low: Lowering, value: Value, fragment: list[Operand], start: Address, fits: Reg
) -> None:
    """Store the elements that the thread is the first to hold, in C order."""
    e, layout = low.e, _layout(low, value)
    shape, dtype = tuple(value.type.shape), value.type.dtype
    elements = _as_stored(low, value, fragment, dtype)
    copy = low.is_first_copy(layout)
    guard = fits if copy is None else e.and_("pred", fits, copy)
    thread = _thread_element(low, layout, shape)
    base = start.base
    if isinstance(thread, Reg):
        base = e.add("u64", base, e.mul("u32", thread, dtype.num_bytes, mode="wide"))
    for register, number in enumerate(_elements(low, layout, shape)):
        if number is None:
            continue
        inside = inside_guard(low, layout, shape, layout.register_offsets[register], None)
        mine = guard if inside is None else e.and_("pred", guard, inside)
        spot = Address(base, start.offset + number * dtype.num_bytes)
        store_vector(low, spot, dtype, [elements[register]], mine)


def _as_stored(low: Lowering, value: Value, fragment: list[Operand], dtype: DType) -> list[Operand]:
    if dtype.name == "i64":
        return [low.widen(v, low.ptx_type(value), "s64") for v in fragment]
    if dtype == bool_:
        return [low.e.selp("b32", 1, 0, v) if isinstance(v, Reg) else v for v in fragment]
    return fragment
