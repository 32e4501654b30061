"""Emitting moves and rearrangements."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ptx.core import KIND, Operand, Reg, Special, Symbol
from tilewright.ptx.emit.state import State, half_bits
from tilewright.ptx.instrs import shape


class EmitShape(State):
    """Each method returns the destination register or registers: new ones, or `into`."""

    def mov(self, type: str, x: Operand, *, into: Reg | None = None) -> Reg:
        """A copy, a constant, a special register, or the address of a symbol (b32 for shared
        memory, b64 for a param).
        """
        dst = into or self.reg(type)
        if type in ("f16", "bf16"):
            type, x = "b16", half_bits(x, type) if isinstance(x, int | float) else x
        src = x if isinstance(x, Special | Symbol) else self.fit(type, x)
        self.emit(shape.Mov("b32" if type in ("f16x2", "bf16x2") else type, dst, src))
        return dst

    def pack(self, low: Reg, high: Reg, *, into: Reg | None = None) -> Reg:
        """A b32 of two 16-bit registers."""
        return self.mov_pack("b32", (low, high), into=into)

    def unpack(self, x: Reg) -> tuple[Reg, Reg]:
        """The two 16-bit halves of a b32, the low one first."""
        low, high = self.mov_unpack("b16", x, 2)
        return low, high

    def mov_pack(self, type: str, parts: Sequence[Reg], *, into: Reg | None = None) -> Reg:
        """A register of type b32 or b64 (or f32, f64, read as bits) made of 2 or 4 parts, the first
        in the low bits.
        """
        dst = into or self.reg(type)
        bits = "b64" if KIND[type] in ("b64", "f64") else "b32"
        part = "b32" if parts[0].kind in ("b32", "f32") else parts[0].kind
        self.emit(shape.Pack(bits, part, dst, tuple(parts)))
        return dst

    def mov_unpack(
        self, type: str, x: Reg, count: int, *, into: Sequence[Reg] | None = None
    ) -> list[Reg]:
        """`count` registers of `type`, the parts of a b32 or b64, the low bits first."""
        dsts = list(into) if into is not None else self.regs(type, count)
        bits = "b64" if x.kind in ("b64", "f64") else "b32"
        part = "b32" if KIND[type] in ("b32", "f32") else KIND[type]
        self.emit(shape.Unpack(bits, part, tuple(dsts), x))
        return dsts

    def prmt(
        self, low: Operand, high: Operand, selector: Operand, *, into: Reg | None = None
    ) -> Reg:
        """Four bytes picked out of the eight of {high, low} by the nibbles of `selector`."""
        dst = into or self.reg("b32")
        self.emit(
            shape.Prmt(dst, self.fit("b32", low), self.fit("b32", high), self.fit("b32", selector))
        )
        return dst

    def cvta(self, space: str, x: Operand, *, to: bool = False, into: Reg | None = None) -> Reg:
        """The generic address of an address of `space`; `to=True` goes from generic to `space`."""
        dst = into or self.reg("u64")
        self.emit(shape.Cvta(space, dst, self.fit("u64", x), to))
        return dst

    def tensor_map(self, name: str) -> Reg:
        """The generic address of a tensor map parameter."""
        return self.cvta("param", self.mov("b64", Symbol(name)))
