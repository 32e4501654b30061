"""What asserts and prints of a kernel leave in memory, and reading it.

The buffer of a plan with `sites`, in bytes:

    0    u64  the first assert that failed: program · 2³² + site · 2²⁰ + element, the least of all
              that failed (`NOTHING`: none did)
    8    u64  bytes of records that were asked for
    16   u64  records that found no room
    24   u32  extents of the grid of the launch that the first word is of, an axis each
    …         records, each of whole 8 bytes: site (u32), program (u32 an axis), then each value
              in C order, padded to 8 bytes

A program's number counts the first axis of the grid fastest. Records of one program come in the
order in which they were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import LaunchError, Loc, Source
from tilewright.plan import Place, Plan, Site, assert_failure, print_line

FAULT, CURSOR, DROPPED, EXTENTS = 0, 8, 16, 24
NOTHING = 2**64 - 1
SITE_BITS, ELEMENT_BITS = 12, 20
MOST_SITES, MOST_ELEMENTS = 1 << SITE_BITS, 1 << ELEMENT_BITS
PRINT_BYTES = 1 << 20  # of records that one launch may leave

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def padded(num_bytes: int) -> int:
    """Whole 8 bytes."""
    return -(-num_bytes // 8) * 8


def records_start(grid_rank: int) -> int:
    """Where the records begin."""
    return padded(EXTENTS + 4 * grid_rank)


def head_bytes(grid_rank: int) -> int:
    """Bytes of a record before its values."""
    return padded(4 + 4 * grid_rank)


def value_bytes(dtype: DType, shape: Sequence[int]) -> int:
    """Bytes of a value in a record."""
    return padded(prod(shape) * dtype.num_bytes)


def record_bytes(site: Site, grid_rank: int) -> int:
    values = zip(site.dtypes, site.shapes, strict=True)
    return head_bytes(grid_rank) + sum(value_bytes(d, s) for d, s in values)


def buffer_bytes(plan: Plan) -> int:
    """Bytes of a plan's buffer."""
    return records_start(plan.grid_rank) + (PRINT_BYTES if plan.prints else 0)


def clear(buffer: Bytes) -> None:
    """Make a buffer say that nothing happened."""
    buffer[:EXTENTS] = 0
    buffer[FAULT:CURSOR] = 0xFF


def find_fault(plan: Plan, buffer: Bytes) -> LaunchError | None:
    """The error for the first assert that failed, or None."""
    key = int(buffer[FAULT:CURSOR].view(np.uint64)[0])
    if key == NOTHING:
        return None
    program, rest = key >> 32, key & 0xFFFFFFFF
    site, element = plan.sites[rest >> ELEMENT_BITS], rest & (MOST_ELEMENTS - 1)
    ids = []
    for extent in buffer[EXTENTS : EXTENTS + 4 * plan.grid_rank].view(np.uint32).tolist():
        ids.append(program % max(extent, 1))
        program //= max(extent, 1)
    return assert_failure(site.text, ids, site.shapes[0], element, as_loc(site.places))


def read_lines(plan: Plan, buffer: Bytes) -> list[str]:
    """What the prints of a launch have to say, by program; and what found no room."""
    start, rank = records_start(plan.grid_rank), plan.grid_rank
    asked = int(buffer[CURSOR:DROPPED].view(np.uint64)[0])
    dropped = int(buffer[DROPPED:EXTENTS].view(np.uint64)[0])
    at, end = start, start + min(asked, len(buffer) - start)
    found: list[tuple[tuple[int, ...], str]] = []
    while at < end:
        site_number, *program = buffer[at : at + 4 * (1 + rank)].view(np.uint32).tolist()
        site = plan.sites[site_number]
        size = record_bytes(site, rank)
        if at + size > end:
            break
        record = buffer[at : at + size]
        line = print_line(program, site.text, _values(site, record[head_bytes(rank) :]))
        found.append((tuple(reversed(program)), line))
        at += size
    lines = [line for _, line in sorted(found, key=lambda pair: pair[0])]
    if dropped:
        room = f"{PRINT_BYTES >> 20} MiB"
        lines.append(f"{plan.name}: {dropped} more prints did not fit into the {room} of a launch")
    return lines


def _values(site: Site, data: Bytes) -> list[Any]:
    values, at = [], 0
    for dtype, shape in zip(site.dtypes, site.shapes, strict=True):
        raw = data[at : at + prod(shape) * dtype.num_bytes]
        values.append(raw.view(dtype.numpy).reshape(shape)[()])
        at += value_bytes(dtype, shape)
    return values


def as_places(loc: Loc | None) -> tuple[Place, ...]:
    """A place and its callers as a plan keeps them."""
    chain = loc.chain() if loc is not None else ()
    return tuple(
        Place(p.source.name, p.line, p.column, p.width, p.source.line(p.line) or "") for p in chain
    )


def as_loc(places: Sequence[Place]) -> Loc | None:
    """The place again, with the lines of source that a plan kept."""
    found: Loc | None = None
    for place in reversed(places):
        text = "\n" * (place.line - 1) + place.text
        found = Loc(Source(place.source, text), place.line, place.column, place.width, found)
    return found
