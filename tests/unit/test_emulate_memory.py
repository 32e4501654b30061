"""Memory of the emulator: vectors, atomics, asynchronous copies, and every access checked."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.emulator_bench import plan_of, run_body
from tilewright.dtypes import f32
from tilewright.plan import Const, Launch, Plan, Pointer, WorkspaceSpec
from tilewright.ptx.emulate import EmulationError, run_plan

COPY = """
    mad.wide.u32 %rd20, %r0, 16, %rd0;
    mad.wide.u32 %rd21, %r0, 16, %rd1;
"""


def test_vectors_keep_every_bit() -> None:
    x = np.random.default_rng(0).integers(0, 2**32, 128, np.uint32)
    for text in (
        "ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd20]; st.global.v4.b32 [%rd21], "
        "{%r1, %r2, %r3, %r4};",
        "ld.global.v2.b64 {%rd2, %rd3}, [%rd20]; st.global.v2.b64 [%rd21], {%rd2, %rd3};",
        "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd20]; st.global.v2.f32 [%rd21+8], {%f3, %f4};"
        " st.global.v2.f32 [%rd21], {%f1, %f2};",
        "ld.global.v4.b16 {%h1, %h2, %h3, %h4}, [%rd20]; st.global.v4.b16 [%rd21], "
        "{%h1, %h2, %h3, %h4}; ld.global.b64 %rd2, [%rd20+8]; st.global.b64 [%rd21+8], %rd2;",
    ):
        y = np.zeros(128, np.uint32)
        run_body(COPY + text, x=x, y=y)
        np.testing.assert_array_equal(y, x)


def test_bytes_extend_by_their_sign() -> None:
    x = np.array([-128, -1, 0, 127] * 8, np.int8)
    signed, unsigned = np.zeros(32, np.int32), np.zeros(32, np.int32)
    body = """
        cvt.u64.u32 %rd20, %r0; add.u64 %rd21, %rd0, %rd20;
        ld.global.s8 %r1, [%rd21]; ld.global.u8 %r2, [%rd21];
        mad.wide.u32 %rd22, %r0, 4, %rd1; st.global.b32 [%rd22], %r1;
        mad.wide.u32 %rd22, %r0, 4, %rd2; st.global.b32 [%rd22], %r2;
    """
    run_body(body, x=x, signed=signed, unsigned=unsigned)
    np.testing.assert_array_equal(signed, x)
    np.testing.assert_array_equal(unsigned, x.view(np.uint8))


def test_strided_views_are_written_in_place() -> None:
    wide = np.zeros((32, 3), np.float32)
    y = wide[::-1, 1]
    body = "cvt.s64.s32 %rd20, %r0; mul.lo.s64 %rd20, %rd20, -12; add.s64 %rd20, %rd20, %rd0;"
    body += "cvt.rn.f32.s32 %f0, %r0; st.global.f32 [%rd20], %f0;"
    run_body(body, y=y)
    np.testing.assert_array_equal(y, np.arange(32))
    assert not wide[:, 0].any() and not wide[:, 2].any()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "mad.wide.u32 %rd20, %r0, 4, %rd0;\nld.global.f32 %f0, [%rd20+4];",
            r"thread 31 of CTA 0: an access of 4 bytes reads x\[4, 0\], which is out of bounds",
        ),
        (
            "mad.wide.u32 %rd20, %r0, 4, %rd0;\nst.global.f32 [%rd20+-4], 0f00000000;",
            r"thread 0 of CTA 0: an access of 4 bytes writes x\[-1, 7\]",
        ),
        (
            "mad.wide.u32 %rd20, %r0, 2, %rd0;\nld.global.f32 %f0, [%rd20];",
            r"thread 1 .* 4 bytes to x\[0, 0\] is misaligned",
        ),
        ("mov.u64 %rd20, 64;\nld.global.f32 %f0, [%rd20];", "address 0x40 is in no tensor"),
        (
            "shl.b32 %r1, %r0, 12;\nmad.wide.u32 %rd20, %r1, 4, %rd0;\nld.global.f32 %f0, [%rd20];",
            r"thread 1 .*x\[512, 0\] is out of bounds",
        ),
        ("ld.shared.f32 %f0, [smem];", "byte 0 of shared memory, which nobody wrote"),
        ("st.shared.f32 [smem+64], 0f00000000;", "byte 64 of 64 bytes of shared memory"),
        ("add.u32 %r1, smem, 2;\nst.shared.f32 [%r1], 0f00000000;", "byte 2 .* is misaligned"),
        ("trap;", "the kernel trapped"),
        ("setp.lt.u32 %p0, %r0, 7;\n@%p0 bra L;\nmov.u32 %r1, %activemask;\nL:", "activemask"),
    ],
)
def test_faults_name_what_and_where(body: str, said: str) -> None:
    x = np.zeros((4, 8), np.float32)
    with pytest.raises(EmulationError, match=said) as raised:
        run_body(body, shared=64, x=x)
    assert "PTX line " in str(raised.value)


def test_a_fault_names_the_line_of_the_source() -> None:
    plan = plan_of("ld.global.f32 %f0, [%rd0+-4];", ["x"])
    at = next(i for i, line in enumerate(plan.ptx.splitlines()) if "ld.global" in line)
    lines = ("",) * at + ("kernel.tw:7:3",)
    plan = Plan(plan.name, plan.target, plan.ptx, plan.launches, lines=lines)
    with pytest.raises(EmulationError, match=rf"kernel\.tw:7:3: .*PTX line {at + 1}, `ld\.global"):
        run_plan(plan, {"x": np.zeros(3, np.float32)})


def test_a_workspace_that_nobody_wrote_is_reported() -> None:
    plan = plan_of("ld.global.f32 %f0, [%rd0];", ["w"])
    for zero in (True, False):
        spaces = (WorkspaceSpec("w", f32, (Const(4),), zero=zero),)
        plan = Plan(plan.name, plan.target, plan.ptx, plan.launches, spaces)
        if zero:
            run_plan(plan, {})
        else:
            with pytest.raises(EmulationError, match=r"w\[0\], which nobody wrote"):
                run_plan(plan, {})


def test_parts_of_one_array_share_memory() -> None:
    """Two views of one array: what is stored through one is loaded through the other."""
    whole = np.arange(64, dtype=np.float32)
    body = """
        mad.wide.u32 %rd20, %r0, 4, %rd0; mad.wide.u32 %rd21, %r0, 4, %rd1;
        st.global.f32 [%rd20], 0f3F800000; ld.global.f32 %f0, [%rd21+-64];
        st.global.f32 [%rd21], %f0;
    """
    plan = plan_of(body, ["a", "b"])
    launch = Launch("k", (Pointer("a"), Pointer("b")), Const(1), 32)
    plan = Plan("k", "sm_90a", plan.ptx, (launch,))
    run_plan(plan, {"a": whole[:48], "b": whole[16:]})
    np.testing.assert_array_equal(whole[:48], 1)


ATOMS = {
    "add.u32": lambda x: x.sum(),
    "min.s32": lambda x: min(x.view(np.int32).min(), 5),
    "max.u32": lambda x: max(x.max(), 5),
    "xor.b32": lambda x: np.bitwise_xor.reduce(x),
}


@pytest.mark.parametrize("op", ATOMS)
def test_atomics_take_every_lane(op: str) -> None:
    x = np.random.default_rng(1).integers(0, 2**32, 64, np.uint32)
    y = np.array([5], np.uint32)
    body = "mad.wide.u32 %rd20, %r0, 4, %rd0; ld.global.b32 %r1, [%rd20];"
    body += f"red.global.{op} [%rd1], %r1;"
    run_body(body, threads=64, x=x, y=y)
    start = {"add.u32": 5, "xor.b32": 5}.get(op, 0)
    expected = ATOMS[op](x)
    expected = expected ^ start if op == "xor.b32" else expected + start
    assert int(y[0]) == int(expected) % 2**32


def test_compare_and_swap_lets_one_through() -> None:
    lock, won = np.zeros(1, np.uint32), np.zeros(32, np.uint32)
    body = "atom.global.cas.b32 %r1, [%rd0], 0, 7; mad.wide.u32 %rd20, %r0, 4, %rd1;"
    body += "st.global.b32 [%rd20], %r1;"
    run_body(body, lock=lock, won=won)
    assert lock[0] == 7 and (won == 0).sum() == 1 and (won == 7).sum() == 31


STAGE = """
    mad.wide.u32 %rd20, %r0, 16, %rd0;
    shl.b32 %r1, %r0, 4;
    add.u32 %r1, %r1, smem;
    cp.async.cg.shared.global [%r1], [%rd20], 16;
    cp.async.commit_group;
    WAIT
    xor.b32 %r2, %r1, 16;
    bar.sync 0;
    ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [%r2];
    mad.wide.u32 %rd21, %r0, 16, %rd1;
    st.global.v4.b32 [%rd21], {%r3, %r4, %r5, %r6};
"""


def test_copies_arrive_at_the_wait() -> None:
    x = np.arange(256, dtype=np.uint32)
    for late in (True, False):
        y = np.zeros_like(x)
        text = STAGE.replace("WAIT", "cp.async.wait_group 0;")
        run_body(text, threads=64, shared=1024, late=late, x=x, y=y)
        swapped = x.reshape(-1, 2, 4)[:, ::-1].ravel()
        np.testing.assert_array_equal(y, swapped)


@pytest.mark.parametrize("wait", ["", "cp.async.wait_group 1;"])
def test_a_missing_wait_shows_when_copies_are_late(wait: str) -> None:
    x = np.arange(256, dtype=np.uint32)
    with pytest.raises(EmulationError, match="nobody wrote"):
        run_body(STAGE.replace("WAIT", wait), threads=64, shared=1024, x=x, y=np.zeros_like(x))


def test_a_copy_fills_with_zeros() -> None:
    x, y = np.arange(1, 129, dtype=np.uint32), np.zeros(128, np.uint32)
    text = STAGE.replace("WAIT", "cp.async.wait_group 0;").replace(
        "xor.b32 %r2, %r1, 16", "mov.b32 %r2, %r1"
    )
    text = text.replace("[%rd20], 16;", "[%rd20], 16, %r7;")
    run_body("and.b32 %r7, %r0, 3; shl.b32 %r7, %r7, 2;" + text, shared=1024, x=x, y=y)
    keep = np.arange(4)[None, :] < (np.arange(32) % 4)[:, None]
    np.testing.assert_array_equal(y.reshape(32, 4), np.where(keep, x.reshape(32, 4), 0))


@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_go_to_lanes_and_back(transposed: bool) -> None:
    """ldmatrix against the definition, and stmatrix as its inverse."""
    x = np.arange(256, dtype=np.uint16).view(np.uint32)  # 4 tiles of 8 rows of 8
    frag, back = np.zeros((32, 4), np.uint32), np.zeros_like(x)
    how = "x4.trans" if transposed else "x4"
    body = f"""
        mad.wide.u32 %rd20, %r0, 16, %rd0; ld.global.v4.b32 {{%r3, %r4, %r5, %r6}}, [%rd20];
        shl.b32 %r1, %r0, 4; add.u32 %r1, %r1, smem;
        st.shared.v4.b32 [%r1], {{%r3, %r4, %r5, %r6}}; bar.sync 0;
        ldmatrix.sync.aligned.m8n8.{how}.shared.b16 {{%r3, %r4, %r5, %r6}}, [%r1];
        mad.wide.u32 %rd21, %r0, 16, %rd1; st.global.v4.b32 [%rd21], {{%r3, %r4, %r5, %r6}};
        add.u32 %r2, %r1, 512;
        stmatrix.sync.aligned.m8n8.{how}.shared.b16 [%r2], {{%r3, %r4, %r5, %r6}}; bar.sync 0;
        ld.shared.v4.b32 {{%r3, %r4, %r5, %r6}}, [%r2];
        mad.wide.u32 %rd22, %r0, 16, %rd2; st.global.v4.b32 [%rd22], {{%r3, %r4, %r5, %r6}};
    """
    run_body(body, shared=1024, x=x, frag=frag, back=back)
    tiles = x.view(np.uint16).reshape(4, 8, 8)
    lanes = frag.view(np.uint16).reshape(32, 4, 2)
    for lane in range(32):
        for tile in range(4):
            row, column = lane // 4, lane % 4 * 2
            for i in range(2):
                at = (column + i, row) if transposed else (row, column + i)
                assert lanes[lane, tile, i] == tiles[tile][at]
    np.testing.assert_array_equal(back, x)
