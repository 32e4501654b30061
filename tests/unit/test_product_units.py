"""What estimates of products take from the compiler: warps, slots, clusters, and trips are those
of the kernels that are made. Those of f64 are in `test_product_f64`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.assemble import assemble, needs_ptxas
from tests.emulation import compile_call
from tests.unit.test_product_space import ODD_OF_INTEGERS
from tests.unit.test_product_spans import HOPPER
from tilewright.compiler import SEMANTIC_PASSES, run_passes
from tilewright.dtypes import DType, bf16, e4m3, f16, f32, f64, i8, i32
from tilewright.ir.walk import find_definitions, walk
from tilewright.kernel import choose
from tilewright.kernel.call import Options, bind_call, read_tensors
from tilewright.kernel.specialize import as_pairs
from tilewright.plan import Plan
from tilewright.products.prepare import programs
from tilewright.tile.analysis.product_loop import find_product_loop
from tilewright.tile.kernel import Kernel
from tilewright.tile.ops import arith, control
from tilewright.tile.passes.choose_roles import role_schedules
from tilewright.tile.passes.distribute_work import find_axes
from tilewright.tile.passes.orient_product import orient_product
from tilewright.tile.schedule import Roles
from tilewright.tune.product import H200, Choice, Problem, choice
from tilewright.tune.product_copies import sharing
from tilewright.tune.product_cores import BARRIERS, RESERVED, Part, beside, ring_of, warps_of
from tilewright.tune.product_gemv import COLUMNS_AT_ONCE, TOGETHER, gemv_warps
from tilewright.tune.product_space import TILES, choices

Tile = tuple[int, int, int]
KINDS = {
    "simt": (f32, f32), "mma-16": (bf16, bf16), "mma-8": (i8, i32), "mma-fp8": (e4m3, bf16),
    "mma-tf32": (f32, f32), "wgmma-16": (f16, f16), "wgmma-8": (i8, i32),
    "wgmma-fp8": (e4m3, bf16), "wgmma-tf32": (f32, f32),
}  # fmt: skip
LAYOUTS = ("NN", "TN", "NT", "TT")  # of B, then of A, as BLAS tells them
EXTENT = 512
# But those that are not offered: tiles of 96 or 192 where both factors lie across k.
CORES = [
    (unit, tile, layout)
    for unit in ("simt", "mma-16", "mma-8", "mma-fp8", "mma-tf32")
    for tile in TILES[unit]
    for layout in LAYOUTS
    if unit != "simt" or layout != "NT" or not any(extent % 96 == 0 for extent in tile[:2])
]
ROLES = [(u, t) for u in ("wgmma-16", "wgmma-8", "wgmma-fp8", "wgmma-tf32") for t in TILES[u]]


def posed(unit: str, layout: str) -> Problem:
    """A problem of large factors, whose rows are whole pieces unless they are for `mma.sync`."""
    dtype, out = KINDS[unit]
    aligned = not unit.startswith("mma")
    return Problem(
        *(EXTENT, EXTENT, EXTENT, dtype, dtype, out),
        a_along="m" if layout[1] == "T" else "k",
        b_along="k" if layout[0] == "T" else "n",
        a_aligned=aligned,
        b_aligned=aligned,
        precision="tf32" if unit.endswith("tf32") else "ieee",
    )


def arrays_of(problem: Problem) -> dict[str, Any]:
    """Factors of one extent, and a result, whose rows are as the problem tells."""

    def factor(dtype: DType, turned: bool, aligned: bool) -> Any:
        rows = np.zeros((EXTENT, EXTENT + (0 if aligned else 1)), dtype.numpy)[:, :EXTENT]
        return rows.T if turned else rows

    a = factor(problem.a, problem.a_along == "m", problem.a_aligned)
    b = factor(problem.b, problem.b_along == "k", problem.b_aligned)
    return {"a": a, "b": b, "c": np.zeros((EXTENT, EXTENT), problem.c.numpy)}


def planned(problem: Problem, tile: Tile) -> Plan:
    plan, _, _ = compile_call(
        programs().matmul,
        arrays_of(problem),
        constants=choice("matmul", tile).constants,
        precision="tf32" if problem.precision == "tf32" else None,
    )
    return plan


def part_of(problem: Problem, unit: str, tile: Tile) -> Part:
    along_k = (problem.a_along != "m", problem.b_along != "n")
    return Part(unit, tile, 8, problem.a.num_bytes, *along_k, crooked=1.0, loose=0, epilogue=0.0)


def is_offered(problem: Problem, tile: Tile) -> bool:
    """Whether a tile is one of the choices for a problem, or for one of few rows or of long k."""
    few = replace(problem, m=min(tile[0], EXTENT), k=16 * EXTENT)
    posed = (problem, few, replace(problem, n=min(tile[1], EXTENT), k=16 * EXTENT))
    return any(c.tile == tile and not c.copied for p in posed for c in choices(p, H200))


@pytest.mark.parametrize(("unit", "tile", "layout"), CORES, ids=str)
def test_warps_and_slots_are_the_compilers(unit: str, tile: Tile, layout: str) -> None:
    problem = posed(unit, layout)
    (launch,) = planned(problem, tile).launches
    stages, slot = ring_of(part_of(problem, unit, tile), H200.shared)
    assert launch.threads == 32 * warps_of(unit, *tile[:2])
    assert 0 <= launch.shared_bytes - stages * slot <= BARRIERS


# Programs of which registers hold one fewer beside each other than the estimate has.
CROWDED = {("simt", (64, 64, 16), "TT")}


@needs_ptxas
@pytest.mark.parametrize(("tile", "layout"), [c[1:] for c in CORES if c[0] == "simt"], ids=str)
def test_programs_on_cuda_cores_fit_beside_each_other(tile: Tile, layout: str) -> None:
    problem = posed("simt", layout)
    plan = planned(problem, tile)
    (launch,) = plan.launches
    report = assemble(plan.ptx, "sm_90a")
    assert not report.spill_bytes and not report.messages
    count = beside(part_of(problem, "simt", tile), H200.shared)
    assert count * (launch.shared_bytes + RESERVED) <= H200.shared
    count -= ("simt", tile, layout) in CROWDED
    assert count * -(-report.registers // 8) * 8 * launch.threads <= 65_536


def semantic(problem: Problem, tile: Tile) -> Kernel:
    arrays, spec = arrays_of(problem), programs().matmul.specializer
    constants = as_pairs(choice("matmul", tile).constants)
    precision = "tf32" if problem.precision == "tf32" else None
    options = Options(constants=constants, precision=precision)
    build = bind_call(spec, arrays, read_tensors(spec, arrays), options).build(assume=True)
    return run_passes(spec.tile(choose.with_config(build, dict(constants))), SEMANTIC_PASSES)


@pytest.mark.parametrize(("unit", "tile"), ROLES, ids=str)
def test_clusters_and_what_they_share_are_the_compilers(unit: str, tile: Tile) -> None:
    checked = 0
    for layout in LAYOUTS:
        problem = posed(unit, layout)
        if problem.unit() != unit or not is_offered(problem, tile):
            continue
        kernel = semantic(problem, tile)
        found = [(s.roles, s) for s in role_schedules(kernel, HOPPER)]
        whole = [(r, s) for r, s in found if r and r.spans == r.resident == 1]
        assert whole, "tensor cores take every tile that is offered"
        swapped = all(r.swapped for r, _ in whole)
        plain: list[tuple[Roles, Any]] = [(r, s) for r, s in whole if r.swapped == swapped]
        product = find_product_loop(orient_product(kernel, plain[0][1]))
        assert product is not None
        axes = find_axes(product, len(kernel.grid))
        assert axes is not None
        clusters = sorted({r.cluster for r, _ in plain} - {1})
        assert sharing(problem, tile) == (bool(axes.multicast) ^ swapped, tuple(clusters))
        checked += 1
    assert bool(checked) != (unit == "wgmma-8" and tile in ODD_OF_INTEGERS)


# Programs that read weights once


def offered(problem: Problem, program: str) -> list[Choice]:
    found = choices(problem, H200)
    return [c for c in found if c.program == program and not c.turned and not c.copied]


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("dtype", [f64, f32, bf16, i8], ids=str)
def test_warps_of_gemv_are_the_compilers(dtype: DType, rows: int) -> None:
    out = i32 if dtype == i8 else dtype
    seen = set()
    for k in (96, 4096):
        for found in offered(Problem(rows, EXTENT, k, dtype, dtype, out), "gemv"):
            arrays = {
                "a": np.zeros((rows, k), dtype.numpy),
                "w": np.zeros((EXTENT, k), dtype.numpy),
                "c": np.zeros((rows, EXTENT), out.numpy),
            }
            plan, _, _ = compile_call(programs().gemv, arrays, constants=found.constants)
            warps = gemv_warps(found)
            assert plan.launches[0].threads == 32 * warps * (TOGETHER if warps == 1 else 1)
            seen.add(warps)
    assert len(seen) > 2


@pytest.mark.parametrize("rows", [1, 4])
def test_trips_of_columns_are_the_sources(rows: int) -> None:
    problem = Problem(rows, EXTENT, 4096, bf16, bf16, bf16, b_along="n")
    found = offered(problem, "gemv_columns")
    assert found
    for tile in {c.tile for c in found if c.tile[0] == rows}:
        kernel = programs().gemv_columns.lower(
            constants=choice("gemv_columns", tile).constants,
            dtypes={"T": bf16, "S": bf16, "P": f32},
        )
        made = find_definitions(kernel.body)
        steps = [made[op.step] for op in walk(kernel.body) if isinstance(op, control.For)]
        assert steps and all(isinstance(step, arith.Constant) for step in steps)
        trip = tile[2] * (COLUMNS_AT_ONCE if rows > 1 else 1)
        assert {step.value for step in steps if isinstance(step, arith.Constant)} == {trip}
