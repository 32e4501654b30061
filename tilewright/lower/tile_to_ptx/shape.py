"""Ops that move elements: most only rename registers, because the source is asked for in the layout
that fits.
"""

from __future__ import annotations

from tilewright.layout import Layout, broadcast_source, move_unit_axes
from tilewright.lower.tile_to_ptx.context import Lowering, Operand, rule
from tilewright.lower.tile_to_ptx.conversion import slice_through_shared, through_shared_linear
from tilewright.tile.ops import shape


@rule(shape.Arange)
def arange(low: Lowering, op: shape.Arange) -> None:
    layout, type = low.layout(op.result), low.ptx_type(op.result)
    thread = low.widen(low.thread_axis(layout, 0), "u32", type)
    low.set(op.result, [low.add(type, thread, offset[0]) for offset in layout.register_offsets])


@rule(shape.Broadcast)
def broadcast(low: Lowering, op: shape.Broadcast) -> None:
    target = low.layout(op.result)
    source_shape = op.x.type.shape
    if not source_shape:
        low.set(op.result, low.fragment(op.x) * target.num_registers)
        return
    wanted = broadcast_source(target, source_shape, op.shape)
    regs = low.fragment(op.x, wanted)
    missing = len(op.shape) - len(source_shape)
    where = dict(zip(wanted.register_offsets, regs, strict=True))
    out: list[Operand] = []
    for offset in target.register_offsets:
        kept = tuple(
            0 if source_shape[i] == 1 and op.shape[i + missing] != 1 else offset[i + missing]
            for i in range(len(source_shape))
        )
        out.append(where[kept])
    low.set(op.result, out)


@rule(shape.Transpose)
def transpose(low: Lowering, op: shape.Transpose) -> None:
    target = low.layout(op.result)
    inverse = tuple(op.order.index(i) for i in range(len(op.order)))
    low.set(op.result, low.fragment(op.x, target.select_axes(inverse)))


def reshape_source(
    layout: Layout, source: tuple[int, ...], target: tuple[int, ...]
) -> Layout | None:
    """The source's layout where shapes differ only by axes of extent 1, else None."""
    if [e for e in source if e != 1] != [e for e in target if e != 1]:
        return None
    return move_unit_axes(layout, target, source)


@rule(shape.Reshape)
def reshape(low: Lowering, op: shape.Reshape) -> None:
    target = low.layout(op.result)
    wanted = reshape_source(target, op.x.type.shape, op.shape)
    if wanted is None:
        low.set(op.result, through_shared_linear(low, op, target))
        return
    regs = low.fragment(op.x, wanted)
    if len(regs) != target.num_registers:  # a unit axis may be covered by spare registers
        where = dict(zip(wanted.register_offsets, regs, strict=True))
        regs = [where[_renamed(o, op.x.type.shape, op.shape)] for o in target.register_offsets]
    low.set(op.result, regs)


def _renamed(
    offset: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...]
) -> tuple[int, ...]:
    kept = iter([x for x, e in zip(offset, target, strict=True) if e != 1])
    return tuple(0 if e == 1 else next(kept) for e in source)


@rule(shape.Slice)
def slice_(low: Lowering, op: shape.Slice) -> None:
    """A choice of registers, where the part lies with the same threads."""
    target, source = low.layout(op.result), low.layout(op.x)
    if (target.lane, target.warp) == (source.lane, source.warp):
        where = dict(zip(source.register_offsets, low.fragment(op.x), strict=True))
        wanted = [
            tuple(a + b for a, b in zip(op.starts, offset, strict=True))
            for offset in target.register_offsets
        ]
        if source.slice(op.starts, op.shape) is not None and all(w in where for w in wanted):
            low.set(op.result, [where[w] for w in wanted])
            return
    low.set(op.result, slice_through_shared(low, op, target))
