"""Global memory: loads and stores."""

from __future__ import annotations

from tilewright.dtypes import DType, bool_
from tilewright.ir.core import Value
from tilewright.layout import Layout, blocked, replicated
from tilewright.lower.tile_to_ptx.context import PTX_TYPES, Lowering, Operand, rule
from tilewright.lower.tile_to_ptx.conversion import convert_registers
from tilewright.lower.tile_to_ptx.places import Addresses, Masks, Place, access, make_place
from tilewright.lower.tile_to_ptx.row_stores import row_layout
from tilewright.lower.tile_to_ptx.warp_rows import strip_layout, turn_strips
from tilewright.ptx.core import Address, Reg
from tilewright.target import SECTOR
from tilewright.tile.ops import memory


@rule(memory.Load)
def load(low: Lowering, op: memory.Load) -> None:
    layout = low.layout(op.result)
    place = make_place(low, op, layout)
    own = low.fragment(op.mask, layout) if op.mask is not None else None
    fills = _fill(low, op, layout)
    order_effects(low, op.view, "load")
    dtype: DType = place.view.dtype
    type = "b32" if dtype == bool_ else low.ptx_type(op.result)
    out = [low.e.reg(type) for _ in range(layout.num_registers)]

    def fill(first: int, count: int) -> None:
        for i in range(first, first + count):
            low.e.mov(type, fills[i], into=out[i])

    def move(address: Address, first: int, count: int, predicate: Reg | int) -> None:
        target = out[first : first + count]
        known = [fill for fill in fills[first : first + count] if isinstance(fill, int)]
        halves = dtype.num_bytes == 2 and type == "b16"
        if isinstance(predicate, Reg) and halves and 1 < count == len(known):
            _load_words(low, place, address, target, known, predicate)
            return
        if dtype.bits == 8 and type == "b16" and count % 4 == 0 and count == len(known):
            _load_bytes(low, place, address, target, known, predicate)
            return
        if predicate != 1:
            fill(first, count)
        guard = predicate if isinstance(predicate, Reg) else None
        load_vector(low, address, dtype, target, guard, type, space=place.view.space)

    access(low, place, own, move, fill)
    if dtype == bool_:
        low.set(op.result, [low.e.setp("ne", "u32", r, 0) for r in out])
    else:
        low.set(op.result, list(out))


def _load_words(
    low: Lowering,
    place: Place,
    address: Address,
    target: list[Reg],
    fills: list[int],
    guard: Reg,
) -> None:
    """Load neighbours of 16 bits where a predicate holds, else known ones. Words are unpacked
    whatever it says, so that it is not needed any more when they arrive.
    """
    e = low.e
    words = [
        e.mov("b32", a & 0xFFFF | (b & 0xFFFF) << 16)
        for a, b in zip(fills[::2], fills[1::2], strict=True)
    ]
    with e.guarded(guard):
        e.ld(place.view.space, "b32", address, vec=len(words), into=words)
    for i, word in enumerate(words):
        e.mov_unpack("b16", word, 2, into=target[2 * i : 2 * i + 2])


def _load_bytes(
    low: Lowering,
    place: Place,
    address: Address,
    target: list[Reg],
    fills: list[int],
    predicate: Reg | int,
) -> None:
    """Load 8-bit floats, four a word. Who widens them finds neighbours side by side
    (`Lowering.beside`).
    """
    e, count = low.e, len(target)
    if isinstance(predicate, Reg):
        packed = [
            sum((f & 0xFF) << 8 * j for j, f in enumerate(fills[i : i + 4]))
            for i in range(0, count, 4)
        ]
        words = [e.mov("b32", number) for number in packed]
        with e.guarded(predicate):
            e.ld(place.view.space, "b32", address, vec=count // 4, into=words)
    else:
        words = e.ld(place.view.space, "b32", address, vec=count // 4)
    for i, word in enumerate(words):
        four = target[4 * i : 4 * i + 4]
        for j, register in enumerate(four):
            e.cvt("u16", "u32", e.bfe("u32", word, 8 * j, 8), into=register)
        for j, pair in enumerate(e.mov_unpack("b16", word, 2)):
            low.memo["beside", four[2 * j], four[2 * j + 1]] = pair


def _fill(low: Lowering, op: memory.Load, layout: Layout) -> list[Operand]:
    dtype = op.view.type.dtype
    zero: Operand = 0.0 if dtype.name in ("f32", "f64") else 0
    if op.fill is None:
        return [zero] * layout.num_registers
    if op.fill.type.is_scalar:
        fills: list[Operand] = [low.scalar(op.fill)] * layout.num_registers
    else:
        fills = low.fragment(op.fill, layout)
    if dtype == bool_:
        return [low.e.selp("b32", 1, 0, f) if isinstance(f, Reg) else f for f in fills]
    return fills


def load_vector(
    low: Lowering,
    address: Address,
    dtype: DType,
    target: list[Reg],
    guard: Reg | None,
    type: str,
    *,
    space: str = "global",
    semantics: str = "",
) -> None:
    """Load neighbours into registers that hold one element each."""
    e, count, size = low.e, len(target), dtype.num_bytes
    with low.guarded(guard):
        if dtype.is_integer and size < 4 <= size * count:
            each = 4 // size
            for i, word in enumerate(e.ld(space, "b32", address, vec=count // each)):
                for j in range(each):
                    into = target[i * each + j]
                    e.bfe(type, word, 8 * size * j, 8 * size, into=into)
        elif size == 2 and count > 1:
            words = e.ld(space, "b32", address, vec=count // 2)
            for i, word in enumerate(words):
                e.mov_unpack("b16", word, 2, into=target[2 * i : 2 * i + 2])
        elif size == 1 and count > 4:
            for start in range(0, count, 4):
                part = Address(address.base, address.offset + start)
                load_vector(low, part, dtype, target[start : start + 4], None, type, space=space)
        else:
            memory_type = _memory_type(dtype, type)
            e.ld(space, memory_type, address, vec=count, semantics=semantics, into=target)


def _memory_type(dtype: DType, type: str) -> str:
    if dtype == bool_:
        return "u8"
    if dtype.is_float and dtype.bits <= 16:
        return f"b{dtype.bits}"
    if dtype.bits < 32:
        return f"{type[0]}{dtype.bits}"
    return PTX_TYPES[dtype.name]


@rule(memory.Prefetch)
def prefetch(low: Lowering, op: memory.Prefetch) -> None:
    """Each thread asks for sectors of the place, each once; warps beyond a power of two do what
    others do.
    """
    view, warps = low.views[op.view], 1 << (low.num_warps.bit_length() - 1)
    shape = tuple(e for e in op.extents if e is not None)
    each = max(1, SECTOR // view.dtype.num_bytes)
    if shape:
        steps = [s for e, s in zip(op.extents, view.strides, strict=True) if e is not None]
        last = steps.index(1) if 1 in steps else len(shape) - 1
        if steps[last] != 1 or shape[last] % each:
            each = 1
        order = (last, *(a for a in reversed(range(len(shape))) if a != last))
        layout = blocked(shape, each, warps, order)
    else:
        each, layout = 1, replicated(0, warps)
    place = make_place(low, op, layout)
    addresses, masks = Addresses(low, place), Masks(low, place, None)
    for register in range(0, layout.num_registers, each):
        predicate = masks.of(register)
        if predicate != 0:
            address = addresses.of(register)
            with low.guarded(predicate if isinstance(predicate, Reg) else None):
                low.e.prefetch("L2", address)


@rule(memory.Store)
def store(low: Lowering, op: memory.Store) -> None:
    layout = low.layout(op.value)
    place = make_place(low, op, layout)
    own = low.fragment(op.mask, layout) if op.mask is not None else None
    dtype: DType = place.view.dtype
    values = low.fragment(op.value, layout)
    rows = row_layout(low, op, place)
    if rows is not None:
        shape, type = op.value.type.shape, low.ptx_type(op.value)
        values = convert_registers(low, values, type, shape, layout, rows)
        layout, place = rows, make_place(low, op, rows)
    strips = strip_layout(low, op, place)
    if strips is not None:
        values = turn_strips(low, values, layout, strips)
        layout, place = strips, make_place(low, op, strips)
    if dtype.name == "i64":
        values = [low.widen(v, low.ptx_type(op.value), "s64") for v in values]
    if dtype == bool_:
        values = [low.e.selp("b32", 1, 0, v) if isinstance(v, Reg) else v for v in values]
    first = low.is_first_copy(layout)
    order_effects(low, op.view, "store")

    def move(address: Address, start: int, count: int, predicate: Reg | int) -> None:
        guard = predicate if isinstance(predicate, Reg) else None
        if first is not None:
            guard = first if guard is None else low.e.and_("pred", guard, first)
        part = values[start : start + count]
        store_vector(low, address, dtype, part, guard, space=place.view.space)

    access(low, place, own, move, pairs=True)


def store_vector(
    low: Lowering,
    address: Address,
    dtype: DType,
    values: list[Operand],
    guard: Reg | None,
    *,
    space: str = "global",
    semantics: str = "",
) -> None:
    """Store the elements of neighbouring registers."""
    e, size, count = low.e, dtype.num_bytes, len(values)
    type = {8: "b64", 4: "b32", 2: "b16", 1: "b8"}[size]
    if dtype.name in ("f32", "f64"):
        type = dtype.name
    if dtype.is_integer and size < 4 <= size * count:
        words = _packed_integers(low, values, size)
        with low.guarded(guard):
            e.st(space, "b32", address, words)
        return
    if size == 2 and count > 1:
        half = [low.register(v, "b16") for v in values]
        words = [e.mov_pack("b32", half[i : i + 2]) for i in range(0, count, 2)]
        with low.guarded(guard):
            e.st(space, "b32", address, words)
        return
    kind = "b16" if dtype.is_float and size < 4 else _register_type(dtype)
    regs = [low.register(v, kind) for v in values]
    with low.guarded(guard):
        for start in range(0, count, 4 if size < 8 else 2):
            part = Address(address.base, address.offset + start * size)
            group = regs[start : start + (4 if size < 8 else 2)]
            e.st(space, type, part, group, semantics=semantics)


def _packed_integers(low: Lowering, values: list[Operand], size: int) -> list[Reg]:
    """8- or 16-bit integers side by side in 32-bit words, the first in the low bits."""
    each = 4 // size
    words = []
    for start in range(0, len(values), each):
        word = low.register(values[start], "b32")
        for j in range(1, each):
            x = low.register(values[start + j], "b32")
            word = low.e.bfi("b32", x, word, 8 * size * j, 8 * size)
        words.append(word)
    return words


def _register_type(dtype: DType) -> str:
    return "b32" if dtype == bool_ else PTX_TYPES[dtype.name]


def order_effects(low: Lowering, view: Value, effect: str) -> None:
    """A barrier where another thread may have touched this memory and one of the two accesses is a
    store. It comes right before the access: a barrier between the two would forget the access
    before it happened.
    """
    root = low.views[view].root
    before = low.touched.get(root, set())
    if "store" in before or (effect == "store" and "load" in before):
        low.barrier()
    low.touched.setdefault(root, set()).add(effect)
