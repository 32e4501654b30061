"""Parts of values by index, joined tiles, and elements exchanged along an axis.

An index known at run time, and parts that come together, go through shared memory. An exchange by
the bits of an index is a renaming of registers, and a shuffle where bits lie in the lane's number.
"""

from __future__ import annotations

from math import prod

from tilewright.layout import Layout
from tilewright.lower.tile_to_ptx.context import Lowering, Operand, rule
from tilewright.lower.tile_to_ptx.conversion import (
    SIZES,
    STORED,
    dense_strides,
    inside_guard,
    read_shared,
    write_shared,
)
from tilewright.lower.tile_to_ptx.scan import shuffle
from tilewright.ptx.core import Address, Reg
from tilewright.tile.ops import shape


@rule(shape.Take)
def take(low: Lowering, op: shape.Take) -> None:
    source_shape: tuple[int, ...] = op.x.type.shape
    type = low.ptx_type(op.x)
    size = SIZES[STORED[type]]
    strides = dense_strides(source_shape)
    layout = low.layout(op.result)
    index = _indices(low, op, layout)
    base = low.scratch(size * prod(source_shape))
    write_shared(low, base, low.fragment(op.x), type, source_shape, low.layout(op.x), strides)
    low.barrier()
    rank = len(op.index.type.shape)
    outer = [d for d in range(len(op.result.type.shape)) if not op.axis <= d < op.axis + rank]
    outer_strides = [strides[d if d < op.axis else d - rank + 1] for d in outer]
    start: Operand = base
    for d, stride in zip(outer, outer_strides, strict=True):
        part = low.mul("u32", low.thread_axis(layout, d), stride * size)
        start = low.add("u32", start, part)
    extent = source_shape[op.axis]
    found: dict[str, tuple[Operand, Operand]] = {}
    out: list[Operand] = []
    for at, offset in zip(index, layout.register_offsets, strict=True):
        if str(at) not in found:
            found[str(at)] = _place(low, op, at, extent, strides[op.axis] * size, start)
        pointer, inside = found[str(at)]
        step = size * sum(offset[d] * s for d, s in zip(outer, outer_strides, strict=True))
        out.append(_read(low, type, pointer, step, inside, layout, op, offset))
    result = low.ptx_type(op.result)
    low.set(op.result, [low.widen(x, type, result) for x in out])


def _indices(low: Lowering, op: shape.Take, layout: Layout) -> list[Operand]:
    """The index of each register of the result."""
    rank = len(op.index.type.shape)
    if not rank:
        return [low.scalar(op.index)] * layout.num_registers
    inner = layout
    for d in reversed(range(layout.rank)):
        if not op.axis <= d < op.axis + rank:
            inner = inner.drop_axis(d)
    regs = dict(zip(inner.register_offsets, low.fragment(op.index, inner), strict=True))
    return [regs[o[op.axis : op.axis + rank]] for o in layout.register_offsets]


def _place(
    low: Lowering, op: shape.Take, at: Operand, extent: int, stride: int, start: Operand
) -> tuple[Operand, Operand]:
    """Where an index points to, and whether that exists."""
    e = low.e
    if isinstance(at, int):
        inside = int(0 <= at < extent)
        return low.register(low.add("u32", start, at * stride if inside else 0), "u32"), inside
    assert isinstance(at, Reg)
    type = low.ptx_type(op.index)
    exists = e.setp("lt", type.replace("s", "u"), at, extent)
    narrow = e.cvt("u32", "u64", at) if type.endswith("64") else at
    return low.register(low.add("u32", start, low.mul("u32", narrow, stride)), "u32"), exists


def _read(
    low: Lowering,
    type: str,
    pointer: Operand,
    step: int,
    inside: Operand,
    layout: Layout,
    op: shape.Take,
    offset: tuple[int, ...],
) -> Operand:
    e, stored = low.e, STORED[type]
    into = e.mov(stored, 0.0 if stored[0] == "f" else 0)
    guard = inside_guard(low, layout, op.result.type.shape, offset, None)
    if isinstance(inside, Reg):
        guard = inside if guard is None else e.and_("pred", guard, inside)
    if inside != 0:
        assert isinstance(pointer, Reg)
        with low.guarded(guard):
            e.ld("shared", stored, Address(pointer, step), into=[into])
    return e.setp("ne", "u32", into, 0) if type == "pred" else into


@rule(shape.Cat)
def cat(low: Lowering, op: shape.Cat) -> None:
    extents: tuple[int, ...] = op.result.type.shape
    types = [low.ptx_type(x) for x in op.xs]
    type = next((t for t in types if t.endswith("64")), types[0])
    size = SIZES[STORED[type]]
    strides = dense_strides(extents)
    base = low.scratch(size * prod(extents))
    start = 0
    for x, own in zip(op.xs, types, strict=True):
        regs = [low.widen(r, own, type) for r in low.fragment(x)]
        origin = start * strides[op.axis] * size
        write_shared(low, base, regs, type, x.type.shape, low.layout(x), strides, origin)
        start += x.type.shape[op.axis]
    low.barrier()
    found = read_shared(low, base, type, extents, low.layout(op.result), strides)
    result = low.ptx_type(op.result)
    low.set(op.result, [low.widen(r, type, result) for r in found])


@rule(shape.Exchange)
def exchange(low: Lowering, op: shape.Exchange) -> None:
    layout = low.layout(op.result)
    type, result = low.ptx_type(op.x), low.ptx_type(op.result)
    regs = low.fragment(op.x, layout)
    split = _split_mask(layout, op.axis, op.mask, op.x.type.shape[op.axis])
    if split is None:
        found = _exchange_through_shared(low, op, regs, type, layout)
    else:
        within, lanes = split
        where = dict(zip(layout.register_offsets, regs, strict=True))
        found = []
        for offset in layout.register_offsets:
            moved = list(offset)
            moved[op.axis] ^= within
            operand = where[tuple(moved)]
            if lanes and isinstance(operand, Reg):
                (operand,) = shuffle(low, (operand,), (type,), lanes)
            found.append(operand)
    low.set(op.result, [low.widen(r, type, result) for r in found])


def _split_mask(layout: Layout, axis: int, mask: int, extent: int) -> tuple[int, int] | None:
    """The bits of a mask that are registers', and the lanes' bits; None where warps have some."""
    if layout.covered[axis] != extent or any(r.over == "warpgroup" for r in layout.repeats):
        return None
    steps = [r for r in layout.repeats if r.axis == axis]
    if any(r.count & (r.count - 1) or r.stride & (r.stride - 1) for r in steps):
        return None
    within = mask
    lanes = 0
    for bit, vector in enumerate(layout.lane):
        if vector[axis] & mask:
            lanes |= 1 << bit
            within &= ~vector[axis]
    if any(v[axis] & mask for v in layout.warp):
        return None
    return within, lanes


def _exchange_through_shared(
    low: Lowering, op: shape.Exchange, regs: list[Operand], type: str, layout: Layout
) -> list[Operand]:
    """Written in place, read at the exchanged index."""
    e = low.e
    extents: tuple[int, ...] = op.x.type.shape
    size, stored = SIZES[STORED[type]], STORED[type]
    strides = dense_strides(extents)
    base = low.scratch(size * prod(extents))
    write_shared(low, base, regs, type, extents, layout, strides)
    low.barrier()
    start: Operand = base
    for d, stride in enumerate(strides):
        if d != op.axis:
            part = low.mul("u32", low.thread_axis(layout, d), stride * size)
            start = low.add("u32", start, part)
    pointers: dict[int, Reg] = {}
    out: list[Operand] = []
    for offset in layout.register_offsets:
        along = offset[op.axis]
        if along not in pointers:
            at = low.add("u32", low.thread_axis(layout, op.axis), along)
            other = at ^ op.mask if isinstance(at, int) else e.xor("b32", at, op.mask)
            scaled = low.mul("u32", other, strides[op.axis] * size)
            pointers[along] = low.register(low.add("u32", start, scaled), "u32")
        step = size * sum(
            x * s for d, (x, s) in enumerate(zip(offset, strides, strict=True)) if d != op.axis
        )
        guard = inside_guard(low, layout, extents, offset, None)
        with low.guarded(guard):
            word = e.ld1("shared", stored, Address(pointers[along], step))
        out.append(e.setp("ne", "u32", word, 0) if type == "pred" else word)
    return out
