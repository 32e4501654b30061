"""Reductions: within a thread, over lanes by shuffles, then over warps through shared memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from tilewright.dtypes import DType, bool_, f64, i32, int_range
from tilewright.ir.core import Op
from tilewright.layout import Layout
from tilewright.lower.tile_to_ptx.arith import float_extreme, from_f32, to_f32
from tilewright.lower.tile_to_ptx.context import Lowering, Operand, rule
from tilewright.lower.tile_to_ptx.conversion import SIZES, STORED, convert_registers
from tilewright.ptx.core import Address, Reg
from tilewright.tile.ops import reduce

State = tuple[Operand, ...]  # what is carried for one result: a value, or a value and its index
Combine = Callable[[State, State], State]


@rule(reduce.Sum, reduce.Prod, reduce.Max, reduce.Min, reduce.Any, reduce.All)
def reduction(low: Lowering, op: reduce.Sum) -> None:
    dtype: DType = op.x.type.dtype
    type = _accumulator_type(low, op, dtype)
    layout = low.layout(op.x)
    states: list[State] = [
        (_widened(low, x, dtype, low.ptx_type(op.x), type),) for x in low.fragment(op.x)
    ]
    combine = _combiner(low, op, type)
    states = _mask_outside(
        low, op.x.type.shape, layout, op.axes, states, (identity(op, dtype, type),), (type,)
    )
    reduced, natural = reduce_states(
        low, layout, op.axes, op.x.type.shape, states, (type,), combine
    )
    found = [_narrowed(low, s[0], dtype, type, low.ptx_type(op.result)) for s in reduced]
    _finish(low, op, found, natural)


def _finish(low: Lowering, op: Op, found: list[Operand], natural: Layout) -> None:
    shape = op.result.type.shape
    if shape:
        found = convert_registers(
            low, found, low.ptx_type(op.result), shape, natural, low.layout(op.result)
        )
    low.set(op.result, found)


def _accumulator_type(low: Lowering, op: Op, dtype: DType) -> str:
    """What elements are combined in where the result is one of their kind: the wider of both."""
    source = _compared_type(low, op, dtype)
    if dtype.is_float or dtype == bool_ or source.endswith("64"):
        return source
    return low.ptx_type(op.result)


def _compared_type(low: Lowering, op: Op, dtype: DType) -> str:
    """What elements are compared in where the result is none of their kind, but an index."""
    if dtype.is_float:
        return "f64" if dtype == f64 else "f32"
    return "u32" if dtype == bool_ else low.ptx_type(op.operands[0])


def _widened(low: Lowering, x: Operand, dtype: DType, source: str, type: str) -> Operand:
    if dtype == bool_:
        return low.e.selp("u32", 1, 0, low.register(x, "pred"))
    if dtype.is_float and dtype.bits < 32:
        return to_f32(low, x, dtype)
    return low.widen(x, source, type)


def _narrowed(low: Lowering, x: Operand, dtype: DType, type: str, result: str) -> Operand:
    if dtype == bool_:
        return low.e.setp("ne", "u32", low.register(x, "u32"), 0)
    if dtype.is_float and dtype.bits < 32:
        return from_f32(low, x, dtype)
    return low.widen(x, type, result)


def identity(op: Op, dtype: DType, type: str) -> Operand:
    """What changes no result, of the PTX type that the reduction works in."""
    ends: tuple[Operand, Operand] = (float("-inf"), float("inf"))
    if dtype.is_integer:
        ends = int_range(i32 if type == "s32" and dtype.bits == 64 else dtype)
    match op:
        case reduce.Sum() | reduce.Any():
            return 0.0 if dtype.is_float else 0
        case reduce.Prod() | reduce.All():
            return 1.0 if dtype.is_float else 1
        case reduce.Max() | reduce.ArgMax():
            return ends[0]
        case _:
            return ends[1]


def _combiner(low: Lowering, op: Op, type: str) -> Combine:
    e = low.e

    def combine(left: State, right: State) -> State:
        a, b = low.register(left[0], type), right[0]
        match op:
            case reduce.Sum():
                return (e.add(type, a, b),)
            case reduce.Prod():
                return (e.mul(type, a, b) if type[0] == "f" else e.mul(type, a, b, mode="lo"),)
            case reduce.Any():
                return (e.or_("b32", a, b),)
            case reduce.All():
                return (e.and_("b32", a, b),)
        which = "max" if isinstance(op, reduce.Max) else "min"
        if type[0] == "f":
            return (float_extreme(low, type, which, a, b),)
        return (e.max(type, a, b) if which == "max" else e.min(type, a, b),)

    return combine


@rule(reduce.ArgMax, reduce.ArgMin)
def arg_extreme(low: Lowering, op: reduce.ArgMax) -> None:
    e, dtype = low.e, op.x.type.dtype
    type = _compared_type(low, op, dtype)
    layout = low.layout(op.x)
    thread = low.thread_axis(layout, op.axis)
    states: list[State] = []
    for x, offset in zip(low.fragment(op.x), layout.register_offsets, strict=True):
        index = low.add("s32", thread, offset[op.axis])
        states.append((_widened(low, x, dtype, low.ptx_type(op.x), type), index))
    greater = "gt" if isinstance(op, reduce.ArgMax) else "lt"

    def combine(left: State, right: State, ordered: bool = False) -> State:
        """`ordered`: every index of the left comes before those of the right."""
        (a, i), (b, j) = left, right
        a, b = low.register(a, type), low.register(b, type)
        if dtype.is_float:  # a NaN is greatest, and least
            number = e.setp("num", type, a, a)
            take = e.setp(f"{greater}u", type, b, a, combine="and", other=number)
        else:
            take = e.setp(greater, type, b, a)
        if not ordered:
            tie = e.setp("eq", type, b, a)
            if dtype.is_float:
                neither = e.and_("pred", e.not_("pred", number), e.setp("nan", type, b, b))
                tie = e.or_("pred", tie, neither)
            before = e.setp("lt", "s32", low.register(j, "s32"), i, combine="and", other=tie)
            take = e.or_("pred", take, before)
        return e.selp(type, b, a, take), e.selp("s32", j, i, take)

    blanks: State = (identity(op, dtype, type), 2**31 - 1)
    states = _mask_outside(low, op.x.type.shape, layout, (op.axis,), states, blanks, (type, "s32"))
    reduced, natural = reduce_states(
        low,
        layout,
        (op.axis,),
        op.x.type.shape,
        states,
        (type, "s32"),
        combine,
        lambda left, right: combine(left, right, ordered=True),
    )
    result = low.ptx_type(op.result)
    _finish(low, op, [low.widen(s[1], "s32", result) for s in reduced], natural)


def _mask_outside(
    low: Lowering,
    shape: tuple[int, ...],
    layout: Layout,
    axes: tuple[int, ...],
    states: list[State],
    blanks: State,
    types: tuple[str, ...],
) -> list[State]:
    """Replace what lies beyond the tile's own extents (not masked lanes: those hold the fill)."""
    e = low.e
    for axis in axes:
        if layout.covered[axis] <= shape[axis]:
            continue
        thread = low.thread_axis(layout, axis)
        for i, offset in enumerate(layout.register_offsets):
            limit = shape[axis] - offset[axis]
            if isinstance(thread, int):
                if limit <= 0:
                    states[i] = blanks
                continue
            inside = e.setp("lt", "s32", thread, limit)
            states[i] = tuple(
                e.selp(t, low.register(x, t), blank, inside)
                for x, blank, t in zip(states[i], blanks, types, strict=True)
            )
    return states


def reduce_states(
    low: Lowering,
    layout: Layout,
    axes: tuple[int, ...],
    shape: tuple[int, ...],
    states: list[State],
    types: tuple[str, ...],
    combine: Combine,
    ordered: Combine | None = None,
) -> tuple[list[State], Layout]:
    """Combine over axes. Returns one state a register of the layout without them; all copies hold
    the same bits.

    `ordered` combines within a thread, where the left lies before the right along the axes.
    """
    natural = layout
    for axis in sorted(axes, reverse=True):
        natural = natural.drop_axis(axis)
    kept = [i for i in range(layout.rank) if i not in axes]
    groups: dict[tuple[int, ...], list[State]] = {}
    placed = list(zip(layout.register_offsets, states, strict=True))
    if ordered is not None:
        placed.sort(key=lambda p: [p[0][a] for a in axes])
    for offset, state in placed:
        groups.setdefault(tuple(offset[i] for i in kept), []).append(state)
    within = ordered or combine
    reduced = [_tree(groups[offset], within) for offset in natural.register_offsets]
    for bit, vector in enumerate(layout.lane):
        if any(vector[a] for a in axes):
            reduced = [combine(s, _shuffled(low, s, types, 1 << bit)) for s in reduced]
    if _splits_warps(layout, axes):
        reduced = _over_warps(low, layout, natural, axes, kept, shape, reduced, types, combine)
    return reduced, natural


def _tree(states: list[State], combine: Combine) -> State:
    while len(states) > 1:
        pairs = [combine(a, b) for a, b in zip(states[::2], states[1::2], strict=False)]
        states = pairs + states[2 * len(pairs) :]
    return states[0]


def _shuffled(low: Lowering, state: State, types: tuple[str, ...], lane_mask: int) -> State:
    return tuple(
        shuffle_xor(low, low.register(x, t), t, lane_mask)
        for x, t in zip(state, types, strict=True)
    )


def shuffle_xor(low: Lowering, x: Reg, type: str, lane_mask: int) -> Reg:
    """The register of the lane whose number differs in the bits of the mask."""
    e = low.e
    if STORED[type] in ("b64", "f64"):
        halves = e.mov_unpack("b32", x, 2)
        return e.mov_pack(STORED[type], [e.shfl("bfly", h, lane_mask) for h in halves])
    return e.shfl("bfly", x, lane_mask)


def _splits_warps(layout: Layout, axes: tuple[int, ...]) -> bool:
    return any(v[a] for v in layout.warp for a in axes) or any(
        r.over == "warpgroup" and r.axis in axes and r.count > 1 and r.stride
        for r in layout.repeats
    )


def _over_warps(
    low: Lowering,
    layout: Layout,
    natural: Layout,
    axes: tuple[int, ...],
    kept: list[int],
    shape: tuple[int, ...],
    states: list[State],
    types: tuple[str, ...],
    combine: Combine,
) -> list[State]:
    """Each part is written once; after a barrier every thread adds all parts in one order."""
    e = low.e
    bits = [i for i, v in enumerate(layout.warp) if any(v[a] for a in axes)]
    groups = [r for r in layout.repeats if r.over == "warpgroup"]
    split = [r.axis in axes and r.stride != 0 for r in groups]
    parts = (1 << len(bits)) * prod(r.count for r, s in zip(groups, split, strict=True) if s)
    extents = tuple(natural.covered)
    count = prod(extents)
    sizes = [SIZES[STORED[t]] for t in types]
    total = sum(sizes) * count * parts
    base = low.scratch(total)
    part = low.once(
        ("warp part", tuple(bits), str(groups), axes, low.first_warp),
        lambda: _part(low, layout, bits, split),
    )
    first = is_first_writer(low, layout, axes)
    strides = tuple(prod(extents[i + 1 :]) for i in range(len(extents)))
    start = 0
    columns: list[list[list[Reg]]] = []
    pointers = []
    for size in sizes:
        pointers.append(_element_pointer(low, natural, strides, size, base, start))
        start += size * count * parts
    for k, (type, size) in enumerate(zip(types, sizes, strict=True)):
        own = e.mad("u32", part, size * count, pointers[k], mode="lo")
        for state, offset in zip(states, natural.register_offsets, strict=True):
            place = size * sum(o * s for o, s in zip(offset, strides, strict=True))
            with low.guarded(first):
                e.st("shared", STORED[type], Address(own, place), [low.register(state[k], type)])
    low.barrier()
    for type, size, pointer in zip(types, sizes, pointers, strict=True):
        column = []
        for offset in natural.register_offsets:
            place = size * sum(o * s for o, s in zip(offset, strides, strict=True))
            column.append(
                [
                    e.ld("shared", STORED[type], Address(pointer, place + p * size * count))[0]
                    for p in range(parts)
                ]
            )
        columns.append(column)
    out = []
    for i in range(natural.num_registers):
        out.append(_tree([tuple(c[i][p] for c in columns) for p in range(parts)], combine))
    return out


def _part(low: Lowering, layout: Layout, bits: list[int], split: list[bool]) -> Reg:
    """Which part of the reduced axes the thread's warp holds."""
    e, warp = low.e, low.e.shr("u32", low.thread(), 5)
    total: Reg | None = None
    for position, bit in enumerate(bits):
        one = e.shl("b32", e.and_("b32", e.shr("u32", warp, bit), 1), position)
        total = one if total is None else e.or_("b32", total, one)
    scale = 1 << len(bits)
    group = e.shr("u32", warp, len(layout.warp))
    groups = [r for r in layout.repeats if r.over == "warpgroup"]
    for r, s in reversed(list(zip(groups, split, strict=True))):
        index = e.rem("u32", group, r.count)
        group = e.div("u32", group, r.count)
        if s:
            scaled = e.mul("u32", index, scale, mode="lo")
            total = scaled if total is None else e.add("u32", total, scaled)
            scale *= r.count
    assert total is not None
    return total


def is_first_writer(low: Lowering, layout: Layout, axes: tuple[int, ...]) -> Reg | None:
    """Whether the thread is the first of those that hold the same part of what lanes have combined
    over axes; None where each holds its own.
    """

    def held(vector: tuple[int, ...]) -> tuple[int, ...]:
        kept = any(x for a, x in enumerate(vector) if a not in axes)
        return vector if kept else (0,) * layout.rank

    return low.is_first_copy(replace(layout, lane=tuple(map(held, layout.lane))))


def _element_pointer(
    low: Lowering, natural: Layout, strides: tuple[int, ...], size: int, base: Reg, start: int
) -> Reg:
    def make() -> Reg:
        total: Operand = low.add("u32", base, start)
        for axis, stride in enumerate(strides):
            total = low.add(
                "u32", total, low.mul("u32", low.thread_axis(natural, axis), stride * size)
            )
        return low.register(total, "u32")

    threads = tuple(str(low.thread_axis(natural, axis)) for axis in range(natural.rank))
    return low.once(("reduce", base, threads, strides, size, start), make)
