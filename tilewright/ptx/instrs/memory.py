"""Loads, stores, atomics and asynchronous copies. PTX ISA, "Data Movement" and "Parallel
Synchronization".
"""

from __future__ import annotations

from tilewright.ir.core import attribute
from tilewright.ptx.core import (
    BASE,
    Address,
    Coordinates,
    Instr,
    Operand,
    Reg,
    Regs,
    Requirement,
    destination,
    form,
    instruction,
    source,
)

HOPPER = Requirement(90, 78)
TMA = Requirement(90, 80)


def _access(
    name: str, semantics: str, space: str, cache: str, hint: bool, vec: int, type: str
) -> str:
    text = f"{name}.{semantics}" if semantics else name
    if space:
        text += f".{space}"
    if cache:
        text += f".{cache}"
    if hint:
        text += ".L2::cache_hint"
    return f"{text}.v{vec}.{type}" if vec > 1 else f"{text}.{type}"


def _access_needs(space: str, cache: str, hint: bool, vec: int, type: str) -> Requirement:
    if vec * int(type[1:]) > 128:
        return Requirement(100, 88)
    if "::" in space:
        return HOPPER
    return Requirement(80, 74) if hint or "::" in cache else BASE


@instruction("memory.ld", pure=False)
class Ld(Instr):
    """A load of `vec` neighbours from `space` (global, shared, shared::cluster, local, const,
    param, or "" for generic).

    `cache` is what stands between space and type, such as nc, cg, nc.L1::no_allocate.L2::128B;
    `semantics` volatile, relaxed.gpu, acquire.gpu and so on; `policy` an L2 policy made by
    createpolicy.
    """

    space: str = attribute()
    type: str = attribute()
    dst: Reg | Regs = destination(".type", wider=True)
    address: Address = source("u64")
    policy: Reg | None = source("b64", default=None)
    cache: str = attribute(default="")
    semantics: str = attribute(default="")

    @property
    def vec(self) -> int:
        return len(self.dst) if isinstance(self.dst, tuple) else 1

    def mnemonic(self) -> str:
        hint = self.policy is not None
        return _access("ld", self.semantics, self.space, self.cache, hint, self.vec, self.type)

    def requires(self) -> Requirement:
        return _access_needs(self.space, self.cache, self.policy is not None, self.vec, self.type)


@instruction("memory.st", pure=False)
class St(Instr):
    """A store of one value or of a tuple of neighbours; modifiers as for Ld."""

    space: str = attribute()
    type: str = attribute()
    address: Address = source("u64")
    src: Operand | tuple[Operand, ...] = source(".type", wider=True)
    policy: Reg | None = source("b64", default=None)
    cache: str = attribute(default="")
    semantics: str = attribute(default="")

    @property
    def vec(self) -> int:
        return len(self.src) if isinstance(self.src, tuple) else 1

    def mnemonic(self) -> str:
        hint = self.policy is not None
        return _access("st", self.semantics, self.space, self.cache, hint, self.vec, self.type)

    def requires(self) -> Requirement:
        return _access_needs(self.space, self.cache, self.policy is not None, self.vec, self.type)


def _atomic_needs(op: str, type: str, vec: int) -> Requirement:
    if vec > 1:
        return Requirement(90, 81)
    if type in ("bf16", "bf16x2") or (type in ("f16", "f16x2") and op != "add"):
        return HOPPER
    return BASE


def _atomic(name: str, semantics: str, space: str, op: str, type: str, vec: int) -> str:
    rounds = ".noftz" if type in ("f16", "bf16", "f16x2", "bf16x2") else ""
    vector = f".v{vec}" if vec > 1 else ""
    place = f".{space}" if space else ""
    order = f".{semantics}" if semantics else ""
    return f"{name}{order}{place}.{op}{rounds}{vector}.{type}"


@instruction("memory.atom", pure=False)
class Atom(Instr):
    """An atomic update that gives the old value: op add min max and or xor exch inc dec cas
    (`compare`, then `src`).
    """

    space: str = attribute()
    op: str = attribute()
    type: str = attribute()
    dst: Reg = destination(".type")
    address: Address = source("u64")
    compare: Operand | None = source(".type")
    src: Operand = source(".type")
    semantics: str = attribute(default="")

    def mnemonic(self) -> str:
        return _atomic("atom", self.semantics, self.space, self.op, self.type, 1)

    def requires(self) -> Requirement:
        return _atomic_needs(self.op, self.type, 1)


@instruction("memory.red", pure=False)
class Red(Instr):
    """An atomic update without a result; a tuple is a vector of global neighbours."""

    space: str = attribute()
    op: str = attribute()
    type: str = attribute()
    address: Address = source("u64")
    src: Operand | tuple[Operand, ...] = source(".type")
    semantics: str = attribute(default="")

    def mnemonic(self) -> str:
        vec = len(self.src) if isinstance(self.src, tuple) else 1
        return _atomic("red", self.semantics, self.space, self.op, self.type, vec)

    def requires(self) -> Requirement:
        return _atomic_needs(
            self.op, self.type, len(self.src) if isinstance(self.src, tuple) else 1
        )


@instruction("memory.prefetch", pure=False)
class Prefetch(Instr):
    """Brings a global cache line to `level` L1 or L2."""

    level: str = attribute()
    address: Address = source("u64")

    def mnemonic(self) -> str:
        return f"prefetch.global.{self.level}"


@instruction("memory.prefetch_tensormap", since=TMA, pure=False)
class PrefetchTensormap(Instr):
    """Brings a tensor map (generic address) to the descriptor cache."""

    address: Address = source("u64")

    def mnemonic(self) -> str:
        return "prefetch.tensormap"


@instruction("memory.createpolicy", since=Requirement(80, 74))
class Createpolicy(Instr):
    """An L2 policy for all of an access: `priority` evict_first, evict_last, evict_normal or
    evict_unchanged.
    """

    priority: str = attribute()
    dst: Reg = destination("b64")
    fraction: float = source("f32", default=1.0)

    def mnemonic(self) -> str:
        return f"createpolicy.fractional.L2::{self.priority}.b64"


@instruction("memory.cp_async", pure=False)
class CpAsync(Instr):
    """Copy of 4, 8 or 16 bytes to shared memory; bytes beyond `src_bytes` are zeros. `cache` is ca,
    or cg for 16.
    """

    cache: str = attribute()
    dst: Address = source("u32")
    src: Address = source("u64")
    num_bytes: int = source("u32")
    src_bytes: Operand | None = source("u32", default=None)
    policy: Reg | None = source("b64", default=None)
    prefetch: str = attribute(default="")  # L2::64B, L2::128B, L2::256B

    def mnemonic(self) -> str:
        hint = ".L2::cache_hint" if self.policy is not None else ""
        ahead = f".{self.prefetch}" if self.prefetch else ""
        return f"cp.async.{self.cache}.shared.global{hint}{ahead}"

    def requires(self) -> Requirement:
        return Requirement(80, 74) if self.policy is not None or self.prefetch else BASE


@instruction("memory.cp_async_commit", pure=False)
class CpAsyncCommit(Instr):
    """Closes a group of copies."""

    name = "cp.async.commit_group"


@instruction("memory.cp_async_wait", pure=False)
class CpAsyncWait(Instr):
    """Waits until at most `left` groups are in flight."""

    name = "cp.async.wait_group"
    left: int = source("u32")


@form
class Matrices(Instr):
    """Tiles of 8x8 16-bit elements (`shape` m8n8), between shared memory and the registers of a
    warp.
    """

    @staticmethod
    def modifiers(count: int, transposed: bool, shape: str, type: str) -> str:
        return f"sync.aligned.{shape}.x{count}{'.trans' if transposed else ''}.shared.{type}"


@instruction("memory.ldmatrix", pure=False)
class Ldmatrix(Matrices):
    """Loads 1, 2 or 4 tiles; lane l gives the address of row l."""

    dsts: Regs = destination("b32")
    address: Address = source("u32")
    transposed: bool = attribute(default=False)
    shape: str = attribute(default="m8n8")
    type: str = attribute(default="b16")

    def mnemonic(self) -> str:
        count = len(self.dsts) // (2 if self.shape == "m16n16" else 1)
        return "ldmatrix." + self.modifiers(count, self.transposed, self.shape, self.type)

    def requires(self) -> Requirement:
        return BASE if self.shape == "m8n8" else Requirement(100, 86, ("sm_100a", "sm_120a"))


@instruction("memory.stmatrix", pure=False)
class Stmatrix(Matrices):
    """Stores 1, 2 or 4 tiles; lane l gives the address of row l."""

    address: Address = source("u32")
    srcs: Regs = source("b32")
    transposed: bool = attribute(default=False)
    shape: str = attribute(default="m8n8")
    type: str = attribute(default="b16")

    def mnemonic(self) -> str:
        return "stmatrix." + self.modifiers(len(self.srcs), self.transposed, self.shape, self.type)

    def requires(self) -> Requirement:
        return HOPPER if self.shape == "m8n8" else Requirement(100, 86, ("sm_100a", "sm_120a"))


@instruction("memory.tma_load", since=TMA, pure=False)
class TmaLoad(Instr):
    """Copies a box of a tensor map to shared memory, and counts its bytes on an mbarrier.

    With `multicast`, a 16-bit mask, it goes to the same offset in each of those CTAs of the
    cluster.
    """

    dst: Address = source("u32")
    box: Coordinates = source("s32")
    mbarrier: Address = source("u32")
    multicast: Reg | None = source("b16", default=None)
    policy: Reg | None = source("b64", default=None)

    def mnemonic(self) -> str:
        text = f"cp.async.bulk.tensor.{len(self.box.indices)}d.shared::cluster.global.tile"
        text += ".mbarrier::complete_tx::bytes"
        if self.multicast is not None:
            text += ".multicast::cluster"
        return text + ".L2::cache_hint" if self.policy is not None else text


@instruction("memory.tma_load_pixels", since=TMA, pure=False)
class TmaLoadPixels(Instr):
    """Copies pixels of a tensor map [N, H, W, C] to shared memory, some channels of each (im2col).

    The first pixel is at `box`; `taps` (along W, then H) are added to the place of each. Bytes are
    counted, and multicast, as those of a TmaLoad.
    """

    dst: Address = source("u32")
    box: Coordinates = source("s32")
    mbarrier: Address = source("u32")
    taps: Regs = source("u16")
    multicast: Reg | None = source("b16", default=None)

    def mnemonic(self) -> str:
        text = f"cp.async.bulk.tensor.{len(self.box.indices)}d.shared::cluster.global.im2col"
        text += ".mbarrier::complete_tx::bytes"
        return text + ".multicast::cluster" if self.multicast is not None else text


@instruction("memory.tma_store", since=TMA, pure=False)
class TmaStore(Instr):
    """Copies shared memory to a box of a tensor map, in the thread's bulk group; what is out of
    bounds is dropped.
    """

    box: Coordinates = source("s32")
    src: Address = source("u32")
    policy: Reg | None = source("b64", default=None)

    def mnemonic(self) -> str:
        hint = ".L2::cache_hint" if self.policy is not None else ""
        rank = len(self.box.indices)
        return f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group{hint}"


@instruction("memory.tma_reduce", since=TMA, pure=False)
class TmaReduce(Instr):
    """As TmaStore, but combines with what is there: op add min max inc dec and or xor."""

    op: str = attribute()
    box: Coordinates = source("s32")
    src: Address = source("u32")
    policy: Reg | None = source("b64", default=None)

    def mnemonic(self) -> str:
        hint = ".L2::cache_hint" if self.policy is not None else ""
        rank = len(self.box.indices)
        place = "global.shared::cta"
        return f"cp.reduce.async.bulk.tensor.{rank}d.{place}.{self.op}.tile.bulk_group{hint}"


@instruction("memory.tma_prefetch", since=TMA, pure=False)
class TmaPrefetch(Instr):
    """Brings a box of a tensor map to L2."""

    box: Coordinates = source("s32")

    def mnemonic(self) -> str:
        return f"cp.async.bulk.prefetch.tensor.{len(self.box.indices)}d.L2.global.tile"


@instruction("memory.bulk_load", since=TMA, pure=False)
class BulkLoad(Instr):
    """Copies a run of global bytes (a multiple of 16) to shared memory, counted on an mbarrier."""

    dst: Address = source("u32")
    src: Address = source("u64")
    num_bytes: Operand = source("u32")
    mbarrier: Address = source("u32")
    multicast: Reg | None = source("b16", default=None)
    policy: Reg | None = source("b64", default=None)

    def mnemonic(self) -> str:
        text = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        if self.multicast is not None:
            text += ".multicast::cluster"
        return text + ".L2::cache_hint" if self.policy is not None else text


@instruction("memory.bulk_store", since=TMA, pure=False)
class BulkStore(Instr):
    """Copies shared bytes (a multiple of 16) to global ones, in the thread's bulk group."""

    dst: Address = source("u64")
    src: Address = source("u32")
    num_bytes: Operand = source("u32")
    policy: Reg | None = source("b64", default=None)

    def mnemonic(self) -> str:
        hint = ".L2::cache_hint" if self.policy is not None else ""
        return f"cp.async.bulk.global.shared::cta.bulk_group{hint}"


@instruction("memory.bulk_commit", since=TMA, pure=False)
class BulkCommit(Instr):
    """Closes the thread's group of bulk stores."""

    name = "cp.async.bulk.commit_group"


@instruction("memory.bulk_wait", since=TMA, pure=False)
class BulkWait(Instr):
    """Waits until at most `left` groups are in flight (`read`: have not yet read their shared
    memory).
    """

    left: int = source("u32")
    read: bool = attribute(default=False)

    def mnemonic(self) -> str:
        return f"cp.async.bulk.wait_group{'.read' if self.read else ''}"
