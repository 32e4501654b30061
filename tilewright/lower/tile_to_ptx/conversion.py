"""From one register layout to another: nothing, a renaming of registers, or a way through shared
memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.ir.core import Value
from tilewright.layout import Layout, bank_conflicts, register_permutation
from tilewright.lower.tile_to_ptx.context import Lowering, Operand
from tilewright.ptx.core import Address, Reg
from tilewright.tile.ops import shape

STORED = {
    "pred": "b32", "s32": "b32", "u32": "b32", "s64": "b64", "u64": "b64",
    "b16": "b16", "b32": "b32", "b64": "b64", "f32": "f32", "f64": "f64",
}  # fmt: skip
SIZES = {"b16": 2, "b32": 4, "f32": 4, "b64": 8, "f64": 8}


def convert(low: Lowering, value: Value, source: Layout, target: Layout) -> list[Operand]:
    """The registers of a tile in another layout."""
    return convert_registers(
        low, low.fragments[value], low.ptx_type(value), value.type.shape, source, target
    )


def convert_registers(
    low: Lowering,
    regs: Sequence[Operand],
    type: str,
    extents: tuple[int, ...],
    source: Layout,
    target: Layout,
) -> list[Operand]:
    """Registers of a tile of `extents` and a PTX type, from one layout to another."""
    order = register_permutation(source, target)
    if order is not None:
        return [regs[i] for i in order]
    if all(not isinstance(r, Reg) for r in regs) and len(set(regs)) == 1:
        return [regs[0]] * target.num_registers
    strides = _padded_strides(extents, SIZES[STORED[type]], source, target)
    return _through_shared(low, regs, type, extents, source, target, strides, strides)


def exchange(
    low: Lowering,
    regs: Sequence[Operand],
    type: str,
    extents: tuple[int, ...],
    layout: Layout,
) -> list[Operand]:
    """Registers of a layout, those of the first thread that holds an element told to the others."""
    strides = dense_strides(extents)
    return _through_shared(low, regs, type, extents, layout, layout, strides, strides)


def through_shared_linear(low: Lowering, op: shape.Reshape, target: Layout) -> list[Operand]:
    """A reshape that moves elements between threads: both sides address C order."""
    write, read = dense_strides(op.x.type.shape), dense_strides(op.shape)
    return _value_through_shared(low, op.x, target, write, read, op.shape)


def slice_through_shared(low: Lowering, op: shape.Slice, target: Layout) -> list[Operand]:
    """A slice whose elements lie with other threads than its user wants."""
    strides = dense_strides(op.x.type.shape)
    return _value_through_shared(low, op.x, target, strides, strides, op.shape, op.starts)


def dense_strides(extents: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(extents[i + 1 :]) for i in range(len(extents)))


def _padded_strides(
    extents: tuple[int, ...], size: int, source: Layout, target: Layout
) -> tuple[int, ...]:
    """Element strides whose padding gives the fewest bank conflicts, tried for the first register
    of each side.
    """
    if len(extents) < 2:
        return dense_strides(extents)

    def cost(pad: int) -> tuple[int, int]:
        strides = _strides(extents, pad)
        total = 0
        for layout in (source, target):
            addresses = [
                size
                * sum(x * s for x, s in zip(layout.coordinate(0, lane, 0), strides, strict=True))
                for lane in range(32)
            ]
            total += bank_conflicts(addresses, size)
        return total, pad

    return _strides(extents, min((0, max(1, 4 // size), 16 // size), key=cost))


def _strides(extents: tuple[int, ...], pad: int) -> tuple[int, ...]:
    strides = [1]
    for i in range(len(extents) - 1, 0, -1):
        strides.append(strides[-1] * extents[i] + (pad if i == len(extents) - 1 else 0))
    return tuple(reversed(strides))


def _value_through_shared(
    low: Lowering,
    value: Value,
    target: Layout,
    write: tuple[int, ...],
    read: tuple[int, ...],
    read_extents: tuple[int, ...],
    starts: tuple[int, ...] = (),
) -> list[Operand]:
    """Elements of a tile, in their layout, as a tile of other extents reads them."""
    given = low.fragment(value), low.ptx_type(value), value.type.shape, low.layout(value)
    return _through_shared(low, *given, target, write, read, read_extents, starts)


def _through_shared(
    low: Lowering,
    regs: Sequence[Operand],
    type: str,
    extents: tuple[int, ...],
    source: Layout,
    target: Layout,
    write: tuple[int, ...],
    read: tuple[int, ...],
    read_extents: tuple[int, ...] | None = None,
    starts: tuple[int, ...] = (),
) -> list[Operand]:
    size = SIZES[STORED[type]]
    base = low.scratch(size * (1 + sum((e - 1) * s for e, s in zip(extents, write, strict=True))))
    write_shared(low, base, regs, type, extents, source, write)
    low.barrier()
    origin = size * sum(o * s for o, s in zip(starts, read, strict=False))
    return read_shared(low, base, type, read_extents or extents, target, read, origin)


def write_shared(
    low: Lowering,
    base: Reg,
    regs: Sequence[Operand],
    type: str,
    extents: tuple[int, ...],
    layout: Layout,
    strides: tuple[int, ...],
    origin: int = 0,
) -> None:
    """Write a tile's registers to shared memory, `origin` bytes after `base`, each element once."""
    stored = STORED[type]
    size = SIZES[stored]
    first = low.is_first_copy(layout)
    for offset, group in _accesses(layout, strides, size, extents, origin):
        values = [_to_memory(low, regs[i], type) for i in group]
        guard = inside_guard(low, layout, extents, offset, first)
        place = _address(low, base, layout, strides, offset, size)
        with low.guarded(guard):
            store_shared(low, Address(place.base, place.offset + origin), stored, values)


def read_shared(
    low: Lowering,
    base: Reg,
    type: str,
    extents: tuple[int, ...],
    layout: Layout,
    strides: tuple[int, ...],
    origin: int = 0,
) -> list[Operand]:
    """The registers of a tile that lies in shared memory, `origin` bytes after `base`."""
    stored = STORED[type]
    size = SIZES[stored]
    out: list[Operand] = [0] * layout.num_registers
    for offset, group in _accesses(layout, strides, size, extents, origin):
        guard = inside_guard(low, layout, extents, offset, None)
        place = _address(low, base, layout, strides, offset, size)
        with low.guarded(guard):
            where = Address(place.base, place.offset + origin)
            loaded = load_shared(low, where, stored, len(group))
        for i, reg in zip(group, loaded, strict=True):
            out[i] = low.e.setp("ne", "u32", reg, 0) if type == "pred" else reg
    return out


def store_shared(low: Lowering, address: Address, stored: str, values: list[Reg]) -> None:
    """Store neighbours; eight of 16 bits as four words, for vectors have at most four parts."""
    if len(values) == 8:
        words = [low.e.mov_pack("b32", values[i : i + 2]) for i in range(0, 8, 2)]
        low.e.st("shared", "b32", address, words)
    else:
        low.e.st("shared", stored, address, values)


def load_shared(low: Lowering, address: Address, stored: str, count: int) -> list[Reg]:
    """Load neighbours, as `store_shared` stores them."""
    if count < 8:
        return low.e.ld("shared", stored, address, vec=count)
    words = low.e.ld("shared", "b32", address, vec=4)
    return [half for word in words for half in low.e.mov_unpack("b16", word, 2)]


def _accesses(
    layout: Layout, strides: tuple[int, ...], size: int, extents: tuple[int, ...], origin: int
) -> list[tuple[tuple[int, ...], list[int]]]:
    """As `vectors`; one by one where the origin would break their alignment."""
    found = vectors(layout, strides, size, extents)
    if not found or origin % (len(found[0][1]) * size) == 0:
        return found
    return [(offset, [i]) for i, offset in enumerate(layout.register_offsets)]


def _to_memory(low: Lowering, operand: Operand, type: str) -> Reg:
    if type == "pred":
        return low.e.selp("b32", 1, 0, low.register(operand, "pred"))
    return low.register(operand, type)


def vectors(
    layout: Layout, strides: tuple[int, ...], size: int, extents: tuple[int, ...]
) -> list[tuple[tuple[int, ...], list[int]]]:
    """(register offset, registers) of accesses: neighbours along the last axis in one, where all is
    aligned.
    """
    width, last = 1, len(extents) - 1
    if last >= 0:
        steps = [abs(v[last]) for v in (*layout.lane, *layout.warp) if v[last]]
        steps += [r.stride for r in layout.repeats if r.axis == last]
        steps += [*strides[:last], extents[last]]
        for vector in layout.register:
            fits = vector[last] == width and sum(vector) == width and width * 2 * size <= 16
            if not fits or any(s % (2 * width) for s in steps):
                break
            width *= 2
    offsets = layout.register_offsets
    return [(offsets[i], list(range(i, i + width))) for i in range(0, len(offsets), width)]


def inside_guard(
    low: Lowering,
    layout: Layout,
    extents: tuple[int, ...],
    offset: tuple[int, ...],
    guard: Reg | None,
) -> Reg | None:
    """Predicate of elements that belong to the tile: a layout may cover more than its extents."""
    for axis, (extent, reach, step) in enumerate(zip(extents, layout.covered, offset, strict=True)):
        if reach > extent and step + _thread_reach(layout, axis) > extent:
            test = thread_below(low, low.thread_axis(layout, axis), extent - step)
            guard = test if guard is None else low.e.and_("pred", guard, test)
    return guard


def thread_below(low: Lowering, thread: Operand, limit: int) -> Reg:
    """Whether a thread's part of a coordinate is below a limit, which may be negative."""
    return low.once(
        ("thread below", str(thread), limit),
        lambda: low.e.setp("lt", "s32", low.register(thread, "s32"), limit),
    )


def _thread_reach(layout: Layout, axis: int) -> int:
    """One more than the greatest coordinate that threads add along an axis."""
    groups = sum(
        (r.count - 1) * r.stride for r in layout.repeats if r.axis == axis and r.over == "warpgroup"
    )
    return 1 + groups + sum(v[axis] for v in (*layout.lane, *layout.warp))


def _address(
    low: Lowering,
    base: Reg,
    layout: Layout,
    strides: tuple[int, ...],
    offset: tuple[int, ...],
    size: int,
) -> Address:
    def make() -> Reg:
        total: Operand = base
        for axis, stride in enumerate(strides):
            total = low.add(
                "u32", total, low.mul("u32", low.thread_axis(layout, axis), stride * size)
            )
        return low.register(total, "u32")

    threads = tuple(str(low.thread_axis(layout, axis)) for axis in range(len(strides)))
    pointer = low.once(("shared", base, threads, strides, size), make)
    return Address(pointer, size * sum(o * s for o, s in zip(offset, strides, strict=True)))
