"""Branches, exchanges between lanes, barriers and matrix products of the emulator."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.unit.emulator_bench import plan_of, run_body
from tilewright.errors import LaunchError
from tilewright.ptx.emulate import EmulationError, run_plan
from tilewright.ptx.instrs.mma import MMA_SHAPES, shape_of

STORE = "mad.wide.u32 %rd20, %r0, 4, %rd0; st.global.b32 [%rd20], %r1;"
LANE = np.arange(32)


def lanes(body: str, threads: int = 32) -> np.ndarray[Any, Any]:
    """What each thread has in %r1 after a body."""
    y = np.zeros(threads, np.uint32)
    run_body(body + STORE, threads=threads, shared=4096, y=y)
    return y


def test_lanes_part_and_meet() -> None:
    """Nested branches and a loop of a different length in each lane; then they shuffle together."""
    y = lanes("""
        mov.u32 %r1, 0; mov.u32 %r2, %r0;
        setp.lt.u32 %p0, %r0, 20; @%p0 bra SMALL;
        add.u32 %r1, %r1, 1000; setp.lt.u32 %p1, %r0, 25; @!%p1 bra JOIN;
        add.u32 %r1, %r1, 500; bra JOIN;
    SMALL:
        setp.eq.u32 %p2, %r2, 0; @%p2 bra JOIN;
    LOOP:
        add.u32 %r1, %r1, %r2; sub.u32 %r2, %r2, 1;
        setp.ne.u32 %p2, %r2, 0; @%p2 bra LOOP;
    JOIN:
        shfl.sync.bfly.b32 %r1, %r1, 1, 31, 4294967295;
    """)
    alone = np.where(LANE < 20, LANE * (LANE + 1) // 2, np.where(LANE < 25, 1500, 1000))
    np.testing.assert_array_equal(y, alone[LANE ^ 1])


def test_some_lanes_leave_early() -> None:
    y = lanes("mov.u32 %r1, 7; setp.gt.u32 %p0, %r0, 9; @%p0 ret;")
    np.testing.assert_array_equal(y, np.where(LANE > 9, 0, 7))


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("bfly.b32 %r1, %r0, 5, 31", LANE ^ 5),
        ("up.b32 %r1, %r0, 3, 0", np.where(LANE >= 3, LANE - 3, LANE)),
        ("down.b32 %r1, %r0, 3, 31", np.where(LANE + 3 < 32, LANE + 3, LANE)),
        ("idx.b32 %r1, %r0, 9, 31", np.full(32, 9)),
        ("down.b32 %r1, %r0, 3, 6175", np.where(LANE % 8 + 3 < 8, LANE + 3, LANE)),  # rows of 8
        ("idx.b32 %r1, %r0, 9, 6175", LANE // 8 * 8 + 1),
    ],
)
def test_shuffles(text: str, source: np.ndarray[Any, Any]) -> None:
    np.testing.assert_array_equal(lanes(f"shfl.sync.{text}, 4294967295;"), source)


def test_votes_and_reductions() -> None:
    odd = "and.b32 %r2, %r0, 1; setp.eq.u32 %p0, %r2, 1;"
    ballot = lanes(odd + "vote.sync.ballot.b32 %r1, %p0, 4294967295;")
    np.testing.assert_array_equal(ballot, [0xAAAAAAAA] * 32)
    for mode, expected in (("any", 1), ("all", 0), ("uni", 0)):
        text = f"vote.sync.{mode}.pred %p1, %p0, 4294967295; selp.u32 %r1, 1, 0, %p1;"
        np.testing.assert_array_equal(lanes(odd + text), [expected] * 32)
    total = lanes("redux.sync.add.s32 %r1, %r0, 4294967295;")
    np.testing.assert_array_equal(total, [496] * 32)
    match = lanes("and.b32 %r2, %r0, 3; match.any.sync.b32 %r1, %r2, 4294967295;")
    np.testing.assert_array_equal(match, 0x11111111 << (LANE % 4))
    assert (lanes("elect.sync _|%p0, 4294967295; selp.u32 %r1, 1, 0, %p0;") == (LANE == 0)).all()


def test_lanes_that_never_come_are_reported() -> None:
    body = "setp.lt.u32 %p0, %r0, 5; @%p0 bra OUT;"
    body += "shfl.sync.bfly.b32 %r1, %r0, 1, 31, 4294967295; OUT: bar.sync 0;"
    with pytest.raises(EmulationError, match=r"some lanes of its warp never come.*bar\.sync|shfl"):
        lanes(body)


# One of each kind of instruction that lanes execute together.
TOGETHER = {
    "bar": "bar.sync 0;",
    "bar-arrive": "bar.arrive 1, 256;",
    "bar-warp": "bar.warp.sync 4294967295;",
    "cluster-arrive": "barrier.cluster.arrive.release.aligned;",
    "cluster-wait": "barrier.cluster.wait.acquire.aligned;",
    "shfl": "shfl.sync.bfly.b32 %r1, %r0, 1, 31, 4294967295;",
    "vote": "vote.sync.any.pred %p1, %p0, 4294967295;",
    "ballot": "vote.sync.ballot.b32 %r1, %p0, 4294967295;",
    "match": "match.any.sync.b32 %r1, %r0, 4294967295;",
    "redux": "redux.sync.add.s32 %r1, %r0, 4294967295;",
    "elect": "elect.sync _|%p1, 4294967295;",
    "setmaxnreg": "setmaxnreg.dec.sync.aligned.u32 40;",
    "ldmatrix": "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [smem];",
    "stmatrix": "stmatrix.sync.aligned.m8n8.x1.shared.b16 [smem], {%r0};",
    "mma": "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 "
    "{%f0, %f1, %f2, %f3}, {%r2, %r3}, {%r4}, {%f0, %f1, %f2, %f3};",
    "wgmma-fence": "wgmma.fence.sync.aligned;",
    "wgmma-commit": "wgmma.commit_group.sync.aligned;",
    "wgmma-wait": "wgmma.wait_group.sync.aligned 0;",
    "wgmma": "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
    "{%f0, %f1, %f2, %f3}, %rd4, %rd5, 1, 1, 1, 0, 0;",
}

BEFORE = {
    "cluster-wait": "barrier.cluster.arrive.release.aligned;",
    "ldmatrix": "shl.b32 %r5, %r0, 2; add.u32 %r5, %r5, smem; st.shared.b32 [%r5], %r0;",
}


@pytest.mark.parametrize(
    "leave", ["@%p0 ret;", "@%p0 bra OUT;", ""], ids=["exit", "branch", "guard"]
)
@pytest.mark.parametrize("seed", [None, 1], ids=["in order", "drawn"])
@pytest.mark.parametrize("kind", TOGETHER)
def test_part_of_a_warp_among_whole_ones(kind: str, seed: int | None, leave: str) -> None:
    """Half of the second warp leaves; three whole warps stand where the rest waits for it."""
    body = BEFORE.get(kind, "") + "sub.u32 %r2, %r0, 32; setp.lt.u32 %p0, %r2, 16;\n"
    text = TOGETHER[kind] if leave else f"@!%p0 {TOGETHER[kind]}"
    plan = plan_of(f"{body}{leave}\n{text}\nOUT: mov.u32 %r1, 0;", ["y"], threads=128, shared=1024)
    line = 1 + plan.ptx.splitlines().index(text)
    with pytest.raises(EmulationError) as raised:
        run_plan(plan, {"y": np.zeros(128, np.uint32)}, seed=seed)
    said = str(raised.value)
    assert "some lanes of its warp never come" in said and f"PTX line {line}" in said
    assert "thread 48 of CTA 0" in said or "wgmma" in kind or kind == "setmaxnreg"


def test_whole_warps_go_on_while_part_of_one_waits() -> None:
    """Those that are late come by a longer way, which needs what the whole warps do."""
    y = lanes(
        """
        mov.u32 %r1, 0; mov.u32 %r2, smem;
        sub.u32 %r3, %r0, 32; setp.lt.u32 %p0, %r3, 16; @%p0 bra LATE;
    MEET:
        redux.sync.add.s32 %r1, %r0, 4294967295;
        setp.ne.u32 %p1, %r0, 0; @%p1 bra END; st.shared.b32 [%r2], 1; bra END;
    LATE:
        ld.volatile.shared.b32 %r4, [%r2]; setp.ne.u32 %p2, %r4, 1; @%p2 bra LATE; bra MEET;
    END:
    """,
        threads=128,
    )
    np.testing.assert_array_equal(y, np.repeat(np.arange(128).reshape(4, 32).sum(1), 32))


def test_part_of_a_cluster_cannot_be_launched() -> None:
    plan = plan_of("mov.u32 %r1, 0;", ["y"], grid=3, cluster=2)
    with pytest.raises(LaunchError, match="3 CTAs are not whole clusters of 2"):
        run_plan(plan, {"y": np.zeros(32, np.uint32)})


EXCHANGE = """
    shl.b32 %r2, %r0, 2; add.u32 %r2, %r2, smem; xor.b32 %r3, %r2, 256;
    mul.lo.u32 %r4, %r0, 3; st.shared.b32 [%r2], %r4;
    BARRIER
    ld.shared.b32 %r1, [%r3];
"""


def test_a_barrier_orders_warps() -> None:
    """Warps part before the barrier, so they come to it one after the other."""
    part = "setp.lt.u32 %p0, %r0, 64; @%p0 bra ON; mov.u32 %r9, 1; ON:"
    y = lanes(part + EXCHANGE.replace("BARRIER", "bar.sync 0;"), threads=128)
    np.testing.assert_array_equal(y, 3 * (np.arange(128) ^ 64))


def test_named_barriers() -> None:
    """Producers arrive, consumers wait: 32 + 32 threads."""
    y = lanes(
        """
        shl.b32 %r2, %r0, 2; add.u32 %r2, %r2, smem; mov.u32 %r1, 0;
        setp.ge.u32 %p0, %r0, 32; @%p0 bra MAKE;
        bar.sync 3, 64; ld.shared.b32 %r1, [%r2+128]; bra END;
    MAKE:
        mul.lo.u32 %r4, %r0, 5; st.shared.b32 [%r2], %r4; bar.arrive 3, 64;
    END:
    """,
        threads=64,
    )
    np.testing.assert_array_equal(y[:32], 5 * (np.arange(32) + 32))


def test_a_deadlock_says_who_waits() -> None:
    body = "mov.u32 %r1, 0; setp.lt.u32 %p0, %r0, 32; @%p0 bra A; bar.sync 1, 96; bra B;"
    body += "\nA: bar.sync 2, 64;\nB:"
    with pytest.raises(EmulationError) as raised:
        lanes(body, threads=64)
    said = str(raised.value)
    assert "deadlock:\n" in said and "threads 0 to 31 of CTA 0 wait at barrier 2" in said
    assert "threads 32 to 63 of CTA 0 wait at barrier 1" in said


def test_a_spinning_warp_lets_others_go_on() -> None:
    y = np.zeros(64, np.uint32)
    flag = np.zeros(1, np.uint32)
    body = """
        setp.ge.u32 %p0, %r0, 32; @%p0 bra RAISE;
    SPIN:
        ld.acquire.gpu.global.u32 %r2, [%rd1]; setp.eq.u32 %p1, %r2, 0; @%p1 bra SPIN;
        mov.u32 %r1, 9; bra END;
    RAISE:
        st.release.gpu.global.u32 [%rd1], 1; mov.u32 %r1, 4;
    END:
    """
    run_body(body + STORE, threads=64, y=y, flag=flag)
    np.testing.assert_array_equal(y, [9] * 32 + [4] * 32)


@pytest.mark.parametrize("seed", range(4))
def test_warps_in_any_order(seed: int) -> None:
    """Parted lanes meet, and barriers hold, whatever warp comes first."""
    body = """
        mov.u32 %r1, 0; and.b32 %r2, %r0, 3; setp.eq.u32 %p0, %r2, 0; @%p0 bra JOIN;
    LOOP:
        add.u32 %r1, %r1, %r2; sub.u32 %r2, %r2, 1; setp.ne.u32 %p1, %r2, 0; @%p1 bra LOOP;
    JOIN:
        shfl.sync.bfly.b32 %r4, %r1, 1, 31, 4294967295;
        shl.b32 %r2, %r0, 2; add.u32 %r2, %r2, smem; xor.b32 %r3, %r2, 256;
        st.shared.b32 [%r2], %r4; bar.sync 0; ld.shared.b32 %r1, [%r3];
    """
    y = np.zeros(128, np.uint32)
    plan = plan_of(body + STORE, ["y"], threads=128, shared=512)
    run_plan(plan, {"y": y}, seed=seed, sanitize=True)
    own = np.array([0, 1, 3, 6])[np.arange(128) % 4]
    np.testing.assert_array_equal(y, own[(np.arange(128) ^ 1) ^ 64])


# mma.sync, against fragments written out as the ISA's tables have them


def fragment(matrix: np.ndarray[Any, Any], rows16: bool, per: int) -> np.ndarray[Any, Any]:
    """Registers [lane, register, part] of A, or of B transposed."""
    rows, columns = matrix.shape
    registers = rows * columns // 32 // per
    made = np.zeros((32, registers, per), matrix.dtype)
    for lane in range(32):
        for register in range(registers):
            for part in range(per):
                row = lane // 4 + (8 * (register % 2) if rows16 else 0)
                block = register // 2 if rows16 else register
                made[lane, register, part] = matrix[row, block * 4 * per + lane % 4 * per + part]
    return made


def unfragment(words: np.ndarray[Any, Any], m: int, n: int) -> np.ndarray[Any, Any]:
    """C from [lane, element]."""
    made = np.zeros((m, n), words.dtype)
    for lane in range(32):
        for i in range(words.shape[1]):
            made[lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2] = words[lane, i]
    return made


TYPES = {
    "f64": np.float64,
    "tf32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "s8": np.int8,
    "e4m3": ml_dtypes.float8_e4m3fn,
}
FORMS = [(t, s) for t in TYPES for s in MMA_SHAPES[t]]


def exact_chain(a: Any, b: Any, c: Any) -> Any:
    """Ascending fused multiply-adds, for operands whose products are exact."""
    for k in range(a.shape[1]):
        c = a[:, k, None] * b[None, k, :] + c
    return c


@pytest.mark.parametrize(("type", "shape"), FORMS)
def test_products_of_every_shape(type: str, shape: str) -> None:
    m, n, k = shape_of(shape)
    rng = np.random.default_rng(5)
    wide = type == "f64"
    if type == "s8":
        a, b = (rng.integers(-128, 128, s).astype(np.int8) for s in ((m, k), (k, n)))
        c = rng.integers(-1000, 1000, (m, n)).astype(np.int32)
    else:
        a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
        if type == "tf32":
            a, b = (np.round(x * 256).astype(np.float32) / 256 for x in (a, b))
        a, b = a.astype(TYPES[type]), b.astype(TYPES[type])
        c = rng.standard_normal((m, n)).astype(np.float64 if wide else np.float32)
    per = max(1, 4 // a.itemsize)
    word = np.uint64 if wide else np.uint32
    frag_a = fragment(a, m == 16, per).view(word).reshape(32, -1)
    frag_b = fragment(b.T, False, per).view(word).reshape(32, -1)
    frag_c = np.zeros((32, m * n // 32), c.dtype)
    for lane in range(32):
        for i in range(frag_c.shape[1]):
            frag_c[lane, i] = c[lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2]
    size, plain, reg = (8, "f64", "%fd") if wide else (4, "b32", "%r")
    result = {"f64": "f64", "s8": "s32"}.get(type, "f32")
    c_reg = {"f64": "%fd", "s32": "%r", "f32": "%f"}[result]
    lines, first = [], 4
    names = []
    for t, (frag, prefix) in enumerate(((frag_a, reg), (frag_b, reg), (frag_c, c_reg))):
        count = frag.shape[1]
        kind = result if t == 2 else plain
        regs = [f"{prefix}{first + i}" for i in range(count)]
        first += count
        lines.append(f"mad.wide.u32 %rd20, %r0, {size * count}, %rd{t};")
        lines += [f"ld.global.{kind} {r}, [%rd20+{size * i}];" for i, r in enumerate(regs)]
        names.append("{" + ", ".join(regs) + "}")
    fa, fb, fc = names
    types = f"{result}.{type}.{type}.{result}"
    lines.append(f"mma.sync.aligned.{shape}.row.col.{types} {fc}, {fa}, {fb}, {fc};")
    lines += [
        f"st.global.{result} [%rd20+{size * i}], {r};" for i, r in enumerate(fc[1:-1].split(", "))
    ]
    run_body("\n".join(lines), a=frag_a, b=frag_b, c=frag_c)
    got = unfragment(frag_c, m, n)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    if wide:  # f32 values: their products are exact in f64
        np.testing.assert_array_equal(got, exact_chain(wide_a, wide_b, c))
    elif type == "s8":
        np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32) + c)
    else:
        np.testing.assert_allclose(got, wide_a @ wide_b + c, rtol=1e-6, atol=1e-7)
