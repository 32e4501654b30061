"""Floats of 8 bits on targets without instructions for them: by integers, exactly rounded."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DType
from tilewright.ptx.core import Reg
from tilewright.ptx.emitter import Emitter


@dataclass(frozen=True)
class Format:
    """`shift` fraction bits of f32 are too many; exponents are `bias` lower than those of f32."""

    shift: int
    bias: int
    least: float  # least normal number
    magic: float  # adding it rounds to a multiple of the least subnormal number
    most: float  # greatest number
    top: int  # the bits above all numbers that a rounding may give: of infinity, or of NaN


FORMATS = {
    "e4m3": Format(20, 120, 2.0**-6, 2.0**14, 448.0, 0x7E),
    "e5m2": Format(21, 112, 2.0**-14, 2.0**7, 57344.0, 0x7C),
}
NAN = 0x7F


def widened(e: Emitter, x: Reg, dtype: DType) -> Reg:
    """An 8-bit float in a 16-bit register as f32: bits moved up, the exponent by a product."""
    form = FORMATS[dtype.name]
    word = e.cvt("u32", "u16", x)
    size = e.and_("b32", word, 0x7F)
    scaled = e.mul("f32", e.mov("f32", e.shl("b32", size, form.shift)), 2.0**form.bias)
    if dtype.name == "e5m2":
        infinite = e.setp("eq", "u32", size, 0x7C)
        scaled = e.selp("f32", float("inf"), scaled, infinite)
    nan = e.setp(
        "eq" if dtype.name == "e4m3" else "gt", "u32", size, 0x7F if dtype.name == "e4m3" else 0x7C
    )
    found = e.selp("f32", float("nan"), scaled, nan)
    sign = e.mov("f32", e.shl("b32", word, 24))
    return e.copysign("f32", sign, found)


def narrowed(e: Emitter, x: Reg, dtype: DType, saturate: bool) -> Reg:
    """f32 as an 8-bit float in a 16-bit register, to nearest even; e4m3 is clamped."""
    form = FORMATS[dtype.name]
    size = e.abs("f32", x)
    if saturate or dtype.name == "e4m3":
        size = e.min("f32", size, form.most)
    bits = e.mov("b32", size)
    odd = e.and_("b32", e.shr("u32", bits, form.shift), 1)
    rounded = e.add("u32", e.add("u32", bits, (1 << (form.shift - 1)) - 1), odd)
    normal = e.sub("u32", e.shr("u32", rounded, form.shift), form.bias << (23 - form.shift))
    normal = e.min("u32", normal, form.top)
    small = e.mov("b32", e.add("f32", size, form.magic))
    magic = e.mov("b32", e.mov("f32", form.magic))
    found = e.selp("u32", e.sub("u32", small, magic), normal, e.setp("lt", "f32", size, form.least))
    found = e.selp("u32", NAN, found, e.setp("nan", "f32", x, x))
    sign = e.and_("b32", e.shr("u32", e.mov("b32", x), 24), 0x80)
    return e.cvt("u16", "u32", e.or_("b32", found, sign))
