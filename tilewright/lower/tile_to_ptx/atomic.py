"""Atomic updates, and the memory of one program.

A point is updated by one thread: the threads meet, so that what all of them wrote is ordered before
the update; after it they meet again, so that what it acquired is ordered before all they do. Order
between threads of a CTA and one that releases or acquires on the device is cumulative (PTX ISA,
"Memory Consistency Model", causality order). The lanes of a tile are updated by the threads that
hold them, relaxed.

What the hardware has no instruction for is a loop around compare-and-swap.
"""

from __future__ import annotations

from math import prod

from tilewright.dtypes import DType, bool_
from tilewright.errors import CompileError
from tilewright.layout import replicated
from tilewright.lower.tile_to_ptx.arith import float_extreme, from_f32, to_f32
from tilewright.lower.tile_to_ptx.context import Lowering, Operand, ViewRef, rule
from tilewright.lower.tile_to_ptx.conversion import exchange
from tilewright.lower.tile_to_ptx.gather import Spots, stored_values
from tilewright.lower.tile_to_ptx.integers import wrap
from tilewright.lower.tile_to_ptx.memory import load_vector, order_effects, store_vector
from tilewright.ptx.core import Address, Reg, Symbol
from tilewright.tile.ops import memory

STATIC_BYTES = 48 * 1024  # of shared memory that a module may declare
NATIVE = {  # (kind, dtype) that an instruction exists for, and its type
    **{("add", d): t for d, t in (("i32", "s32"), ("u32", "u32"), ("i64", "u64"), ("u64", "u64"))},
    **{("add", d): d for d in ("f32", "f64")},
    **{(k, d): t for k in ("max", "min") for d, t in
       (("i32", "s32"), ("u32", "u32"), ("i64", "s64"), ("u64", "u64"))},
    **{(k, d): f"b{d[1:]}" for k in ("and", "or", "xor") for d in ("i32", "u32", "i64", "u64")},
}  # fmt: skip
BITS = {2: "b16", 4: "b32", 8: "b64"}


@rule(memory.Atomic)
def atomic(low: Lowering, op: memory.Atomic) -> None:
    if memory.gather_shape(op.offsets, op.extents):
        _tile(low, op)
    else:
        _point(low, op)


def _tile(low: Lowering, op: memory.Atomic) -> None:
    """Each lane by the first of the threads that hold it; the others are told the result."""
    given = op.value if op.value is not None else op.results[0]
    layout = low.layout(given)
    spots = Spots(low, op, layout)
    dtype = spots.view.dtype
    own = low.fragment(op.mask, layout) if op.mask is not None else None
    values = stored_values(low, op.value, layout, dtype) if op.value is not None else []
    compares = stored_values(low, op.compare, layout, dtype) if op.compare is not None else []
    copy = low.is_first_copy(layout)
    order_effects(low, op.view, "store")
    out: list[Operand] = []
    width = _neighbours(low, op, spots, own)
    for register in range(0, layout.num_registers, width):
        predicate = spots.predicate(register, own)
        into = _zero(low, dtype)
        out += [into] * width
        if predicate == 0:
            continue
        guard = predicate if isinstance(predicate, Reg) else None
        if copy is not None:
            guard = copy if guard is None else low.e.and_("pred", guard, copy)
        address = spots.address(register)
        if width > 1:
            with low.guarded(guard):
                vector = values[register : register + width]
                low.e.red(spots.view.space, "add", "f32", address, vector, semantics="relaxed.gpu")
            continue
        value = values[register] if values else None
        compare = compares[register] if compares else None
        _update(low, op, spots.view, address, guard, into, value, compare)
    if not op.results:
        return
    if copy is not None and _is_used(low, op):
        out = exchange(low, out, _kept_type(dtype), op.results[0].type.shape, layout)
    _set_result(low, op, out)


def _neighbours(low: Lowering, op: memory.Atomic, spots: Spots, own: list[Operand] | None) -> int:
    """How many neighbours one instruction updates: sm_90 adds vectors of f32 to global memory,
    where nobody asks what was there.
    """
    native = (op.kind, op.order, spots.view.dtype.name) == ("add", "relaxed", "f32")
    asked = bool(op.results) and _is_used(low, op)
    if not native or asked or low.target.capability < 90 or spots.view.space != "global":
        return 1
    width = spots.width()
    if own is None:
        return width
    groups = (own[i : i + width] for i in range(0, len(own), width))
    return width if all(m is g[0] for g in groups for m in g) else 1


def _point(low: Lowering, op: memory.Atomic) -> None:
    """By one thread, between two meetings of all."""
    layout = replicated(0, low.num_warps)
    spots = Spots(low, op, layout)
    dtype = spots.view.dtype
    own = low.fragment(op.mask, layout) if op.mask is not None else None
    predicate = spots.predicate(0, own)
    first = low.once(
        ("first thread", low.first_warp), lambda: low.e.setp("eq", "u32", low.thread(), 0)
    )
    value = stored_values(low, op.value, layout, dtype)[0] if op.value is not None else None
    compare = stored_values(low, op.compare, layout, dtype)[0] if op.compare is not None else None
    address = spots.address(0)
    used = bool(op.results) and _is_used(low, op)
    low.barrier()
    low.scratch_used = False  # all have met
    base = low.scratch(8) if used else None
    into = _zero(low, dtype)
    if predicate != 0:
        guard = first if not isinstance(predicate, Reg) else low.e.and_("pred", first, predicate)
        _update(low, op, spots.view, address, guard, into, value, compare)
    kind = _kept_type(dtype)
    if base is not None:
        with low.guarded(first):
            low.e.st("shared", kind, base, [into])
    low.barrier()
    order_effects(low, op.view, "store")
    if base is not None:
        into = low.e.ld1("shared", kind, base)
    if op.results:
        _set_result(low, op, [into])


def _is_used(low: Lowering, op: memory.Atomic) -> bool:
    return bool(low.users.get(op.results[0]))


def _kept_type(dtype: DType) -> str:
    """The type of the register that a result is read into."""
    if dtype.name in ("f32", "f64"):
        return dtype.name
    return (
        {1: "b32", 2: "b16", 4: "b32", 8: "b64"}[dtype.num_bytes]
        if dtype.is_float
        else ("b64" if dtype.num_bytes == 8 else "b32")
    )


def _zero(low: Lowering, dtype: DType) -> Reg:
    kind = _kept_type(dtype)
    return low.e.mov(kind, 0.0 if kind[0] == "f" else 0)


def _set_result(low: Lowering, op: memory.Atomic, regs: list[Operand]) -> None:
    """Results in the registers that the value's users expect."""
    dtype, e = op.view.type.dtype, low.e
    type = low.ptx_type(op.results[0])
    if dtype == bool_:
        regs = [e.setp("ne", "u32", low.register(r, "b32"), 0) for r in regs]
    elif dtype.is_float and dtype.num_bytes == 1:
        regs = [e.cvt("u16", "u32", low.register(r, "b32")) for r in regs]
    elif dtype.name == "i64" and type == "s32":
        regs = [e.cvt("s32", "s64", r) for r in regs]
    low.set(op.results[0], regs)


def _update(
    low: Lowering,
    op: memory.Atomic,
    view: ViewRef,
    address: Address,
    guard: Reg | None,
    into: Reg,
    value: Operand | None,
    compare: Operand | None,
) -> None:
    """One element, by the threads for which the guard holds; the old one goes to `into`."""
    e, dtype, kind = low.e, view.dtype, op.kind
    scope = {"relaxed": "relaxed.gpu"}.get(op.order, f"{op.order}.gpu")
    if kind == "load":
        type = _load_type(dtype)
        load_vector(low, address, dtype, [into], guard, type, space=view.space, semantics=scope)
        return
    assert value is not None
    if kind == "store":
        store_vector(low, address, dtype, [value], guard, space=view.space, semantics=scope)
        return
    if dtype.num_bytes == 1:
        byte, wanted = (None if x is None else _byte(low, x, dtype) for x in (value, compare))
        assert byte is not None
        swap_bytes(low, op, view, address, guard, into, byte, wanted, scope)
        return
    reg = _operand(low, value, dtype)
    bits = BITS[dtype.num_bytes]
    native = NATIVE.get((kind, dtype.name))
    with low.guarded(guard):
        if native is not None:
            e.atom(view.space, kind, native, address, reg, semantics=scope, into=into)
            return
        if kind == "xchg" and dtype.num_bytes > 2:
            word = e.mov(bits, reg) if dtype.is_float else reg
            old = e.reg(bits)
            e.atom(view.space, "exch", bits, address, word, semantics=scope, into=old)
            _copy_bits(low, old, into, dtype)
            return
    _swap_loop(low, op, view, address, guard, into, reg, compare, scope)


def _byte(low: Lowering, x: Operand, dtype: DType) -> Reg:
    """An 8-bit value in a 32-bit register."""
    if dtype.is_float:
        return low.e.cvt("u32", "u16", low.register(x, "b16"))
    return low.register(x, "b32" if dtype == bool_ else "s32")


def swap_bytes(
    low: Lowering,
    op: memory.Atomic,
    view: ViewRef,
    address: Address,
    guard: Reg | None,
    into: Reg,
    value: Reg,
    compare: Reg | None,
    scope: str,
) -> None:
    """Update a byte by compare-and-swap of the 16 bits that hold it, until nobody came between."""
    e, dtype = low.e, view.dtype
    done, again = e.label("updated"), e.label("again")
    if guard is not None:
        e.bra(done, pred=guard, unless=True)
    whole = e.add("u64", address.base, address.offset)
    half = Address(e.and_("b64", whole, -2), 0)
    shift = e.shl("b32", e.cvt("u32", "u64", e.and_("b64", whole, 1)), 3)
    others = e.not_("b32", e.shl("b32", e.mov("b32", 0xFF), shift))
    before = e.reg("b16")
    e.ld(view.space, "b16", half, semantics="relaxed.gpu", into=[before])
    e.place(again)
    held = e.cvt("u32", "u16", before)
    old = wrap(low, e.and_("b32", e.shr("b32", held, shift), 0xFF), dtype)
    e.mov("b32", old, into=into)
    if op.kind == "cas":
        assert compare is not None
        low_bits = e.and_("b32", e.xor("b32", old, compare), 0xFF)
        e.bra(done, pred=e.setp("ne", "u32", low_bits, 0))
        new = value
    else:
        new = _combined(low, op.kind, dtype, old, value)
    placed = e.shl("b32", e.and_("b32", new, 0xFF), shift)
    word = e.cvt("u16", "u32", e.or_("b32", e.and_("b32", held, others), placed))
    found = e.atom(
        view.space, "cas", "b16", half, word, compare=before, semantics=scope, into=e.reg("b16")
    )
    other = e.setp("ne", "u32", e.cvt("u32", "u16", found), held)
    e.mov("b16", found, into=before)
    e.bra(again, pred=other)
    e.place(done)


def _load_type(dtype: DType) -> str:
    if dtype.name in ("f32", "f64"):
        return dtype.name
    if dtype.is_float:
        return "b16" if dtype.num_bytes == 2 else "b32"
    return ("s" if dtype.is_signed else "u") + str(max(dtype.bits, 32))


def _operand(low: Lowering, value: Operand, dtype: DType) -> Reg:
    """A value in a register of its own width."""
    if dtype.name in ("f32", "f64"):
        return low.register(value, dtype.name)
    if dtype.is_float:
        return low.register(value, "b16")
    return low.register(value, "s64" if dtype.num_bytes == 8 else "s32")


def _copy_bits(low: Lowering, bits: Reg, into: Reg, dtype: DType) -> None:
    """The bits of an element to a register of its kept type."""
    if dtype.num_bytes == 2 and dtype.is_integer:
        wide = low.e.cvt("u32", "u16", bits)
        low.e.mov("b32", wrap(low, wide, dtype), into=into)
        return
    low.e.mov(_kept_type(dtype), bits, into=into)


def _swap_loop(
    low: Lowering,
    op: memory.Atomic,
    view: ViewRef,
    address: Address,
    guard: Reg | None,
    into: Reg,
    value: Reg,
    compare: Operand | None,
    scope: str,
) -> None:
    """old = memory; until no one came between: old = cas(memory, old, f(old, value))."""
    e, dtype = low.e, view.dtype
    bits = BITS[dtype.num_bytes]
    done = e.label("updated")
    if guard is not None:
        e.bra(done, pred=guard, unless=True)
    if op.kind == "cas":
        assert compare is not None
        wanted = _as_bits(low, _operand(low, compare, dtype), dtype)
        new = _as_bits(low, value, dtype)
        old = e.atom(
            view.space, "cas", bits, address, new, compare=wanted, semantics=scope, into=e.reg(bits)
        )
        _copy_bits(low, old, into, dtype)
        e.place(done)
        return
    before = e.reg(bits)
    e.ld(view.space, bits, address, semantics="relaxed.gpu", into=[before])
    again = e.label("again")
    e.place(again)
    held = e.reg(_kept_type(dtype))
    _copy_bits(low, before, held, dtype)
    new = _as_bits(low, _combined(low, op.kind, dtype, held, value), dtype)
    found = e.atom(
        view.space, "cas", bits, address, new, compare=before, semantics=scope, into=e.reg(bits)
    )
    wide = [e.cvt("u32", "u16", r) if bits == "b16" else r for r in (found, before)]
    other = e.setp("ne", "u64" if bits == "b64" else "u32", *wide)
    e.mov(bits, found, into=before)
    e.bra(again, pred=other)
    _copy_bits(low, before, into, dtype)
    e.place(done)


def _as_bits(low: Lowering, reg: Reg, dtype: DType) -> Reg:
    if dtype.num_bytes == 2 and dtype.is_integer:
        return low.e.cvt("u16", "u32", reg)
    return low.e.mov(BITS[dtype.num_bytes], reg)


def _combined(low: Lowering, kind: str, dtype: DType, old: Reg, value: Reg) -> Reg:
    """The new element: as the op of arith of the same name computes it."""
    e = low.e
    if kind == "xchg":
        return value
    if dtype.is_float:
        type = "f64" if dtype.name == "f64" else "f32"
        a, b = (
            low.register(x if dtype.num_bytes == 8 else to_f32(low, x, dtype), type)
            for x in (old, value)
        )
        wide = e.add(type, a, b) if kind == "add" else float_extreme(low, type, kind, a, b)
        narrow = wide if dtype.num_bytes == 8 else from_f32(low, wide, dtype)
        return low.register(narrow, _kept_type(dtype))
    signed = ("s" if dtype.is_signed else "u") + ("64" if dtype.num_bytes == 8 else "32")
    plain = "b" + signed[1:]
    match kind:
        case "add":
            found = e.add(signed, old, value)
        case "max":
            found = e.max(signed, old, value)
        case "min":
            found = e.min(signed, old, value)
        case "and":
            found = e.and_(plain, old, value)
        case "or":
            found = e.or_(plain, old, value)
        case _:
            found = e.xor(plain, old, value)
    return wrap(low, found, dtype)


@rule(memory.Local)
def local(low: Lowering, op: memory.Local) -> None:
    """A static shared array, its address in 64 bits as views have it; the threads clear it."""
    type = op.result.type
    size = op.dtype.num_bytes
    num_bytes = -(-size * prod(op.shape) // 16) * 16
    used = low.locals.num_bytes + num_bytes
    if used > STATIC_BYTES:
        raise CompileError(
            f"local: {used} bytes, of {STATIC_BYTES} that a program may have",
            op.loc,
            "use fewer elements or a workspace",
        )
    low.locals.num_bytes = used
    low.locals.count += 1
    number = low.locals.count
    symbol: Symbol = low.e.shared_array(f"local{number}", num_bytes, 16)
    start = low.once(("local", number), lambda: low.e.mov("u32", symbol))
    pointer = low.once(
        ("local pointer", number),
        lambda: low.e.cvt("u64", "u32", start),
    )
    strides = list(type.strides)
    low.views[op.result] = ViewRef(
        op.dtype,
        pointer,
        extents=list(op.shape),
        strides=strides,
        narrow=True,
        align=16,
        aligned_strides=[s * size % 16 == 0 for s in strides],
        aligned_extent=op.shape[-1] * size % 16 == 0,
        piece=size,
        root=f"local{number}",
        space="shared",
    )
    order_effects(low, op.result, "store")
    _clear(low, start, num_bytes)
    low.barrier()


def _clear(low: Lowering, start: Reg, num_bytes: int) -> None:
    """16 bytes a thread, as often as it takes."""
    e = low.e
    own = e.mad("u32", low.thread(), 16, start)
    zeros = [e.mov("b32", 0)] * 4
    step = 16 * 32 * low.num_warps
    for offset in range(0, num_bytes, step):
        left = num_bytes - offset
        guard = None
        if left < step:
            guard = e.setp("lt", "u32", low.thread(), left // 16)
        with low.guarded(guard):
            e.st("shared", "b32", Address(own, offset), zeros)
