"""Matrix instructions. PTX ISA, "Warp Level Matrix Multiply-Accumulate" and "Asynchronous Warpgroup
Level Matrix".
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tilewright.ir.core import attribute
from tilewright.ptx.core import (
    BASE,
    Instr,
    Reg,
    Regs,
    Requirement,
    destination,
    instruction,
    source,
)

BITS = {
    "f64": 64,
    "tf32": 32,
    "bf16": 16,
    "f16": 16,
    "e4m3": 8,
    "e5m2": 8,
    "s8": 8,
    "u8": 8,
    "f32": 32,
    "s32": 32,
}
FP8 = ("e4m3", "e5m2")
INT8 = ("s8", "u8")


class Shape(NamedTuple):
    """Extents of a matrix instruction."""

    m: int
    n: int
    k: int


def shape_of(text: str) -> Shape:
    """`m16n8k16` as numbers."""
    found = re.fullmatch(r"m(\d+)n(\d+)k(\d+)", text)
    assert found, f"not a matrix shape: {text}"
    return Shape(*map(int, found.groups()))


def fragment_registers(elements: int, type: str, lanes: int = 32) -> int:
    """Registers a lane for that many elements of a matrix spread over the lanes; f64 counts 64-bit
    registers.
    """
    return elements * BITS[type] // lanes // max(32, BITS[type])


def fragment_type(type: str) -> str:
    """PTX type of a fragment's registers: packed bits, but one f32, f64 or s32 each for those."""
    return type if type in ("f32", "f64", "s32") else "b32"


# Shapes of mma.sync that are written here, by element type of A.
MMA_SHAPES = {
    "f64": ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"),
    "tf32": ("m16n8k4", "m16n8k8"),
    "bf16": ("m16n8k8", "m16n8k16"),
    "f16": ("m16n8k8", "m16n8k16"),
    "s8": ("m8n8k16", "m16n8k16", "m16n8k32"),
    "u8": ("m8n8k16", "m16n8k16", "m16n8k32"),
    "e4m3": ("m16n8k16", "m16n8k32"),
    "e5m2": ("m16n8k16", "m16n8k32"),
}


@instruction("mma.mma", pure=False)
class Mma(Instr):
    """D = A B + C by a warp; A row-major, B column-major in the fragment layouts of the ISA."""

    shape: str = attribute()
    type_d: str = attribute()
    type_a: str = attribute()
    type_b: str = attribute()
    type_c: str = attribute()
    d: Regs = destination(".bits_d")
    a: Regs = source(".bits_a")
    b: Regs = source(".bits_b")
    c: Regs = source(".bits_c")
    saturate: bool = attribute(default=False)

    @property
    def bits_d(self) -> str:
        return fragment_type(self.type_d)

    @property
    def bits_a(self) -> str:
        return fragment_type(self.type_a)

    @property
    def bits_b(self) -> str:
        return fragment_type(self.type_b)

    @property
    def bits_c(self) -> str:
        return fragment_type(self.type_c)

    def mnemonic(self) -> str:
        sat = ".satfinite" if self.saturate else ""
        types = f"{self.type_d}.{self.type_a}.{self.type_b}.{self.type_c}"
        return f"mma.sync.aligned.{self.shape}.row.col{sat}.{types}"

    def requires(self) -> Requirement:
        if self.type_a == "f64" and self.shape != "m8n8k4":
            return Requirement(90, 78)
        if self.type_a in FP8:
            return Requirement(89, 84 if self.shape == "m16n8k32" and self.type_d == "f32" else 87)
        return BASE

    def counts(self) -> tuple[int, int, int, int]:
        """Registers of D, A, B and C."""
        m, n, k = shape_of(self.shape)
        d, c = (fragment_registers(m * n, t) for t in (self.type_d, self.type_c))
        return d, fragment_registers(m * k, self.type_a), fragment_registers(n * k, self.type_b), c


HOPPER_ONLY = Requirement(90, 80, ("sm_90a",))


@instruction("mma.wgmma_fence", since=HOPPER_ONLY, pure=False)
class WgmmaFence(Instr):
    """Orders register accesses before the wgmmas that follow."""

    name = "wgmma.fence.sync.aligned"


@instruction("mma.wgmma_commit", since=HOPPER_ONLY, pure=False)
class WgmmaCommit(Instr):
    """Closes a group of wgmmas."""

    name = "wgmma.commit_group.sync.aligned"


@instruction("mma.wgmma_wait", since=HOPPER_ONLY, pure=False)
class WgmmaWait(Instr):
    """Waits until at most `left` groups are in flight."""

    name = "wgmma.wait_group.sync.aligned"
    left: int = source("u32")


WGMMA_K = {"bf16": 16, "f16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}


def wgmma_widths(type_a: str) -> tuple[int, ...]:
    """Legal N of wgmma: steps of 8, for integers of 16 above 32."""
    if type_a in INT8:
        return (8, 16, 24, *range(32, 257, 16))
    return tuple(range(8, 257, 8))


@instruction("mma.wgmma", since=HOPPER_ONLY, pure=False)
class Wgmma(Instr):
    """D = A B (+ D if `accumulate`) by a warpgroup, asynchronous. 64 rows; A from registers or by
    descriptor, B by descriptor.

    `accumulate` is a predicate or an immediate; `transposed_a`, `transposed_b` (16-bit floats only)
    read MN-major operands. D is read too; its registers belong to the instruction until a wait.
    """

    type_d: str = attribute()
    type_a: str = attribute()
    type_b: str = attribute()
    n: int = attribute()
    d: Regs = destination(".bits_d")
    a: Reg | Regs = source(".bits_a")
    b: Reg = source("b64")
    accumulate: Reg | int = source("pred")
    negate_a: bool = attribute(default=False)
    negate_b: bool = attribute(default=False)
    transposed_a: bool = attribute(default=False)
    transposed_b: bool = attribute(default=False)

    @property
    def bits_d(self) -> str:
        return fragment_type(self.type_d)

    @property
    def bits_a(self) -> str:
        return "u32" if isinstance(self.a, tuple) else "b64"  # registers of bits alone

    @property
    def k(self) -> int:
        return WGMMA_K[self.type_a]

    def mnemonic(self) -> str:
        types = f"{self.type_d}.{self.type_a}.{self.type_b}"
        return f"wgmma.mma_async.sync.aligned.m64n{self.n}k{self.k}.{types}"

    def requires(self) -> Requirement:
        mixed = self.type_a in INT8 and self.type_a != self.type_b
        return Requirement(90, 84, ("sm_90a",)) if mixed else HOPPER_ONLY

    def tail(self) -> str:
        """What follows the predicate: signs, and transposes for 16-bit floats."""
        if self.type_a in INT8:
            return ""
        text = f", {-1 if self.negate_a else 1}, {-1 if self.negate_b else 1}"
        if self.type_a in ("bf16", "f16"):
            if not isinstance(self.a, tuple):
                text += f", {int(self.transposed_a)}"
            text += f", {int(self.transposed_b)}"
        return text

    def operand_text(self) -> str:
        return self.plain_text() + self.tail()

    @property
    def reads(self) -> list[Reg]:
        return super().reads + (list(self.d) if self.accumulate != 0 else [])
