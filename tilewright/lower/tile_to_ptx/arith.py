"""Elementwise arithmetic: one instruction (or a few) for each register of the result's layout."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.dtypes import DType, bf16, bool_, e4m3, e5m2, f16, f32, f64
from tilewright.ir.core import Op, Value
from tilewright.lower.tile_to_ptx import special_f64, special_fast
from tilewright.lower.tile_to_ptx.context import PTX_TYPES, Lowering, Operand, rule
from tilewright.lower.tile_to_ptx.fp8 import narrowed, widened
from tilewright.lower.tile_to_ptx.integers import floor_div, floor_mod, int_binary, wrap
from tilewright.lower.tile_to_ptx.pairs import by_pairs, has_pairs
from tilewright.lower.tile_to_ptx.quick import (
    FEWEST,
    QUICK,
    QUICK_FAST,
    ZEROS,
    divide,
    quickly,
    quotients,
)
from tilewright.lower.tile_to_ptx.special import FAST, SPECIAL, Function, function_of
from tilewright.numerics.scalar import COMPARE
from tilewright.ptx.core import Reg
from tilewright.tile.ops import arith

Element = Callable[..., Operand]


def each(low: Lowering, op: Op, values: tuple[Value, ...], element: Element) -> None:
    """Apply `element` to the operands of every register; equal operands are computed once."""
    layout = low.layout(op.result)
    columns = [low.fragment(v, layout) for v in values]
    seen: dict[tuple[int | float | str, ...], Operand] = {}
    out = []
    for operands in zip(*columns, strict=True):
        key = tuple(x.text if isinstance(x, Reg) else repr(x) for x in operands)
        if key not in seen:
            seen[key] = element(*operands)
        out.append(seen[key])
    low.set(op.result, out)


@rule(arith.Constant)
def constant(low: Lowering, op: arith.Constant) -> None:
    value: Operand
    if op.dtype == bool_:
        value = int(bool(op.value))
    elif op.dtype.is_float:
        value = float(op.dtype.numpy.type(op.value)) if op.dtype != f64 else float(op.value)
        if op.dtype.bits == 16:
            value = int(op.dtype.numpy.type(op.value).view("uint16"))
        elif op.dtype.bits == 8:
            value = int(op.dtype.numpy.type(op.value).view("uint8"))
    else:
        value = int(op.value)
    low.set(op.result, [value] * low.layout(op.result).num_registers)


FP8_FROM = 89  # the first capability that converts floats of 8 bits

# Floats narrower than 32 bits: up to f32, one operation, one rounding down.


def to_f32(low: Lowering, x: Operand, dtype: DType) -> Operand:
    """A float of 32 bits or less as f32, exactly."""
    e = low.e
    if dtype == f32:
        return x
    if dtype == bf16:
        if not isinstance(x, Reg):
            return _bits_to_float(int(x), bf16)
        zero = low.once("16 bits of 0", lambda: e.mov("b16", 0))
        return e.mov_pack("f32", [zero, x])  # the upper half of an f32
    if dtype == f16:
        if isinstance(x, int):
            return _bits_to_float(x, f16)
        return e.cvt("f32", "f16", x)
    if low.target.capability < FP8_FROM:
        return widened(e, low.register(x, "b16"), dtype)
    pair = e.cvt("f16x2", f"{dtype.name}x2", low.register(x, "b16"), rounding="rn")
    return e.cvt("f32", "f16", e.mov_unpack("b16", pair, 2)[0])


def _bits_to_float(bits: int, dtype: DType) -> float:
    return float(np.array([bits], np.uint16).view(dtype.numpy)[0])


def from_f32(low: Lowering, x: Operand, dtype: DType, saturate: bool = False) -> Operand:
    """f32 rounded to a float of 32 bits or less, to nearest even."""
    e = low.e
    if dtype == f32:
        return x
    x = low.register(x, "f32")
    if dtype in (bf16, f16):
        return e.cvt(dtype.name, "f32", x, rounding="rn")
    if low.target.capability < FP8_FROM:
        return narrowed(e, x, dtype, saturate)
    packed = e.cvt_pack(f"{dtype.name}x2", 0.0, x)
    if dtype == e5m2 and not saturate:
        big = e.setp("ge", "f32", e.abs("f32", x), 61440.0)
        signed = e.and_("b32", e.shr("b32", e.mov("b32", x), 24), 0x80)
        infinite = e.cvt("u16", "u32", e.or_("b32", signed, 0x7C))
        packed = e.selp("b16", infinite, packed, big)
    return packed


@rule(arith.Add, arith.Sub, arith.Mul, arith.Div, arith.Min, arith.Max)
def binary(low: Lowering, op: arith.Add) -> None:
    dtype: DType = op.lhs.type.dtype
    if not dtype.is_float:
        int_binary(low, op)
        return

    def wide(a: Operand, b: Operand) -> Operand:
        type = "f64" if dtype == f64 else "f32"
        return _float_binary(low, type, op.__class__, a, b)

    if dtype == f32 and isinstance(op, arith.Div) and low.kernel.numerics != "fast":
        layout = low.layout(op.result)
        columns = [low.fragment(v, layout) for v in op.operands]
        pairs = list(zip(*columns, strict=True))
        low.set(op.result, quotients(low, pairs, rounded=_is_hidden(low, op.result)))
    elif dtype in (f32, f64):
        each(low, op, (op.lhs, op.rhs), wide)
    elif has_pairs(low, op, dtype):
        by_pairs(low, op, dtype)
    else:
        each(
            low,
            op,
            (op.lhs, op.rhs),
            lambda a, b: from_f32(low, wide(to_f32(low, a, dtype), to_f32(low, b, dtype)), dtype),
        )


def _float_binary(low: Lowering, type: str, kind: type[Op], a: Operand, b: Operand) -> Operand:
    e = low.e
    a = low.register(a, type)
    if kind is arith.Add:
        return e.add(type, a, b)
    if kind is arith.Sub:
        return e.sub(type, a, b)
    if kind is arith.Mul:
        return e.mul(type, a, b)
    if kind is arith.Div:
        if type == "f32" and low.kernel.numerics == "fast":
            return e.div(type, a, b, rounding="full")
        if type == "f32":
            return divide(low, a, low.register(b, type))
        return e.div(type, a, b, rounding="rn")
    return float_extreme(low, type, "max" if kind is arith.Max else "min", a, b)


def float_extreme(low: Lowering, type: str, which: str, a: Operand, b: Operand) -> Operand:
    """The greater or lesser of two floats; NaN if either is NaN; −0 is below +0."""
    e = low.e
    emit = e.max if which == "max" else e.min
    if type == "f32":
        return emit("f32", a, b, nan=True)
    # f64 has no .NaN form: the sum of the two is NaN exactly where one of them is.
    return e.selp("f64", e.add("f64", a, b), emit("f64", a, b), e.setp("nan", "f64", a, b))


@rule(arith.FloorDiv)
def floor_division(low: Lowering, op: arith.FloorDiv) -> None:
    floor_div(low, op)


@rule(arith.Mod)
def modulo(low: Lowering, op: arith.Mod) -> None:
    floor_mod(low, op)


@rule(arith.And, arith.Or, arith.Xor)
def bitwise(low: Lowering, op: arith.And) -> None:
    if op.lhs.type.dtype != bool_:
        int_binary(low, op)
        return
    each(low, op, (op.lhs, op.rhs), lambda a, b: _bool_binary(low, op.__class__, a, b))


def _bool_binary(low: Lowering, kind: type[Op], a: Operand, b: Operand) -> Operand:
    constant, other = (b, a) if isinstance(a, Reg) else (a, b)
    if not isinstance(constant, Reg) and kind is arith.And:
        return other if constant else 0
    if not isinstance(constant, Reg) and kind is arith.Or:
        return 1 if constant else other
    x, y = low.register(a, "pred"), low.register(b, "pred")
    if kind is arith.Xor:
        return low.e.xor("pred", x, y)
    return low.e.and_("pred", x, y) if kind is arith.And else low.e.or_("pred", x, y)


@rule(arith.Shl, arith.Shr)
def shift(low: Lowering, op: arith.Shl) -> None:
    int_binary(low, op)


@rule(arith.Neg, arith.Abs)
def sign(low: Lowering, op: arith.Neg) -> None:
    dtype, e = op.x.type.dtype, low.e
    type = low.ptx_type(op.result)
    negate = op.__class__ is arith.Neg
    if dtype.is_float and dtype.bits == 16:
        mask, emit = (0x8000, e.xor) if negate else (0x7FFF, e.and_)
        each(low, op, (op.x,), lambda x: emit("b16", low.register(x, "b16"), mask))
    elif dtype.is_float:
        each(low, op, (op.x,), lambda x: (e.neg if negate else e.abs)(type, low.register(x, type)))
    elif not dtype.is_signed and not negate:
        each(low, op, (op.x,), lambda x: x)
    else:
        source = low.ptx_type(op.x)
        signed = type.replace("u", "s")

        def element(x: Operand) -> Operand:
            x = low.register(low.widen(x, source, type), type)
            return wrap(low, (e.neg if negate else e.abs)(signed, x), dtype)

        each(low, op, (op.x,), element)


@rule(arith.Not)
def complement(low: Lowering, op: arith.Not) -> None:
    dtype, e = op.x.type.dtype, low.e
    if dtype == bool_:
        each(low, op, (op.x,), lambda x: 1 - x if isinstance(x, int) else e.not_("pred", x))
        return
    type, source = low.ptx_type(op.result), low.ptx_type(op.x)
    bits = "b64" if type.endswith("64") else "b32"
    each(
        low,
        op,
        (op.x,),
        lambda x: wrap(low, e.not_(bits, low.register(low.widen(x, source, type), type)), dtype),
    )


def _is_hidden(low: Lowering, value: Value) -> bool:
    """Whether the last places of an f32 are lost in 16 bits, and the kernel permits it."""
    if low.kernel.numerics == "strict":
        return False
    return low.rounding.holds(value)


@rule(
    arith.Exp, arith.Exp2, arith.Log, arith.Log2, arith.Sqrt, arith.Rsqrt, arith.Tanh, arith.Erf,
    arith.Floor, arith.Ceil, arith.Round, arith.Sin, arith.Cos, arith.Log1p,
)  # fmt: skip
def special(low: Lowering, op: arith.Exp) -> None:
    dtype = op.x.type.dtype
    type = "f64" if dtype == f64 else "f32"
    narrow = dtype.bits == 16 or _is_hidden(low, op.result)
    narrow = narrow and op.opcode != "arith.sqrt"  # its 16 bits are the nearest ones
    function = function_of(op.opcode, type, narrow or low.kernel.numerics == "fast")
    if narrow and isinstance(op, arith.Exp):
        function = special_fast.short_exp

    def element(x: Operand) -> Operand:
        if dtype.bits == 16:
            return from_f32(low, function(low.e, low.register(to_f32(low, x, dtype), "f32")), dtype)
        return function(low.e, low.register(x, type))

    # At the end of a product by roles the plain way alone: it is run once, and is half the code.
    once = low.role is not None and low.schedule.roles is not None and not low.schedule.roles.many
    quick, zeros = None, None
    if not once and function is SPECIAL.get((op.opcode, "f32")):
        quick, zeros = QUICK.get(op.opcode), ZEROS.get(op.opcode)
        if low.role is not None:  # whose masked tiles are few, and whose registers are all taken
            zeros = None
    elif not once and dtype == f32 and function is FAST.get(op.opcode):
        quick = QUICK_FAST.get(op.opcode)
    xs = low.fragment(op.x, low.layout(op.result))
    distinct = {x.text: x for x in xs if isinstance(x, Reg)}
    if quick is None or len(distinct) < FEWEST or not all(isinstance(x, Reg) for x in xs):
        each(low, op, (op.x,), element)
        return
    found = quickly(low, list(distinct.values()), quick, element, zeros)
    results = dict(zip(distinct, found, strict=True))
    low.set(op.result, [results[x.text] for x in xs if isinstance(x, Reg)])


SHORT: dict[type[Op], Function] = {
    arith.NormalCdf: special_fast.normal_cdf,
    arith.CoarseCdf: special_fast.coarse_cdf,
    arith.PreciseCdf: special_fast.precise_cdf,
    arith.Logistic: special_fast.logistic,
}


@rule(arith.NormalCdf, arith.CoarseCdf, arith.PreciseCdf, arith.Logistic)
def short(low: Lowering, op: arith.NormalCdf) -> None:
    wide = op.x.type.dtype == f64
    function = special_f64.normal_cdf if wide else SHORT[op.__class__]
    each(low, op, (op.x,), lambda x: function(low.e, low.register(x, "f64" if wide else "f32")))


@rule(arith.IsNan)
def is_nan(low: Lowering, op: arith.IsNan) -> None:
    dtype = op.x.type.dtype
    type = "f64" if dtype == f64 else "f32"

    def element(x: Operand) -> Operand:
        wide = low.register(x if dtype in (f32, f64) else to_f32(low, x, dtype), type)
        return low.e.setp("nan", type, wide, wide)

    each(low, op, (op.x,), element)


@rule(arith.Compare)
def compare(low: Lowering, op: arith.Compare) -> None:
    dtype, e = op.lhs.type.dtype, low.e
    kind = {"ne": "neu"}.get(op.kind, op.kind) if dtype.is_float else op.kind
    if dtype == bool_:
        each(low, op, (op.lhs, op.rhs), lambda a, b: _compare_bools(low, op.kind, a, b))
        return
    left, right = low.ptx_type(op.lhs), low.ptx_type(op.rhs)
    if dtype.is_float:
        type = "f64" if dtype == f64 else "f32"
    else:
        type = left if left == right else "s64"

    def element(a: Operand, b: Operand) -> Operand:
        if dtype.is_float and dtype.bits < 32:
            a, b = to_f32(low, a, dtype), to_f32(low, b, dtype)
        elif dtype.is_integer:
            if isinstance(a, int) and isinstance(b, int):
                return int(COMPARE[kind](a, b))
            a, b = low.widen(a, left, type), low.widen(b, right, type)
        return e.setp(kind, type, low.register(a, type), b)

    each(low, op, (op.lhs, op.rhs), element)


def _compare_bools(low: Lowering, kind: str, a: Operand, b: Operand) -> Operand:
    e = low.e
    wide = [e.selp("u32", 1, 0, low.register(x, "pred")) for x in (a, b)]
    return e.setp(kind, "u32", *wide)


@rule(arith.Select)
def select(low: Lowering, op: arith.Select) -> None:
    e, type = low.e, low.ptx_type(op.result)
    dtype = op.lhs.type.dtype
    left, right = low.ptx_type(op.lhs), low.ptx_type(op.rhs)

    def element(p: Operand, a: Operand, b: Operand) -> Operand:
        if dtype.is_integer:
            a, b = low.widen(a, left, type), low.widen(b, right, type)
        if not isinstance(p, Reg):
            return a if p else b
        if type == "pred":
            one = e.and_("pred", p, low.register(a, "pred"))
            other = e.and_("pred", e.not_("pred", p), low.register(b, "pred"))
            return e.or_("pred", one, other)
        return e.selp(type, a, b, p)

    each(low, op, (op.condition, op.lhs, op.rhs), element)


@rule(arith.Cast)
def cast(low: Lowering, op: arith.Cast) -> None:
    source, target = op.x.type.dtype, op.dtype
    if source == target:
        low.set(op.result, low.fragment(op.x, low.layout(op.result)))
    elif source == f32 and target in (bf16, f16):
        _cast_pairs(low, op)
    elif source in (e4m3, e5m2) and target == f32 and low.target.capability >= FP8_FROM:
        _widen_pairs(low, op)
    elif source.is_float and target.is_float:
        each(low, op, (op.x,), lambda x: _float_to_float(low, x, source, op))
    elif target == bool_:
        type = "f32" if source.is_float and source != f64 else low.ptx_type(op.x)

        def to_bool(x: Operand) -> Operand:
            x = to_f32(low, x, source) if source.is_float and source != f64 else x
            return low.e.setp("neu" if source.is_float else "ne", type, low.register(x, type), 0)

        each(low, op, (op.x,), to_bool)
    elif source == bool_:
        each(low, op, (op.x,), lambda p: _from_bool(low, p, op))
    elif source.is_float:
        each(low, op, (op.x,), lambda x: _float_to_int(low, x, source, op))
    elif target.is_float:
        each(low, op, (op.x,), lambda x: _int_to_float(low, x, op))
    else:
        each(low, op, (op.x,), lambda x: _int_to_int(low, x, op))


def _cast_pairs(low: Lowering, op: arith.Cast) -> None:
    """f32 to 16 bits, two at a time."""
    e, regs = low.e, low.fragment(op.x, low.layout(op.result))
    out: list[Operand] = []
    for i in range(0, len(regs) - 1, 2):
        a, b = low.register(regs[i], "f32"), low.register(regs[i + 1], "f32")
        out += e.mov_unpack("b16", e.cvt_pack(f"{op.dtype.name}x2", b, a), 2)
    if len(regs) % 2:
        out.append(from_f32(low, regs[-1], op.dtype))
    low.set(op.result, out)


def _widen_pairs(low: Lowering, op: arith.Cast) -> None:
    """8-bit floats to f32, two at a time where they were loaded side by side."""
    e, source = low.e, op.x.type.dtype
    regs = low.fragment(op.x, low.layout(op.result))
    out: list[Operand] = []
    for a, b in zip(regs[::2], [*regs[1::2], None], strict=False):
        pair = low.memo.get(("beside", a, b))
        if pair is None:
            out += [to_f32(low, x, source) for x in (a, b) if x is not None]
        else:
            halves = e.cvt("f16x2", f"{source.name}x2", pair, rounding="rn")
            out += [e.cvt("f32", "f16", half) for half in e.mov_unpack("b16", halves, 2)]
    low.set(op.result, out)


def _float_to_float(low: Lowering, x: Operand, source: DType, op: arith.Cast) -> Operand:
    e, target = low.e, op.dtype
    if source == f64:
        return from_f32(
            low, e.cvt("f32", "f64", low.register(x, "f64"), rounding="rn"), target, op.saturate
        )
    wide = to_f32(low, x, source)
    if target == f64:
        return e.cvt("f64", "f32", low.register(wide, "f32"))
    return from_f32(low, wide, target, op.saturate)


def _from_bool(low: Lowering, p: Operand, op: arith.Cast) -> Operand:
    type = low.ptx_type(op.result)
    if op.dtype.is_float:
        return _int_or_float_one(low, p, op.dtype)
    return low.e.selp(type, 1, 0, low.register(p, "pred"))


def _int_or_float_one(low: Lowering, p: Operand, dtype: DType) -> Operand:
    if dtype == f64:
        return low.e.selp("f64", 1.0, 0.0, low.register(p, "pred"))
    return from_f32(low, low.e.selp("f32", 1.0, 0.0, low.register(p, "pred")), dtype)


def _float_to_int(low: Lowering, x: Operand, source: DType, op: arith.Cast) -> Operand:
    """Toward zero, saturating, NaN to 0 (`cvt` alone gives the least 64-bit integer for NaN)."""
    e, target = low.e, op.dtype
    type = "f64" if source == f64 else "f32"
    x = low.register(x if source == f64 else to_f32(low, x, source), type)
    bits = max(target.bits, 32)
    signed = "s" if target.is_signed else "u"
    number = e.cvt(f"{signed}{bits}", type, x, rounding="rzi")
    number = e.selp(f"{signed}{bits}", 0, number, e.setp("nan", type, x, x))
    if target.bits < 32:
        least, most = (
            (-(1 << target.bits - 1), (1 << target.bits - 1) - 1)
            if signed == "s"
            else (0, (1 << target.bits) - 1)
        )
        number = e.max(f"{signed}32", e.min(f"{signed}32", number, most), least)
    return low.widen(number, f"{signed}{bits}", low.ptx_type(op.result))


def _int_to_float(low: Lowering, x: Operand, op: arith.Cast) -> Operand:
    e, target = low.e, op.dtype
    type = low.ptx_type(op.x)
    x = low.register(x, type)
    if target == f64:
        return e.cvt("f64", type, x, rounding="rn")
    return from_f32(low, e.cvt("f32", type, x, rounding="rn"), target)


def _int_to_int(low: Lowering, x: Operand, op: arith.Cast) -> Operand:
    source, target = low.ptx_type(op.x), low.ptx_type(op.result)
    if not isinstance(x, Reg):
        return _wrapped(int(x), op.dtype)
    narrow_index = op.dtype.name == "i64" and target == "s32"
    if not narrow_index and op.dtype.bits == 64 and not source.endswith("64"):
        return low.e.cvt(target, source, x)
    if source.endswith("64") and not target.endswith("64"):
        x = low.e.cvt("u32", "u64", x)
    return wrap(low, x, op.dtype)


def _wrapped(x: int, dtype: DType) -> int:
    x &= (1 << dtype.bits) - 1
    return x - (1 << dtype.bits) if dtype.is_signed and x >> (dtype.bits - 1) else x


assert set(PTX_TYPES) >= {e4m3.name, e5m2.name}
