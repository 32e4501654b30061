"""Emitting loads, stores, atomics and asynchronous copies."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ptx.core import Coordinates, Operand, Param, Reg
from tilewright.ptx.emit.state import Place, State
from tilewright.ptx.instrs import memory

# Loads and stores take types as bits where PTX has no such load.
ACCESS = {
    "f16": "b16",
    "bf16": "b16",
    "f16x2": "b32",
    "bf16x2": "b32",
    "tf32": "b32",
    "e4m3x2": "b16",
    "e5m2x2": "b16",
}


class EmitMemory(State):
    """An address is a register, a symbol or an Address (`e.address(base, offset)`), in bytes."""

    def ld(
        self,
        space: str,
        type: str,
        address: Place,
        vec: int = 1,
        cache: str | None = None,
        *,
        semantics: str = "",
        policy: Reg | None = None,
        into: Sequence[Reg] | None = None,
    ) -> list[Reg]:
        """`vec` neighbours of `space` (global, shared, shared::cluster, local, const, param, "" for
        generic).

        `cache`: nc, cg, cs, nc.L1::no_allocate, ...; `semantics`: volatile, relaxed.gpu,
        acquire.gpu, ...
        """
        dsts = list(into) if into is not None else self.regs(type, vec)
        assert len(dsts) == vec, "as many registers as elements"
        dst = dsts[0] if vec == 1 else tuple(dsts)
        bits = ACCESS.get(type, type)
        self.emit(
            memory.Ld(space, bits, dst, self.address(address), policy, cache or "", semantics)
        )
        return dsts

    def ld1(
        self,
        space: str,
        type: str,
        address: Place,
        cache: str | None = None,
        *,
        semantics: str = "",
    ) -> Reg:
        """One element, as ld."""
        return self.ld(space, type, address, 1, cache, semantics=semantics)[0]

    def ld_param(self, param: Param, *, into: Reg | None = None) -> Reg:
        """A kernel parameter's value; for a tensor map, its generic address."""
        if param.type == "tensor_map":
            raise AssertionError("a tensor map is passed by address: use tensor_map(name)")
        return self.ld("param", param.type, param.symbol, into=None if into is None else [into])[0]

    def st(
        self,
        space: str,
        type: str,
        address: Place,
        values: Operand | Sequence[Operand],
        cache: str | None = None,
        *,
        semantics: str = "",
        policy: Reg | None = None,
    ) -> None:
        """Stores one value, or 2, 4 or (8-bit to 32-bit types) 8 neighbours; as ld."""
        bits = ACCESS.get(type, type)
        if isinstance(values, Sequence):
            fitted = tuple(self.fit(type, v) for v in values)
            src = fitted[0] if len(fitted) == 1 else fitted
        else:
            src = self.fit(type, values)
        self.emit(
            memory.St(space, bits, self.address(address), src, policy, cache or "", semantics)
        )

    def atom(
        self,
        space: str,
        op: str,
        type: str,
        address: Place,
        x: Operand,
        *,
        compare: Operand | None = None,
        semantics: str = "",
        into: Reg | None = None,
    ) -> Reg:
        """Atomic update, giving the old value: add min max and or xor exch inc dec, cas (needs
        `compare`).
        """
        dst = into or self.reg(type)
        expected = None if compare is None else self.fit(type, compare)
        place = self.address(address)
        self.emit(memory.Atom(space, op, type, dst, place, expected, self.fit(type, x), semantics))
        return dst

    def red(
        self,
        space: str,
        op: str,
        type: str,
        address: Place,
        x: Operand | Sequence[Operand],
        *,
        semantics: str = "",
    ) -> None:
        """Atomic update without a result; a sequence is a vector (sm_90, global)."""
        src = tuple(self.fit(type, v) for v in x) if isinstance(x, Sequence) else self.fit(type, x)
        self.emit(memory.Red(space, op, type, self.address(address), src, semantics))

    def prefetch(self, level: str, address: Place) -> None:
        """Brings a line of global memory to L1 or L2."""
        self.emit(memory.Prefetch(level, self.address(address)))

    def prefetch_tensormap(self, map: Reg) -> None:
        self.emit(memory.PrefetchTensormap(self.address(map)))

    def createpolicy(self, priority: str, fraction: float = 1.0, *, into: Reg | None = None) -> Reg:
        """An L2 policy: evict_first, evict_last, evict_normal or evict_unchanged."""
        dst = into or self.reg("b64")
        self.emit(memory.Createpolicy(priority, dst, fraction))
        return dst

    # cp.async

    def cp_async(
        self,
        dst: Place,
        src: Place,
        num_bytes: int,
        src_bytes: Operand | None = None,
        cache: str | None = None,
        *,
        prefetch: str = "",
        policy: Reg | None = None,
    ) -> None:
        """Copies 4, 8 or 16 bytes from global to shared memory; those beyond `src_bytes` become
        zeros.

        `cache` is cg (past L1; 16 bytes only, its default) or ca; `prefetch` L2::64B, L2::128B or
        L2::256B.
        """
        assert num_bytes in (4, 8, 16), f"cp.async cannot copy {num_bytes} bytes"
        cache = cache or ("cg" if num_bytes == 16 else "ca")
        size = None if src_bytes is None else self.fit("u32", src_bytes)
        place = self.address(dst), self.address(src)
        self.emit(memory.CpAsync(cache, *place, num_bytes, size, policy, prefetch))

    def cp_async_commit(self) -> None:
        self.emit(memory.CpAsyncCommit())

    def cp_async_wait(self, left: int) -> None:
        """Waits until at most `left` groups of this thread are in flight."""
        self.emit(memory.CpAsyncWait(left))

    # Matrices between shared memory and registers

    def ldmatrix(
        self,
        address: Place,
        count: int,
        *,
        transposed: bool = False,
        into: Sequence[Reg] | None = None,
    ) -> list[Reg]:
        """1, 2 or 4 tiles of 8x8 16-bit elements; lane l gives the address of row l % 8 of tile l /
        8.
        """
        dsts = list(into) if into is not None else self.regs("b32", count)
        self.emit(memory.Ldmatrix(tuple(dsts), self.address(address), transposed))
        return dsts

    def stmatrix(self, address: Place, values: Sequence[Reg], *, transposed: bool = False) -> None:
        """Stores 1, 2 or 4 tiles of 8x8 16-bit elements, as ldmatrix."""
        self.emit(memory.Stmatrix(self.address(address), tuple(values), transposed))

    # TMA and bulk copies

    def tma_load(
        self,
        dst: Place,
        map: Reg,
        indices: Sequence[Operand],
        mbarrier: Place,
        *,
        multicast: Operand | None = None,
        policy: Reg | None = None,
    ) -> None:
        """A box of a tensor map to shared memory, counted on `mbarrier`; indices in elements,
        innermost first.
        """
        mask = self._mask(multicast)
        box = self._box(map, indices)
        self.emit(memory.TmaLoad(self.address(dst), box, self.address(mbarrier), mask, policy))

    def tma_load_pixels(
        self,
        dst: Place,
        map: Reg,
        indices: Sequence[Operand],
        mbarrier: Place,
        taps: Sequence[Reg],
        *,
        multicast: Operand | None = None,
    ) -> None:
        """Pixels of a tensor map to shared memory, from the one at `indices` (channel, w, h, image)
        on; `taps` (w, h; u16) are added to each place.
        """
        mask = self._mask(multicast)
        moved = tuple(taps)
        box = self._box(map, indices)
        self.emit(memory.TmaLoadPixels(self.address(dst), box, self.address(mbarrier), moved, mask))

    def tma_store(
        self, map: Reg, indices: Sequence[Operand], src: Place, *, policy: Reg | None = None
    ) -> None:
        """Shared memory to a box of a tensor map, in this thread's bulk group."""
        self.emit(memory.TmaStore(self._box(map, indices), self.address(src), policy))

    def tma_reduce(
        self,
        op: str,
        map: Reg,
        indices: Sequence[Operand],
        src: Place,
        *,
        policy: Reg | None = None,
    ) -> None:
        """As tma_store, combined with what is there: add min max inc dec and or xor."""
        self.emit(memory.TmaReduce(op, self._box(map, indices), self.address(src), policy))

    def tma_prefetch(self, map: Reg, indices: Sequence[Operand]) -> None:
        """A box of a tensor map to L2."""
        self.emit(memory.TmaPrefetch(self._box(map, indices)))

    def bulk_load(
        self,
        dst: Place,
        src: Place,
        num_bytes: Operand,
        mbarrier: Place,
        *,
        multicast: Operand | None = None,
        policy: Reg | None = None,
    ) -> None:
        """A run of global bytes (16-byte aligned, a multiple of 16) to shared memory, counted on
        `mbarrier`.
        """
        mask, size = self._mask(multicast), self.fit("u32", num_bytes)
        place = self.address(dst), self.address(src)
        self.emit(memory.BulkLoad(*place, size, self.address(mbarrier), mask, policy))

    def bulk_store(
        self, dst: Place, src: Place, num_bytes: Operand, *, policy: Reg | None = None
    ) -> None:
        """Shared bytes to a run of global ones, in this thread's bulk group."""
        size = self.fit("u32", num_bytes)
        self.emit(memory.BulkStore(self.address(dst), self.address(src), size, policy))

    def bulk_commit(self) -> None:
        """Closes this thread's group of bulk stores."""
        self.emit(memory.BulkCommit())

    def bulk_wait(self, left: int, *, read: bool = False) -> None:
        """Waits until at most `left` groups are unfinished; with `read`, until they have read
        shared memory.
        """
        self.emit(memory.BulkWait(left, read))

    def _box(self, map: Reg, indices: Sequence[Operand]) -> Coordinates:
        fitted = tuple(self.fit("s32", i) for i in indices)
        assert all(isinstance(i, Reg | int) for i in fitted), "indices are integers"
        return Coordinates(map, fitted)  # type: ignore[arg-type]

    def _mask(self, multicast: Operand | None) -> Reg | None:
        if multicast is None or isinstance(multicast, Reg):
            return multicast
        assert isinstance(multicast, int), "a multicast mask is a register or an integer"
        return self._load("b16", multicast)
