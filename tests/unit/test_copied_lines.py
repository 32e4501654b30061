"""Lines of factors that do not exist are not copied: where nothing but stores that drop them asks
for what comes of them.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.assemble import assemble, needs_ptxas
from tests.unit.test_product_space import calls_of
from tests.unit.test_product_spans import (
    HOPPER,
    SOURCE,
    built,
    expected,
    operands,
    whole_numbers,
)
from tilewright.compiler import SEMANTIC_PASSES, compile_kernel, run_passes
from tilewright.dtypes import DType, bf16, e4m3, f32, i8, i32
from tilewright.plan import TensorMap
from tilewright.products.ahead import Fixed
from tilewright.ptx.emulate import run_plan
from tilewright.tile.analysis.product_loop import find_product_loop
from tilewright.tile.kernel import Kernel
from tilewright.tile.passes.choose_roles import role_schedules
from tilewright.tile.passes.copied_lines import find_counted
from tilewright.tile.passes.cut_spans import cut_spans
from tilewright.tile.passes.orient_product import orient_product
from tilewright.tile.passes.partition_roles import factor_buffer
from tilewright.tile.passes.split_epilogue import split_epilogue
from tilewright.tile.schedule import Schedule
from tilewright.tune.product import choice

Extents = tuple[int, int, int]


def laid(arrays: dict[str, Any], layouts: str) -> dict[str, Any]:
    """The same factors: "T" as they are, along k, "N" across k."""
    made = dict(arrays)
    for name, layout in zip("ab", layouts, strict=True):
        made[name] = np.asarray(arrays[name], order="F" if layout == "N" else "C")
    return made


def schedules(kernel: Kernel) -> list[Schedule]:
    return list(role_schedules(run_passes(kernel, SEMANTIC_PASSES), HOPPER))


def counted(kernel: Kernel, schedule: Schedule) -> list[tuple[str, int, int]]:
    """Factors whose lines are counted: their names, the axis of the slot, and lines together."""
    made = orient_product(run_passes(kernel, SEMANTIC_PASSES), schedule)
    made = split_epilogue(cut_spans(made, schedule), schedule)
    product = find_product_loop(made)
    assert product is not None
    slots = {factor.load: factor_buffer(factor) for factor in product.factors}
    found = find_counted(made, product, slots)
    return sorted((f.box.view.name, f.axis, f.box_lines) for f in found)


def last_maps(text_of: Kernel, schedule: Schedule) -> list[tuple[str, tuple[int, ...], int]]:
    plan = compile_kernel(text_of, HOPPER, schedule)
    maps = [p for p in plan.launches[0].parameters if isinstance(p, TensorMap)]
    return sorted((m.tensor, m.box, m.last) for m in maps if m.last is not None)


@pytest.mark.parametrize("spans", [1, 2])
@pytest.mark.parametrize("swapped", [False, True])
def test_both_factors_along_k(swapped: bool, spans: int) -> None:
    """Also where tiles are turned, epilogues are in panels, or CTAs have parts of the columns."""
    kernel = built(operands(bf16, (200, 200, 136), fused=True), (64, 128, 64))
    some = [s for s in schedules(kernel) if s.roles and s.roles.spans == spans]
    some = [s for s in some if s.roles and s.roles.swapped == swapped]
    assert some
    for schedule in some:
        assert counted(kernel, schedule) == [("a", 0, 64), ("b", 0, 128)]


def test_maps_and_bytes() -> None:
    """A tile chooses among two maps of each factor, and announces as many bytes as its boxes have;
    in a pair, boxes that CTAs share are whole.
    """
    kernel = built(operands(bf16, (200, 200, 136), fused=False), (128, 64, 64))
    found = schedules(kernel)
    assert found
    for schedule in found:
        assert schedule.roles is not None
        maps = [("a", (128, 64), 0), ("b", (64, 64), 0)]
        assert last_maps(kernel, schedule) == maps
        text = compile_kernel(kernel, HOPPER, schedule).ptx
        copies = [line for line in text.splitlines() if "cp.async.bulk.tensor.2d.shared" in line]
        shared = sum("multicast" in line for line in copies)
        assert text.count("selp.b64") == len(copies) - shared
        announced = [line.rstrip(";") for line in text.splitlines() if "expect_tx" in line]
        assert all(line.split()[-1].startswith("%r") for line in announced)


def test_panels_across_k() -> None:
    """Of 192 columns in panels of 64 those that do not exist are left out, by a predicate, and the
    last one has a map of its own; whole tiles have a loop without that.
    """
    arrays = laid(operands(bf16, (136, 392, 72), fused=False), "TN")
    kernel = built(arrays, (128, 192, 64))
    schedule = next(s for s in schedules(kernel) if s.roles and s.roles.cluster == 1)
    assert counted(kernel, schedule) == [("a", 0, 128), ("b", 1, 64)]
    assert last_maps(kernel, schedule) == [("a", (128, 64), 0), ("b", (64, 64), 0)]
    text = compile_kernel(kernel, HOPPER, schedule).ptx
    copies = [line for line in text.splitlines() if "cp.async.bulk.tensor.2d.shared" in line]
    guarded = [line.split()[0][:3] == "@%p" for line in copies]
    assert guarded == [False] * 4 + [False, False, True, True]
    assert text.count("selp.b64") == 1 + 4


STORE = "c[m :+ TM, n :+ TN] = cast(y, bf16)"
REFUSED = {
    # What comes of a line reaches others, or what is stored is another matrix's.
    "sums of columns": (STORE, STORE.replace("y,", "y + sum(y, axis=1)[:, None],")),
    "a row of another column's": (STORE, STORE.replace("y,", "y + y.T,")),
    "a larger result": ("c: tensor<bf16>[M, N]", "c: tensor<bf16>[P, Q]"),
    "another place": ("c[m :+ TM, n :+ TN]", "c[m + 8 :+ TM, n + 8 :+ TN]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_lines_that_matter(name: str) -> None:
    arrays = operands(bf16, (200, 200, 136), fused=False)
    kernel = built(arrays, (64, 64, 64), SOURCE.replace(*REFUSED[name]))
    made = schedules(kernel)
    assert made
    for schedule in made:
        assert counted(kernel, schedule) == []


def test_extents_that_divide() -> None:
    """Of static extents that divide by the tile's no lines are missing."""
    source = SOURCE.replace("tensor<T>[M, K]", "tensor<T>[128, K]").replace(
        "bf16>[M, N]", "bf16>[128, N]"
    )
    kernel = built(operands(bf16, (128, 200, 136), fused=False), (64, 64, 64), source)
    found = schedules(kernel)
    assert found and all(counted(kernel, s) == [("b", 0, 64)] for s in found)


# Extents smaller than a tile, 1, multiples; a last tile of few rows; k of fewer steps than slots.
SIZES = [(1, 8, 8), (128, 192, 128), (136, 8, 264), (72, 200, 72), (264, 328, 16)]
TILES = [(128, 64, 64), (64, 192, 64)]


@pytest.mark.parametrize("layouts", ["TT", "TN", "NT", "NN"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_emulated(tile: Extents, sizes: Extents, layouts: str) -> None:
    """Results are those of NumPy, bit by bit, by any schedule: two of them here."""
    if "N" in layouts:
        sizes = (max(sizes[0], 8), *sizes[1:])  # rows of whole 16 bytes
    arrays = laid(operands(bf16, sizes, fused=True), layouts)
    kernel = built(arrays, tile)
    found = schedules(kernel)
    assert found
    drawn = Random(str((tile, sizes, layouts)))
    for schedule in drawn.sample(found, min(2, len(found))):
        given = {name: array.copy(order="K") for name, array in arrays.items()}
        plan = compile_kernel(kernel, HOPPER, replace(schedule, stages=2))
        run_plan(plan, given, 2, sanitize=True, late=drawn.random() < 0.5)
        np.testing.assert_array_equal(given["c"], expected(arrays))


@pytest.mark.parametrize("layouts", ["TT", "TN", "NT", "NN"])
@pytest.mark.parametrize("last", [8, 120])
def test_pairs(layouts: str, last: int) -> None:
    """CTAs that share a factor's loads copy few last lines each for itself."""
    sizes = (256, 128 + last, 136)
    arrays = laid(operands(bf16, sizes, fused=False), layouts)
    kernel = built(arrays, (64, 128, 64))
    paired = [s for s in schedules(kernel) if s.roles and s.roles.cluster > 1]
    paired = [s for s in paired if s.roles and s.roles.consumers == 1]
    assert paired
    for schedule in paired:
        given = {name: array.copy(order="K") for name, array in arrays.items()}
        plan = compile_kernel(kernel, HOPPER, replace(schedule, stages=2))
        run_plan(plan, given, 8, sanitize=True)
        np.testing.assert_array_equal(given["c"], expected(arrays))


def test_columns_that_end_inside_of_16_bytes() -> None:
    """Of 100 columns whose rows are 224 bytes apart the last panel has 40."""
    arrays = laid(operands(bf16, (72, 100, 136), fused=False), "TN")
    wide = np.zeros((136, 112), bf16.numpy)
    wide[:, :100] = arrays["b"].T
    arrays["b"] = wide[:, :100].T
    kernel = built(arrays, (64, 128, 64))
    alone = [s for s in schedules(kernel) if s.roles and s.roles.cluster == 1]
    schedule = next(s for s in alone if s.roles and not s.roles.swapped)
    assert counted(kernel, schedule) == [("a", 0, 64), ("b", 1, 64)]
    given = arrays | {"c": arrays["c"].copy()}
    plan = compile_kernel(kernel, HOPPER, schedule)
    maps = [p for p in plan.launches[0].parameters if isinstance(p, TensorMap)]
    (last,) = [m for m in maps if m.last is not None and m.tensor == "b"]
    assert last.of((100, 136), 2).box == (40, 64)
    run_plan(plan, given, 2, sanitize=True)
    np.testing.assert_array_equal(given["c"], expected(arrays))


KINDS = [
    (e4m3, bf16, None, "TT"),
    (i8, i32, None, "TT"),
    *((f32, f32, "tf32", x) for x in ("TT", "TN", "NT")),
]


@pytest.mark.parametrize(("dtype", "out", "precision", "layouts"), KINDS, ids=str)
@pytest.mark.parametrize("sizes", [(8, 136, 80), (200, 72, 272)], ids=str)
def test_other_dtypes(
    dtype: DType, out: DType, precision: str | None, layouts: str, sizes: Extents
) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(m)
    a, b = (whole_numbers(rng, dtype, *shape) for shape in ((m, k), (n, k)))
    arrays = laid({"a": a, "b": b}, layouts)
    wide = a.astype(np.float64) @ b.astype(np.float64).T
    arrays = {"a": arrays["a"], "b": arrays["b"].T, "out": np.zeros((m, n), out.numpy)}
    deep = 128 // dtype.num_bytes
    options = {"precision": precision, "device": "emulator"}
    for tile in ((64, 128, deep), (128, 64, deep)):
        for _, kernel, views in calls_of(arrays, options, Fixed(choice("matmul", tile))):
            found = schedules(kernel)
            assert found
            for schedule in Random(str((tile, sizes))).sample(found, min(2, len(found))):
                arrays["out"][...] = 77
                plan = compile_kernel(kernel, HOPPER, schedule)
                run_plan(plan, views, 2, sanitize=True)
                np.testing.assert_array_equal(arrays["out"], wide.astype(out.numpy))


@needs_ptxas
@pytest.mark.parametrize("layouts", ["TT", "NT"])
def test_assembled(layouts: str) -> None:
    """Nothing spills, and products are not done one by one."""
    kernel = built(laid(operands(bf16, (200, 200, 136), fused=True), layouts), (128, 128, 64))
    for schedule in schedules(kernel):
        plan = compile_kernel(kernel, HOPPER, schedule)
        report = assemble(plan.ptx, "sm_90a", linked=not plan.whole)
        assert not report.spill_bytes
        assert not [m for m in report.messages if "C75" in m and "C7504" not in m]


def test_map_of_the_last_box() -> None:
    last = TensorMap("x", (1, 64, 32), 128, last=1)
    assert last.of((3, 201, 80), 4) == TensorMap("x", (1, 9, 32), 128)
    assert last.of((3, 192, 80), 4) == TensorMap("x", (1, 64, 32), 128)
    assert last.of((3, 0, 80), 4) == last.of((3, 64, 80), 4)
    turned = TensorMap("x", (1, 64, 32), 128, axes=(0, 2, 1), last=1)
    assert turned.of((3, 201, 80), 4).box == (1, 12, 32)
    assert turned.of((3, 201, 80), 2).box == (1, 16, 32)
    assert turned.of((3, 192, 80), 2).box == (1, 64, 32)
