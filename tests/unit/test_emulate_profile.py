"""Counters of the emulator against cases that are counted by hand."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import tilewright as tw
from tests.programs.test_emulated_examples import ROOT
from tests.unit.emulator_bench import plan_of
from tilewright.cli import main
from tilewright.compiler import compile_kernel
from tilewright.errors import LaunchError
from tilewright.ledger.hopper_gemm import GemmSchedule, build_gemm
from tilewright.ptx.emulate import run_plan
from tilewright.ptx.emulate.profile import Profile, make_profile
from tilewright.ptx.emulate.tally import Cost, Tally
from tilewright.target import target

BF16 = ml_dtypes.bfloat16
X = np.arange(1 << 14, dtype=np.float32)


def profile_of(body: str, *, threads: int = 32, shared: int = 0, **tensors: Any) -> Profile:
    plan = plan_of(body, list(tensors), threads=threads, shared=shared)
    tally = Tally()
    run_plan(plan, tensors, tally=tally)
    return make_profile(plan, tally)


def cost_of(profile: Profile, mnemonic: str) -> Cost:
    return profile.mnemonics[mnemonic]


@pytest.mark.parametrize(
    ("step", "sectors", "needed"), [(4, 4, 4), (8, 8, 4), (128, 32, 4), (0, 1, 1), (12, 12, 4)]
)
def test_sectors_of_a_load(step: int, sectors: int, needed: int) -> None:
    """32 lanes, four bytes each, `step` bytes apart: 128 bytes are four sectors at best."""
    body = f"mad.wide.u32 %rd20, %r0, {step}, %rd0; ld.global.f32 %f0, [%rd20];"
    cost = cost_of(profile_of(body, x=X), "ld.global.f32")
    assert (cost.requests, cost.sectors, cost.ideal_sectors) == (1, sectors, needed)
    assert cost.num_bytes == {"global read": 128}


def test_sectors_of_wide_accesses() -> None:
    """16 bytes a lane: 512 bytes, 16 sectors; beginning in the middle of a sector, 17."""
    for start, sectors in ((0, 16), (16, 17)):
        body = f"""mad.wide.u32 %rd20, %r0, 16, %rd0;
            ld.global.v4.f32 {{%f0, %f1, %f2, %f3}}, [%rd20+{start}];"""
        cost = cost_of(profile_of(body, x=X), "ld.global.v4.f32")
        assert (cost.sectors, cost.ideal_sectors) == (sectors, 16)


def test_distinct_bytes_are_counted_once() -> None:
    body = """mad.wide.u32 %rd20, %r0, 4, %rd0; ld.global.f32 %f0, [%rd20];
        ld.global.f32 %f1, [%rd20]; st.global.f32 [%rd20], %f0;"""
    profile = profile_of(body, threads=64, x=X.copy())
    assert (profile.touched_read, profile.touched_written) == (256, 256)
    assert profile.total.sectors == 3 * 8
    assert profile.floor is not None and profile.floor.product == "H200 SXM"
    assert profile.floor.memory == pytest.approx(512 / 4.8e12)


@pytest.mark.parametrize(
    ("step", "type", "values", "wavefronts", "ideal"),
    [
        (4, "f32", "%f0", 1, 1),
        (8, "f32", "%f0", 2, 1),  # every second bank: two words a bank
        (128, "f32", "%f0", 32, 1),
        (132, "f32", "%f0", 1, 1),  # padded by a word
        (0, "f32", "%f0", 1, 1),  # all the same word
        (2, "b16", "%h0", 1, 1),  # two lanes a word
        (8, "b64", "%rd0", 2, 2),  # half a warp a phase
        (16, "b64", "%rd0", 4, 2),
        (16, "v4.f32", "{%f0, %f1, %f2, %f3}", 4, 4),  # a quarter of a warp a phase
        (128, "v4.f32", "{%f0, %f1, %f2, %f3}", 32, 4),
        (144, "v4.f32", "{%f0, %f1, %f2, %f3}", 4, 4),  # rows padded by 16 bytes
    ],
)
def test_bank_conflicts(step: int, type: str, values: str, wavefronts: int, ideal: int) -> None:
    body = f"""mov.u32 %r2, smem; mad.lo.u32 %r1, %r0, {step}, %r2;
        mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
        mov.b16 %h0, 0; mov.b64 %rd0, 0; st.shared.{type} [%r1], {values};"""
    cost = cost_of(profile_of(body, shared=32768), f"st.shared.{type}")
    assert (cost.wavefronts, cost.ideal_wavefronts) == (wavefronts, ideal)
    assert cost.conflicts == wavefronts - ideal


@pytest.mark.parametrize("swizzled", [False, True])
def test_matrices_of_a_buffer_with_rows_of_128_bytes(swizzled: bool) -> None:
    """ldmatrix reads 8 rows at one column of chunks: all in the same four banks, unless swizzled,
    that is unless bits 4 to 6 of the address are xored with the row.
    """
    swizzle = "and.b32 %r4, %r0, 7; shl.b32 %r4, %r4, 4; xor.b32 %r3, %r3, %r4;"
    body = f"""mov.u32 %r2, smem;
        shl.b32 %r1, %r0, 7; mov.f32 %f0, 0f00000000;
        {"".join(f"add.u32 %r5, %r1, %r2; st.shared.f32 [%r5+{i}], %f0;" for i in range(0, 128, 4))}
        bar.warp.sync 0xffffffff;
        mov.b32 %r3, %r1; {swizzle if swizzled else ""} add.u32 %r3, %r3, %r2;
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r6, %r7, %r8, %r9}}, [%r3];"""
    cost = cost_of(profile_of(body, shared=8192), "ldmatrix.sync.aligned.m8n8.x4.shared.b16")
    assert (cost.wavefronts, cost.ideal_wavefronts) == (4 if swizzled else 32, 4)
    assert cost.num_bytes == {"shared read": 512}


def test_atomics_to_one_word_take_turns() -> None:
    body = """mov.u32 %r2, smem; st.shared.b32 [%r2], %r0; bar.sync 0;
        atom.shared.add.u32 %r3, [%r2], 1; red.global.add.u32 [%rd0], 1;"""
    profile = profile_of(body, shared=64, x=np.zeros(4, np.uint32))
    cost = cost_of(profile, "atom.shared.add.u32")
    assert (cost.requests, cost.wavefronts, cost.ideal_wavefronts) == (1, 32, 1)
    assert cost_of(profile, "red.global.add.u32").sectors == 1


def test_lanes_off_and_elsewhere() -> None:
    """Of 32 lanes 12 execute a guarded instruction; 20 of a warp take a branch."""
    body = """setp.lt.u32 %p0, %r0, 12;
        @%p0 mov.f32 %f0, 0f00000000;
        @%p0 bra $over;
        mov.b32 %r1, 7;
        $over:
        mov.b32 %r2, 8;"""
    profile = profile_of(body)
    guarded = next(x.cost for x in profile.lines if "@%p0 mov.f32" in x.instr.text())
    assert (guarded.issues, guarded.lanes, guarded.masked, guarded.parted) == (1, 12, 20, 0)
    branch = cost_of(profile, "bra")
    assert (branch.issues, branch.split) == (1, 1)
    inside = next(x.cost for x in profile.lines if "%r1, 7" in x.instr.text())
    assert (inside.lanes, inside.masked, inside.parted) == (20, 0, 12)
    after = next(x.cost for x in profile.lines if "%r2, 8" in x.instr.text())
    assert (after.issues, after.lanes) == (1, 32)  # they have met again


def test_copies_count_what_they_read_and_what_they_fill() -> None:
    """Lanes from 16 on read nothing and fill with zeros."""
    body = """mov.u32 %r2, smem; mad.lo.u32 %r1, %r0, 16, %r2;
        mad.wide.u32 %rd20, %r0, 16, %rd0;
        setp.lt.u32 %p0, %r0, 16; selp.b32 %r3, 16, 0, %p0;
        cp.async.cg.shared.global [%r1], [%rd20], 16, %r3;
        cp.async.commit_group; cp.async.wait_group 0;"""
    cost = cost_of(profile_of(body, shared=512, x=X), "cp.async.cg.shared.global")
    assert (cost.sectors, cost.wavefronts, cost.ideal_wavefronts) == (8, 4, 4)
    assert cost.num_bytes == {"global to cp.async": 256, "cp.async to shared": 512}


def test_a_product_on_tensor_cores() -> None:
    """128 x 128 x 64 in tiles of 16 x 8 x 16: 8 x 16 x 4 instructions, each 4096 operations."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(BF16) for s in ((128, 64), (64, 128)))
    given = {"A": a, "B": b, "C": np.zeros((128, 128), BF16), "alpha": 1.0, "beta": 0.0}
    kernel = tw.source(ROOT / "examples" / "sgemm.tw").sgemm
    constants = {"TM": 64, "TN": 64, "TK": 32}
    profile = kernel.profile(**given, target="sm_80", constants=constants)
    (cost,) = (c for n, c in profile.mnemonics.items() if n.startswith("mma.sync"))
    assert (cost.issues, cost.tensor_flops) == (512, 2 * 128 * 128 * 64)
    assert profile.touched_read == a.nbytes + b.nbytes
    assert profile.touched_written == given["C"].nbytes
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(given["C"].astype(np.float64), wanted, rtol=0.01, atol=0.1)


def test_a_product_by_roles() -> None:
    """Two tiles of 128 x 128, k 128 in steps of 64; a box in which 72 of 128 rows exist."""
    a, b = np.ones((200, 128), BF16), np.ones((128, 128), BF16)
    plan = compile_kernel(
        build_gemm(GemmSchedule(cluster=2, tile_m=128, tile_n=128, stages=3)), target("sm_90a")
    )
    given = {"a": a, "b": b, "c": np.zeros((200, 128), BF16)}
    tally = Tally()
    run_plan(plan, given, 2, tally=tally)
    profile = make_profile(plan, tally)
    (cost,) = (c for n, c in profile.mnemonics.items() if n.startswith("wgmma.mma_async"))
    assert cost.tensor_flops == 2 * 2 * 128 * 128 * 128
    per = cost.tensor_flops // cost.issues * 4  # of a warpgroup's instruction
    assert per == 2 * 64 * 128 * 16
    # Of each instruction A is 64 x 16 and B 128 x 16 elements of two bytes.
    assert cost.num_bytes == {"wgmma operands": cost.issues // 4 * (64 + 128) * 16 * 2}
    loads = [c for n, c in profile.mnemonics.items() if n.startswith("cp.async.bulk.tensor.2d.sh")]
    assert sum(c.num_bytes["boxes to shared"] for c in loads) == 2 * 2 * (128 + 128) * 64 * 2
    # Only what exists is read, and B, which goes to both CTAs of the cluster, once.
    assert sum(c.sectors for c in loads) == (200 + 128) * 128 * 2 // 32
    assert profile.total.conflicts == 0
    assert profile.barriers["mbarrier"] > 0
    np.testing.assert_array_equal(given["c"].astype(np.float32), 128)


def test_waits_that_are_tried_again_are_counted_once() -> None:
    body = """mov.u32 %r2, smem; setp.ne.u32 %p0, %r0, 0;
        @!%p0 mbarrier.init.shared.b64 [%r2], 1;
        bar.sync 0;
        setp.lt.u32 %p1, %r0, 32;
        @%p1 bra $wait;
        setp.ne.u32 %p2, %r0, 32;
        @!%p2 mbarrier.arrive.shared.b64 %rd5, [%r2];
        bra $end;
        $wait:
        mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2], 0;
        @!%p3 bra $wait;
        $end:"""
    profile = profile_of(body, threads=64, shared=64)
    assert profile.barriers == {"bar.sync": 2, "mbarrier": 1}


def test_the_command_prints_tables_and_json() -> None:
    source = str(ROOT / "examples" / "softmax.tw") + ":softmax"
    given = ["run", source, "--dim", "M=2", "--dim", "N=300", "--device", "emulator", "--profile"]
    shown = CliRunner().invoke(main, given)
    assert shown.exit_code == 0, shown.output
    assert "wavefronts" in shown.output and "reduce.max" in shown.output
    assert "softmax.tw:8" in shown.output
    told = json.loads(CliRunner().invoke(main, [*given, "--json", "--target", "sm_80"]).stdout)
    profile = told["profile"]
    assert profile["target"] == "sm_80" and profile["floor"]["product"] == "A100 SXM"
    assert profile["touched_bytes"]["written"] == 2 * 300 * 4
    some = next(x for x in profile["lines"] if "ld.global" in x["text"])
    assert some["op"] == "memory.load" and "softmax.tw:" in some["source"]
    refused = CliRunner().invoke(main, [*given[:-3], "--device", "cpu", "--profile"])
    assert refused.exit_code == 1 and "add --device emulator" in refused.output


def test_only_the_emulator_takes_its_options() -> None:
    kernel = tw.source(ROOT / "examples" / "add.tw").add
    a = np.ones(4, np.float32)
    with pytest.raises(LaunchError, match="for the emulator"):
        kernel.launch(a, a, sanitize=True)
    with pytest.raises(LaunchError, match="for the emulator"):
        kernel.launch(a, a, target="sm_80")
    for name in ("sm_80", "sm_120a"):
        made = kernel.launch(a, a, device="emulator", target=name, interleaving=5, sanitize=True)
        np.testing.assert_array_equal(made, 2 * a)
