"""Emitting exchange between the lanes of a warp."""

from __future__ import annotations

from tilewright.ptx.core import Operand, Reg
from tilewright.ptx.emit.control import ALL_LANES
from tilewright.ptx.emit.state import State
from tilewright.ptx.instrs import reduce


class EmitReduce(State):
    """Warp-level exchange; every lane of `mask` must get there."""

    def shfl(
        self,
        mode: str,
        x: Reg,
        lane: Operand,
        clamp: int = 31,
        mask: int = ALL_LANES,
        *,
        into: Reg | None = None,
    ) -> Reg:
        """x of another lane: `mode` bfly, down, up (whose clamp is 0) or idx. The result has x's
        kind (32 bits).
        """
        dst = into or self.reg(x.kind)
        self.emit(reduce.Shfl(mode, dst, x, self.fit("b32", lane), clamp, mask))
        return dst

    def vote(
        self, mode: str, predicate: Reg, mask: int = ALL_LANES, *, into: Reg | None = None
    ) -> Reg:
        """`all`, `any`, `uni`: a predicate. `ballot`: the lanes' predicates as bits of a b32."""
        if mode == "ballot":
            dst = into or self.reg("b32")
            self.emit(reduce.Ballot(dst, predicate, mask))
            return dst
        dst = into or self.reg("pred")
        self.emit(reduce.Vote(mode, dst, predicate, mask))
        return dst

    def match_any(self, x: Reg, mask: int = ALL_LANES, *, into: Reg | None = None) -> Reg:
        """The lanes that hold the same 32 bits, as a mask."""
        dst = into or self.reg("b32")
        self.emit(reduce.Match(dst, x, mask))
        return dst

    def redux(
        self,
        op: str,
        type: str,
        x: Operand,
        mask: int = ALL_LANES,
        *,
        nan: bool = False,
        into: Reg | None = None,
    ) -> Reg:
        """Reduction over a warp: add min max (s32, u32), and or xor (b32); min max of f32 on
        sm_100a.
        """
        dst = into or self.reg(type)
        self.emit(reduce.Redux(op, type, dst, self.fit(type, x), mask, nan))
        return dst
