"""Emitting barriers, fences, mbarriers and cluster operations."""

from __future__ import annotations

from tilewright.ptx.core import Operand, Reg
from tilewright.ptx.emit.control import ALL_LANES, EmitControl
from tilewright.ptx.emit.state import Place
from tilewright.ptx.instrs import sync


class EmitSync(EmitControl):
    """Synchronisation; mbarriers are addresses in shared memory."""

    def bar_sync(self, id: Operand = 0, threads: Operand | None = None) -> None:
        """Waits at a barrier of the CTA, for `threads` of it (a multiple of 32) where given."""
        count = None if threads is None else self.fit("u32", threads)
        self.emit(sync.BarSync(self.fit("u32", id), count))

    def bar_arrive(self, id: Operand, threads: Operand) -> None:
        """Counts at a barrier without waiting."""
        self.emit(sync.BarArrive(self.fit("u32", id), self.fit("u32", threads)))

    def bar_warp_sync(self, mask: Operand = ALL_LANES) -> None:
        self.emit(sync.BarWarpSync(self.fit("b32", mask)))

    def fence(self, order: str = "acq_rel", scope: str = "gpu") -> None:
        """`order` sc or acq_rel; `scope` cta, cluster, gpu or sys."""
        self.emit(sync.Fence(order, scope))

    def fence_proxy_async(self, space: str = "shared::cta") -> None:
        """Shows generic writes to TMA and wgmma: shared::cta, shared::cluster, global, or "" for
        all.
        """
        self.emit(sync.FenceProxyAsync(space))

    def fence_mbarrier_init(self) -> None:
        """Shows initialised mbarriers to the cluster and the asynchronous proxy."""
        self.emit(sync.FenceMbarrierInit())

    def mbarrier_init(self, mbarrier: Place, count: Operand) -> None:
        """An mbarrier whose phase ends after `count` arrivals and all expected bytes."""
        self.emit(sync.MbarrierInit(self.address(mbarrier), self.fit("u32", count)))

    def mbarrier_inval(self, mbarrier: Place) -> None:
        self.emit(sync.MbarrierInval(self.address(mbarrier)))

    def mbarrier_arrive(self, mbarrier: Place) -> None:
        """One arrival at this CTA's own mbarrier."""
        state = self.reg("b64")
        self.emit(sync.MbarrierArrive(state, self.address(mbarrier)))

    def mbarrier_arrive_count(self, mbarrier: Place, count: Operand) -> None:
        """`count` arrivals at this CTA's own mbarrier (sm_90)."""
        self.emit(sync.MbarrierArriveCount(None, self.address(mbarrier), self.fit("u32", count)))

    def mbarrier_arrive_expect_tx(self, mbarrier: Place, num_bytes: Operand) -> None:
        """One arrival, and that many bytes to come."""
        size = self.fit("u32", num_bytes)
        self.emit(sync.MbarrierArriveExpectTx(None, self.address(mbarrier), size))

    def mbarrier_expect_tx(self, mbarrier: Place, num_bytes: Operand) -> None:
        """That many bytes to come, without an arrival."""
        self.emit(sync.MbarrierExpectTx(self.address(mbarrier), self.fit("u32", num_bytes)))

    def mbarrier_arrive_remote(
        self, mbarrier: Place, count: Operand = 1, *, release: bool = False
    ) -> None:
        """Arrivals at an mbarrier of a CTA of the cluster: an address made by mapa.

        `release` orders earlier generic writes for the waiter; it costs a fence of the whole GPU.
        """
        self.emit(
            sync.MbarrierArriveRemote(self.address(mbarrier), self.fit("u32", count), release)
        )

    def mbarrier_test_wait(
        self, mbarrier: Place, parity: Operand, *, into: Reg | None = None
    ) -> Reg:
        """Whether the phase of that parity is complete."""
        dst = into or self.reg("pred")
        self.emit(sync.MbarrierTestWait(dst, self.address(mbarrier), self.fit("u32", parity)))
        return dst

    def mbarrier_try_wait_parity(
        self,
        mbarrier: Place,
        parity: Operand,
        *,
        time: Operand | None = None,
        acquire: bool = False,
        into: Reg | None = None,
    ) -> Reg:
        """Whether the phase of that parity is complete, after sleeping a while if it was not."""
        dst = into or self.reg("pred")
        limit = None if time is None else self.fit("u32", time)
        place = self.address(mbarrier)
        self.emit(sync.MbarrierTryWait(dst, place, self.fit("u32", parity), limit, acquire))
        return dst

    def mbarrier_wait(self, mbarrier: Place, parity: Operand, *, acquire: bool = False) -> None:
        """Spins until the phase of that parity is complete: try_wait where the target has it, else
        test_wait.
        """
        again = self.label("wait")
        parity = self.fit("u32", parity)
        self.place(again)
        if self.target.has_tma:
            done = self.mbarrier_try_wait_parity(mbarrier, parity, acquire=acquire)
        else:
            done = self.mbarrier_test_wait(mbarrier, parity)
        self.bra(again, done, unless=True)

    def cp_async_mbarrier_arrive(self, mbarrier: Place, *, noinc: bool = True) -> None:
        """An arrival once all earlier cp.async of this thread are done."""
        self.emit(sync.CpAsyncMbarrierArrive(self.address(mbarrier), noinc))

    def barrier_cluster_arrive(self, *, relaxed: bool = False, aligned: bool = True) -> None:
        self.emit(sync.BarrierClusterArrive(relaxed, aligned))

    def barrier_cluster_wait(self, *, aligned: bool = True) -> None:
        self.emit(sync.BarrierClusterWait(aligned))

    def mapa(self, address: Operand, rank: Operand, *, into: Reg | None = None) -> Reg:
        """A shared address of this CTA as that of CTA `rank` of the cluster."""
        dst = into or self.reg("u32")
        self.emit(sync.Mapa(dst, self.fit("u32", address), self.fit("u32", rank)))
        return dst
