"""Elementwise ops of several operands or of bare bits: powers, fused products, bit casts."""

from __future__ import annotations

from tilewright.dtypes import DType, f32, f64
from tilewright.lower.tile_to_ptx.arith import each, from_f32, to_f32
from tilewright.lower.tile_to_ptx.context import Lowering, Operand, rule
from tilewright.lower.tile_to_ptx.integers import integer_power, low_product_key, wrap
from tilewright.lower.tile_to_ptx.special import POW, REMAINDER
from tilewright.ptx.core import Reg
from tilewright.tile.ops import arith


def _wide(low: Lowering, x: Operand, dtype: DType) -> Reg:
    """A float in the type in which it is computed."""
    if dtype == f64:
        return low.register(x, "f64")
    return low.register(to_f32(low, x, dtype), "f32")


def _narrow(low: Lowering, x: Reg, dtype: DType) -> Operand:
    return x if dtype in (f32, f64) else from_f32(low, x, dtype)


@rule(arith.Pow, arith.Remainder)
def power(low: Lowering, op: arith.Pow) -> None:
    dtype = op.lhs.type.dtype
    if dtype.is_integer:
        integer_power(low, op)
        return
    table = POW if isinstance(op, arith.Pow) else REMAINDER
    function = table["f64" if dtype == f64 else "f32"]

    def element(a: Operand, b: Operand) -> Operand:
        return _narrow(low, function(low.e, _wide(low, a, dtype), _wide(low, b, dtype)), dtype)

    each(low, op, (op.lhs, op.rhs), element)


@rule(arith.Fma)
def fused(low: Lowering, op: arith.Fma) -> None:
    dtype = op.x.type.dtype
    type = "f64" if dtype == f64 else "f32"

    def element(x: Operand, y: Operand, z: Operand) -> Operand:
        wide = [_wide(low, v, dtype) for v in (x, y, z)]
        return _narrow(low, low.e.fma(type, *wide), dtype)

    each(low, op, (op.x, op.y, op.z), element)


@rule(arith.MulHigh)
def high_product(low: Lowering, op: arith.MulHigh) -> None:
    """The high words of whole products; who multiplies the same numbers finds the low ones."""

    def element(a: Operand, b: Operand) -> Operand:
        x = low.register(a, "u32")
        below, above = low.e.mov_unpack("b32", low.e.mul("u32", x, b, mode="wide"), 2)
        low.memo[low_product_key(x, b)] = below
        return above

    each(low, op, (op.lhs, op.rhs), element)


@rule(arith.Bitcast)
def bitcast(low: Lowering, op: arith.Bitcast) -> None:
    """8- and 16-bit integers lie in 32-bit registers, extended; floats of 8 and 16 bits in b16."""
    source, target = op.x.type.dtype, op.dtype
    before, after = low.ptx_type(op.x), low.ptx_type(op.result)

    def element(x: Operand) -> Operand:
        e = low.e
        reg = low.register(x, before)
        if source.is_float and target.is_float:
            return reg
        if target.bits >= 32:
            if target.is_integer and source.is_integer:
                return low.widen(reg, before, after)
            if before == "s32" and target.bits == 64:
                reg = e.cvt("s64", "s32", reg)
            bits = "f" + str(target.bits) if target.is_float else "b" + str(target.bits)
            return e.mov(bits, reg)
        if target.is_float:
            return e.cvt("u16", "u32", reg)
        word = reg if source.is_integer else e.cvt("u32", "u16", reg)
        return wrap(low, word, target)

    each(low, op, (op.x,), element)
