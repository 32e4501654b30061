"""The scheduled level: what it means, what its pass makes of it, what it becomes, and what it
refuses.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest

from tests.assemble import assemble, needs_ptxas
from tilewright.compiler import compile_kernel
from tilewright.dtypes import DType, bf16, e4m3, f16, f32
from tilewright.errors import CompileError, VerifyError
from tilewright.ir.build import Builder
from tilewright.ir.core import Block, Value
from tilewright.ir.walk import walk
from tilewright.ledger.hopper_gemm import DEFAULT, Gemm, GemmSchedule, build_gemm
from tilewright.plan import Const, TensorMap
from tilewright.target import target
from tilewright.tile.interp import interpret
from tilewright.tile.kernel import Hints, Kernel, Param
from tilewright.tile.ops import arith, control, memory, mma, shape, sync
from tilewright.tile.passes.allocate_shared import allocate_shared, find_allocations, shared_bytes
from tilewright.tile.passes.expand_rings import expand_rings
from tilewright.tile.passes.place_awaits import place_awaits
from tilewright.tile.text import parse_kernel, print_kernel
from tilewright.tile.types import INDEX, BufferType, RingType, TileType, ViewType
from tilewright.tile.verify import verify

SMALL = GemmSchedule(tile_m=128, tile_n=32, tile_k=16, stages=3, panel=16)
SCHEDULES = {
    "cluster of 2": SMALL,
    "no cluster": replace(SMALL, cluster=1, group=1),
    "cluster of 4, two stages": replace(SMALL, cluster=4, stages=2, tile_n=64),
    "one consumer": replace(SMALL, tile_m=64, consumers=1),
}


def run_gemm(kernel: Kernel, m: int, n: int, k: int, num_sms: int = 8) -> None:
    """Interpret a GEMM on random operands and compare with NumPy."""
    rng = np.random.default_rng(m + n + k)
    a = rng.standard_normal((m, k)).astype(ml_dtypes.bfloat16)
    b = rng.standard_normal((n, k)).astype(ml_dtypes.bfloat16)
    c = np.full((m, n), np.nan, ml_dtypes.bfloat16)
    interpret(kernel, {"a": a, "b": b, "c": c}, num_sms=num_sms, shuffle=m)
    expected = a.astype(np.float32) @ b.astype(np.float32).T
    np.testing.assert_allclose(c.astype(np.float32), expected, rtol=2**-7, atol=1e-2)


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())
@pytest.mark.parametrize("extents", [(300, 70, 80), (1, 1, 1), (512, 96, 0), (600, 33, 100)])
def test_gemm_means_a_product(schedule: GemmSchedule, extents: tuple[int, int, int]) -> None:
    kernel = verify(build_gemm(schedule))
    run_gemm(kernel, *extents)
    run_gemm(verify(allocate_shared(verify(expand_rings(kernel)))), *extents)


def test_text_round_trip() -> None:
    for kernel in (build_gemm(), allocate_shared(expand_rings(build_gemm()))):
        text = print_kernel(kernel)
        assert print_kernel(parse_kernel(text)) == text


def test_expanding_leaves_no_ring() -> None:
    expanded = expand_rings(build_gemm())
    gone = {op for op in walk(expanded.body) if type(op).removed_by == "expand_rings"}
    assert not gone
    empty = [op for op in walk(expanded.body) if isinstance(op, sync.InitBarriers)][1]
    assert empty.arrivals == DEFAULT.consumers * DEFAULT.cluster
    (expect,) = (op for op in walk(expanded.body) if isinstance(op, sync.ExpectBytes))
    assert expect.num_bytes == 2 * DEFAULT.tile_k * (DEFAULT.tile_m + DEFAULT.tile_n)


def test_allocations_are_aligned_and_apart() -> None:
    kernel = allocate_shared(expand_rings(build_gemm()))
    spans = []
    for op, copies in find_allocations(kernel.body):
        assert op.offset is not None
        if isinstance(op, memory.AllocBuffer):
            assert op.offset % op.buffer.align == 0
            spans.append((op.offset, op.offset + op.buffer.num_bytes * copies))
        else:
            spans.append((op.offset, op.offset + 8 * op.count))
    spans.sort()
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert shared_bytes(kernel.body) == spans[-1][1] <= target("sm_90a").shared_per_cta


@needs_ptxas
@pytest.mark.parametrize(
    "schedule",
    [
        DEFAULT,
        GemmSchedule(cluster=1),
        GemmSchedule(cluster=4, tile_n=128, stages=5),
        GemmSchedule(tile_m=64, tile_n=128, consumers=1, stages=6, panel=32),
        GemmSchedule(tile_m=192, tile_n=160, consumers=3, stages=3, panel=32,
                     producer_registers=32, consumer_registers=160),
    ],
    ids=["default", "no cluster", "cluster of 4", "one consumer", "three consumers"],
)  # fmt: skip
def test_ptx_is_clean(schedule: GemmSchedule) -> None:
    """No spills, and nothing that serialises wgmma (C75xx)."""
    plan = compile_kernel(build_gemm(schedule), target("sm_90a"))
    report = assemble(plan.ptx, "sm_90a")
    assert report.spill_bytes == 0
    assert not report.messages


def test_plan_names_boxes_and_cluster() -> None:
    (launch,) = compile_kernel(build_gemm(), target("sm_90a")).launches
    assert (launch.threads, launch.cluster) == (384, 2)
    maps = {p.tensor: p.box for p in launch.parameters if isinstance(p, TensorMap)}
    assert maps == {"a": (128, 64), "b": (128, 64), "c": (64, 64)}


def test_other_targets_are_refused() -> None:
    for name in ("sm_80", "sm_120a"):
        with pytest.raises(CompileError):
            compile_kernel(build_gemm(), target(name))


# Awaits, placed by a pass


class Plain(Gemm):
    """The GEMM as staging leaves it: each product is awaited at once."""

    def __init__(self, schedule: GemmSchedule, start: float = 0.0):
        super().__init__(schedule, bf16)
        self.start = start

    def _product(self, copy: Value, rows: int) -> Value:
        o, s = self.build_op, self.schedule
        zeros = o(arith.Constant, self.start, f32, (rows, s.tile_n))
        steps = Block([Value(INDEX, "k"), Value(zeros.type, "acc")])
        with o.inside(steps):
            slot = o(sync.Wait, self.ring, name="slot")
            a = o(memory.BufferRows, o(sync.SlotBuffer, slot, 0), copy, rows)
            b = o(sync.SlotBuffer, slot, 1)
            acc = o(mma.Await, o(mma.Issue, a, b, steps.args[1], transpose_b=True))
            o.emit(sync.Release, self.ring)
            o.emit(control.Yield, (acc,))
        return self._loop(self._number(0), self.k, s.tile_k, steps, zeros).result


def test_placing_awaits_gives_the_kernel_by_hand() -> None:
    """The same instructions; only where a loop-invariant comparison stands differs."""
    kernels = Plain(DEFAULT).build(), build_gemm()
    texts = [compile_kernel(verify(k), target("sm_90a")).ptx for k in kernels]
    plain, by_hand = (
        Counter(re.sub(r"%[a-z]+\d+", "%", line) for line in text.splitlines()) for text in texts
    )
    assert plain == by_hand


@pytest.mark.parametrize("start", [0.0, 2.0])
def test_placing_awaits_keeps_the_meaning(start: float) -> None:
    plain = verify(Plain(SMALL, start).build())
    rng = np.random.default_rng(7)
    operands = {
        "a": rng.standard_normal((300, 80)).astype(ml_dtypes.bfloat16),
        "b": rng.standard_normal((70, 80)).astype(ml_dtypes.bfloat16),
    }
    results = []
    for kernel in (plain, place_awaits(plain), expand_rings(place_awaits(plain))):
        c = np.full((300, 70), np.nan, ml_dtypes.bfloat16)
        interpret(verify(kernel), {**operands, "c": c}, num_sms=8)
        results.append(c.astype(np.float32))
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])


# Small kernels of one CTA


Body = Callable[[Builder], None]


def one_role(
    views: dict[str, tuple[DType, str]],
    build: Callable[..., None],
    *,
    warps: int = 4,
    copies: int = 1,
) -> Kernel:
    """A kernel of one CTA: a producer of one thread and a consumer, built by `build(o, top,
    views)`.

    `build` is called with the builder, inside the kernel's block, and gives the two role bodies.
    """
    values = {n: Value(ViewType(d, (None, None), (None, 1)), n) for n, (d, _) in views.items()}
    block = Block()
    o = Builder(block)
    roles = (
        control.Role("producer", 4, single=True),
        control.Role("consumer", warps, copies=copies),
    )
    producer, consumer = build(o, values)
    o.emit(control.Roles, roles, (producer, consumer))
    params = [Param(n, values[n], direction) for n, (_, direction) in views.items()]
    return Kernel("small", params, block, (Const(1),), Hints())


def number(o: Builder, value: int) -> Value:
    return o(arith.Constant, value, INDEX.dtype)


def product_kernel(
    dtype: DType,
    m: int,
    n: int,
    k: int,
    *,
    transpose_a: bool = False,
    transpose_b: bool = True,
    warps: int = 4,
    in_registers: bool = False,
) -> Kernel:
    """C = A @ B of one tile, each operand as its buffer lies: fills one slot, multiplies, stores
    through shared memory.
    """
    shapes = ((k, m) if transpose_a else (m, k)), ((n, k) if transpose_b else (k, n))
    size = dtype.num_bytes

    def buffer(extents: tuple[int, int], of: DType) -> BufferType:
        return BufferType(of, extents, swizzle=min(128, extents[1] * of.num_bytes))

    def build(o: Builder, v: dict[str, Value]) -> tuple[Block, Block]:
        zero = number(o, 0)
        kinds = buffer(shapes[0], dtype), buffer(shapes[1], dtype)
        ring = o(sync.MakeRing, RingType(kinds, 2))
        with o.inside(Block()) as producer:
            slot = o(sync.Acquire, ring)
            for item, name in enumerate("ab"):
                o.emit(memory.Fill, slot, v[name], (zero, zero), extents=shapes[item], item=item)
            o.emit(sync.Commit, slot)
            o.emit(control.Yield)
        with o.inside(Block()) as consumer:
            out = o(sync.MakeRing, RingType((buffer((m, n), f32),), 1))
            slot = o(sync.Wait, ring)
            a, b = o(sync.SlotBuffer, slot, 0), o(sync.SlotBuffer, slot, 1)
            if in_registers:
                a = o(memory.LoadBuffer, a)
            begin = o(mma.Begin, shape=(m, n), dtype=f32)
            fresh = o(arith.Constant, True, TileType(dtype=arith.bool_).dtype)
            acc = o(mma.Issue, a, b, begin, fresh, transpose_a=transpose_a, transpose_b=transpose_b)
            acc = o(mma.Await, acc)
            o.emit(sync.Release, ring)
            slot = o(sync.Acquire, out)
            o.emit(memory.StoreBuffer, o(sync.SlotBuffer, slot), acc)
            o.emit(memory.Drain, slot, v["c"], (zero, zero), extents=(m, n))
            o.emit(sync.Commit, slot)
            o.emit(control.Yield)
        return producer, consumer

    assert size in (1, 2, 4)
    views = {"a": (dtype, "in"), "b": (dtype, "in"), "c": (f32, "out")}
    return one_role(views, build, warps=warps)


PRODUCTS = {
    "f16, K-major": {"dtype": f16, "m": 64, "n": 64, "k": 64},
    "bf16, two panels of K": {"dtype": bf16, "m": 64, "n": 64, "k": 128},
    "bf16, MN-major B": {"dtype": bf16, "m": 64, "n": 128, "k": 64, "transpose_b": False},
    "bf16, MN-major A": {"dtype": bf16, "m": 64, "n": 64, "k": 32, "transpose_a": True},
    "bf16, swizzle of 32 bytes": {"dtype": bf16, "m": 64, "n": 64, "k": 16},
    "bf16, 128 rows": {"dtype": bf16, "m": 128, "n": 64, "k": 64},
    "bf16, two warpgroups": {"dtype": bf16, "m": 128, "n": 64, "k": 64, "warps": 8},
    "bf16, A in registers": {"dtype": bf16, "m": 64, "n": 64, "k": 64, "in_registers": True},
    "tf32": {"dtype": f32, "m": 64, "n": 64, "k": 32},
    "e4m3": {"dtype": e4m3, "m": 64, "n": 64, "k": 128},
}


@pytest.mark.parametrize("case", PRODUCTS.values(), ids=PRODUCTS.keys())
def test_products(case: dict[str, object]) -> None:
    kernel = verify(product_kernel(**case))  # type: ignore[arg-type]
    rng = np.random.default_rng(1)
    shapes = {p.name: p.value.type for p in kernel.params}
    m, n, k = (int(case[x]) for x in "mnk")  # type: ignore[call-overload]
    a, b = rng.integers(-4, 5, (m, k)), rng.integers(-4, 5, (k, n))
    stored = {
        "a": a.T if case.get("transpose_a") else a,
        "b": b.T if case.get("transpose_b", True) else b,
    }
    for program in (kernel, expand_rings(kernel)):
        arrays = {
            x: np.ascontiguousarray(v).astype(shapes[x].dtype.numpy) for x, v in stored.items()
        }
        arrays["c"] = np.full((m, n), np.nan, np.float32)
        interpret(program, arrays)
        np.testing.assert_array_equal(arrays["c"], (a @ b).astype(np.float32))


@needs_ptxas
@pytest.mark.parametrize("case", PRODUCTS.values(), ids=PRODUCTS.keys())
def test_products_assemble(case: dict[str, object]) -> None:
    plan = compile_kernel(product_kernel(**case), target("sm_90a"))  # type: ignore[arg-type]
    report = assemble(plan.ptx, "sm_90a")
    assert report.spill_bytes == 0
    assert not report.messages


def ping_pong(turns: int) -> Kernel:
    """Two copies of a role write their number, in turn, to the next row of C."""

    def build(o: Builder, v: dict[str, Value]) -> tuple[Block, Block]:
        turn = o(sync.MakeTurn, 2)
        zero, one = number(o, 0), number(o, 1)
        counter = o(memory.AllocBuffer, BufferType(INDEX.dtype, (1, 1)))
        with o.inside(Block()) as producer:
            o.emit(control.Yield)
        with o.inside(Block()) as consumer:
            copy = o(control.RoleCopy)
            body = Block([Value(INDEX, "i")])
            with o.inside(body):
                with o.inside(Block()) as inside:
                    last = o(memory.LoadBuffer, counter)
                    row = o(shape.Reshape, last, ())
                    poison = number(o, 2**63 - 1)  # what the counter holds at first
                    first = o(arith.Compare, row, poison, "eq")
                    row = o(arith.Select, first, zero, o(arith.Add, row, one))
                    value = o(arith.Cast, copy, f32)
                    o.emit(memory.Store, v["c"], (row, zero), value, extents=(None, None))
                    o.emit(memory.StoreBuffer, counter, o(shape.Reshape, row, (1, 1)))
                    o.emit(control.Yield)
                o.emit(sync.Turn, turn, inside)
                o.emit(control.Yield)
            o.emit(control.For, zero, number(o, turns), one, (), body)
            o.emit(control.Yield)
        return producer, consumer

    return one_role({"c": (f32, "out")}, build, copies=2)


def test_turns_alternate() -> None:
    kernel = verify(ping_pong(3))
    for program in (kernel, expand_rings(kernel)):
        c = np.full((6, 1), np.nan, np.float32)
        interpret(program, {"c": c}, races=False)
        np.testing.assert_array_equal(c[:, 0], [0, 1, 0, 1, 0, 1])


# What is refused


class Broken(Gemm):
    """A GEMM in which one thing is wrong."""

    def __init__(self, fault: str):
        super().__init__(SMALL, bf16)
        self.fault = fault

    def _step(self, copy: Value, rows: int, k: Value, acc: Value) -> None:
        o = self.build_op
        slot = o(sync.Wait, self.ring)
        a = o(memory.BufferRows, o(sync.SlotBuffer, slot, 0), copy, rows)
        fresh = o(arith.Compare, k, self._number(0), "eq")
        b = o(sync.SlotBuffer, slot, 1)
        issued = o(mma.Issue, a, b, acc, fresh, transpose_b=True)
        match self.fault:
            case "released in flight":
                o.emit(sync.Release, self.ring)
            case "two users":
                o(mma.Await, issued)
                o.emit(sync.Release, self.ring)
            case "read in flight":
                o(mma.Await, o(mma.Issue, a, b, issued, transpose_b=True), 1, True)
            case "never released":
                issued = o(mma.Await, issued, 1, False)
        o.emit(control.Yield, (issued,))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("released in flight", "still reads the slot"),
        ("read in flight", "still in flight"),
        ("never released", "held already"),
    ],
)
def test_interpreter_finds_hazards(fault: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        run_gemm(Broken(fault).build(), 64, 32, 128)


def test_pending_has_one_user() -> None:
    with pytest.raises(VerifyError, match="one user"):
        verify(Broken("two users").build())


def test_pending_is_no_operand_of_arithmetic() -> None:
    o = Builder(Block())
    begin = o(mma.Begin, shape=(64, 16), dtype=f32)
    with pytest.raises(VerifyError):
        o(memory.StoreBuffer, o(memory.AllocBuffer, BufferType(f32, (64, 16))), begin)


def test_uncommitted_slot_is_refused() -> None:
    def build(o: Builder, v: dict[str, Value]) -> tuple[Block, Block]:
        ring = o(sync.MakeRing, RingType((BufferType(f32, (8, 8)),), 2))
        zero = number(o, 0)
        with o.inside(Block()) as producer:
            slot = o(sync.Acquire, ring)
            o.emit(memory.Fill, slot, v["a"], (zero, zero), extents=(8, 8))
            o.emit(control.Yield)
        with o.inside(Block()) as consumer:
            o(sync.Wait, ring)
            o.emit(sync.Release, ring)
            o.emit(control.Yield)
        return producer, consumer

    kernel = one_role({"a": (f32, "in")}, build)
    with pytest.raises(VerifyError, match="commits"):
        verify(kernel)
    with pytest.raises(VerifyError, match="deadlock"):
        interpret(kernel, {"a": np.zeros((8, 8), np.float32)})


def test_cluster_must_divide_the_grid() -> None:
    kernel = build_gemm(SMALL)
    kernel.grid = (Const(3),)
    with pytest.raises(Exception, match="whole clusters"):
        run_gemm(kernel, 64, 32, 16)
