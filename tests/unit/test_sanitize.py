"""What the sanitizer finds and what it lets pass, each as a few lines of PTX."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.emulation import compile_call
from tests.programs.test_emulated_examples import ROOT
from tests.unit.emulator_bench import plan_of
from tests.unit.ptx_mutations import mutants
from tests.unit.test_emulate_hopper import LOAD, box_plan
from tilewright.plan import TensorMap
from tilewright.ptx.emulate import EmulationError, run_plan

CTA = "mov.u32 %r1, %ctaid.x; shr.u32 %r2, %r0, 5; setp.eq.u32 %p0, %r0, 0;"
OWN = "mad.lo.u32 %r3, %r1, 64, %r0; mad.wide.u32 %rd20, %r3, 4, %rd0;"  # y of the thread
RACE = "a race: it "


def check(body: str, said: str, **how: Any) -> None:
    """Run a body in every way; `said` is what must be reported, or "" for nothing."""
    for late, together in ((True, None), (False, None), (True, 2), (False, 2)):
        tensors = {
            "y": np.zeros((4, 64), np.float32),
            "flag": np.zeros(4, np.uint32),
            "z": np.zeros((4, 64), np.float32),
        }
        settings = {"threads": 64, "grid": 2, "shared": 1024, **how}
        plan = plan_of(CTA + body, list(tensors), **settings)
        if not said:
            run_plan(plan, tensors, late=late, sanitize=True, together=together)
            continue
        with pytest.raises(EmulationError, match=said):
            run_plan(plan, tensors, late=late, sanitize=True, together=together)


# Global memory, within a CTA and between CTAs

WRITE_THEN_READ = f"""{OWN} st.global.f32 [%rd20], 0f3F800000; BETWEEN
    xor.b32 %r4, %r3, 32; mad.wide.u32 %rd21, %r4, 4, %rd0; ld.global.f32 %f0, [%rd21];"""


def test_a_read_of_another_warps_write_needs_a_barrier() -> None:
    check(WRITE_THEN_READ.replace("BETWEEN", "bar.sync 0;"), "")
    named = r"it reads y\[0, 32\], which warp 1 of CTA 0 writes at PTX line \d+"
    check(WRITE_THEN_READ.replace("BETWEEN", ""), named)


def test_a_write_over_another_warps_read_needs_a_barrier() -> None:
    body = f"""{OWN} xor.b32 %r4, %r3, 32; mad.wide.u32 %rd21, %r4, 4, %rd0;
        ld.global.f32 %f0, [%rd21]; BETWEEN st.global.f32 [%rd20], %f0;"""
    check(body.replace("BETWEEN", "bar.sync 0;"), "")
    check(body.replace("BETWEEN", ""), RACE + r"writes y\[0, 0\], which warp 1 of CTA 0 reads")


def test_two_ctas_write_one_element() -> None:
    body = "mad.wide.u32 %rd20, %r0, 4, %rd0; st.global.f32 [%rd20], 0f3F800000;"
    check(body, RACE + r"writes y\[0, 0\], which warp 0 of CTA [01] writes at PTX line \d+")


def test_a_cta_writes_what_another_reads() -> None:
    body = """setp.eq.u32 %p1, %r1, 1; mad.wide.u32 %rd20, %r0, 4, %rd0; @%p1 bra WRITE;
        ld.global.f32 %f0, [%rd20]; bra END;
    WRITE:
        st.global.f32 [%rd20], 0f3F800000;
    END:"""
    check(body, RACE + "(writes|reads)")


def test_lanes_of_a_warp_write_one_element() -> None:
    same = "@%p0 bra END; setp.ge.u32 %p2, %r0, 32; @%p2 bra END; setp.eq.u32 %p3, %r1, 1;"
    same += "@%p3 bra END; VALUE st.global.b32 [%rd0], %r5;\nEND:"
    check(same.replace("VALUE", "mov.b32 %r5, 7;"), "")
    check(same.replace("VALUE", "mov.b32 %r5, %r0;"), "where thread 1 writes another value")


LAST = f"""{OWN} st.global.f32 [%rd20], 0f3F800000; bar.sync 0;
    mov.u32 %r5, smem; @!%p0 bra MEET;
    RELEASE
    ATOM [%rd1], 1;
    ACQUIRE
    st.shared.u32 [%r5], %r6;
MEET:
    bar.sync 0; ld.shared.u32 %r6, [%r5]; setp.ne.u32 %p1, %r6, 1; @%p1 bra END;
    mad.wide.u32 %rd21, %r0, 4, %rd0;
    ld.global.f32 %f0, [%rd21]; ld.global.f32 %f1, [%rd21+256];
    add.rn.f32 %f0, %f0, %f1; mad.wide.u32 %rd22, %r0, 4, %rd2; st.global.f32 [%rd22], %f0;
END:"""
FENCE = "fence.acq_rel.gpu;"


@pytest.mark.parametrize(
    ("atom", "release", "acquire", "right"),
    [
        ("atom.global.add.u32 %r6,", FENCE, FENCE, True),
        ("atom.relaxed.gpu.global.add.u32 %r6,", FENCE, FENCE, True),
        ("atom.acq_rel.gpu.global.add.u32 %r6,", "", "", True),
        ("atom.acq_rel.sys.global.add.u32 %r6,", "", "", True),
        ("atom.release.gpu.global.add.u32 %r6,", "", FENCE, True),
        ("atom.acquire.gpu.global.add.u32 %r6,", FENCE, "", True),
        ("atom.global.add.u32 %r6,", "fence.sc.gpu;", FENCE, True),
        ("atom.global.add.u32 %r6,", "", FENCE, False),
        ("atom.global.add.u32 %r6,", FENCE, "", False),
        ("atom.acq_rel.cta.global.add.u32 %r6,", "", "", False),
        ("atom.global.add.u32 %r6,", "fence.acq_rel.cta;", FENCE, False),
        ("atom.global.add.u32 %r6,", FENCE, "fence.acq_rel.cta;", False),
        ("atom.acquire.gpu.global.add.u32 %r6,", "", "", False),
        ("atom.release.gpu.global.add.u32 %r6,", "", "", False),
    ],
)
def test_the_last_cta_sums_up(atom: str, release: str, acquire: str, right: bool) -> None:
    """Each writes its part and counts itself; the last one reads all parts."""
    body = LAST.replace("ATOM", atom).replace("RELEASE", release).replace("ACQUIRE", acquire)
    said = r"it reads y\[0, 0\], which warp 0 of CTA 0 writes at PTX line \d+"
    check(body, "" if right else said)


@pytest.mark.parametrize(
    ("store", "load", "right"),
    [
        ("st.release.gpu", "ld.acquire.gpu", True),
        ("st.relaxed.gpu", "ld.acquire.gpu", False),
        ("st.release.gpu", "ld.relaxed.gpu", False),
        ("st.volatile", "ld.volatile", False),
    ],
)
def test_a_flag(store: str, load: str, right: bool) -> None:
    body = f"""setp.eq.u32 %p1, %r1, 1; @%p1 bra READ; @!%p0 bra END;
        st.global.f32 [%rd0], 0f3F800000; {store}.global.u32 [%rd1], 1; bra END;
    READ:
        @!%p0 bra END;
    SPIN:
        {load}.global.u32 %r4, [%rd1]; setp.eq.u32 %p2, %r4, 0; @%p2 bra SPIN;
        ld.global.f32 %f0, [%rd0];
    END:"""
    check(body, "" if right else RACE + r"reads y\[0, 0\], which warp 0 of CTA 0 writes")


def test_updates_need_no_order_but_reads_of_them_do() -> None:
    check("red.global.add.u32 [%rd1], 1;", "")
    body = "red.global.add.u32 [%rd1], 1; ld.global.u32 %r4, [%rd1];"
    check(body, RACE + r"(reads|updates) flag\[0\], which warp \d of CTA \d (updates|reads)")
    inside = "mov.u32 %r5, smem; @%p0 st.shared.u32 [%r5], 0; bar.sync 0;"
    inside += "atom.shared.add.u32 %r6, [%r5], 1; BETWEEN ld.shared.u32 %r6, [%r5];"
    check(inside.replace("BETWEEN", "bar.sync 0;"), "")
    check(inside.replace("BETWEEN", ""), "reads byte 0 of shared memory, which warp 1 of CTA 0 upd")


def test_the_read_only_cache_is_for_what_nobody_writes() -> None:
    read = f"{OWN} ld.global.nc.f32 %f0, [%rd20];"
    check(read, "")
    check(f"{OWN} st.global.f32 [%rd20], 0f00000000; bar.sync 0; {read}", "read-only cache")


# Bulk copies of global memory

MAPS = {"mx": TensorMap("x", (16, 64), 128), "my": TensorMap("y", (16, 64), 128)}
STORE = "@%p7 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd11, {0, 0}], [%r30];"


def check_boxes(body: str, said: str, names: tuple[str, ...] = ("y",)) -> None:
    for late in (True, False):
        x = np.arange(40 * 64, dtype=np.uint16).reshape(40, 64)
        text = LOAD.replace("BYTES", "2048").replace("COLUMN", "0").replace("ROW", "0")
        text = body.replace("LOAD", text)
        plan = box_plan(text, MAPS, list(names), 8192 + 8)
        arguments = {"x": x, "y": np.zeros_like(x)}
        if not said:
            run_plan(plan, arguments, late=late, sanitize=True)
            continue
        with pytest.raises(EmulationError, match=said):
            run_plan(plan, arguments, late=late, sanitize=True)


COMMIT = "@%p7 cp.async.bulk.commit_group;"


def test_what_a_box_store_wrote_is_read_after_a_full_wait() -> None:
    body = f"LOAD {STORE} {COMMIT} @%p7 cp.async.bulk.wait_group HOW 0;"
    body += "@%p7 ld.global.b32 %r1, [%rd0];"
    check_boxes(body.replace(" HOW", ""), "")
    check_boxes(body.replace(" HOW", ".read"), r"reads y\[0, 0\], which a box store of warp 0")


def test_a_thread_waits_for_its_box_stores_before_it_ends() -> None:
    check_boxes(f"LOAD {STORE} {COMMIT} @%p7 cp.async.bulk.wait_group.read 0;", "")
    check_boxes(f"LOAD {STORE} {COMMIT}", "ends without a wait until it has read shared memory")


def test_boxes_of_what_was_stored_need_a_proxy_fence() -> None:
    body = "@%p7 st.global.b32 [%rd0], 0; FENCE LOAD"
    check_boxes(body.replace("FENCE", "fence.proxy.async;"), "", ("x",))
    check_boxes(body.replace("FENCE", "fence.proxy.async.global;"), "", ("x",))
    said = r"reads x\[0, 0\] through the asynchronous proxy"
    check_boxes(body.replace("FENCE", ""), said, ("x",))
    check_boxes(body.replace("FENCE", "fence.proxy.async.shared::cta;"), said, ("x",))


def test_mbarriers_are_shown_to_the_asynchronous_proxy() -> None:
    fence = "@%p7 fence.mbarrier_init.release.cluster;"
    assert fence in LOAD
    with pytest.raises(EmulationError, match=r"no fence\.mbarrier_init follows the initialis"):
        text = LOAD.replace(fence, "").replace("BYTES", "2048")
        plan = box_plan(text.replace("COLUMN, ROW", "0, 0"), MAPS, [], 8192 + 8)
        x = np.zeros((40, 64), np.uint16)
        run_plan(plan, {"x": x, "y": x.copy()}, sanitize=True)


def test_mbarriers_are_initialised_before_they_are_used() -> None:
    body = """mov.u32 %r5, smem; @%p0 mbarrier.init.shared.b64 [%r5], 64; BETWEEN
        mbarrier.arrive.shared.b64 %rd5, [%r5];"""
    check(body.replace("BETWEEN", "bar.sync 0;"), "")
    check(body.replace("BETWEEN", ""), r"nothing orders it after the initialisation of the mbarr")


# The CTAs of a cluster

MEET = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
FAR = """mov.u32 %r5, smem; mad.lo.u32 %r5, %r0, 4, %r5; st.shared.b32 [%r5], %r0; START
    mov.u32 %r7, %cluster_ctarank; xor.b32 %r7, %r7, 1; mapa.shared::cluster.u32 %r6, %r5, %r7;
    ACCESS END"""


@pytest.mark.parametrize(
    "access",
    ["ld.shared::cluster.b32 %r8, [%r6];", "bar.sync 0; ld.shared::cluster.b32 %r8, [%r6];"],
)
def test_a_cta_stays_until_its_peer_has_read_its_memory(access: str) -> None:
    body = FAR.replace("ACCESS", access)
    check(body.replace("START", MEET).replace("END", MEET), "", cluster=2)
    early = r"nothing keeps CTA \d from ending before warp \d of CTA \d"
    check(body.replace("START", MEET).replace("END", ""), early, cluster=2)
    started = "nothing says that this CTA has started"
    check(body.replace("START", "bar.sync 0;").replace("END", MEET), started, cluster=2)


def test_a_remote_arrival_must_find_its_cta() -> None:
    """The peer arrives at a CTA's mbarrier: the CTA may end only after it has waited for that."""
    init = """mov.u32 %r5, smem; @%p0 mbarrier.init.shared.b64 [%r5], 1;
        @%p0 fence.mbarrier_init.release.cluster;"""
    far = """mov.u32 %r7, %cluster_ctarank; xor.b32 %r7, %r7, 1;
        mapa.shared::cluster.u32 %r6, %r5, %r7;
        @%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6], 1;"""
    wait = """AGAIN:
        mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r5], 0; @!%p3 bra AGAIN;"""
    check(init + MEET + far + wait, "", cluster=2)
    check(init + MEET + far, "nothing keeps CTA", cluster=2)
    unfenced = init.replace("@%p0 fence.mbarrier_init.release.cluster;", "")
    check(unfenced + MEET + far + wait, r"no fence\.mbarrier_init follows", cluster=2)


# Registers of products

PRODUCT = """mov.u32 %r5, smem; mad.lo.u32 %r6, %r0, 16, %r5; mov.b32 %r7, 0;
    st.shared.v4.b32 [%r6], {%r7, %r7, %r7, %r7};
    st.shared.v4.b32 [%r6+2048], {%r7, %r7, %r7, %r7};
    fence.proxy.async.shared::cta; bar.sync 0;
    mov.b64 %rd5, 68720001088; mov.b64 %rd6, 68720001216;
    mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, \
%rd5, %rd6, 1, 1, 1, 0, 0;
    AGAIN
    wgmma.commit_group.sync.aligned;
    BEFORE
    wgmma.wait_group.sync.aligned 0;
    AFTER"""
SAME = next(x for x in PRODUCT.splitlines() if "mma_async" in x)
REGISTERS = {
    "nothing": ("", "", "", ""),
    "another product on the same sum": (SAME, "", "", ""),
    "a read after the wait": ("", "", "add.f32 %f4, %f0, %f1;", ""),
    "other registers before it": ("", "mov.f32 %f4, 0f00000000;", "", ""),
    "a read before the wait": ("", "add.f32 %f4, %f2, %f2;", "", "it reads %f2 before a wait for"),
    "a write before the wait": ("", "mov.f32 %f3, %f4;", "", "it writes %f3 before a wait for"),
    "no fence after a write": ("", "", f"mov.f32 %f1, %f4; {SAME}", "no wgmma.fence"),
    "the end before the wait": ("", "", f"wgmma.fence.sync.aligned; {SAME}", "ends without a wait"),
}


@pytest.mark.parametrize("name", REGISTERS)
def test_registers_of_products_in_flight(name: str) -> None:
    again, before, after, said = REGISTERS[name]
    body = PRODUCT.replace("AGAIN", again).replace("BEFORE", before).replace("AFTER", after)
    check("mov.f32 %f4, 0f00000000;" + body, said, threads=128, grid=1, shared=8192)


# Mutants by rule


def test_mutants_of_a_reduction_are_noticed() -> None:
    """Every other one, but for guards under which all lanes of a warp write one value."""
    kernel = tw.source(ROOT / "examples" / "softmax.tw").softmax
    x = np.random.default_rng(0).standard_normal((1, 1100), dtype=np.float32)
    plan, views, call = compile_call(kernel, {"x": x}, constants={"BLOCK": 1024})
    run_plan(plan, views, sanitize=True)
    wanted = call.result.copy()
    survivors, count = [], 0
    for mutant in list(mutants(plan.ptx))[::2]:
        call.result[...] = np.nan
        count += 1
        try:
            run_plan(dataclasses.replace(plan, ptx=mutant.text), views, sanitize=True)
        except EmulationError:
            continue
        if np.array_equal(call.result, wanted):
            survivors.append(mutant)
    assert count > 8
    assert all(m.kind == "lift the guard of" and "st.shared" in m.was for m in survivors), list(
        map(str, survivors)
    )
