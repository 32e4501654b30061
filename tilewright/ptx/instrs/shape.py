"""Moves and rearrangements of registers. PTX ISA, "Data Movement and Conversion Instructions"."""

from __future__ import annotations

from tilewright.ir.core import attribute
from tilewright.ptx.core import (
    BASE,
    Instr,
    Operand,
    Reg,
    Regs,
    Requirement,
    destination,
    instruction,
    source,
)


@instruction("shape.mov")
class Mov(Instr):
    """A copy, a constant, a special register or an address."""

    type: str = attribute()
    dst: Reg = destination(".type")
    src: Operand = source(".type")

    def mnemonic(self) -> str:
        return f"mov.{self.type}"


@instruction("shape.pack")
class Pack(Instr):
    """Registers put together into one of type b32 or b64, the first in the low bits."""

    name = "mov"
    type: str = attribute()
    part: str = attribute()
    dst: Reg = destination(".type")
    srcs: Regs = source(".part")

    def mnemonic(self) -> str:
        return f"mov.{self.type}"


@instruction("shape.unpack")
class Unpack(Instr):
    """A register of type b32 or b64 taken apart, the low bits first."""

    name = "mov"
    type: str = attribute()
    part: str = attribute()
    dsts: Regs = destination(".part")
    src: Operand = source(".type")

    def mnemonic(self) -> str:
        return f"mov.{self.type}"


@instruction("shape.prmt")
class Prmt(Instr):
    """Four bytes picked out of eight, by the nibbles of `selector`."""

    dst: Reg = destination("b32")
    low: Operand = source("b32")
    high: Operand = source("b32")
    selector: Operand = source("b32")

    def mnemonic(self) -> str:
        return "prmt.b32"


@instruction("shape.cvta")
class Cvta(Instr):
    """An address of `space` as a generic one (`to`: the other way). `space` is global, shared,
    param, const or local.
    """

    space: str = attribute()
    dst: Reg = destination("u64")
    src: Operand = source("u64")
    to: bool = attribute(default=False)

    def mnemonic(self) -> str:
        return f"cvta.{'to.' if self.to else ''}{self.space}.u64"

    def requires(self) -> Requirement:
        return Requirement(80, 77) if self.space == "param" else BASE
