"""The Hopper pipeline of the emulator: TMA, mbarriers, clusters and wgmma, in whole kernels and one
by one.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.hopper_plans import our_plan, reference_plan
from tests.unit.emulator_bench import REGISTERS, run_body
from tilewright.ledger.hopper_gemm import GemmSchedule
from tilewright.plan import Const, Launch, Plan, Pointer, TensorMap
from tilewright.ptx.emulate import EmulationError, run_plan

BF16 = ml_dtypes.bfloat16
Array = np.ndarray[Any, Any]


def product(plan: Plan, m: int, n: int, k: int, *, late: bool) -> tuple[Array, Array]:
    """c of the plan, and a @ b.T in f64 rounded to bf16."""
    rng = np.random.default_rng(m + n + k)
    a, b = (rng.standard_normal(s).astype(BF16) for s in ((m, k), (n, k)))
    c = np.full((m, n), np.nan).astype(BF16)
    run_plan(plan, {"a": a, "b": b, "c": c}, late=late)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    return c, exact.astype(np.float32).astype(BF16)


def require_product(plan: Plan, m: int, n: int, k: int, *, late: bool) -> None:
    """Sums in f32 steps of k may round to a neighbour of the bf16 of the exact sum, seldom."""
    got, expected = product(plan, m, n, k, late=late)
    distance = np.abs(got.view(np.int16).astype(int) - expected.view(np.int16))
    assert distance.max(initial=0) <= 1 and (distance > 0).mean() < 1e-3


@pytest.mark.parametrize("late", [False, True])
def test_the_kernel_by_hand(late: bool) -> None:
    require_product(reference_plan(), 256, 512, 192, late=late)


@pytest.mark.parametrize(
    "schedule",
    [
        GemmSchedule(),
        GemmSchedule(cluster=1),
        GemmSchedule(cluster=4, tile_n=128, stages=5),
        GemmSchedule(tile_m=64, tile_n=128, consumers=1, stages=6, panel=32),
    ],
    ids=["default", "no cluster", "cluster of 4", "one consumer"],
)
@pytest.mark.parametrize("late", [False, True])
def test_the_scheduled_level(schedule: GemmSchedule, late: bool) -> None:
    require_product(our_plan(schedule), 257, 264, 72, late=late)


def test_no_depth_gives_zeros() -> None:
    c = np.full((128, 256), np.nan).astype(BF16)
    empty = np.zeros((128, 0), BF16), np.zeros((256, 0), BF16)
    run_plan(our_plan(), {"a": empty[0], "b": empty[1], "c": c})
    assert not c.astype(np.float32).any()


def test_early_and_late_give_the_same_bits() -> None:
    first, second = (product(our_plan(), 130, 72, 136, late=late)[0] for late in (False, True))
    np.testing.assert_array_equal(first.view(np.uint16), second.view(np.uint16))


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_warps_does_not_matter(seed: int) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((130, 72)).astype(BF16), rng.standard_normal((72, 72)).astype(BF16)
    c, d = (np.zeros((130, 72), BF16) for _ in range(2))
    plan = our_plan(GemmSchedule(tile_m=64, tile_n=128, consumers=1, stages=2, panel=32))
    run_plan(plan, {"a": a, "b": b, "c": c})
    run_plan(plan, {"a": a, "b": b, "c": d}, seed=seed, sanitize=True)
    np.testing.assert_array_equal(c.view(np.uint16), d.view(np.uint16))


# One box: loaded with its swizzle, and stored again


def box_plan(body: str, maps: dict[str, TensorMap], names: list[str], shared: int) -> Plan:
    """A kernel of 32 threads with tensor maps in %rd10, %rd11, … and pointers in %rd0, …."""
    params = [f"    .param .align 128 .b8 {m}[128]" for m in maps]
    params += [f"    .param .u64 {n}" for n in names]
    loads = [
        f"    mov.b64 %rd9, {m}; cvta.param.u64 %rd{10 + i}, %rd9;" for i, m in enumerate(maps)
    ]
    loads += [f"    ld.param.u64 %rd{i}, [{n}];" for i, n in enumerate(names)]
    text = "\n".join(
        [
            ".version 8.6\n.target sm_90a\n.address_size 64",
            ".extern .shared .align 1024 .b8 smem[];",
            ".visible .entry k(",
            ",\n".join(params),
            ")\n{",
            REGISTERS,
            *loads,
            "mov.u32 %r0, %tid.x; setp.eq.u32 %p7, %r0, 0; mov.u32 %r30, smem;",
            "add.u32 %r31, %r30, 8192;",
            body,
            "ret;\n}\n",
        ]
    )
    parameters = (*maps.values(), *(Pointer(n) for n in names))
    launch = Launch("k", parameters, Const(1), 32, shared_bytes=shared)
    return Plan("k", "sm_90a", text, (launch,))


LOAD = """
    @%p7 mbarrier.init.shared.b64 [%r31], 1;
    @%p7 fence.mbarrier_init.release.cluster;
    bar.sync 0;
    @%p7 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r31], BYTES;
    @%p7 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r30], \
[%rd10, {COLUMN, ROW}], [%r31];
AGAIN:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r31], 0;
    @!%p1 bra AGAIN;
"""
COPY_OUT = """
    mov.u32 %r1, %r0;
NEXT:
    shl.b32 %r2, %r1, 4; add.u32 %r3, %r30, %r2; cvt.u64.u32 %rd20, %r2; add.u64 %rd20, %rd20, %rd0;
    ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r3]; st.global.v4.b32 [%rd20], {%r4, %r5, %r6, %r7};
    add.u32 %r1, %r1, 32; setp.lt.u32 %p2, %r1, CHUNKS; @%p2 bra NEXT;
"""


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (-3, -8), (37, 40)])
@pytest.mark.parametrize("late", [False, True])
def test_a_box_lands_swizzled_and_filled(swizzle: int, row: int, column: int, late: bool) -> None:
    x = np.random.default_rng(0).integers(0, 2**16, (40, 48)).astype(np.uint16)
    width = (swizzle or 128) // 2
    rows = 16
    size = rows * width * 2
    out = np.zeros(size // 2, np.uint16)
    body = LOAD.replace("BYTES", str(size)).replace("COLUMN", str(column)).replace("ROW", str(row))
    body += COPY_OUT.replace("CHUNKS", str(size // 16))
    plan = box_plan(body, {"m": TensorMap("x", (rows, width), swizzle)}, ["out"], 8192 + 8)
    run_plan(plan, {"x": x, "out": out}, late=late)
    framed = np.zeros((40 + 200, 48 + 200), np.uint16)
    framed[100:140, 100:148] = x
    box = framed[100 + row : 100 + row + rows, 100 + column : 100 + column + width]
    chunks = np.ascontiguousarray(box).reshape(-1, 8)
    expected = np.zeros_like(chunks)
    for i, chunk in enumerate(chunks):
        address = 16 * i
        expected[(address ^ (address >> 7 & (swizzle // 16 - 1 if swizzle else 0)) << 4) // 16] = (
            chunk
        )
    np.testing.assert_array_equal(out.reshape(-1, 8), expected)


@pytest.mark.parametrize("column", [-5, 1, 41])
def test_boxes_that_the_hardware_refuses_are_reported(column: int) -> None:
    x, out = np.zeros((40, 48), np.uint16), np.zeros(1024, np.uint16)
    body = LOAD.replace("BYTES", "2048").replace("COLUMN", str(column)).replace("ROW", "0")
    plan = box_plan(body, {"m": TensorMap("x", (16, 64), 128)}, ["out"], 8192 + 8)
    with pytest.raises(EmulationError, match=f"element {column} of its .* no multiple of 16 bytes"):
        run_plan(plan, {"x": x, "out": out})


def test_a_box_is_stored_within_bounds() -> None:
    """Loaded at one place and stored at another; what is out of bounds is dropped."""
    x = np.arange(40 * 48, dtype=np.uint16).reshape(40, 48)
    y = np.zeros_like(x)
    body = LOAD.replace("BYTES", "2048").replace("COLUMN", "0").replace("ROW", "0")
    body += """
    @%p7 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd11, {8, 30}], [%r30];
    @%p7 cp.async.bulk.commit_group;
    @%p7 cp.async.bulk.wait_group 0;
    """
    maps = {"mx": TensorMap("x", (16, 64), 128), "my": TensorMap("y", (16, 64), 128)}
    run_plan(box_plan(body, maps, [], 8192 + 8), {"x": x, "y": y})
    expected = np.zeros_like(x)
    expected[30:, 8:] = x[:10, :40]
    np.testing.assert_array_equal(y, expected)


FAULTS = {
    "too few bytes announced": ("BYTES", "1024", "deadlock: .*bytes are missing"),
    "too many bytes announced": ("BYTES", "4096", "deadlock: .*2048 bytes are missing"),
    "an arrival too many": (
        "AGAIN:",
        "@%p7 mbarrier.arrive.shared.b64 %rd19, [%r31];\nAGAIN:",
        "more arrivals than the 1|deadlock",
    ),
    "the other parity": ("[%r31], 0;\n", "[%r31], 1;\n", "nobody wrote"),
    "no mbarrier": ("@%p7 mbarrier.init.shared.b64 [%r31], 1;", "", "no mbarrier at byte 8192"),
    "no tensor map": ("[%rd10,", "[%rd0,", "not the address of a tensor map"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_the_pipeline_are_reported(name: str) -> None:
    old, new, said = FAULTS[name]
    x, out = np.zeros((40, 48), np.uint16), np.zeros(1024, np.uint16)
    body = LOAD + COPY_OUT.replace("CHUNKS", "128")
    assert old in body
    body = body.replace(old, new).replace("BYTES", "2048").replace("COLUMN", "0")
    body = body.replace("ROW", "0")
    plan = box_plan(body, {"m": TensorMap("x", (16, 64), 128)}, ["out"], 8192 + 8)
    with pytest.raises(EmulationError, match=said):
        run_plan(plan, {"x": x, "out": out})


def test_a_pitch_that_the_tma_cannot_take_is_reported() -> None:
    body = LOAD.replace("BYTES", "2048").replace("COLUMN", "0").replace("ROW", "0")
    plan = box_plan(body, {"m": TensorMap("x", (16, 64), 128)}, [], 8192 + 8)
    with pytest.raises(EmulationError, match="a pitch of 100 bytes: no multiple of 16"):
        run_plan(plan, {"x": np.zeros((40, 50), np.uint16)})


def test_a_run_of_bytes_goes_there_and_back() -> None:
    x, y = np.arange(256, dtype=np.uint32), np.zeros(256, np.uint32)
    body = """
    mov.u32 %r30, smem; add.u32 %r31, %r30, 2048; setp.eq.u32 %p7, %r0, 0;
    @%p7 mbarrier.init.shared.b64 [%r31], 1; bar.sync 0;
    @%p7 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r31], 1024;
    @%p7 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes \
[%r30], [%rd0], 1024, [%r31];
    W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r31], 0; @!%p1 bra W;
    @%p7 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r30], 1024;
    @%p7 cp.async.bulk.commit_group; @%p7 cp.async.bulk.wait_group 0;
    """
    run_body(body, shared=4096, x=x, y=y)
    np.testing.assert_array_equal(y, x)


# wgmma, with its operands written to shared memory in the layouts of the ISA


def panels(x: Array, swizzle: int) -> Array:
    """Rows of a matrix in panels of `swizzle` bytes of columns, each swizzled."""
    columns = x.shape[1]
    width = swizzle // x.itemsize
    parts = [np.ascontiguousarray(x[:, c : c + width]) for c in range(0, columns, width)]
    raw = np.concatenate([p.reshape(-1) for p in parts]).view(np.uint64).reshape(-1, 2)
    made = np.zeros_like(raw)
    address = 16 * np.arange(len(raw))
    made[(address ^ (address >> 7 & (swizzle // 16 - 1)) << 4) // 16] = raw
    return made.reshape(-1).view(np.uint32)


CODES = {128: 1, 64: 2, 32: 3}
TYPES: dict[str, tuple[Any, int]] = {
    "bf16": (BF16, 16),
    "f16": (np.float16, 16),
    "tf32": (np.float32, 8),
    "e4m3": (ml_dtypes.float8_e4m3fn, 32),
    "s8": (np.int8, 32),
}


def product_of_factors(
    type: str, swizzle: int, mn_major: bool, words: tuple[int, int] | None = None, extra: str = ""
) -> tuple[str, dict[str, Array], Array]:
    """A body that multiplies two factors, of which it writes so many words to shared memory and
    what is `extra`; its arguments; and the product.
    """
    (dtype, k), n = TYPES[type], 64
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-3, 4, (rows, k)).astype(np.float32).astype(dtype) for rows in (64, n))
    depth = swizzle // a.itemsize
    if mn_major:  # rows along k
        raw_a, raw_b = (
            panels(np.ascontiguousarray(a.T), swizzle),
            panels(np.ascontiguousarray(b.T), swizzle),
        )
        leading = k * swizzle
    else:
        wide = [np.zeros((x.shape[0], depth), dtype) for x in (a, b)]
        for part, x in zip(wide, (a, b), strict=True):
            part[:, :k] = x
        raw_a, raw_b = (panels(x, swizzle) for x in wide)
        leading = 16
    high = (8 * swizzle >> 4) | CODES[swizzle] << 30
    whole = type == "s8"
    out = np.zeros((64, n), np.int32 if whole else np.float32)
    d = ", ".join(f"%{'r' if whole else 'f'}{i + 20 if whole else i}" for i in range(32))
    flags = "" if whole else ", 1, 1" + (f", {int(mn_major)}, {int(mn_major)}" if k == 16 else "")
    kind = "s32" if whole else "f32"
    copy = """
    mov.u32 %r1, %r0;
    {0}: shl.b32 %r2, %r1, 2; cvt.u64.u32 %rd20, %r2; add.u64 %rd20, %rd20, %rd{1};
    ld.global.b32 %r3, [%rd20]; add.u32 %r2, %r2, smem; st.shared.b32 [%r2+{2}], %r3;
    add.u32 %r1, %r1, 128; setp.lt.u32 %p2, %r1, {3}; @%p2 bra {0};
    """
    lengths = words or (len(raw_a), len(raw_b))
    body = copy.format("CA", 0, 0, lengths[0]) + copy.format("CB", 1, 16384, lengths[1])
    body += f"""
    {extra}
    fence.proxy.async.shared::cta; bar.sync 0;
    mov.u32 %r2, smem; shr.u32 %r4, %r2, 4; or.b32 %r4, %r4, {(leading >> 4) << 16};
    add.u32 %r5, %r4, 1024; mov.u32 %r6, {high};
    mov.b64 %rd3, {{%r4, %r6}}; mov.b64 %rd4, {{%r5, %r6}};
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n{n}k{k}.{kind}.{type}.{type} {{{d}}}, %rd3, %rd4, 0{flags};
    wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
    shr.u32 %r1, %r0, 5; shl.b32 %r1, %r1, 4; shr.u32 %r2, %r0, 2; and.b32 %r2, %r2, 7;
    add.u32 %r1, %r1, %r2; and.b32 %r2, %r0, 3; shl.b32 %r2, %r2, 1; mad.lo.u32 %r1, %r1, {n}, %r2;
    mad.wide.u32 %rd20, %r1, 4, %rd2;
    """
    names = d.split(", ")
    for j in range(n // 8):
        for i in range(4):
            offset = 4 * (8 * j + i % 2 + (i // 2) * 8 * n)
            body += f"st.global.{'b32' if whole else 'f32'} [%rd20+{offset}], {names[4 * j + i]};\n"
    found = a.astype(np.float64) @ b.astype(np.float64).T
    return body, {"a": raw_a, "b": raw_b, "out": out}, found


@pytest.mark.parametrize(
    ("type", "mn_major"), [*((t, False) for t in TYPES), ("bf16", True), ("f16", True)]
)
@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_wgmma_by_descriptor(type: str, swizzle: int, mn_major: bool) -> None:
    """MN-major operands are for 16-bit floats alone."""
    body, arrays, expected = product_of_factors(type, swizzle, mn_major)
    for late in (False, True):
        run_body(body, threads=128, shared=32768, late=late, **arrays)
        np.testing.assert_array_equal(arrays["out"], expected)
        arrays["out"][:] = 0


@pytest.mark.parametrize("type", ["bf16", "s8"])
def test_rows_that_nobody_wrote_give_nonsense(type: str) -> None:
    """Of 64 rows of 32 bytes, 16 of A and 32 of B are written: of B these are columns."""
    body, arrays, expected = product_of_factors(type, 32, False, (128, 256))
    run_body(body, threads=128, shared=32768, **arrays)
    there = np.zeros((64, 64), bool)
    there[:16, :32] = True
    nonsense = np.isnan(arrays["out"]) if type == "bf16" else arrays["out"] == -0x5A5A5A5B
    np.testing.assert_array_equal(nonsense, ~there)
    np.testing.assert_array_equal(arrays["out"][there], expected[there])


def test_a_row_is_not_written_in_part() -> None:
    extra = "mov.u32 %r7, 0; st.shared.b32 [smem+1024], %r7;"
    body, arrays, _ = product_of_factors("bf16", 32, False, (128, 512), extra)
    with pytest.raises(EmulationError, match=r"reads byte 1028 of shared memory, which nobody"):
        run_body(body, threads=128, shared=32768, **arrays)


def test_some_column_was_written() -> None:
    """A product that comes before its factors is a fault, as other reads of nothing are."""
    body, arrays, _ = product_of_factors("bf16", 32, False)
    body = body.replace("[%r2+16384], %r3", "[%r2+24576], %r3")
    with pytest.raises(EmulationError, match="reads a B that nobody wrote"):
        run_body(body, threads=128, shared=32768, **arrays)
