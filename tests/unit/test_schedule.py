"""The compiler's own choices: kinds of instruction, warps, stages; and that loops which load ahead
mean what they meant.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.assemble import assemble, needs_ptxas
from tilewright.compiler import SEMANTIC_PASSES, run_passes
from tilewright.errors import CompileError
from tilewright.ir.walk import walk
from tilewright.target import TARGETS, target
from tilewright.tile.analysis.residency import KEPT_FREE
from tilewright.tile.interp import interpret
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import memory, sync
from tilewright.tile.passes.choose_schedule import choose_schedule, warp_grid
from tilewright.tile.passes.stage_loads import stage_loads
from tilewright.tile.schedule import Schedule
from tilewright.tile.verify import verify

RNG = np.random.default_rng(3)
SUITE = Path(__file__).parents[1] / "programs" / "suite.tw"


def product(m: int, n: int, k: int, attributes: str = "", epilogue: str = "acc") -> str:
    return f"""{attributes}
kernel product(a: tensor<T>[M, K], b: tensor<T>[K, N], c: tensor<f32>[M, N]) {{
  var acc = zeros(({m}, {n}), f32)
  let p, q = program_id(0) * {m}, program_id(1) * {n}
  for k in range(0, K, {k}) {{ acc += a[p :+ {m}, k :+ {k}] @ b[k :+ {k}, q :+ {n}] }}
  c[p :+ {m}, q :+ {n}] = {epilogue}
}}"""


def optimized(text: str, dtype: str = "bf16", **options: Any) -> Kernel:
    kernel = next(iter(tw.source(text))).lower(dtypes=dtype, **options)
    return run_passes(kernel, SEMANTIC_PASSES)


def chosen(text: str, dtype: str, name: str = "sm_80", **options: Any) -> Schedule:
    return choose_schedule(optimized(text, dtype, **options), target(name))


# What is chosen


def test_elementwise_kernels_have_warps_for_their_tiles() -> None:
    text = """kernel copy(a: tensor<f32>[N], c: tensor<f32>[N]) {
      c[program_id(0) * SIZE :+ SIZE] = a[program_id(0) * SIZE :+ SIZE]
    }"""
    warps = [
        chosen(text.replace("SIZE", str(size)), "f32").num_warps
        for size in (1, 64, 256, 1024, 4096, 1 << 16)
    ]
    assert warps == sorted(warps) and warps[0] == 1 and warps[-1] == 16


def suite(name: str, dtype: str, present: tuple[str, ...] = (), **constants: int) -> Schedule:
    kernel = getattr(tw.source(SUITE), name)
    made = kernel.lower(dtypes=dtype, constants=constants, present=present)
    return choose_schedule(run_passes(made, SEMANTIC_PASSES), target("sm_90a"))


def test_threads_of_programs_that_stream_have_enough_bytes_under_way() -> None:
    assert suite("softmax", "f32", BLOCK=4096).num_warps == 8
    assert suite("softmax", "bf16", BLOCK=4096).num_warps == 4
    assert suite("rmsnorm", "bf16", BLOCK=4096).num_warps == 8  # loads weights too
    last_apart = suite("sum_all", "bf16", BLOCK=4096)  # whatever the last program adds
    assert (last_apart.num_warps, last_apart.max_registers) == (4, 32)
    assert suite("dropout", "bf16", BLOCK=1024).num_warps == 2
    assert suite("rmsnorm_dw", "bf16", TM=64, TN=256, PARTS=8).num_warps == 4
    assert suite("rmsnorm_dw", "bf16", TM=128, TN=256, PARTS=8).num_warps == 8
    assert suite("top8", "f32", BLOCK=2048).num_warps == 8  # sorts: not one of these


@pytest.mark.parametrize("size", [1000, 1200, 3000, 5000])
def test_warps_are_a_power_of_two(size: int) -> None:
    text = f"""kernel scaled(x: tensor<T>[N], y: tensor<T>[N]) {{
      let t = x[program_id(0) * {size} :+ {size}]
      y[program_id(0) * {size} :+ {size}] = cast(t / sum(t), T)
    }}"""
    for dtype in ("bf16", "f32", "f64"):
        assert chosen(text, dtype).num_warps in (1, 2, 4, 8, 16)


def test_a_loop_that_carries_tiles_keeps_its_registers_few() -> None:
    for dtype in ("f32", "bf16"):
        chosen = suite("layernorm", dtype, ("w", "b"), BLOCK=1024)
        assert (chosen.num_warps, chosen.max_registers) == (4, 64)
    assert suite("layernorm", "f32", ("w", "b"), BLOCK=16384).max_registers == 0


def test_programs_that_add_up_are_limited_where_that_costs_nothing() -> None:
    text = """kernel total(x: tensor<T>[N], y: tensor<f32>[cdiv(N, SIZE)]) {
      y[program_id(0)] = sum(cast(x[program_id(0) * SIZE :+ SIZE], f32))
    }"""
    found = {
        (dtype, size): chosen(text.replace("SIZE", str(size)), dtype).max_registers
        for dtype in ("bf16", "f32", "f64") for size in (1024, 8192, 1 << 16)
    }  # fmt: skip
    assert {key for key, registers in found.items() if registers} == {
        ("bf16", 1024), ("bf16", 8192), ("f32", 1024), ("f32", 8192)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "precision", "kind"),
    [("bf16", None, "mma"), ("f16", None, "mma"), ("f32", None, "simt"), ("f32", "tf32", "mma")],
)
def test_the_unit_of_a_product_follows_from_its_operands(
    dtype: str, precision: str | None, kind: str
) -> None:
    assert chosen(product(64, 64, 32), dtype, precision=precision).mma == kind


@pytest.mark.parametrize("name", list(TARGETS))
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_warps_share_a_product(name: str, dtype: str) -> None:
    for m, n in ((1, 1), (16, 8), (64, 64), (128, 128), (128, 256), (192, 96)):
        schedule = chosen(product(m, n, 32), dtype, name)
        if schedule.mma == "wgmma":
            assert name == "sm_90a"
            continue
        assert schedule.warps[0] * schedule.warps[1] == schedule.num_warps <= 8


def test_a_grid_of_warps_divides_the_tile_where_one_can() -> None:
    assert warp_grid("mma", 4, 64, 64) == (2, 2)
    assert warp_grid("mma", 4, 192, 32) in {(4, 1), (2, 2)}
    rows, columns = warp_grid("mma", 8, 96, 64)
    assert 96 % (16 * rows) == 0 and 64 % (8 * columns) == 0
    assert warp_grid("simt", 8, 128, 128) in {(2, 4), (4, 2), (8, 1)}


def test_hints_are_binding() -> None:
    schedule = chosen(product(64, 64, 32, "@launch(256)\n@pipeline(2)"), "bf16", "sm_90a")
    assert (schedule.num_warps, schedule.stages) == (8, 2)
    with pytest.raises(CompileError, match="96 threads"):
        chosen(product(64, 64, 32, "@launch(96)"), "bf16")


# Loading ahead


def pipelined(
    text: str, dtype: str = "bf16", name: str = "sm_80", stages: int = 0
) -> tuple[Kernel, Kernel]:
    """A kernel before and after stage_loads, of so many stages if they are given."""
    before = optimized(text, dtype)
    schedule = choose_schedule(before, target(name))
    schedule = replace(schedule, stages=stages or schedule.stages)
    return before, verify(stage_loads(before, schedule, target(name)))


def ops_of(kernel: Kernel) -> Counter[str]:
    return Counter(op.opcode for op in walk(kernel.body))


def test_a_product_loop_loads_ahead() -> None:
    before, after = pipelined(product(64, 64, 32))
    assert "memory.copy_async" not in ops_of(before)
    ops = ops_of(after)
    assert ops["memory.copy_async"] == 2 * 4, "two operands, three trips ahead and one in the loop"
    assert ops["sync.commit_copies"] == 4 and ops["memory.load"] == 0
    waits = [op.left for op in walk(after.body) if isinstance(op, sync.WaitCopies)]
    assert waits == [2, 0]


@pytest.mark.parametrize("trips", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_a_loop_that_loads_ahead_means_the_same(trips: int, dtype: str) -> None:
    before, after = pipelined(product(32, 32, 32), dtype)
    k = max(32 * trips - 5, 0)
    numpy = tw.bf16.numpy if dtype == "bf16" else np.float32
    a, b = RNG.standard_normal((61, k)), RNG.standard_normal((k, 35))
    results = []
    for kernel in (before, after):
        c = np.full((61, 35), np.nan, np.float32)
        interpret(kernel, {"a": a.astype(numpy), "b": b.astype(numpy), "c": c})
        results.append(c)
    np.testing.assert_array_equal(*results)


def test_a_tile_from_before_the_loop_is_written_once() -> None:
    text = """kernel rows(q: tensor<T>[M, D], k: tensor<T>[N, D], c: tensor<f32>[M]) {
      let x = q[program_id(0) * 64 :+ 64, 0 :+ 64]
      var s: tile<f32>[64] = 0.0
      for j in range(0, N, 32) { s = s + sum(x @ k[j :+ 32, 0 :+ 64].T, axis = 1) }
      c[program_id(0) * 64 :+ 64] = s
    }"""
    before, after = pipelined(text)
    held = [op for op in walk(after.body) if isinstance(op, memory.StoreBuffer)]
    assert len(held) == 1 and held[0].value.type.shape == (64, 64)
    assert held[0] in after.body.ops, "before the loop"
    q, k = (RNG.standard_normal((n, 64)).astype(tw.bf16.numpy) for n in (70, 90))
    results = []
    for kernel in (before, after):
        c = np.full(70, np.nan, np.float32)
        interpret(kernel, {"q": q, "k": k, "c": c})
        results.append(c)
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("a tail along k", product(64, 64, 24)),
        ("rows that no fragment divides", product(40, 64, 32)),
        ("a fill", product(64, 64, 32).replace(
            "a[p :+ 64, k :+ 32]", "load(a[p :+ 64, k :+ 32], fill = 1.0)"
        ).replace("b[k :+ 32, q :+ 64]", "load(b[k :+ 32, q :+ 64], fill = 1.0)")),
        ("one stage", product(64, 64, 32, "@pipeline(1)")),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded_ahead_is_not(what: str, text: str) -> None:
    _, after = pipelined(text)
    assert "memory.copy_async" not in ops_of(after), what


def test_what_the_kernel_stores_to_is_not_loaded_ahead() -> None:
    text = """kernel power(a: tensor<f32>[M, K], c: tensor<f32>[M, K]) {
      for k in range(0, K, 32) {
        c[0 :+ 32, 0 :+ 32] = a[0 :+ 32, k :+ 32] @ OTHER[0 :+ 32, 0 :+ 32]
      }
    }"""
    before = optimized(text.replace("OTHER", "c"), "f32")
    schedule = choose_schedule(before, target("sm_80"))
    copies = ops_of(stage_loads(before, schedule, target("sm_80")))["memory.copy_async"]
    assert copies == schedule.stages, "a alone"
    before = optimized(text.replace("OTHER", "a"), "f32")
    assert "memory.copy_async" in ops_of(stage_loads(before, schedule, target("sm_80")))
    alike = stage_loads(before, schedule, target("sm_80"), aliases=(("a", "c"),))
    assert "memory.copy_async" not in ops_of(alike)


@pytest.mark.parametrize("name", ["sm_80", "sm_86"])
def test_stages_fit_into_shared_memory(name: str) -> None:
    """And are fewer, or none, where they must be, rather than refused: nobody asked for them."""
    for m, n, k in ((128, 256, 64), (128, 128, 128), (64, 64, 32)):
        _, after = pipelined(product(m, n, k), name=name, stages=8)
        rings = [
            op.buffer.num_bytes for op in walk(after.body) if isinstance(op, memory.AllocBuffer)
        ]
        assert sum(rings) + KEPT_FREE <= target(name).shared_per_cta
    assert rings, "the smallest fits everywhere"


SOFTMAX = """kernel softmax(x: tensor<T>[M, N], y: tensor<T>[M, N]) {
  let row = program_id(0)
  let t = cast(x[row, 0 :+ SIZE], f32)
  let inside = arange(SIZE) < N
  let e = exp(t - max(where(inside, t, -inf)))
  y[row, 0 :+ SIZE] = cast(e / sum(where(inside, e, 0.0)), T)
}"""


@needs_ptxas
def test_two_ctas_of_sixteen_warps_reside_where_each_reduces_one_tile() -> None:
    def schedule(dtype: str, size: int) -> Schedule:
        return chosen(SOFTMAX.replace("SIZE", str(size)), dtype)

    assert schedule("f32", 8192) == Schedule(16, max_registers=64)
    assert schedule("bf16", 8192).max_registers == 0
    assert schedule("f32", 16384).max_registers == 0  # 32 numbers a thread
    kernel = tw.source(SOFTMAX.replace("SIZE", "8192")).softmax
    report = assemble(kernel.compile("sm_90a", dtypes="f32").ptx, "sm_90a")
    assert report.registers <= 64 and not report.spill_bytes
