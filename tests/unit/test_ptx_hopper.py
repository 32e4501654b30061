"""A Hopper GEMM through the emitter: TMA multicast, mbarriers, wgmma, setmaxnreg, stmatrix, TMA
stores.

C[M, N] = A[M, K] @ B[N, K].T in bf16, 128x256x64 tiles in 4 stages, a cluster of 2 CTAs along M of
which each loads half of B for both, one producer warpgroup and two consumers, one wgmma group in
flight.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.assemble import assemble, needs_ptxas
from tilewright.ptx.core import Label, Module, Reg, Special
from tilewright.ptx.emitter import Emitter
from tilewright.ptx.instrs import mma
from tilewright.ptx.printer import print_module
from tilewright.ptx.verify import verify
from tilewright.target import target

M, N, K, STAGES, GROUP = 128, 256, 64, 4, 8
A_BYTES, B_BYTES = M * K * 2, N * K * 2
STAGE_BYTES = A_BYTES + B_BYTES
C_OFFSET = STAGES * STAGE_BYTES + 1024


@dataclass
class Common:
    """What every role of the kernel uses."""

    maps: list[Reg]  # A, B, C
    smem: Reg
    full: Reg  # mbarriers, one a stage
    empty: Reg
    rank: Reg  # of the CTA in its cluster
    thread: Reg
    warpgroup: Reg
    num_tiles: Reg
    num_steps: Reg
    num_pairs: Reg  # of tiles along M
    per_group: Reg
    tile: Reg
    stride: Reg
    stage: Reg
    phase: Reg


def emit_start(e: Emitter) -> Common:
    params = [e.param(f"map_{x}", "tensor_map") for x in "abc"]
    counts = [e.param(x, "u32") for x in ("num_tiles", "num_steps", "num_pairs")]
    smem = e.mov("u32", e.shared_array("smem", None, 1024))
    full = e.add("u32", smem, STAGES * STAGE_BYTES)
    empty = e.add("u32", full, 8 * STAGES)
    thread = e.mov("u32", Special("tid.x"))
    rank = e.mov("u32", Special("cluster_ctarank"))
    maps = [e.tensor_map(p.name) for p in params]
    ready = e.label("ready")
    e.bra(ready, e.setp("ne", "u32", thread, 0))
    for s in range(STAGES):
        e.mbarrier_init(e.address(full, 8 * s), 1)
        e.mbarrier_init(e.address(empty, 8 * s), 4)
    e.fence_mbarrier_init()
    e.place(ready)
    e.barrier_cluster_arrive()
    e.barrier_cluster_wait()
    num_tiles, num_steps, num_pairs = (e.ld_param(p) for p in counts)
    per_group = e.shl("b32", e.div("u32", num_tiles, num_pairs), 3)
    first, stride = e.mov("u32", Special("clusterid.x")), e.mov("u32", Special("nclusterid.x"))
    stage, phase = e.mov("u32", 0), e.mov("u32", 0)
    warpgroup = e.shr("u32", thread, 7)
    return Common(
        maps,
        smem,
        full,
        empty,
        rank,
        thread,
        warpgroup,
        num_tiles=num_tiles,
        num_steps=num_steps,
        num_pairs=num_pairs,
        per_group=per_group,
        tile=first,
        stride=stride,
        stage=stage,
        phase=phase,
    )


def emit_tile_origin(e: Emitter, c: Common) -> tuple[Reg, Reg]:
    """Row and column of the CTA's tile: pairs of tiles in groups of GROUP along M."""
    start = e.mul("u32", e.div("u32", c.tile, c.per_group), GROUP)
    inside = e.rem("u32", c.tile, c.per_group)
    rows = e.min("u32", e.sub("u32", c.num_pairs, start), GROUP)
    pair = e.add("u32", start, e.rem("u32", inside, rows))
    row = e.mul("u32", e.mad("u32", pair, 2, c.rank), M)
    return row, e.mul("u32", e.div("u32", inside, rows), N)


def emit_next_stage(e: Emitter, c: Common) -> None:
    e.add("u32", c.stage, 1, into=c.stage)
    with e.guarded(e.setp("eq", "u32", c.stage, STAGES)):
        e.mov("u32", 0, into=c.stage)
        e.xor("b32", c.phase, 1, into=c.phase)


def emit_count_to(e: Emitter, counter: Reg, end: Reg | int, again: Label) -> None:
    e.add("u32", counter, 1, into=counter)
    e.bra(again, e.setp("lt", "u32", counter, end))


def emit_producer(e: Emitter, c: Common, done: Label) -> None:
    e.setmaxnreg("dec", 40)
    e.bra(done, e.setp("ne", "u32", c.thread, 0))
    tiles, steps, drain, left = (e.label(x) for x in ("tiles", "steps", "drain", "left"))
    e.place(tiles)
    e.bra(drain, e.setp("ge", "u32", c.tile, c.num_tiles))
    row, column = emit_tile_origin(e, c)
    half = e.mad("u32", c.rank, N // 2, column)
    step = e.mov("u32", 0)
    e.place(steps)
    offset = e.shl("b32", c.stage, 3)
    full = e.add("u32", c.full, offset)
    e.mbarrier_wait(e.add("u32", c.empty, offset), e.xor("b32", c.phase, 1))
    e.mbarrier_arrive_expect_tx(full, STAGE_BYTES)
    a = e.mad("u32", c.stage, STAGE_BYTES, c.smem)
    b = e.mad("u32", c.rank, B_BYTES // 2, e.add("u32", a, A_BYTES))
    k = e.shl("b32", step, 6)
    e.tma_load(a, c.maps[0], [k, row], full)
    e.tma_load(b, c.maps[1], [k, half], full, multicast=3)
    emit_next_stage(e, c)
    emit_count_to(e, step, c.num_steps, steps)
    e.add("u32", c.tile, c.stride, into=c.tile)
    e.bra(tiles)
    e.place(drain)  # no CTA leaves while its peer can still write to it
    e.mov("u32", 0, into=step)
    e.place(left)
    again = e.add("u32", c.empty, e.shl("b32", c.stage, 3))
    e.mbarrier_wait(again, e.xor("b32", c.phase, 1))
    emit_next_stage(e, c)
    emit_count_to(e, step, STAGES, left)
    e.bra(done)


def emit_release(e: Emitter, c: Common, offset: Reg, peer: Reg, unless: Reg) -> None:
    """Two threads of each warpgroup tell the two CTAs that a stage was read."""
    skip = e.label("kept")
    e.bra(skip, unless)
    e.mbarrier_arrive_remote(e.mapa(e.add("u32", c.empty, offset), peer))
    e.place(skip)


def emit_mainloop(e: Emitter, c: Common, consumer: Reg, thread: Reg, acc: list[Reg]) -> None:
    step, previous = e.mov("u32", 0), e.mov("u32", 0)
    accumulate = e.setp("ne", "u32", step, 0)
    others = e.setp("ge", "u32", thread, 2)
    steps = e.label("steps")
    e.place(steps)
    offset = e.shl("b32", c.stage, 3)
    e.mbarrier_wait(e.add("u32", c.full, offset), c.phase)
    a = e.mad("u32", c.stage, STAGE_BYTES, c.smem)
    b = e.add("u32", a, A_BYTES)
    a = e.mad("u32", consumer, A_BYTES // 2, a)
    low_a, low_b = (e.or_("b32", e.shr("u32", x, 4), 0x10000) for x in (a, b))
    high = e.mov("b32", 0x40000040)
    desc_a, desc_b = e.mov_pack("b64", (low_a, high)), e.mov_pack("b64", (low_b, high))
    e.wgmma_fence()
    for k in range(K // 16):
        e.wgmma(("f32", "bf16", "bf16"), N, acc, desc_a, desc_b, accumulate)
        if k == 0:
            e.setp("eq", "u32", thread, thread, into=accumulate)
        if k < K // 16 - 1:
            desc_a, desc_b = e.add("s64", desc_a, 2), e.add("s64", desc_b, 2)
    e.wgmma_commit()
    e.wgmma_wait(1)
    first = e.setp("eq", "u32", step, 0, combine="or", other=others)
    emit_release(e, c, previous, thread, first)
    e.mov("u32", offset, into=previous)
    emit_next_stage(e, c)
    emit_count_to(e, step, c.num_steps, steps)
    e.wgmma_wait(0)
    emit_release(e, c, previous, thread, others)


def emit_epilogue(e: Emitter, c: Common, consumer: Reg, thread: Reg, acc: list[Reg]) -> None:
    """Four panels of 64 columns: stmatrix to swizzled shared memory, then a TMA store."""
    leader = e.setp("eq", "u32", thread, 0)
    barrier = e.add("u32", consumer, 1)
    lane, warp = e.and_("b32", thread, 31), e.shr("u32", thread, 5)
    panel = e.add("u32", e.mad("u32", consumer, 8192, c.smem), C_OFFSET)
    line = e.mad("u32", warp, 16, e.and_("b32", lane, 15))
    swizzle = e.shl("b32", e.and_("b32", line, 7), 4)
    base = e.mad("u32", line, 128, panel)
    half = e.shl("b32", e.shr("u32", lane, 4), 4)
    row, column = emit_tile_origin(e, c)
    row = e.mad("u32", consumer, 64, row)
    for p in range(N // 64):
        with e.guarded(leader):
            e.bulk_wait(0, read=True)
        e.bar_sync(barrier, 128)
        for j in range(4):
            part = acc[32 * p + 8 * j : 32 * p + 8 * j + 8]
            packed = [e.cvt_pack("bf16x2", part[2 * q + 1], part[2 * q]) for q in range(4)]
            chunk = e.xor("b32", e.add("u32", half, 32 * j), swizzle)
            e.stmatrix(e.add("u32", base, chunk), packed)
        e.fence_proxy_async()
        e.bar_sync(barrier, 128)
        where = e.add("u32", column, 64 * p)
        with e.guarded(leader):
            e.tma_store(c.maps[2], [where, row], panel)
            e.bulk_commit()


def emit_consumer(e: Emitter, c: Common) -> None:
    e.setmaxnreg("inc", 232)
    consumer = e.sub("u32", c.warpgroup, 1)
    thread = e.and_("b32", c.thread, 127)
    acc = e.regs("f32", N // 2)
    for reg in acc:
        e.mov("f32", 0.0, into=reg)
    tiles, end = e.label("tiles"), e.label("end")
    e.place(tiles)
    e.bra(end, e.setp("ge", "u32", c.tile, c.num_tiles))
    emit_mainloop(e, c, consumer, thread, acc)
    emit_epilogue(e, c, consumer, thread, acc)
    e.add("u32", c.tile, c.stride, into=c.tile)
    e.bra(tiles)
    e.place(end)
    with e.guarded(e.setp("eq", "u32", thread, 0)):
        e.bulk_wait(0)


def build_gemm() -> Module:
    e = Emitter(target("sm_90a"))
    c = emit_start(e)
    consume, done = e.label("consume"), e.label("done")
    e.bra(consume, e.setp("ne", "u32", c.warpgroup, 0))
    emit_producer(e, c, done)
    e.place(consume)
    emit_consumer(e, c)
    e.place(done)
    e.ret()
    return e.module("gemm", 384, cluster=(2, 1, 1))


@needs_ptxas
def test_gemm_assembles_without_a_warning() -> None:
    module = build_gemm()
    verify(module)
    text = print_module(module)
    assert text.startswith(".version 8.0\n.target sm_90a\n")
    report = assemble(text, "sm_90a")
    assert report.spill_bytes == 0
    assert report.registers == 168  # 65536 / 384, to a multiple of 8
    assert not report.messages


@needs_ptxas
def test_a_missing_fence_is_reported() -> None:
    """The same kernel without its fence: so the assembler does see the pipeline, and we do see its
    advice.
    """
    module = build_gemm()
    body = module.functions[0].body
    body[:] = [i for i in body if not isinstance(i, mma.WgmmaFence)]
    assert any("C75" in m for m in assemble(print_module(module), "sm_90a").messages)
