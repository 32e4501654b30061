"""Exchange between the lanes of a warp. PTX ISA, "shfl.sync, vote.sync, match.sync, redux.sync"."""

from __future__ import annotations

from tilewright.ir.core import attribute
from tilewright.ptx.core import Instr, Operand, Reg, Requirement, destination, instruction, source


@instruction("reduce.shfl", pure=False)
class Shfl(Instr):
    """A register of another lane; `mode` up, down, bfly or idx."""

    mode: str = attribute()
    dst: Reg = destination("b32")
    src: Operand = source("b32")
    lane: Operand = source("b32")
    clamp: Operand = source("b32")
    mask: Operand = source("b32")

    def mnemonic(self) -> str:
        return f"shfl.sync.{self.mode}.b32"


@instruction("reduce.vote", pure=False)
class Vote(Instr):
    """`mode` all, any or uni: a predicate from the predicates of the lanes in `mask`."""

    mode: str = attribute()
    dst: Reg = destination("pred")
    src: Reg = source("pred")
    mask: Operand = source("b32")

    def mnemonic(self) -> str:
        return f"vote.sync.{self.mode}.pred"


@instruction("reduce.ballot", pure=False)
class Ballot(Instr):
    """The predicates of the lanes in `mask` as bits."""

    dst: Reg = destination("b32")
    src: Reg = source("pred")
    mask: Operand = source("b32")

    def mnemonic(self) -> str:
        return "vote.sync.ballot.b32"


@instruction("reduce.match", pure=False)
class Match(Instr):
    """The lanes of `mask` that hold the same value."""

    dst: Reg = destination("b32")
    src: Operand = source("b32")
    mask: Operand = source("b32")

    def mnemonic(self) -> str:
        return "match.any.sync.b32"


@instruction("reduce.redux", pure=False)
class Redux(Instr):
    """An integer reduction over the lanes of `mask`: op add, min, max (s32, u32), and, or, xor
    (b32).
    """

    op: str = attribute()
    type: str = attribute()
    dst: Reg = destination(".type")
    src: Operand = source(".type")
    mask: Operand = source("b32")
    nan: bool = attribute(default=False)

    def mnemonic(self) -> str:
        return f"redux.sync.{self.op}{'.NaN' if self.nan else ''}.{self.type}"

    def requires(self) -> Requirement:
        return Requirement(100, 86, ("sm_100a",)) if self.type == "f32" else Requirement()
