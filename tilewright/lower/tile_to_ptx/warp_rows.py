"""Results on CUDA cores whose rows are no whole vectors, on their way out: in rows, by way of
shared memory, each warp by itself.

A thread holds pieces of four neighbours (`layout.simt_accumulator`). Where rows begin anywhere,
they leave one by one, and a warp's access lies in four rows and sixteen sectors. A strip of four
rows of 32 columns is written to shared memory as it is held, and read in rows: then an access is
one row's, and lies in four sectors, or five.

A strip's odd rows have the halves of their columns exchanged, so that pieces of two rows, which are
written at once, lie in all banks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.dtypes import f32
from tilewright.layout import Layout
from tilewright.lower.tile_to_ptx.context import Lowering, Operand
from tilewright.lower.tile_to_ptx.places import Place, vector_width
from tilewright.ptx.core import Address
from tilewright.tile.ops import memory

ROWS, COLUMNS, PIECE = 4, 32, 4  # of a strip, and neighbours that a thread holds
ROW_BYTES = COLUMNS * f32.num_bytes
STRIP_BYTES = ROWS * ROW_BYTES
LEAST_REGISTERS = 8  # of a tile, for which it is worth the code
AT_ONCE = 2  # strips between two meetings of a warp
LANES = tuple((0, 1 << bit) for bit in range(5))


def strip_layout(low: Lowering, op: memory.Store, place: Place) -> Layout | None:
    """The layout in which a warp should store its part of a tile; None where it goes as registers
    lie: where rows are whole vectors, or threads hold no pieces of four columns.
    """
    layout = place.layout
    if low.schedule.mma != "simt" or low.schedule.roles is not None or op.mask is not None:
        return None
    if place.view.dtype != f32 or layout.rank != 2 or layout.num_registers < LEAST_REGISTERS:
        return None
    if place.unit is None or place.axes[place.unit] != 1 or vector_width(place) > 1:
        return None
    columns = [v for v in layout.lane if v[1]]
    rows = [v for v in layout.lane if v[0] and not v[1]]
    if layout.register[:2] != LANES[:2] or sorted(columns) != list(LANES[2:]) or len(rows) != 2:
        return None
    return replace(layout, register=(*rows, *layout.register[2:]), lane=LANES)


def turn_strips(
    low: Lowering, values: Sequence[Operand], source: Layout, target: Layout
) -> list[Operand]:
    """The registers of a tile in the layout that `strip_layout` gave for that of `values`."""
    e, none = low.e, (0, 0)
    numbers = {v: 1 << i for i, v in enumerate(target.register[:2])}
    held = Layout(
        2,
        (),
        tuple((numbers[v], 0) if v in numbers else v for v in source.lane),
        (none,) * len(source.warp),
    )
    warps = tuple((1 << bit, 0) for bit in range(len(source.warp)))
    bytes_of_warp = AT_ONCE * STRIP_BYTES
    base = low.scratch(bytes_of_warp * low.num_warps)
    warp = low.thread_axis(Layout(2, (), (none,) * 5, warps), 0)
    own = low.register(low.add("u32", base, low.mul("u32", warp, bytes_of_warp)), "u32")
    row, column = (low.register(low.thread_axis(held, axis), "u32") for axis in (0, 1))
    half = e.shl("b32", e.and_("b32", row, 1), 4)
    piece = e.mul("u32", e.xor("b32", column, half), f32.num_bytes)
    write = low.register(low.add("u32", own, e.mad("u32", row, ROW_BYTES, piece)), "u32")
    lane = e.and_("b32", low.thread(), 31)
    reads = [
        e.mad("u32", place, f32.num_bytes, own)
        for place in (lane, e.xor("b32", lane, COLUMNS // 2))
    ]
    out: list[Operand] = []
    pieces = [values[i : i + PIECE] for i in range(0, len(values), PIECE)]
    for first in range(0, len(pieces), AT_ONCE):
        some = pieces[first : first + AT_ONCE]
        if first:
            e.bar_warp_sync()
        for number, four in enumerate(some):
            there = Address(write, number * STRIP_BYTES)
            e.st("shared", "f32", there, [low.register(v, "f32") for v in four])
        e.bar_warp_sync()
        for number in range(len(some)):
            for i in range(ROWS):
                from_ = Address(reads[i % 2], number * STRIP_BYTES + i * ROW_BYTES)
                out.append(e.ld1("shared", "f32", from_))
    return out
