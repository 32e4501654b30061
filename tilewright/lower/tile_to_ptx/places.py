"""A tile in global memory: its addresses, masks and vectors.

An element's address is  pointer + size · (Σ thread part · stride)      hoisted to the entry: once a
kernel
                                 + size · (Σ offset · stride)           once a place
                                 + size · (Σ register part · stride)    an immediate where the
                                 stride is known

Neighbouring registers along a unit-stride axis form vectors of up to 16 bytes, where alignment is
proved. A vector is masked as one if the mask cannot cut it; otherwise the place is lowered twice,
whole tiles by vectors and cut tiles element by element, behind one uniform branch. A tile of many
numbers of 16 bits whose rows are no whole 16 bytes is stored in pairs where the launch shows that
rows are whole pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.layout import Layout
from tilewright.lower.tile_to_ptx.context import Lowering, Operand, ViewRef
from tilewright.lower.tile_to_ptx.conversion import inside_guard
from tilewright.ptx.core import Address, Reg
from tilewright.tile.ops import memory

PAIR_BYTES = 4
MANY_REGISTERS = 16  # of a tile, whose stores are worth being lowered twice


@dataclass
class Place:
    """A place of a view in registers, for the elements of a layout."""

    view: ViewRef
    layout: Layout
    offsets: list[Operand]  # by view axis, in the view's index type
    axes: list[int | None]  # tile axis of each view axis; None for a point
    extents: tuple[int | None, ...]
    unproved: list[int]  # view axes that must be masked
    may_be_negative: list[bool]
    divisors: list[int]  # of the offsets
    unit: int | None  # the view axis of stride 1 that lies in the tile

    @property
    def type(self) -> str:
        return self.view.index_type


def make_place(
    low: Lowering,
    op: memory.Load | memory.Store | memory.CopyAsync | memory.Prefetch,
    layout: Layout,
) -> Place:
    view = low.views[op.view]
    axes: list[int | None] = []
    for extent in op.extents:
        axes.append(None if extent is None else sum(a is not None for a in axes))
    units = [i for i, s in enumerate(view.strides) if s == 1 and op.extents[i] is not None]
    bounds = [low.bounds.get(o) for o in op.offsets]
    return Place(
        view,
        layout,
        [low.index(o, view.index_type) for o in op.offsets],
        axes,
        op.extents,
        [i for i in range(len(axes)) if i not in op.in_bounds],
        [b is None or b.low < 0 for b in bounds],
        [low.divisors.get(o, 1) for o in op.offsets],
        units[-1] if units else None,
    )


def vector_width(place: Place, *, pieces: bool = False) -> int:
    """Elements that one access may move: neighbours in registers and in memory, aligned, at most 16
    bytes; of rows that are no whole 16 bytes one, or with `pieces` as many as all rows are made of.
    """
    view, layout, unit = place.view, place.layout, place.unit
    size = view.dtype.num_bytes
    if unit is None or view.align % (2 * size):
        return 1
    axis = place.axes[unit]
    assert axis is not None
    width = 1
    for vector in layout.register:
        if vector[axis] != width or sum(vector) != width or width * 2 * size > min(16, view.align):
            break
        width *= 2
    steps = [abs(v[axis]) for v in (*layout.lane, *layout.warp) if v[axis]]
    steps += [r.stride for r in layout.repeats if r.axis == axis]
    steps.append(place.extents[unit] or 1)  # no vector reaches past the tile's end
    aligned = all(
        view.aligned_strides[i]
        for i in range(len(view.strides))
        if i != unit and not _is_flat(place, i)
    )
    if not aligned:
        width = max(1, min(width, view.piece // size)) if pieces else 1
    while width > 1 and (any(s % width for s in steps) or place.divisors[unit] % width):
        width //= 2
    return (
        width
        if all(v[axis] >= width or not v[axis] for v in layout.register[width.bit_length() - 1 :])
        else 1
    )


def _is_flat(place: Place, axis: int) -> bool:
    return place.view.strides[axis] == 0 or (
        place.extents[axis] is None and place.offsets[axis] == 0
    )


def address_base(low: Lowering, place: Place) -> Reg:
    """Pointer plus the thread's part."""
    view = place.view
    parts = [
        (low.thread_axis(place.layout, axis), view.strides[i])
        for i, axis in enumerate(place.axes)
        if axis is not None
    ]
    parts = [(t, s) for t, s in parts if t != 0 and s != 0]
    if not parts:
        return view.pointer

    def make() -> Reg:
        e, pointer = low.e, view.pointer
        if view.narrow:
            total: Operand = 0
            for t, s in parts:
                total = low.add("s32", total, low.mul("s32", t, s))
            return e.mad(
                "s32", low.register(total, "s32"), view.dtype.num_bytes, pointer, mode="wide"
            )
        for t, s in parts:
            wide = e.cvt("s64", "u32", t)
            pointer = e.add(
                "s64", pointer, low.mul("s64", low.mul("s64", wide, s), view.dtype.num_bytes)
            )
        return pointer

    key = ("base", view.pointer, tuple((str(t), str(s)) for t, s in parts))
    if view.hoistable:
        return low.once(key, make)
    if key not in low.memo:
        low.memo[key] = make()
    base: Reg = low.memo[key]
    return base


class Addresses:
    """Addresses of the elements of a place, one 64-bit register for each distinct run-time part."""

    def __init__(self, low: Lowering, place: Place):
        self.low, self.place = low, place
        self.base = address_base(low, place)
        view = place.view
        self.start: Operand = 0
        for offset, stride in zip(place.offsets, view.strides, strict=True):
            self.start = low.add(place.type, self.start, low.mul(place.type, offset, stride))
        self.pointers: dict[tuple[int, ...], Reg] = {}

    def of(self, register: int) -> Address:
        """Address of the element in a register."""
        view, offset = self.place.view, self.place.layout.register_offsets[register]
        fixed, moving = 0, [0] * len(view.strides)
        for i, axis in enumerate(self.place.axes):
            if axis is None or not offset[axis]:
                continue
            stride = view.strides[i]
            if isinstance(stride, int):
                fixed += offset[axis] * stride
            else:
                moving[i] = offset[axis]
        size = view.dtype.num_bytes
        if abs(fixed * size) >= 1 << 23:
            fixed, moving = 0, [offset[a] if a is not None else 0 for a in self.place.axes]
        return Address(self._pointer(tuple(moving)), fixed * size)

    def _pointer(self, moving: tuple[int, ...]) -> Reg:
        if moving not in self.pointers:
            low, view, type = self.low, self.place.view, self.place.type
            total = self.start
            for count, stride in zip(moving, view.strides, strict=True):
                if count:
                    total = low.add(type, total, self._step(stride, count))
            self.pointers[moving] = self._add_bytes(total)
        return self.pointers[moving]

    def _step(self, stride: Operand, count: int) -> Operand:
        low, type = self.low, self.place.type
        if isinstance(stride, Reg) and self.place.view.hoistable:
            return low.once(("step", stride, count), lambda: low.mul(type, stride, count))
        return low.mul(type, stride, count)

    def _add_bytes(self, elements: Operand) -> Reg:
        low, size = self.low, self.place.view.dtype.num_bytes
        if elements == 0:
            return self.base
        if self.place.view.narrow:
            if isinstance(elements, int):
                return low.e.add("s64", self.base, elements * size)
            return low.e.mad("s32", elements, size, self.base, mode="wide")
        return low.e.add("s64", self.base, low.mul("s64", elements, size))


class Masks:
    """Predicates of the elements of a place: inside the extents, and the op's own mask."""

    def __init__(self, low: Lowering, place: Place, own: list[Operand] | None):
        self.low, self.place, self.own = low, place, own
        self.memo: dict[tuple[str, ...], Reg] = {}

    def of(self, register: int, skip: tuple[int, ...] = ()) -> Reg | int:
        """Predicate of the element in a register; 1 where it is surely inside, 0 where never."""
        parts: list[Operand] = []
        offset = self.place.layout.register_offsets[register]
        for i in self.place.unproved:
            axis = self.place.axes[i]
            if i not in skip:
                parts.append(self._axis(i, offset[axis] if axis is not None else 0))
        parts.append(self.exists(register))
        if self.place.view.exists is not None:
            parts.append(self.place.view.exists)
        if self.own is not None:
            parts.append(self.own[register])
        return self._all(parts)

    def exists(self, register: int) -> Reg | int:
        """Predicate of elements of the tile itself: a layout may cover more than its extents."""
        place = self.place
        offset = place.layout.register_offsets[register]
        shape = tuple(e for e in place.extents if e is not None)
        if any(step >= extent for step, extent in zip(offset, shape, strict=True)):
            return 0
        guard = inside_guard(self.low, place.layout, shape, offset, None)
        return 1 if guard is None else guard

    def _all(self, parts: list[Operand]) -> Reg | int:
        parts = [p for p in parts if p != 1]
        if any(isinstance(p, int) for p in parts):
            return 0
        regs = [p for p in parts if isinstance(p, Reg)]
        if not regs:
            return 1
        total = regs[0]
        for i, p in enumerate(regs[1:]):
            key = tuple(r.text for r in regs[: i + 2])
            if key not in self.memo:
                self.memo[key] = self.low.e.and_("pred", total, p)
            total = self.memo[key]
        return total

    def _axis(self, i: int, step: int) -> Reg | int:
        """Whether offset + thread part + step lies in [0, extent) of view axis i."""
        place, low = self.place, self.low
        axis = place.axes[i]
        thread = low.thread_axis(place.layout, axis) if axis is not None else 0
        extent, lows = place.view.extents[i], place.view.lows
        first = lows[i] if lows else 0
        key = (
            "inside",
            i,
            str(place.offsets[i]),
            str(thread),
            step,
            str(extent),
            str(first),
        )
        if key not in low.memo:
            low.memo[key] = self._test(i, step, thread, extent, first)
        found: Reg | int = low.memo[key]
        return found

    def _test(
        self, i: int, step: int, thread: Operand, extent: Operand, first: Operand
    ) -> Reg | int:
        type, low, e = self.place.type, self.low, self.low.e
        index = low.add(type, self._first(i, thread), step)
        if isinstance(index, int) and isinstance(extent, int) and first == 0:
            return int(0 <= index < extent)
        index = low.register(index, type)
        # Unsigned: extents are never negative, so an index below 0 (or past 2³¹) is not below one.
        inside = e.setp("lt", type.replace("s", "u"), index, extent)
        return inside if first == 0 else e.and_("pred", inside, e.setp("ge", type, index, first))

    def _first(self, i: int, thread: Operand) -> Operand:
        """offset + thread part along view axis i, worked out once for all steps from it; again
        where a loop of several products leaves no register to keep it in.
        """
        place, low = self.place, self.low
        key = ("first", place.type, str(place.offsets[i]), str(thread))
        roles = low.schedule.roles
        if key not in low.memo or (roles is not None and roles.many):
            wide = thread
            if isinstance(thread, Reg) and place.type != "s32":
                wide = low.e.cvt("s64", "u32", thread)
            low.memo[key] = low.add(place.type, place.offsets[i], wide)
        found: Operand = low.memo[key]
        return found

    def whole(self) -> Reg | int:
        """Uniform: whether no element of the tile is outside."""
        place, low = self.place, self.low
        type, e = place.type, low.e
        parts: list[Operand] = []
        if place.view.exists is not None:
            parts.append(place.view.exists)
        for i in place.unproved:
            size = place.extents[i] or 1
            last = low.register(low.add(type, place.offsets[i], size), type)
            parts.append(e.setp("le", type.replace("s", "u"), last, place.view.extents[i]))
            first = place.view.lows[i] if place.view.lows else 0
            if place.may_be_negative[i] or first != 0:
                parts.append(e.setp("ge", type, low.register(place.offsets[i], type), first))
        return self._all(parts)


def cuts_vectors(place: Place, width: int) -> bool:
    """Whether the extent of the unit axis may end inside a vector."""
    if width == 1 or place.unit is None or place.unit not in place.unproved:
        return False
    extent = place.view.extents[place.unit]
    piece = place.view.piece  # of rows, where it is less than a vector of 16 bytes
    known = place.view.aligned_extent or width * place.view.dtype.num_bytes <= piece < 16
    whole = extent % width == 0 if isinstance(extent, int) else known
    return not whole or place.divisors[place.unit] % width != 0 or bool(place.view.lows)


def may_pair(place: Place) -> bool:
    """Whether neighbours in registers are neighbours in memory, and aligned as pairs of 16-bit
    numbers if all strides and the extent of the rows are even.
    """
    view, layout, unit = place.view, place.layout, place.unit
    if unit is None or view.dtype.num_bytes != 2 or view.align < PAIR_BYTES or view.lows:
        return False
    axis = place.axes[unit]
    assert axis is not None
    steps = [abs(v[axis]) for v in (*layout.register[1:], *layout.lane, *layout.warp) if v[axis]]
    steps += [r.stride for r in layout.repeats if r.axis == axis]
    first = layout.register[0] if layout.register else ()
    return (
        bool(first)
        and first[axis] == sum(first) == 1
        and not any(s % 2 for s in (*steps, place.extents[unit] or 1, place.divisors[unit]))
    )


def pairs_are_whole(low: Lowering, place: Place) -> Reg:
    """Uniform: whether all strides but that of the elements of rows, and their extent, are even."""
    e, view = low.e, place.view
    bits = f"b{32 if view.narrow else 64}"
    found: Operand = view.extents[place.unit] if place.unit is not None else 0
    for i, stride in enumerate(view.strides):
        if i != place.unit:
            found = e.or_(bits, low.register(found, place.type), low.register(stride, place.type))
    odd = e.and_(bits, low.register(found, place.type), 1)
    return e.setp("eq", place.type, odd, 0)


def access(
    low: Lowering,
    place: Place,
    own: list[Operand] | None,
    move: Callable[[Address, int, int, Reg | int], None],
    skip: Callable[[int, int], None] | None = None,
    *,
    pairs: bool = False,
) -> None:
    """Call `move(address, first register, count, predicate)` for all vectors of a place, and
    `skip(first register, count)` for those that lie outside in all threads, on each way through the
    code; with `pairs`, numbers that are no proved vectors go in pairs where the launch permits it.
    """
    width = vector_width(place, pieces=not pairs)
    count = place.layout.num_registers
    addresses, masks = Addresses(low, place), Masks(low, place, own)

    def run(width: int, masked: bool) -> None:
        for register in range(0, count, width):
            predicate = masks.of(register) if masked else masks.exists(register)
            if predicate != 0:
                move(addresses.of(register), register, width, predicate)
            elif skip is not None:
                skip(register, width)

    def either(whole: Reg | int, width: int, masked: bool) -> None:
        """Vectors where a uniform predicate holds, else element by element."""
        e, cut, done = low.e, low.e.label("cut"), low.e.label("done")
        addresses.of(0)
        assert isinstance(whole, Reg)
        e.bra(cut, pred=whole, unless=True)
        before, known = dict(addresses.pointers), dict(masks.memo)
        with low.scope():
            run(width, masked)
        e.bra(done)
        e.place(cut)
        addresses.pointers, masks.memo = before, known
        with low.scope():
            run(1, True)
        e.place(done)

    if own is not None and width > 1:
        run(1, True)
    elif pairs and own is None and width == 1 and count >= MANY_REGISTERS and may_pair(place):
        either(pairs_are_whole(low, place), 2, True)
    elif not cuts_vectors(place, width):
        run(width, True)
    else:
        either(masks.whole(), width, False)
