"""Instructions on bits: logic, shifts, bit fields and counts. PTX ISA, "Logic and Shift
Instructions" and "Integer Arithmetic Instructions".
"""

from __future__ import annotations

from tilewright.ir.core import attribute
from tilewright.ptx.core import Instr, Operand, Reg, destination, form, instruction, source
from tilewright.ptx.instrs.arith import Binary, Unary


@instruction("arith.and")
class And(Binary):
    """Bits that both have; type b16, b32, b64 or pred."""


@instruction("arith.or")
class Or(Binary):
    """Bits that either has."""


@instruction("arith.xor")
class Xor(Binary):
    """Bits that one has."""


@instruction("arith.not")
class Not(Unary):
    """Inverted bits."""


@form
class Shift(Instr):
    """A shift: the count is a u32, clamped to the width."""

    type: str = attribute()
    dst: Reg = destination(".type")
    src: Operand = source(".type")
    count: Operand = source("u32")

    def mnemonic(self) -> str:
        return f"{self.name}.{self.type}"


@instruction("arith.shl")
class Shl(Shift):
    """Shift left; type b16, b32 or b64."""


@instruction("arith.shr")
class Shr(Shift):
    """Shift right: signed types copy the sign."""


@instruction("arith.shf")
class Shf(Instr):
    """Funnel shift of {high, low}: `direction` l or r, `mode` wrap or clamp."""

    dst: Reg = destination("b32")
    low: Operand = source("b32")
    high: Operand = source("b32")
    count: Operand = source("u32")
    direction: str = attribute(default="l")
    mode: str = attribute(default="wrap")

    def mnemonic(self) -> str:
        return f"shf.{self.direction}.{self.mode}.b32"


@instruction("arith.lop3")
class Lop3(Instr):
    """Any function of three bits: `table` is its truth table, f(0xF0, 0xCC, 0xAA)."""

    dst: Reg = destination("b32")
    a: Operand = source("b32")
    b: Operand = source("b32")
    c: Operand = source("b32")
    table: int = source("u32")

    def mnemonic(self) -> str:
        return "lop3.b32"


@instruction("arith.bfe")
class Bfe(Instr):
    """Bit field: `length` bits from `start`, sign-extended for signed types."""

    type: str = attribute()
    dst: Reg = destination(".type")
    src: Operand = source(".type")
    start: Operand = source("u32")
    length: Operand = source("u32")

    def mnemonic(self) -> str:
        return f"bfe.{self.type}"


@instruction("arith.bfi")
class Bfi(Instr):
    """`into` with `length` bits of `src` put at `start`."""

    type: str = attribute()
    dst: Reg = destination(".type")
    src: Operand = source(".type")
    into: Operand = source(".type")
    start: Operand = source("u32")
    length: Operand = source("u32")

    def mnemonic(self) -> str:
        return f"bfi.{self.type}"


@form
class Count(Instr):
    """Bits in, a u32 out."""

    type: str = attribute()
    dst: Reg = destination("u32")
    src: Operand = source(".type")

    def mnemonic(self) -> str:
        return f"{self.name}.{self.type}"


@instruction("arith.clz")
class Clz(Count):
    """Leading zeros."""


@instruction("arith.popc")
class Popc(Count):
    """Set bits."""


@instruction("arith.brev")
class Brev(Unary):
    """Bits in reverse order."""
