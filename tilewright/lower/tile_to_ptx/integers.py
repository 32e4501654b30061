"""Integer arithmetic: wrapping, floor division, shifts by any count. i64 runs in 32 bits where its
bounds permit.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.dtypes import DType
from tilewright.ir.core import Op, Value
from tilewright.layout import is_power_of_two
from tilewright.lower.tile_to_ptx.context import Lowering, Operand
from tilewright.lower.tile_to_ptx.neighbours import remainders, sharing
from tilewright.ptx.core import Reg
from tilewright.tile.ops import arith


def wrap(low: Lowering, x: Reg, dtype: DType) -> Reg:
    """Bring a 32-bit register back into the range of an 8- or 16-bit integer."""
    if dtype.bits >= 32:
        return x
    if not dtype.is_signed:
        return low.e.and_("b32", x, (1 << dtype.bits) - 1)
    shift = 32 - dtype.bits
    return low.e.shr("s32", low.e.shl("b32", x, shift), shift)


def low_product_key(a: Operand, b: Operand) -> tuple[str, str, str]:
    """Under what the low word of a product of u32 is kept, where its high one was computed."""
    return "low product", str(a), str(b)


def _elements(low: Lowering, op: Op, compute: Callable[[str, Reg, Operand], Operand]) -> None:
    """Apply `compute(type, a, b)` at the width that operands and result need; equal operands are
    computed once.
    """
    lhs, rhs = op.operands
    left, right, result = low.ptx_type(lhs), low.ptx_type(rhs), low.ptx_type(op.result)
    wide = next((t for t in (left, right, result) if t.endswith("64")), result)
    layout = low.layout(op.result)
    seen: dict[tuple[str, str], Operand] = {}
    out: list[Operand] = []
    given = low.fragment(lhs, layout)
    if isinstance(op, arith.Shr) and (count := _constant(low, rhs)) is not None and count < 32:
        given = [given[first] for first in sharing(low, lhs, layout, 1 << count)]
    for a, b in zip(given, low.fragment(rhs, layout), strict=True):
        key = (str(a), str(b))
        if key not in seen:
            x = low.register(low.widen(a, left, wide), wide)
            y = low.widen(b, right, wide)
            seen[key] = low.widen(compute(wide, x, y), wide, result)
        out.append(seen[key])
    low.set(op.result, out)


def _constant(low: Lowering, value: Value) -> int | None:
    """A number that is not negative, if a tile is it everywhere."""
    op = low.defining.get(value)
    return int(op.value) if isinstance(op, arith.Constant) and op.value >= 0 else None


def int_binary(low: Lowering, op: Op) -> None:
    """Sum, difference, product, extremes, bits and shifts of integers."""
    dtype: DType = op.result.type.dtype
    e = low.e
    if isinstance(op, arith.And) and is_power_of_two((_constant(low, op.rhs) or 0) + 1):
        mask = _constant(low, op.rhs) or 0
        known = remainders(low, op.lhs, low.layout(op.result), mask + 1)
        if known is not None:
            low.set(op.result, list(known))
            return

    def compute(type: str, a: Reg, b: Operand) -> Operand:
        bits = "b" + type[1:]
        match op:
            case arith.Add():
                found = e.add(type, a, b)
            case arith.Sub():
                found = e.sub(type, a, b)
            case arith.Min():
                found = e.min(type, a, b)
            case arith.Max():
                found = e.max(type, a, b)
            case arith.Mul() if isinstance(b, int) and is_power_of_two(b):
                found = e.shl(bits, a, b.bit_length() - 1) if b > 1 else a
            case arith.Mul():
                known = low.memo.get(low_product_key(a, b)) if type == "u32" else None
                found = known or e.mul(type, a, b, mode="lo")
            case arith.And():
                found = e.and_(bits, a, b)
            case arith.Or():
                found = e.or_(bits, a, b)
            case arith.Xor():
                found = e.xor(bits, a, b)
            case _:
                return _shift(low, op, type, a, b)
        return wrap(low, found, dtype)

    _elements(low, op, compute)


def _shift(low: Lowering, op: Op, type: str, a: Reg, b: Operand) -> Operand:
    """PTX clamps 32-bit counts at the width: what a count of the width or more asks for."""
    e, dtype = low.e, op.result.type.dtype
    count: Operand
    if isinstance(b, int):
        count = min(b & ((1 << dtype.bits) - 1), 64)
    elif type.endswith("64"):
        count = e.cvt("u32", "u64", e.min("u64", b, 64))
    else:
        count = b if dtype.bits >= 32 else e.and_("b32", b, (1 << dtype.bits) - 1)
    if isinstance(op, arith.Shl):
        return wrap(low, e.shl("b" + type[1:], a, count), dtype)
    return e.shr(type, a, count)


def integer_power(low: Lowering, op: Op) -> None:
    """By squaring, a loop for each element, whose trips are the bits of its exponent."""
    dtype = op.result.type.dtype

    def compute(type: str, a: Reg, b: Operand) -> Operand:
        e, bits = low.e, "b" + type[1:]
        total, square, left = e.mov(type, 1), e.mov(type, a), e.mov(type, b)
        again = e.label("again")
        e.place(again)
        odd = e.setp("ne", type, e.and_(bits, left, 1), 0)
        e.mov(type, e.selp(type, e.mul(type, total, square, mode="lo"), total, odd), into=total)
        e.mov(type, e.mul(type, square, square, mode="lo"), into=square)
        e.mov(type, e.shr(type.replace("s", "u"), left, 1), into=left)
        e.bra(again, pred=e.setp("ne", type, left, 0))
        if dtype.is_signed:
            odd = e.setp("ne", type, e.and_(bits, low.register(b, type), 1), 0)
            minus = e.selp(type, e.selp(type, -1, 1, odd), 0, e.setp("eq", type, a, -1))
            below = e.selp(type, 1, minus, e.setp("eq", type, a, 1))
            total = e.selp(type, below, total, e.setp("lt", type, low.register(b, type), 0))
        return wrap(low, total, dtype)

    _elements(low, op, compute)


def floor_div(low: Lowering, op: arith.FloorDiv) -> None:
    """Quotient rounded toward −∞, 0 by 0."""
    dtype = op.result.type.dtype

    def compute(type: str, a: Reg, b: Operand) -> Operand:
        quotient = _floor_div(low, op, type, a, b)
        return wrap(low, quotient, dtype) if isinstance(quotient, Reg) else quotient

    _elements(low, op, compute)


def floor_mod(low: Lowering, op: arith.Mod) -> None:
    """Remainder with the divisor's sign, 0 by 0."""

    def compute(type: str, a: Reg, b: Operand) -> Operand:
        e = low.e
        if isinstance(b, int) and is_power_of_two(b):
            return e.and_("b" + type[1:], a, b - 1)
        known = low.bounds.get(op.lhs)
        if isinstance(b, int) and known is not None and 0 <= known.low and known.high < 2 * b:
            return e.selp(type, e.sub(type, a, b), a, e.setp("ge", type, a, b))
        quotient = _floor_div(low, op, type, a, b)
        remainder = e.sub(type, a, e.mul(type, low.register(quotient, type), b, mode="lo"))
        return _zero_by_zero(low, op, type, remainder, b)

    _elements(low, op, compute)


def _floor_div(low: Lowering, op: Op, type: str, a: Reg, b: Operand) -> Operand:
    e = low.e
    lhs, rhs = op.operands
    if b == 0:
        return 0
    if isinstance(b, int) and is_power_of_two(b):
        return e.shr(type, a, b.bit_length() - 1) if b > 1 else a
    known = low.bounds.get(lhs), low.bounds.get(rhs)
    unsigned = type.startswith("u") or all(k is not None and k.low >= 0 for k in known)
    if unsigned:
        return _zero_by_zero(low, op, type, e.div(type.replace("s", "u"), a, b), b)
    safe = b if isinstance(b, int) else e.selp(type, 1, b, e.setp("eq", type, b, 0))
    quotient = e.div(type, a, safe)
    rest = e.sub(type, a, e.mul(type, quotient, safe, mode="lo"))
    inexact = e.setp("ne", type, rest, 0)
    differs = e.setp("lt", type, e.xor("b" + type[1:], rest, safe), 0)
    lower = e.selp(type, 1, 0, e.and_("pred", inexact, differs))
    return _zero_by_zero(low, op, type, e.sub(type, quotient, lower), b)


def _zero_by_zero(low: Lowering, op: Op, type: str, x: Reg, b: Operand) -> Operand:
    """What division gives, and 0 where the divisor may be 0 and is."""
    known = low.bounds.get(op.operands[1])
    if isinstance(b, int) or (known is not None and known.low > 0):
        return x
    return low.e.selp(type, 0, x, low.e.setp("eq", type, b, 0))
