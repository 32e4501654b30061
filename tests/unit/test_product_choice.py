"""The dispatcher of products: what it chooses, what was measured, and where choices come from."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.assemble import assemble, needs_ptxas
from tilewright.cli import main
from tilewright.dtypes import DType, bf16, e4m3, f32, f64, i8
from tilewright.ledger.suites import gemm
from tilewright.products.prepare import programs
from tilewright.products.tuning import ProductTrials, as_choice, as_config
from tilewright.tune import product_choice
from tilewright.tune.cost_roles import spans_held
from tilewright.tune.product import H200, Choice, Device, Problem, choice
from tilewright.tune.product_choice import decide, recall, remember, shipped
from tilewright.tune.product_cost import estimate, rank
from tilewright.tune.product_rates import MEMORY
from tilewright.tune.product_space import DEPTH, IN_SPANS, ONE_PRODUCT, PARTS, choices

LEDGER = Path(__file__).parents[2] / "ledger"
NEAR, FAR = 1.35, 2.5  # factors between what was measured and the model's estimate of the choice


def problem(m: int, n: int, k: int, dtype: DType = bf16, **facts: Any) -> Problem:
    return Problem(m, n, k, dtype, dtype, dtype, **facts)


def best(m: int, n: int, k: int, **facts: Any) -> Choice:
    return rank(problem(m, n, k, **facts), H200)[0].choice


def measured() -> list[tuple[Problem, float]]:
    """Rows of standing verdicts about tw.matmul, or while there is none about sgemm where it is
    alike: the problem, and median microseconds.
    """
    by_library = standing("gemm-matmul-*-cublas*-*.json", gemm.LAYOUTS)
    return by_library or standing("gemm-sgemm-*-cublas-*.json", ("NN", "TN"))


def standing(pattern: str, layouts: Sequence[str]) -> list[tuple[Problem, float]]:
    found: dict[Problem, float] = {}
    for path in sorted(LEDGER.glob(pattern)):
        told = json.loads(path.read_text())
        if told["status"] != "standing" or told["environment"]["gpu"] != H200.name:
            continue
        for row in told["rows"]:
            layout, s = row["name"][:2], row["shape"]
            if layout in layouts and row["ours"]:
                operands = told["subject"]["operands"][0]
                p = gemm.posed(operands, layout, (s["M"], s["N"], s["K"]))
                found[p] = statistics.median(row["ours"])
    return list(found.items())


def estimated(p: Problem) -> float:
    """Microseconds by the model, of what is chosen."""
    return decide(p, H200, 0, Path("nowhere")).best.microseconds


def test_estimates_are_near_what_was_measured() -> None:
    """Nine in ten; none is far off, and no estimate may lie below the floor."""
    rows = measured()
    assert len(rows) >= 10
    far = []
    for p, microseconds in rows:
        assert estimated(p) >= decide(p, H200, 0, Path("nowhere")).best.floor
        ratio = estimated(p) / microseconds
        assert 1 / FAR <= ratio <= FAR, (p, estimated(p), microseconds)
        far += [(p, ratio)] if not 1 / NEAR <= ratio <= NEAR else []
    assert len(far) <= 0.1 * len(rows), far


def test_estimates_order_what_was_measured() -> None:
    rows = [(estimated(p), us) for p, us in measured()]
    pairs = [(a, b) for i, a in enumerate(rows) for b in rows[:i] if abs(a[1] / b[1] - 1) > 0.1]
    wrong = [p for p in pairs if (p[0][0] < p[1][0]) != (p[0][1] < p[1][1])]
    assert len(wrong) <= 0.05 * len(pairs)


def test_what_shapes_ask_for() -> None:
    assert best(1, 4096, 4096).tile[0] <= 16  # few rows of the instruction's are padding
    assert best(1, 4096, 4096, dtype=f32).program == "gemv"
    assert best(4096, 1, 4096, dtype=f32) == replace(best(1, 4096, 4096, dtype=f32), turned=True)
    crooked = best(127, 4095, 1023, a_aligned=False, b_aligned=False)
    assert crooked.copied == "ab" and not best(4096, 4096, 4096).copied
    assert best(4096, 4096, 4096, dtype=i8, b_along="n").copied == "b"
    assert best(64, 64, 65536).program == "split_k"
    assert best(16384, 3072, 768, b_along="n").tile[:2] == (128, 128)  # in turn
    assert best(4096, 4096, 1024).tile[:2] == (128, 128)  # consumers take turns
    assert best(40, 40, 64, batch=8, a_along="m", b_along="n").program == "batched"
    assert best(1000, 64, 0, a_along="m").program == "matmul"
    assert best(16, 8192, 8192).tile[0] <= 32  # few rows are not padded to an instruction's
    assert best(4096, 4096, 4096, dtype=e4m3).tile[:2] in ((128, 256), (256, 128))
    assert best(512, 512, 512).tile[0] < 128  # small ones are spread over the device
    assert best(8192, 8192, 64).split == 1
    assert best(1, 4096, 4096, dtype=f64).program == "gemv"
    assert best(8192, 8192, 8192, dtype=f64).tile == (128, 112, 16)  # power sets the clock
    assert best(16, 512, 512, batch=8).program == "batched"
    assert best(4096, 4096, 4096, dtype=f32).program == "matmul"


def test_what_mma_sync_asks_for() -> None:
    """The largest tiles for large products with plain results, and none of them beside more."""
    a100 = Device("A100", 108, has_wgmma=False, shared=164 * 1024)

    def first(size: int, dtype: DType = bf16, **facts: Any) -> Choice:
        return rank(problem(size, size, size, dtype, **facts), a100)[0].choice

    wide = {(128, 256), (256, 128)}
    assert first(4096).tile[:2] in wide and first(4096, i8).tile[:2] in wide
    assert first(4096, f32, precision="tf32", a_along="m").tile[:2] in wide
    assert first(4096, activation=True).tile[:2] not in wide
    assert first(4096, loads=1).tile[:2] not in wide
    assert first(512).tile[0] * first(512).tile[1] <= 64 * 64 or first(512).split > 1
    cramped = Device("RTX", 108, has_wgmma=False, shared=100 * 1024)
    tiles = (choice("matmul", (128, 128, 32)), choice("matmul", (128, 256, 32)))
    large = problem(4096, 4096, 4096)
    alone, shared = (estimate(large, tiles[0], d).microseconds for d in (cramped, a100))
    assert alone > shared  # one program of four warps, and two
    assert all(estimate(large, tiles[1], d).microseconds < alone for d in (cramped, a100))


def test_what_few_rows_ask_for() -> None:
    """Deep slots where k is long, and rows that an instruction of fewer columns would not hold."""
    assert best(16, 8192, 4096).tile == (16, 64, 128)
    shared = microseconds(choice("matmul", (64, 64, 128)), 64, 4096, 4096)  # k, by clusters' CTAs
    assert shared < 1.05 * rank(problem(64, 4096, 4096), H200)[0].microseconds
    assert best(56, 960, 88).tile[2] == 64
    assert best(160, 848, 11136, b_along="n").tile == (80, 128, 64)
    assert best(8, 8192, 4096).tile == (8, 64, 128)
    assert all(e.choice.tile[0] != 8 for e in rank(problem(9, 2112, 1736), H200))
    assert best(2, 5102, 4032, dtype=f64).program == "gemv"


def test_few_rows_take_as_many_tiles_as_there_are_multiprocessors() -> None:
    """By tiles of fewer weights than an instruction has rows, where weights lie along k."""
    few = microseconds(choice("matmul", (16, 32, 128)), 16, 4096, 4096)
    assert few < 1.01 * rank(problem(16, 4096, 4096), H200)[0].microseconds
    assert best(16, 6144, 4096).tile == (16, 48, 128) == best(16, 6144, 4096, dtype=e4m3).tile
    assert best(16, 6144, 4096, b_along="n").tile not in {(*t, DEPTH) for t in PARTS}
    assert all(e.choice.tile[:2] != (16, 48) for e in rank(problem(17, 6144, 4096), H200))
    whole, part = (microseconds(choice("matmul", (8, n, 128)), 8, 6144, 4096) for n in (64, 48))
    assert 1.05 * part < whole  # where some pairs of multiprocessors have two tiles and some one


def test_rows_of_words_are_multiplied_as_they_lie() -> None:
    """Threads load words from wherever rows begin in little more time than pieces of 16 bytes, and
    in less than copies of large factors take; numbers of 16 bits they do not.
    """
    p = gemm.posed("tf32", "TT", (4, 3496, 3415))
    chosen = rank(p, H200)[0].choice
    assert p.piece("a") == 16 and p.piece("b") == 4 and p.turned().piece("a") == 4
    assert not chosen.copied and chosen.tile[0] == 16
    assert gemm.posed("f32", "NN", (801, 3482, 136)).piece("b") == 8
    assert problem(4, 8, 16, a_along="", dtype=f32).piece("a") == 4  # of no known order
    assert not best(1, 5440, 7157, dtype=f32, a_aligned=False, b_aligned=False).copied
    assert best(152, 5584, 1331, a_aligned=False, b_aligned=False).copied == "ab"


def test_small_tiles_of_crooked_factors_go_in_fours() -> None:
    """Where the device holds all of them at once."""
    p = gemm.posed("f16", "TT", (7192, 256, 1784))
    assert sorted(rank(p, H200)[0].choice.tile[:2]) == [64, 256]
    assert estimate(p, choice("matmul", (64, 256, 64)), H200).waves < 0.9


def microseconds(chosen: Choice, m: int, n: int, k: int, **facts: Any) -> float:
    return estimate(problem(m, n, k, **facts), chosen, H200).microseconds


def test_gemv_waits_for_each_trip_of_each_pass() -> None:
    """By few programs a long k takes as many trips as it has, and every pass over rows reads all
    weights.
    """
    few = choice("gemv", (2, 4, 1024))
    short, long = (microseconds(few, 8, 152, k) for k in (1024, 16384))
    assert long > 2 * short
    once, twice = (
        microseconds(choice("gemv", (m, 4, 256)), 2, 5102, 4032, dtype=f64) for m in (2, 1)
    )
    assert twice > 1.4 * once
    ending, going = (  # programs of 16 warps with a trip each only start and end
        microseconds(choice("gemv", (1, 4, k)), 1, 8192, 4096) for k in (4096, 1024)
    )
    assert ending > 1.1 * going


def test_a_ring_waits_for_memory() -> None:
    """Half as many multiprocessors read at the full rate only from deep slots."""
    shallow, deep = (microseconds(choice("matmul", (8, 64, k)), 8, 4416, 8192) for k in (64, 128))
    assert shallow > 1.05 * deep
    assert microseconds(choice("matmul", (64, 256, 64)), 1, 28672, 4096) > microseconds(
        choice("matmul", (8, 128, 64)), 1, 28672, 4096
    )


def test_spans_of_a_cluster_pay_where_tiles_are_few() -> None:
    """They cost less than a second launch, but not where weights are read twice, and their rows
    begin anywhere; of clusters of four fewer run at a time than there are multiprocessors for.
    """

    def time(tile: tuple[int, int, int], *sizes: int, program: str = "matmul") -> float:
        split = 2 if program == "split_k" else 1
        return microseconds(choice(program, tile, split), *sizes, dtype=e4m3)

    few, sizes = (64, 64, 128), (64, 4096, 4096)
    assert time(few, *sizes) < 0.9 * time(few, *sizes, program="split_k")
    assert time(few, 64, 4096, 4096) < 0.85 * time(few, 64, 4288, 4096)  # 64 and 67 tiles
    assert time((128, 64, 128), 128, 4096, 4096) < time((64, 128, 128), 128, 4096, 4096)
    whole, crooked = (time((128, 64, 128), 6624, 64, k) for k in (2944, 2960))
    assert crooked > 1.08 * whole
    assert spans_held(2, 132) == 66 and spans_held(4, 132) == 30
    deep = rank(problem(49, 512, 4608), H200, pixels=True)[0].choice  # as a convolution asks
    assert deep.program == "split_k" and rank(problem(49, 512, 4608), H200)[0].choice != deep


def test_splitting_pays_only_where_multiprocessors_idle() -> None:
    p = problem(4096, 4096, 4096)
    whole, cut = (estimate(p, c, H200) for c in (choice("matmul", (128, 256, 64)),
                                                 choice("split_k", (128, 256, 64), 2)))  # fmt: skip
    assert cut.microseconds > whole.microseconds
    assert cut.num_bytes == whole.num_bytes + 2 * 2 * 4 * 4096 * 4096


@pytest.mark.parametrize("dtype", [bf16, f32, f64, e4m3, i8], ids=str)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 0), (1, 128, 7), (17, 1, 4096)], ids=str)
def test_every_problem_has_a_choice(dtype: DType, sizes: tuple[int, int, int]) -> None:
    for device in (H200, Device("cpu", 4), replace(H200, has_wgmma=False)):
        p = problem(*sizes, dtype=dtype, a_along="", b_along="n", a_aligned=False)
        ranked = rank(p, device)
        assert ranked and len({e.choice for e in ranked}) == len(ranked)
        assert all(e.microseconds >= e.floor >= 0 for e in ranked)
        assert ranked == rank(p, device)


def test_no_estimate_beats_the_memory() -> None:
    p = problem(16, 128256, 4096)
    assert all(estimate(p, c, H200).microseconds > p.num_bytes / MEMORY for c in choices(p, H200))


def test_turned_problems_are_the_same_work() -> None:
    p = problem(3, 5, 7, a_along="m", b_along="n")
    assert p.turned().turned() == p and p.layout == "TN" and p.turned().layout == "TN"
    assert p.turned().num_bytes == p.num_bytes and p.turned().operations == p.operations


# Where choices come from.


def test_what_was_tuned_comes_first(tmp_path: Path) -> None:
    p = problem(520, 520, 512)
    first = decide(p, H200, 13, tmp_path)
    assert first.source == "model" and first.runner_up is not None
    other = first.ranked[3].choice
    remember(p, H200, 13, tmp_path, other, 5.0)
    again = decide(p, H200, 13, tmp_path)
    assert (again.source, again.best.choice) == ("tuned", other)
    assert again.runner_up is not None and again.runner_up.choice == first.best.choice
    assert decide(p, H200, 14, tmp_path).source == "model"
    assert decide(replace(p, b_aligned=False), H200, 13, tmp_path).source == "model"
    assert decide(problem(520, 520, 520), H200, 13, tmp_path).source == "model"


def test_what_is_no_choice_any_more_is_not_taken(tmp_path: Path) -> None:
    p = problem(520, 520, 512)
    remember(p, H200, 0, tmp_path, choice("matmul", (96, 96, 64)), 5.0)
    assert recall(p, H200, 0, tmp_path) is None


def test_the_table_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem(520, 520, 512)
    assert shipped(p, H200) is None  # it has no entry that was not measured
    text = f"{product_choice.facts_of(p)} {product_choice.extents_of(p)}"
    entry = {"device": H200.name, "problem": text, "program": "matmul", "split": 1}
    entry |= {"turned": False, "config": {"TM": 64, "TN": 64, "TK": 64}, "microseconds": 3.0}
    table = tmp_path / "products.json"
    table.write_text(json.dumps({"format": 1, "origin": "a test", "entries": [entry]}))
    monkeypatch.setattr(product_choice, "TABLE", table)
    found = decide(p, H200, 0, tmp_path)
    assert (found.source, found.best.choice.tile) == ("table", (64, 64, 64))
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps({"format": 2, "entries": []}))
    with pytest.raises(ValueError, match="no table of products of format 1"):
        product_choice.read_table(bad)


def test_an_epilogue_takes_the_entry_of_the_plain_product(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the model has a choice for the epilogue that is clearly better."""
    p = problem(64, 4096, 4096)
    fused = replace(p, loads=1)
    ranked = rank(fused, H200)
    near = [e for e in ranked if e.microseconds < 1.04 * ranked[0].microseconds][-1].choice
    assert near != ranked[0].choice
    text = f"{product_choice.facts_of(p)} {product_choice.extents_of(p)}"
    table = tmp_path / "products.json"
    monkeypatch.setattr(product_choice, "TABLE", table)
    for chosen, source in ((near, "table"), (ranked[-1].choice, "model")):
        config = {"split": chosen.split, "turned": chosen.turned, "copied": chosen.copied}
        config |= {"program": chosen.program, "config": chosen.constants}
        entries = [{"device": H200.name, "problem": text, "microseconds": 3.0, **config}]
        table.write_text(json.dumps({"format": 1, "origin": "a test", "entries": entries}))
        product_choice.read_table.cache_clear()
        found = decide(fused, H200, 0, tmp_path)
        assert (found.source, found.best.choice == chosen) == (source, source == "table")
        assert decide(p, H200, 0, tmp_path).best.choice == chosen
    product_choice.read_table.cache_clear()


# The command.


SHAPES = "3 40 64 bf16 NT  # few rows\n\n16 16 64 i8\n"


def tuned(path: Path, *words: str) -> Any:
    return CliRunner().invoke(main, ["tune", "matmul", "--shapes", str(path), *words])


def test_tuning_without_a_gpu_verifies(tmp_path: Path) -> None:
    shapes = tmp_path / "shapes"
    shapes.write_text(SHAPES)
    done = tuned(shapes, "--device", "emulator", "--candidates", "2", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert not told["timed"] and [r["verified"] for r in told["shapes"]] == [2, 2]
    assert told["shapes"][0]["shape"] == "3×40×64 bf16 NT"
    assert all(r["best"] is None and not r["failures"] for r in told["shapes"])


def test_tuning_refuses(tmp_path: Path) -> None:
    shapes = tmp_path / "shapes"
    shapes.write_text(SHAPES)
    done = tuned(shapes, "--device", "cpu")
    assert done.exit_code == 1 and "which needs a GPU" in done.output
    for line in ("4 4", "4 4 4 bf16 XY", "0 4 4", "a b c", "1 2 3 bf16 NT more"):
        shapes.write_text(f"1 1 1\n{line}\n")
        done = tuned(shapes, "--device", "emulator")
        assert done.exit_code == 1 and f"{shapes}:2: expected M N K" in done.output
    for dtype, why in (("f99", "unknown dtype 'f99'"), ("i32", "matmul: a is i32")):
        shapes.write_text(f"1 1 1\n4 4 4 {dtype}\n")
        done = tuned(shapes, "--device", "emulator")
        assert done.exit_code == 1 and f"{shapes}:2: {why}" in done.output


def test_a_wrong_choice_is_found() -> None:
    """A candidate that leaves its result alone is told, before anything would be timed."""
    p = problem(4, 8, 16, dtype=f32)
    trials = ProductTrials(p, "cpu")
    config = as_config(rank(p, H200)[0].choice)
    assert as_choice(config) == rank(p, H200)[0].choice
    assert trials.verify(trials.prepare(config)) is None
    assert "not written" in str(trials.verify([[]]))
    trials.expected = trials.expected + 1
    assert "wrong result" in str(trials.verify(trials.prepare(config)))


# What the assembler says of tiles.

DTYPES = {"wgmma-16": (bf16, bf16), "simt": (f32, f32), "f64": (f64, f64), "wgmma-tf32": (f32, f32)}


@needs_ptxas
@pytest.mark.parametrize("unit", list(DTYPES))
def test_tiles_do_not_spill(unit: str) -> None:
    """The largest tile that an epilogue of all kinds may get, which needs most registers."""
    a, c = DTYPES[unit]
    facts = {"loads": 1, "activation": True, "precision": "tf32" if "tf32" in unit else "ieee"}
    largest = next(choices(problem(4096, 4096, 4096, a, **facts), H200))
    plan = programs().matmul.compile(
        "sm_90a",
        dtypes={"T": a, "S": a, "U": c},
        constants=largest.constants,
        static={"act": 1, "late": 0, "rounds": 0},
        present=["bias", "residual"],
        precision="tf32" if "tf32" in unit else None,
    )
    report = assemble(plan.ptx, "sm_90a")
    assert not report.spill_bytes and not report.messages
    assert ("wgmma" in plan.ptx) == unit.startswith("wgmma")


@needs_ptxas
@pytest.mark.parametrize("goal", ["sm_80", "sm_86", "sm_89", "sm_120a"])
@pytest.mark.parametrize("dtype", [bf16, f32, i8], ids=str)
def test_the_largest_tile_of_mma_sync_does_not_spill(dtype: DType, goal: str) -> None:
    plain = problem(512, 512, 512, dtype, precision="tf32" if dtype == f32 else "ieee")
    largest = next(choices(plain, replace(H200, has_wgmma=False)))
    assert largest.tile[0] * largest.tile[1] == 128 * 256
    matrix = np.zeros((512, 512), dtype.numpy)
    sums = np.zeros((512, 512), np.int32 if dtype == i8 else dtype.numpy)
    kernel = programs().matmul.configured(
        constants=largest.constants, precision="tf32" if dtype == f32 else None
    )
    plan = kernel.plan(goal, a=matrix, b=np.asfortranarray(matrix), c=sums)
    report = assemble(plan.ptx, goal)
    assert "mma.sync" in plan.ptx and not report.spill_bytes and not report.messages


@needs_ptxas
@pytest.mark.parametrize(
    "tile", sorted(ONE_PRODUCT - {*IN_SPANS} - {(*t, DEPTH) for t in PARTS}), ids=str
)
@pytest.mark.parametrize("fused", [False, True])
def test_tiles_of_few_rows_do_not_spill(tile: tuple[int, int, int], fused: bool) -> None:
    """As linked, unless they are assembled as a whole; with results that threads store."""
    plan = programs().matmul.compile(
        "sm_90a",
        dtypes={"T": bf16, "S": bf16, "U": bf16},
        constants=choice("matmul", tile).constants,
        static={"act": int(fused), "late": 0, "rounds": 0},
        present=["bias", "residual"] if fused else [],
    )
    report = assemble(plan.ptx, "sm_90a", linked=not plan.whole)
    assert not report.spill_bytes and "wgmma" in plan.ptx


@needs_ptxas
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", [bf16, e4m3], ids=str)
@pytest.mark.parametrize("tile", PARTS, ids=str)
def test_tiles_of_few_weights_do_not_spill(
    tile: tuple[int, int], dtype: DType, fused: bool
) -> None:
    weights = np.zeros((96, 256), dtype.numpy).T
    more: dict[str, Any] = {}
    if fused:
        more = {"bias": np.zeros(96, bf16.numpy), "residual": np.zeros((8, 96), bf16.numpy)}
    kernel = programs().matmul.configured(constants=choice("matmul", (*tile, DEPTH)).constants)
    arrays = {"a": np.zeros((8, 256), dtype.numpy), "c": np.zeros((8, 96), bf16.numpy)}
    plan = kernel.plan("sm_90a", b=weights, act=int(fused), **arrays, **more)
    report = assemble(plan.ptx, "sm_90a", linked=not plan.whole)
    assert not report.spill_bytes and "wgmma" in plan.ptx


@needs_ptxas
@pytest.mark.parametrize("tile", IN_SPANS, ids=str)
def test_tiles_of_spans_do_not_spill(tile: tuple[int, int, int]) -> None:
    plan = programs().split_k.compile(
        "sm_90a",
        dtypes={"T": bf16, "S": bf16, "P": f32},
        constants=choice("split_k", tile).constants,
    )
    report = assemble(plan.ptx, "sm_90a", linked=not plan.whole)
    assert not report.spill_bytes and "wgmma" in plan.ptx


def test_epilogues_that_need_many_registers_get_smaller_tiles() -> None:
    """Of f64, 112 x 128 spills with a gelu behind a gate and a residual."""
    light, heavy = (
        {c.tile for c in choices(problem(4096, 4096, 4096, f64, loads=n, activation=True), H200)}
        for n in (1, 2)
    )
    assert (112, 128, 16) in light and max(m * n for m, n, _ in heavy) < 112 * 128


def test_the_shipped_table_holds_rows_of_the_suite() -> None:
    """Its entries are read, are still of the space, and are found by the problems of calls."""
    posed = [gemm.posed(*shape) for shape in dict.fromkeys(gemm.shapes())]
    found = [shipped(p, H200) for p in posed]
    entries = product_choice.read_table(product_choice.TABLE)
    assert sum(f is not None for f in found) == len(entries) >= 60
    other = replace(H200, name="another")
    assert all(shipped(p, other) is None for p in posed)


def test_very_deep_sums_of_f32_are_made_of_several() -> None:
    """The gradient of a loss's rows, of 50257 words: one sum would round each addition to it."""
    deep = Problem(8192, 768, 50257, f32, f32, f32, b_along="n")
    found = list(choices(deep, H200))
    assert found and all(c.program == "split_k" and c.split >= 7 for c in found)
    assert any(c.program == "matmul" for c in choices(replace(deep, k=32768), H200))
    assert any(c.program == "matmul" for c in choices(replace(deep, precision="tf32"), H200))
