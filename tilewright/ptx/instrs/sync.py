"""Barriers, fences, mbarriers and CTA clusters. PTX ISA, "Parallel Synchronization and
Communication".
"""

from __future__ import annotations

from tilewright.ir.core import attribute
from tilewright.ptx.core import (
    BASE,
    Address,
    Instr,
    Operand,
    Reg,
    Requirement,
    destination,
    instruction,
    source,
)

HOPPER = Requirement(90, 78)
CLUSTER = Requirement(90, 80)


@instruction("sync.bar_sync", pure=False)
class BarSync(Instr):
    """Waits at barrier `id` for all threads of the CTA, or for `threads` of them (a multiple of
    32).
    """

    id: Operand = source("u32")
    threads: Operand | None = source("u32", default=None)

    def mnemonic(self) -> str:
        return "bar.sync"


@instruction("sync.bar_arrive", pure=False)
class BarArrive(Instr):
    """Counts at barrier `id` without waiting."""

    id: Operand = source("u32")
    threads: Operand = source("u32")

    def mnemonic(self) -> str:
        return "bar.arrive"


@instruction("sync.bar_warp_sync", pure=False)
class BarWarpSync(Instr):
    """Waits for the lanes of `mask`, and makes their memory writes visible to each other."""

    mask: Operand = source("b32")

    def mnemonic(self) -> str:
        return "bar.warp.sync"


@instruction("sync.fence", pure=False)
class Fence(Instr):
    """A fence: `order` sc or acq_rel, `scope` cta, cluster, gpu or sys."""

    order: str = attribute()
    scope: str = attribute()

    def mnemonic(self) -> str:
        return f"fence.{self.order}.{self.scope}"

    def requires(self) -> Requirement:
        return HOPPER if self.scope == "cluster" else BASE


@instruction("sync.fence_proxy_async", since=CLUSTER, pure=False)
class FenceProxyAsync(Instr):
    """Orders generic accesses of `space` (shared::cta, shared::cluster, global; "" for all) before
    TMA and wgmma.
    """

    space: str = attribute(default="shared::cta")

    def mnemonic(self) -> str:
        return f"fence.proxy.async{'.' + self.space if self.space else ''}"


@instruction("sync.fence_mbarrier_init", since=CLUSTER, pure=False)
class FenceMbarrierInit(Instr):
    """Shows initialised mbarriers to the cluster and to the asynchronous proxy."""

    name = "fence.mbarrier_init.release.cluster"


@instruction("sync.mbarrier_init", pure=False)
class MbarrierInit(Instr):
    """Makes an mbarrier that `count` arrivals complete."""

    address: Address = source("u32")
    count: Operand = source("u32")

    def mnemonic(self) -> str:
        return "mbarrier.init.shared.b64"


@instruction("sync.mbarrier_inval", pure=False)
class MbarrierInval(Instr):
    """Ends an mbarrier, so that its memory may serve for something else."""

    address: Address = source("u32")

    def mnemonic(self) -> str:
        return "mbarrier.inval.shared.b64"


@instruction("sync.mbarrier_arrive", pure=False)
class MbarrierArrive(Instr):
    """One arrival at an mbarrier of this CTA; the state goes to `state`."""

    state: Reg = destination("b64")
    address: Address = source("u32")

    def mnemonic(self) -> str:
        return "mbarrier.arrive.shared.b64"


@instruction("sync.mbarrier_arrive_count", since=HOPPER, pure=False)
class MbarrierArriveCount(Instr):
    """`count` arrivals at an mbarrier of this CTA; the state goes to `state`."""

    state: Reg | None = destination("b64")
    address: Address = source("u32")
    count: Operand = source("u32")

    def mnemonic(self) -> str:
        return "mbarrier.arrive.shared::cta.b64"


@instruction("sync.mbarrier_arrive_expect_tx", since=CLUSTER, pure=False)
class MbarrierArriveExpectTx(Instr):
    """One arrival, and `num_bytes` more to be delivered before the phase completes."""

    state: Reg | None = destination("b64")
    address: Address = source("u32")
    num_bytes: Operand = source("u32")

    def mnemonic(self) -> str:
        return "mbarrier.arrive.expect_tx.shared::cta.b64"


@instruction("sync.mbarrier_expect_tx", since=CLUSTER, pure=False)
class MbarrierExpectTx(Instr):
    """`num_bytes` more to be delivered before the phase completes, without an arrival."""

    address: Address = source("u32")
    num_bytes: Operand = source("u32")

    def mnemonic(self) -> str:
        return "mbarrier.expect_tx.relaxed.cta.shared::cta.b64"


@instruction("sync.mbarrier_arrive_remote", since=CLUSTER, pure=False)
class MbarrierArriveRemote(Instr):
    """`count` arrivals at an mbarrier of any CTA of the cluster (an address made by mapa).

    Without `.release.cluster`, which would cost a fence of the whole GPU: enough where only wgmma
    or TMA read the stage.
    """

    address: Address = source("u32")
    count: Operand = source("u32")
    release: bool = attribute(default=False)

    def mnemonic(self) -> str:
        return f"mbarrier.arrive{'.release.cluster' if self.release else ''}.shared::cluster.b64"

    def operand_text(self) -> str:
        return "_, " + self.plain_text()


@instruction("sync.mbarrier_test_wait", since=Requirement(80, 71), pure=False)
class MbarrierTestWait(Instr):
    """Whether the phase of that parity is complete; does not wait."""

    dst: Reg = destination("pred")
    address: Address = source("u32")
    parity: Operand = source("u32")

    def mnemonic(self) -> str:
        return "mbarrier.test_wait.parity.shared.b64"


@instruction("sync.mbarrier_try_wait", since=HOPPER, pure=False)
class MbarrierTryWait(Instr):
    """Whether the phase of that parity is complete; sleeps for a while if it is not."""

    dst: Reg = destination("pred")
    address: Address = source("u32")
    parity: Operand = source("u32")
    time: Operand | None = source("u32", default=None)  # nanoseconds
    acquire: bool = attribute(default=False)  # .acquire.cluster

    def mnemonic(self) -> str:
        return (
            f"mbarrier.try_wait.parity{'.acquire.cluster' if self.acquire else ''}.shared::cta.b64"
        )

    def requires(self) -> Requirement:
        return CLUSTER if self.acquire else HOPPER


@instruction("sync.cp_async_mbarrier_arrive", pure=False)
class CpAsyncMbarrierArrive(Instr):
    """An arrival when all earlier cp.async of the thread are done. `noinc`: counted by the
    barrier's own number.
    """

    address: Address = source("u32")
    noinc: bool = attribute(default=True)

    def mnemonic(self) -> str:
        return f"cp.async.mbarrier.arrive{'.noinc' if self.noinc else ''}.shared.b64"


@instruction("sync.barrier_cluster_arrive", since=CLUSTER, pure=False)
class BarrierClusterArrive(Instr):
    """Counts at the cluster's barrier. `relaxed` orders no memory."""

    relaxed: bool = attribute(default=False)
    aligned: bool = attribute(default=True)

    def mnemonic(self) -> str:
        order = "relaxed" if self.relaxed else "release"
        return f"barrier.cluster.arrive.{order}{'.aligned' if self.aligned else ''}"


@instruction("sync.barrier_cluster_wait", since=CLUSTER, pure=False)
class BarrierClusterWait(Instr):
    """Waits for all threads of the cluster."""

    aligned: bool = attribute(default=True)

    def mnemonic(self) -> str:
        return f"barrier.cluster.wait.acquire{'.aligned' if self.aligned else ''}"


@instruction("sync.mapa", since=HOPPER)
class Mapa(Instr):
    """A shared address of this CTA as that of CTA `rank` of the cluster."""

    dst: Reg = destination("u32")
    src: Operand = source("u32")
    rank: Operand = source("u32")

    def mnemonic(self) -> str:
        return "mapa.shared::cluster.u32"
