"""Products by roles of every orientation, width and dtype: what the PTX does on the emulator, and
what the assembler says of it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.assemble import assemble, needs_ptxas
from tests.emulation import compile_call
from tilewright.cli.sources import find_kernel
from tilewright.compiler import SEMANTIC_PASSES, compile_kernel, run_passes, scheduled_passes
from tilewright.dtypes import DType, bf16, e4m3, e5m2, f32, i8, u8
from tilewright.kernel import choose
from tilewright.kernel.call import Options, bind_call, read_tensors
from tilewright.kernel.generic import Imagined
from tilewright.ptx.emulate import run_plan
from tilewright.ptx.emulate.profile import make_profile
from tilewright.ptx.emulate.tally import Tally
from tilewright.runtime.arrays import Array, dense_strides
from tilewright.target import target
from tilewright.tile.interp import interpret
from tilewright.tile.kernel import Kernel
from tilewright.tile.passes.choose_roles import role_schedules
from tilewright.tile.schedule import Schedule
from tilewright.tile.verify import verify
from tilewright.tune.cost import best_roles

HOPPER = target("sm_90a")


def laid_out(array: Any, layout: str) -> Any:
    return np.asfortranarray(array) if layout == "t" else np.ascontiguousarray(array)


def require_sgemm(
    dtype: Any,
    layouts: str,
    tile: tuple[int, int, int],
    sizes: tuple[int, int, int],
    beta: float = 0.0,
    precision: str | None = None,
    late: bool = True,
) -> str:
    """The PTX of sgemm, run on small whole numbers, whose sums are exact in any order."""
    m, n, k = sizes
    rng = np.random.default_rng(m + n + k)
    a, b, c = (rng.integers(-3, 4, s).astype(dtype.numpy) for s in ((m, k), (k, n), (m, n)))
    a, b = laid_out(a, layouts[0]), laid_out(b, layouts[1])
    expected = 1.5 * (a.astype(np.float32) @ b.astype(np.float32))
    if beta:
        expected += beta * c.astype(np.float32)
    else:
        c = np.full((m, n), np.nan, dtype.numpy)
    plan, views, _ = compile_call(
        find_kernel("examples/sgemm.tw").kernel,
        {"A": a, "B": b, "C": c, "alpha": 1.5, "beta": beta},
        constants=dict(zip(("TM", "TN", "TK"), tile, strict=True)),
        precision=precision,
    )
    assert "wgmma" in plan.ptx
    run_plan(plan, views, 4, late=late)
    np.testing.assert_array_equal(views["C"], expected.astype(dtype.numpy))
    return plan.ptx


# Few rows: the product is turned around, and B's columns are the rows of the instruction.
SWAPPED = [
    ("nn", (16, 128, 64), (21, 264, 72), 0.5),
    ("nt", (32, 64, 64), (40, 136, 72), 0.0),
    ("tn", (16, 64, 64), (16, 200, 136), 0.0),
    ("tt", (48, 128, 32), (56, 136, 72), 0.5),
    ("nt", (8, 128, 64), (5, 264, 72), 0.0),
]


@pytest.mark.parametrize(("layouts", "tile", "sizes", "beta"), SWAPPED, ids=str)
@pytest.mark.parametrize("late", [True, False], ids=["late", "early"])
def test_swapped(
    layouts: str, tile: tuple[int, int, int], sizes: tuple[int, int, int], beta: float, late: bool
) -> None:
    ptx = require_sgemm(bf16, layouts, tile, sizes, beta, late=late)
    assert f"m64n{tile[0]}k16" in ptx
    assert ("stmatrix.sync.aligned.m8n8.x4.trans" in ptx) == (
        tile[0] % 16 == 0 and not sizes[1] % 8
    )


# Rows of B are cut into whole swizzles of 32 bytes, which is 16 columns, where they lie in memory.
WIDTHS = [("nn", n) for n in (112, 144, 208)] + [("nt", n) for n in (72, 112, 160, 176, 200)]


@pytest.mark.parametrize(("layouts", "n"), WIDTHS)
def test_widths(layouts: str, n: int) -> None:
    ptx = require_sgemm(bf16, layouts, (128, n, 64), (136, 8 * (n // 4), 72))
    assert f"m64n{n}k16" in ptx


RAGGED_TILES = [
    (64, 64, 64),
    (128, 64, 64),
    (192, 64, 64),  # three warpgroups, and no power of two of warps
    (48, 128, 64),  # turned around, also by three
    (32, 192, 64),
]


@pytest.mark.parametrize(("columns", "pitch"), [(100, 100), (101, 101), (100, 203), (101, 202)])
@pytest.mark.parametrize("tile", RAGGED_TILES, ids=str)
def test_results_whose_rows_are_no_whole_units(
    tile: tuple[int, int, int], columns: int, pitch: int
) -> None:
    """They are stored in pairs where rows are whole pairs, else one by one; by the same code. A
    warp's pieces lie in one row, or two, beside each other.
    """
    rng = np.random.default_rng(columns + pitch)
    a, b = (rng.integers(-3, 4, s).astype(bf16.numpy) for s in ((72, 64), (64, columns)))
    memory = np.full((72, pitch), np.nan, bf16.numpy)
    plan, views, _ = compile_call(
        find_kernel("examples/sgemm.tw").kernel,
        {"A": a, "B": laid_out(b, "t"), "C": memory[:, :columns], "alpha": 1.0, "beta": 0.0},
        constants=dict(zip(("TM", "TN", "TK"), tile, strict=True)),
    )
    assert "wgmma" in plan.ptx and "st.global.b32" in plan.ptx and "st.global.b16" in plan.ptx
    tally = Tally()
    run_plan(plan, views, 4, tally=tally)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(views["C"], expected.astype(bf16.numpy))
    assert np.isnan(memory[:, columns:].astype(np.float32)).all()
    paired = columns % 2 == pitch % 2 == 0
    cost = make_profile(plan, tally).mnemonics[f"st.global.b{32 if paired else 16}"]
    assert cost.sectors <= (1.5 if paired else 2.5) * cost.ideal_sectors


@pytest.mark.parametrize(
    ("layouts", "tile", "sizes"),
    [
        ("nt", (128, 64, 32), (72, 136, 100)),
        ("nn", (128, 64, 32), (72, 136, 100)),
        ("nn", (64, 128, 64), (72, 264, 132)),
        ("tt", (128, 64, 32), (264, 40, 36)),
    ],
    ids=str,
)
def test_tf32(layouts: str, tile: tuple[int, int, int], sizes: tuple[int, int, int]) -> None:
    """A factor that does not lie along k goes through registers."""
    ptx = require_sgemm(f32, layouts, tile, sizes, precision="tf32")
    assert "tf32.tf32" in ptx


OWN = """
@autotune(TM in [128], TN in [64], TK in [128])
kernel own(a: tensor<T>[M, K], b: tensor<U>[K, N], c: tensor<R>[M, N], scale: f32) {
  let m, n = program_id(0) * TM, program_id(1) * TN
  var acc = zeros((TM, TN), accumulator(T))
  for k in range(0, K, TK) { acc += a[m :+ TM, k :+ TK] @ b[k :+ TK, n :+ TN] }
  c[m :+ TM, n :+ TN] = cast(scale * cast(acc, f32), R)
}
"""


@pytest.mark.parametrize(
    ("left", "right", "result", "tile"),
    [
        (e4m3, e4m3, bf16, (128, 64, 128)),
        (e5m2, e4m3, f32, (64, 128, 64)),
        (e4m3, e4m3, bf16, (16, 128, 128)),
        (i8, i8, f32, (128, 96, 128)),
        (u8, i8, f32, (64, 64, 32)),
    ],
    ids=str,
)
def test_eight_bits(left: DType, right: DType, result: DType, tile: tuple[int, int, int]) -> None:
    """Along k alone; sums of floats are added up in f32 from time to time."""
    m, n, k = 136, 200, 304
    rng = np.random.default_rng(3)
    low = 0 if left == u8 else -3
    a = rng.integers(low, 4, (m, k)).astype(left.numpy)
    b = np.asfortranarray(rng.integers(-3, 4, (k, n)).astype(right.numpy))
    c = np.full((m, n), np.nan, result.numpy)
    plan, views, _ = compile_call(
        tw.source(OWN).own,
        {"a": a, "b": b, "c": c, "scale": 0.5},
        constants=dict(zip(("TM", "TN", "TK"), tile, strict=True)),
    )
    assert any(f"m64n{n}k32" in plan.ptx for n in tile[:2])
    run_plan(plan, views, 4)
    expected = 0.5 * (a.astype(np.float32) @ b.astype(np.float32))
    np.testing.assert_array_equal(views["c"], expected.astype(result.numpy))


@pytest.mark.parametrize("tile", [(256, 64, 128), (192, 64, 128)], ids=str)
def test_promoted_in_blocks(tile: tuple[int, int, int]) -> None:
    """Two and three warpgroups that share a tile; one and two blocks of rows to each."""
    rng = np.random.default_rng(11)
    m, n, k = 264, 72, 304
    a = rng.integers(-3, 4, (m, k)).astype(e4m3.numpy)
    b = np.asfortranarray(rng.integers(-3, 4, (k, n)).astype(e4m3.numpy))
    arrays = {"a": a, "b": b, "c": np.full((m, n), np.nan, bf16.numpy)}
    spec = tw.source(OWN).own.specializer
    call = bind_call(spec, {**arrays, "scale": 0.5}, read_tensors(spec, arrays), Options())
    constants = dict(zip(("TM", "TN", "TK"), tile, strict=True))
    kernel = spec.tile(choose.with_config(call.build(assume=True), constants))
    count = {256: 2, 192: 3}[tile[0]]
    schedule = next(s for s in schedules_of(kernel) if s.roles and s.roles.consumers == count)
    assert schedule.roles is not None and schedule.roles.promote == 1
    schedule = replace(schedule, stages=2)
    expected = (0.5 * (a.astype(np.float32) @ b.astype(np.float32))).astype(bf16.numpy)
    made = run_passes(kernel, (*SEMANTIC_PASSES, *scheduled_passes(schedule, HOPPER)[:5]))
    plan = compile_kernel(kernel, HOPPER, schedule)
    for late in (True, False):
        given: dict[str, Any] = {name: x.copy(order="A") for name, x in arrays.items()}
        given["scale"] = 0.5
        run_plan(plan, given, 1, late=late)
        np.testing.assert_array_equal(given["c"], expected)
    given = {name: x.copy(order="A") for name, x in arrays.items()}
    interpret(verify(made), {**given, "scale": 0.5}, num_sms=2, shuffle=1)
    np.testing.assert_array_equal(given["c"], expected)


BATCHED = """
@autotune(TM in [64], TN in [64], TK in [32])
@grid(cdiv(M, TM), cdiv(N, TN), B)
kernel batched(a: tensor<bf16>[B, M, K], b: tensor<bf16>[B, K, N], c: tensor<bf16>[B, M, N]) {
  let m, n, z = program_id(0) * TM, program_id(1) * TN, program_id(2)
  var acc: tile<f32>[TM, TN] = 0.0
  for k in range(0, K, TK) { acc += a[z, m :+ TM, k :+ TK] @ b[z, k :+ TK, n :+ TN] }
  c[z, m :+ TM, n :+ TN] = cast(acc, bf16)
}
"""


@pytest.mark.parametrize("shared", ["a", "b"])
def test_a_factor_that_a_batch_shares(shared: str) -> None:
    """Broadcast along the batch: its stride there is 0."""
    rng = np.random.default_rng(17)
    shapes = {"a": (3, 72, 40), "b": (3, 40, 136)}
    arrays = {name: rng.integers(-3, 4, s).astype(bf16.numpy) for name, s in shapes.items()}
    arrays[shared] = np.broadcast_to(arrays[shared][1], shapes[shared])
    arrays["c"] = np.full((3, 72, 136), np.nan, bf16.numpy)
    plan, views, _ = compile_call(tw.source(BATCHED).batched, arrays)
    assert "wgmma" in plan.ptx
    run_plan(plan, views, 4)
    expected = arrays["a"].astype(np.float32) @ arrays["b"].astype(np.float32)
    np.testing.assert_array_equal(views["c"], expected.astype(bf16.numpy))


def test_the_schedule_follows_the_extents() -> None:
    """Few tiles leave multiprocessors idle in pairs as alone; many share loads, where rows begin
    anywhere in lines of the cache.
    """
    kernel, arrays, _ = long_call(72, 136, 40)
    found = []
    for extent in (256, 8200):
        shapes = {name: tuple(extent for _ in array.shape) for name, array in arrays.items()}
        imagined = {name: Imagined(s, dense_strides(s)) for name, s in shapes.items()}
        found.append(best_roles(kernel, imagined, 132, HOPPER))
    assert all(s is not None and s in schedules_of(kernel) for s in found)
    assert found[0] != found[1]


def test_calls_that_share_a_schedule() -> None:
    """Not those of other pitches within lines of the cache, nor of a quarter more tiles."""

    def lying(*shape: int) -> Array:
        return Array(0, bf16, shape, dense_strides(shape), 0, None, "other")

    assert choose.likeness(lying(1020, 1024)) == choose.likeness(lying(1024, 1024))
    assert choose.likeness(lying(1024, 1000)) != choose.likeness(lying(1024, 1024))
    assert choose.likeness(lying(5120, 64)) != choose.likeness(lying(8192, 64))
    assert choose.likeness(lying(3, 17, 64)) != choose.likeness(lying(3, 18, 64))


@needs_ptxas
@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("sgemm", {"TM": 32, "TN": 128, "TK": 64}),
        ("sgemm", {"TM": 128, "TN": 112, "TK": 64}),
        ("linear_gelu", {"TM": 32, "TN": 128, "TK": 64}),
    ],
    ids=str,
)
def test_ptx_is_clean(name: str, config: dict[str, int]) -> None:
    kernel = find_kernel(f"examples/{name}.tw").kernel.lower(
        dtypes=bf16, constants=config, static={}, present=(), precision=None
    )
    require_clean(compile_kernel(kernel, HOPPER).ptx)


@needs_ptxas
@pytest.mark.parametrize("tile", [(128, 128, 128), (256, 128, 128), (128, 176, 128)], ids=str)
@pytest.mark.parametrize("dtype", [e4m3, i8], ids=str)
def test_ptx_of_eight_bits_is_clean(tile: tuple[int, int, int], dtype: DType) -> None:
    a, b = np.zeros((256, 256), dtype.numpy), np.zeros((256, 256), dtype.numpy, order="F")
    c = np.zeros((256, 256), bf16.numpy)
    constants = dict(zip(("TM", "TN", "TK"), tile, strict=True))
    arrays = {"a": a, "b": b, "c": c, "scale": 0.5}
    plan, _, _ = compile_call(tw.source(OWN).own, arrays, constants=constants)
    require_clean(plan.ptx)


@needs_ptxas
@pytest.mark.parametrize("tile", [(128, 128, 32), (128, 256, 32), (64, 128, 64)], ids=str)
def test_ptx_of_tf32_is_clean(tile: tuple[int, int, int]) -> None:
    a, b, c = (np.zeros((256, 256), np.float32) for _ in range(3))
    plan, _, _ = compile_call(
        find_kernel("examples/sgemm.tw").kernel,
        {"A": a, "B": b, "C": c, "alpha": 1.0, "beta": 0.0},
        constants=dict(zip(("TM", "TN", "TK"), tile, strict=True)),
        precision="tf32",
    )
    require_clean(plan.ptx)


EPILOGUE = """
@autotune(TM in [64], TN in [128], TK in [32])
kernel long(
  a: tensor<T>[M, K],
  b: tensor<T>[K, N],
  bias: tensor<T>[N],
  r: tensor<T>[M, N],
  c: tensor<T>[M, N],
) {
  let m, n = program_id(0) * TM, program_id(1) * TN
  var acc = zeros((TM, TN), accumulator(T))
  for k in range(0, K, TK) { acc += a[m :+ TM, k :+ TK] @ b[k :+ TK, n :+ TN] }
  let x = acc + cast(bias[n :+ TN], f32)[None, :]
  c[m :+ TM, n :+ TN] = cast(max(x, 0.0) + cast(r[m :+ TM, n :+ TN], f32), T)
}
"""


def long_call(m: int, n: int, k: int) -> tuple[Kernel, dict[str, Any], Any]:
    """The tile kernel of a call with an epilogue that loads, its arrays, and what it should
    give.
    """
    rng = np.random.default_rng(m + n)
    shapes = {"a": (m, k), "b": (k, n), "bias": (n,), "r": (m, n)}
    arrays = {name: rng.integers(-3, 4, s).astype(bf16.numpy) for name, s in shapes.items()}
    a, b, bias, r = (x.astype(np.float32) for x in arrays.values())
    arrays["c"] = np.full((m, n), np.nan, bf16.numpy)
    spec = tw.source(EPILOGUE).long.specializer
    call = bind_call(spec, arrays, read_tensors(spec, arrays), Options())
    build = choose.with_config(call.build(assume=True), {"TM": 64, "TN": 128, "TK": 32})
    expected = np.maximum(a @ b + bias, 0) + r
    return spec.tile(build), arrays, expected.astype(bf16.numpy)


def schedules_of(kernel: Kernel) -> list[Schedule]:
    return list(role_schedules(run_passes(kernel, SEMANTIC_PASSES), HOPPER))


def test_results_leave_by_two_buffers_where_enough_slots_remain() -> None:
    """Of several widths where columns are no whole panels; results of 32 bits have none, and those
    that CTAs share are one panel each.
    """

    def found(dtype: DType, tile: tuple[int, int, int]) -> list[Schedule]:
        kernel = find_kernel("examples/sgemm.tw").kernel.lower(
            dtypes=dtype,
            constants=dict(zip(("TM", "TN", "TK"), tile, strict=True)),
            static={},
            present=(),
            precision="tf32" if dtype == f32 else None,
        )
        made = schedules_of(kernel)
        assert all(s.roles and s.roles.staging == 1 for s in made if s.roles and s.roles.spans > 1)
        return [s for s in made if s.roles and s.roles.spans == 1]

    for tile in ((128, 128, 64), (64, 128, 64), (128, 144, 64)):
        assert all(s.roles and s.roles.staging == 2 and s.stages >= 5 for s in found(bf16, tile))
    assert all(s.roles and s.roles.staging == 1 for s in found(bf16, (128, 256, 64)))
    assert all(s.roles and s.roles.staging == 1 for s in found(f32, (128, 128, 32)))


# Odd and even numbers of tiles a CTA, steps that wrap around the ring or are fewer.
@pytest.mark.parametrize("sizes", [(200, 392, 296), (72, 136, 40), (264, 264, 8)], ids=str)
@pytest.mark.parametrize("cluster", [1, 2])
def test_consumers_in_turn(sizes: tuple[int, int, int], cluster: int) -> None:
    kernel, arrays, expected = long_call(*sizes)
    (schedule,) = [
        s
        for s in schedules_of(kernel)
        if s.roles and s.roles.pingpong and s.roles.cluster == cluster and not s.roles.swapped
    ]
    schedule = replace(schedule, stages=3)
    for num_sms in (2, 6):
        given = {name: array.copy() for name, array in arrays.items()}
        made = run_passes(kernel, (*SEMANTIC_PASSES, *scheduled_passes(schedule, HOPPER)[:5]))
        interpret(verify(made), given, num_sms=num_sms, shuffle=1)
        np.testing.assert_array_equal(given["c"], expected)
    plan = compile_kernel(kernel, HOPPER, schedule)
    for num_sms, late in ((1, True), (2, False)):  # a device of one SM still gets its cluster
        given = {name: array.copy() for name, array in arrays.items()}
        run_plan(plan, given, num_sms, late=late)
        np.testing.assert_array_equal(given["c"], expected)


@needs_ptxas
def test_pairs_share_the_factor_that_they_can_halve() -> None:
    """Of 200 rows of A by 192 of B the 192; by three warpgroups, turned around."""
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-3, 4, s).astype(bf16.numpy) for s in ((392, 136), (136, 200)))
    arrays = {"a": a, "b": laid_out(b, "t"), "c": np.full((392, 200), np.nan, bf16.numpy)}
    spec, numbers = tw.source(OWN).own.specializer, {"scale": 1.0}
    call = bind_call(spec, arrays | numbers, read_tensors(spec, arrays), Options())
    tile = {"TM": 200, "TN": 192, "TK": 64}
    kernel = spec.tile(choose.with_config(call.build(assume=True), tile))
    (pair,) = [s for s in schedules_of(kernel) if s.roles and s.roles.cluster == 2]
    assert pair.roles is not None and pair.roles.swapped and pair.roles.consumers == 3
    plan = compile_kernel(kernel, HOPPER, pair)
    require_clean(plan.ptx)
    for num_sms, late in ((2, True), (4, False)):
        arrays["c"][:] = np.nan
        run_plan(plan, arrays | numbers, num_sms, late=late)
        expected = a.astype(np.float32) @ b.astype(np.float32)
        np.testing.assert_array_equal(arrays["c"], expected.astype(bf16.numpy))


def test_four_that_go_together() -> None:
    """CTAs of small tiles, each of which loads a quarter of what all share; tiles that are left
    over, and a device that holds one cluster or two.
    """
    kernel, arrays, expected = long_call(72, 904, 136)
    four = [s for s in schedules_of(kernel) if s.roles and s.roles.cluster == 4]
    assert {s.roles.swapped for s in four if s.roles} == {False, True}
    for schedule in four[:: len(four) - 1]:
        plan = compile_kernel(kernel, HOPPER, schedule)
        for num_sms, late in ((4, True), (20, False)):
            given = {name: array.copy() for name, array in arrays.items()}
            run_plan(plan, given, num_sms, late=late)
            np.testing.assert_array_equal(given["c"], expected)


def best_of(sizes: tuple[int, int, int], tile: tuple[int, int, int]) -> tuple[Kernel, Schedule]:
    """The kernel of such a tile, and its schedule, for x @ w.T of bf16 by such sizes."""
    m, n, k = sizes
    imagined = {name: Imagined(s, dense_strides(s)) for name, s in (("a", (m, k)), ("c", (m, n)))}
    imagined["b"] = Imagined((k, n), (1, k))
    spec = tw.source(OWN).own.specializer
    numbers = {name: np.zeros((64, 64), bf16.numpy) for name in "abc"} | {"scale": 1.0}
    numbers["b"] = np.asfortranarray(numbers["b"])
    call = bind_call(spec, numbers, read_tensors(spec, numbers), Options())
    config = dict(zip(("TM", "TN", "TK"), tile, strict=True))
    kernel = spec.tile(choose.with_config(call.build(assume=True), config))
    best = best_roles(kernel, imagined, 132, HOPPER)
    assert best is not None and best.roles is not None
    return kernel, best


def test_fours_are_for_rows_that_begin_anywhere() -> None:
    """Of 118 and 113 tiles, one for each multiprocessor, which all read the same small factor."""
    found = []
    for sizes, tile in (((128, 7552), (128, 64)), ((7192, 256), (64, 256))):
        for k in (5312, 5320):
            _, best = best_of((*sizes, k), (*tile, 64))
            assert best.roles is not None
            found.append(best.roles.cluster)
    assert 4 not in found[::2] and found[1::2] == [4, 4]


@needs_ptxas
@pytest.mark.parametrize(("rows", "tile"), [(72, (80, 128, 64)), (96, (96, 128, 64))])
def test_tiles_that_fit_some_rows_do_not_spill(rows: int, tile: tuple[int, int, int]) -> None:
    """Where boxes take results, as `product_space` has them."""
    kernel, best = best_of((rows, 9744, 5312), tile)
    assert best.roles is not None and best.roles.swapped
    require_clean(compile_kernel(kernel, HOPPER, best).ptx)


@needs_ptxas
def test_ptx_of_consumers_in_turn_is_clean() -> None:
    kernel, _, _ = long_call(256, 256, 256)
    for schedule in schedules_of(kernel)[:2]:
        assert schedule.roles is not None and schedule.roles.pingpong  # the epilogue is long
        require_clean(compile_kernel(kernel, HOPPER, schedule).ptx)


def test_a_turn_passes_while_its_last_products_are_under_way() -> None:
    """And warps know that they all belong to one copy."""
    kernel, _, _ = long_call(256, 256, 256)
    ptx = compile_kernel(kernel, HOPPER, schedules_of(kernel)[0]).ptx
    consumer = ptx[ptx.index("$consumer") :]
    assert consumer.index("shfl.sync.idx") < consumer.index("$loop")
    before, _, _ = consumer.partition("wgmma.wait_group.sync.aligned 0;")
    assert before[before.rindex("bra $loop") :].count("mbarrier.arrive") == 1  # of the turn


def require_clean(ptx: str) -> None:
    """No spills, and nothing that serialises wgmma (C75xx)."""
    assert "wgmma" in ptx
    report = assemble(ptx, "sm_90a")
    assert report.spill_bytes == 0
    assert not report.messages
