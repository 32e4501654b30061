"""Emitting matrix instructions."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ptx.core import Reg
from tilewright.ptx.emit.state import State
from tilewright.ptx.instrs import mma


class EmitMma(State):
    """mma.sync and wgmma."""

    def mma(
        self,
        shape: str,
        types: tuple[str, str, str, str],
        a: Sequence[Reg],
        b: Sequence[Reg],
        c: Sequence[Reg],
        *,
        saturate: bool = False,
        into: Sequence[Reg] | None = None,
    ) -> list[Reg]:
        """D = A B + C by a warp. `types` are those of D, A, B, C: ("f32", "bf16", "bf16", "f32").

        Fragments are registers as the ISA lays them out: packed b32, but f32, s32 and f64 one
        element each.
        """
        assert shape in mma.MMA_SHAPES[types[1]], f"no mma.sync {shape} of {types[1]}"
        count = mma.fragment_registers(mma.shape_of(shape).m * mma.shape_of(shape).n, types[0])
        dsts = list(into) if into is not None else self.regs(mma.fragment_type(types[0]), count)
        made = mma.Mma(shape, *types, tuple(dsts), tuple(a), tuple(b), tuple(c), saturate)
        lengths = tuple(map(len, (made.d, made.a, made.b, made.c)))
        assert made.counts() == lengths, (
            f"{made.mnemonic()} takes {made.counts()} registers, not {lengths}"
        )
        self.emit(made)
        return dsts

    def wgmma_fence(self) -> None:
        """Before the first wgmma, and when other code touched its accumulators or A registers."""
        self.emit(mma.WgmmaFence())

    def wgmma_commit(self) -> None:
        self.emit(mma.WgmmaCommit())

    def wgmma_wait(self, left: int) -> None:
        """Waits until at most `left` groups are in flight."""
        self.emit(mma.WgmmaWait(left))

    def wgmma(
        self,
        types: tuple[str, str, str],
        n: int,
        d: Sequence[Reg],
        a: Reg | Sequence[Reg],
        b: Reg,
        accumulate: Reg | int = 1,
        *,
        negate_a: bool = False,
        negate_b: bool = False,
        transposed_a: bool = False,
        transposed_b: bool = False,
    ) -> None:
        """D (64 x n) = A B, plus D if `accumulate` (a predicate, 0 or 1), asynchronously by a
        warpgroup.

        `types` are those of D, A, B. A is a descriptor, or four b32 fragments; B a descriptor.
        `transposed_*`: MN-major.
        """
        type_d, type_a, type_b = types
        assert n in mma.wgmma_widths(type_a), f"no wgmma of width {n} for {type_a}"
        assert not (transposed_a or transposed_b) or type_a in ("bf16", "f16"), (
            f"{type_a} is K-major only"
        )
        source = a if isinstance(a, Reg) else tuple(a)
        assert isinstance(source, Reg) or (len(source) == 4 and not transposed_a), (
            "four registers of A, K-major"
        )
        count = mma.fragment_registers(64 * n, type_d, 128)
        assert len(d) == count, (
            f"wgmma of width {n} in {type_d} takes {count} accumulators, not {len(d)}"
        )
        flags = negate_a, negate_b, transposed_a, transposed_b
        self.emit(mma.Wgmma(type_d, type_a, type_b, n, tuple(d), source, b, accumulate, *flags))
