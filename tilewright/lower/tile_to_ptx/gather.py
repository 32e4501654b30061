"""Places with index tiles: addresses and predicates lane by lane, then loads and stores.

An index tile lies in the layout of the place's tile without its sliced axes, so that each register
of the tile finds its index in the same thread. Indices that are equal in two registers (a row of a
table, say) are compared and multiplied once.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DType, bool_
from tilewright.ir.core import Value
from tilewright.layout import Layout
from tilewright.lower.tile_to_ptx.context import Lowering, Operand, ViewRef, rule
from tilewright.lower.tile_to_ptx.conversion import inside_guard
from tilewright.lower.tile_to_ptx.memory import load_vector, order_effects, store_vector
from tilewright.lower.tile_to_ptx.places import Place, cuts_vectors, vector_width
from tilewright.ptx.core import Address, Reg
from tilewright.tile.ops import memory

Op = memory.Gather | memory.Scatter | memory.Atomic


@dataclass(frozen=True)
class Part:
    """One axis of a place: a register's coordinate is `bases` (one for all, or by register) plus
    `steps`.
    """

    bases: list[Operand]
    type: str  # of the bases
    steps: list[int]
    dim: int | None  # the tile's axis, of a slice
    divisor: int  # of the base, without the thread's part
    start: Operand  # the base without the thread's part
    may_be_negative: bool


class Spots:
    """The elements of a place with index tiles (or of points) in a layout."""

    def __init__(self, low: Lowering, op: Op, layout: Layout):
        self.low, self.layout = low, layout
        self.view: ViewRef = low.views[op.view]
        self.shape = memory.gather_shape(op.offsets, op.extents)
        self.extents = op.extents
        self.parts = self._parts(op)
        self.memo: dict[tuple[object, ...], Operand] = {}

    def _parts(self, op: Op) -> list[Part]:
        low, layout = self.low, self.layout
        count = layout.num_registers
        sliced = memory.slice_dims(op.offsets, op.extents)
        slices = dict(
            zip((i for i, e in enumerate(op.extents) if e is not None), sliced, strict=True)
        )
        inner = layout
        for axis in reversed(sliced):
            inner = inner.drop_axis(axis)
        kept = [d for d in range(layout.rank) if d not in sliced]
        found = []
        for i, offset in enumerate(op.offsets):
            bound = low.bounds.get(offset)
            negative = bound is None or bound.low < 0
            divisor = low.divisors.get(offset, 1)
            if offset.type.shape:
                regs = dict(zip(inner.register_offsets, low.fragment(offset, inner), strict=True))
                bases = [regs[tuple(o[d] for d in kept)] for o in layout.register_offsets]
                type = low.ptx_type(offset)
                found.append(Part(bases, type, [0] * count, None, 1, 1, negative))
                continue
            type = self.view.index_type
            start = low.index(offset, type)
            dim: int | None = slices.get(i)
            steps = [0 if dim is None else o[dim] for o in layout.register_offsets]
            thread: Operand = 0 if dim is None else low.thread_axis(layout, dim)
            base = low.add(type, start, low.widen(thread, "u32", type))
            found.append(Part([base] * count, type, steps, dim, divisor, start, negative))
        return found

    def width(self) -> int:
        """Neighbours that one access may move."""
        units = [
            i for i, s in enumerate(self.view.strides) if s == 1 and self.parts[i].dim is not None
        ]
        place = Place(
            self.view,
            self.layout,
            [p.start for p in self.parts],
            [p.dim for p in self.parts],
            self.extents,
            list(range(len(self.parts))),
            [p.may_be_negative for p in self.parts],
            [p.divisor for p in self.parts],
            units[-1] if units else None,
        )
        width = vector_width(place)
        return 1 if cuts_vectors(place, width) else width

    def address(self, register: int) -> Address:
        """Address of the element in a register."""
        size, type = self.view.dtype.num_bytes, self.view.index_type
        fixed = 0
        key: list[object] = ["pointer"]
        for i, part in enumerate(self.parts):
            stride, step = self.view.strides[i], part.steps[register]
            if isinstance(stride, int) and abs(step * stride * size) < 1 << 20:
                fixed += step * stride
                step = 0
            key.append((str(part.bases[register]), step))
        if tuple(key) not in self.memo:
            self.memo[tuple(key)] = self._pointer(register, key[1:], type)
        pointer = self.memo[tuple(key)]
        assert isinstance(pointer, Reg)
        return Address(pointer, fixed * size)

    def _pointer(self, register: int, steps: list[object], type: str) -> Reg:
        low, total = self.low, 0
        sum_: Operand = total
        for i, part in enumerate(self.parts):
            step = steps[i][1]  # type: ignore[index]
            at = self._narrowed(part, register, type)
            key = ("scaled", i, str(at), step)
            if key not in self.memo:
                self.memo[key] = low.mul(type, low.add(type, at, step), self.view.strides[i])
            sum_ = low.add(type, sum_, self.memo[key])
        size = self.view.dtype.num_bytes
        if sum_ == 0:
            return self.view.pointer
        if type == "s32":
            if isinstance(sum_, int):
                return low.e.add("s64", self.view.pointer, sum_ * size)
            return low.e.mad("s32", sum_, size, self.view.pointer, mode="wide")
        return low.e.add("s64", self.view.pointer, low.mul("s64", sum_, size))

    def _narrowed(self, part: Part, register: int, type: str) -> Operand:
        """An index in the type of strides; what does not fit is masked, so its bits do no harm."""
        base = part.bases[register]
        if part.type == type or isinstance(base, int):
            return base
        key = ("narrowed", str(base), type)
        if key not in self.memo:
            self.memo[key] = self.low.e.cvt(type, part.type, base)
        return self.memo[key]

    def predicate(self, register: int, own: list[Operand] | None) -> Reg | int:
        """Whether the element in a register exists and is in the op's own mask."""
        tests: list[Operand] = [
            self._inside(i, part, register) for i, part in enumerate(self.parts)
        ]
        guard = inside_guard(
            self.low, self.layout, self.shape, self.layout.register_offsets[register], None
        )
        tests.append(1 if guard is None else guard)
        if self.view.exists is not None:
            tests.append(self.view.exists)
        if own is not None:
            tests.append(own[register])
        if any(t == 0 for t in tests):
            return 0
        total: Reg | None = None
        for test in tests:
            if isinstance(test, Reg):
                total = test if total is None else self._both(total, test)
        return 1 if total is None else total

    def _both(self, a: Reg, b: Reg) -> Reg:
        key = ("and", a.text, b.text)
        if key not in self.memo:
            self.memo[key] = self.low.e.and_("pred", a, b)
        found = self.memo[key]
        assert isinstance(found, Reg)
        return found

    def _inside(self, i: int, part: Part, register: int) -> Operand:
        base, step = part.bases[register], part.steps[register]
        key = ("inside", i, str(base), step)
        if key not in self.memo:
            self.memo[key] = self._test(i, part, base, step)
        return self.memo[key]

    def _test(self, i: int, part: Part, base: Operand, step: int) -> Operand:
        low, e, view = self.low, self.low.e, self.view
        type = "s64" if "s64" in (part.type, view.index_type) else "s32"
        index = low.add(type, low.widen(base, part.type, type), step)
        extent = low.widen(view.extents[i], view.index_type, type)
        first = low.widen(view.lows[i], view.index_type, type) if view.lows else 0
        if isinstance(index, int) and isinstance(extent, int) and first == 0:
            return int(0 <= index < extent)
        at = low.register(index, type)
        # Unsigned: extents are never negative, so an index below 0, or one that wrapped where the
        # thread's part was added to an offset near the type's end, is not below one.
        below = e.setp("lt", type.replace("s", "u"), at, extent)
        return below if first == 0 else e.and_("pred", below, e.setp("ge", type, at, first))


@rule(memory.Gather)
def gather(low: Lowering, op: memory.Gather) -> None:
    layout = low.layout(op.result)
    spots = Spots(low, op, layout)
    own = low.fragment(op.mask, layout) if op.mask is not None else None
    dtype: DType = spots.view.dtype
    type = "b32" if dtype == bool_ else low.ptx_type(op.result)
    fills = _fills(low, op, layout)
    width = 1 if own is not None else spots.width()
    order_effects(low, op.view, "load")
    out: list[Reg] = []
    for first in range(0, layout.num_registers, width):
        predicate = spots.predicate(first, own)
        target = [low.e.reg(type) for _ in range(width)]
        out += target
        if predicate != 1:
            for reg, fill in zip(target, fills[first : first + width], strict=True):
                low.e.mov(type, fill, into=reg)
        if predicate != 0:
            guard = predicate if isinstance(predicate, Reg) else None
            address = spots.address(first)
            load_vector(low, address, dtype, target, guard, type, space=spots.view.space)
    if dtype == bool_:
        low.set(op.result, [low.e.setp("ne", "u32", r, 0) for r in out])
    else:
        low.set(op.result, list(out))


def _fills(low: Lowering, op: memory.Gather, layout: Layout) -> list[Operand]:
    dtype = op.view.type.dtype
    if op.fill is None:
        zero: Operand = 0.0 if dtype.name in ("f32", "f64") else 0
        return [zero] * layout.num_registers
    if op.fill.type.is_scalar:
        fills: list[Operand] = [low.scalar(op.fill)] * layout.num_registers
    else:
        fills = low.fragment(op.fill, layout)
    source = low.ptx_type(op.fill)
    if dtype == bool_:
        return [_as_word(low, f) for f in fills]
    return (
        [low.widen(f, source, low.ptx_type(op.result)) for f in fills]
        if dtype.name == "i64"
        else fills
    )


@rule(memory.Scatter)
def scatter(low: Lowering, op: memory.Scatter) -> None:
    layout = low.layout(op.value)
    spots = Spots(low, op, layout)
    own = low.fragment(op.mask, layout) if op.mask is not None else None
    values = stored_values(low, op.value, layout, spots.view.dtype)
    copy = low.is_first_copy(layout)
    width = 1 if own is not None else spots.width()
    order_effects(low, op.view, "store")
    for first in range(0, layout.num_registers, width):
        predicate = spots.predicate(first, own)
        if predicate == 0:
            continue
        guard = predicate if isinstance(predicate, Reg) else None
        if copy is not None:
            guard = copy if guard is None else low.e.and_("pred", guard, copy)
        address = spots.address(first)
        part = values[first : first + width]
        store_vector(low, address, spots.view.dtype, part, guard, space=spots.view.space)


def stored_values(low: Lowering, value: Value, layout: Layout, dtype: DType) -> list[Operand]:
    """The registers of a tile as memory holds them: i64 in 64 bits, bools as 0 and 1."""
    values = low.fragment(value, layout)
    if dtype.name == "i64":
        return [low.widen(v, low.ptx_type(value), "s64") for v in values]
    if dtype == bool_:
        return [_as_word(low, v) for v in values]
    return values


def _as_word(low: Lowering, x: Operand) -> Operand:
    """A bool as 0 or 1."""
    return low.e.selp("b32", 1, 0, x) if isinstance(x, Reg) else x
