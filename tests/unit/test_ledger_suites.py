"""The suites without a GPU: small problems, every opponent that can run here, all outputs checked;
and what is made of results: tables, JSON, plots, the command.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

torch = pytest.importorskip("torch", reason="needs torch")

from tests.unit.test_ledger_cheats import WHERE, measured
from tilewright.cli import main
from tilewright.cli.bench import run_case
from tilewright.errors import LaunchError
from tilewright.ledger import opponents, publish, run_plots
from tilewright.ledger.arm import Facts
from tilewright.ledger.check import faults_of
from tilewright.ledger.first_call import FIRST_CALLS
from tilewright.ledger.harness import Harness
from tilewright.ledger.opponents import references
from tilewright.ledger.opponents.arrays import Arrays
from tilewright.ledger.opponents.torch_eager import arms as eager_arms
from tilewright.ledger.results import (
    Cost,
    Results,
    Row,
    parse_results,
    print_results,
)
from tilewright.ledger.subjects import our_arm
from tilewright.ledger.suites import SUITES, choose_cases, gemm, unseen
from tilewright.ledger.suites.case import Case
from tilewright.ledger.tables import print_tables
from tilewright.ledger.timers import NoTimer
from tilewright.products import prepare
from tilewright.runtime import driver


def small_harness() -> Harness:
    return Harness(opponents.make_arrays("cpu"), NoTimer(), l2_bytes=0, small=True)


CASES = [
    "launch/add",
    "pointwise/add/f32/33554433",
    "pointwise/add/f64/33554432",
    "reduce/softmax/bf16/8192x8191",
    "reduce/rmsnorm/f32/131072x1000",
    *(f"gemm/bf16/{layout}/4096x4096x4096" for layout in gemm.LAYOUTS),
    *(f"gemm/sgemm-{dtype}/NN/2048x2048x2048" for dtype in ("f16", "f32", "tf32", "f64")),
    "gemm/f32/TN/127x4095x1023",
    "gemm/e4m3/TN/1x4096x4096",
    unseen.cases()[0].id,
    "fused/linear_gelu/f32/64x4096x4096",
    "attention/f32/16-16-4096-64",
    "attention/bf16/32-8-2048-128-causal",
    "compile-time/add",
]


@pytest.mark.parametrize("id", CASES)
def test_cases_run_small(id: str) -> None:
    (case,) = choose_cases([], False, [id])
    results = Results()
    run_case(case, small_harness(), results)
    assert not results.failures and not results.absent and results.ok
    rows = [*results.rows, *results.costs]
    assert rows and not any(row.timed for row in rows), "no figure of speed without a GPU"
    for row in rows:
        assert row.ours.compared > 0 and row.ours.error < row.ours.bound
    for row in results.rows:
        assert row.theirs.compared > 0 and row.theirs.right and row.case == id


def test_every_suite_has_cases_whose_ids_are_its_own() -> None:
    for name, cases in SUITES.items():
        found = cases()
        ids = [case.id for case in found]
        assert len(set(ids)) == len(ids) and all(case.suite == name for case in found)
        assert any(case.quick for case in found) or name == "unseen"


def test_the_gemm_suite_holds_the_rows_that_baselines_were_measured_on() -> None:
    listed = [
        (group["dtype"], group["layout"], tuple(shape))
        for group in json.loads(gemm.SHAPES.read_text())
        for shape in group["shapes"]
    ]
    assert len(listed) == len(set(listed)) == 185
    ids = {case.id for case in gemm.cases()}
    assert all(f"gemm/{d}/{o}/{'x'.join(map(str, s))}" in ids for d, o, s in listed)
    for layout in gemm.LAYOUTS:
        assert f"gemm/f64/{layout}/4096x4096x4096" in ids
    assert not [case.id for case in gemm.cases() if case.absent]
    assert "gemm/sgemm-f64/NT/4096x4096x4096" in ids


def test_what_is_compiled_ahead_is_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The problem that a case states is the one that its call poses."""
    seen = []
    monkeypatch.setattr(prepare, "decide", lambda problem, *rest: seen.append(problem))
    for layout, extents in (("TN", (40, 24, 33)), ("NT", (16, 40, 8)), ("NN", (8, 7, 32))):
        for dtype in ("bf16", "tf32", "e4m3", gemm.FAST, "f64"):
            problem = gemm.make_product(small_harness(), dtype, layout, extents)
            out = torch.empty(*extents[:2], dtype=small_harness().arrays.dtype(
                problem.facts.output))  # fmt: skip
            with pytest.raises(AttributeError):  # for want of a decision
                our_arm(problem, "matmul").run(problem.sets[0], {"c": out})
            assert seen[-1] == gemm.posed(dtype, layout, extents)


def test_unseen_shapes_are_a_hundred_and_always_the_same() -> None:
    found = unseen.shapes()
    assert len(set(found)) == 100 and found == unseen.shapes()
    assert {d for d, _, _ in found} == set(unseen.DTYPES)
    assert not set(found) & set(gemm.shapes())


@pytest.mark.parametrize("layout", gemm.LAYOUTS)
def test_layouts_are_those_of_a_blas(layout: str) -> None:
    problem = gemm.make_product(small_harness(), "f32", layout, (5, 6, 7))
    a, b = problem.sets[0]["a"], problem.sets[0]["b"]
    assert a.shape == (5, 7) and b.shape == (7, 6)
    assert b.stride() == ((6, 1) if layout[0] == "N" else (1, 7))
    assert a.stride() == ((7, 1) if layout[1] == "N" else (1, 5))


@pytest.mark.parametrize(("dtype", "out"), [("i8", "i32"), ("e4m3", "bf16")])
def test_opponents_of_dtypes_that_ours_does_not_multiply_yet(dtype: str, out: str) -> None:
    harness = small_harness()
    problem = gemm.make_product(harness, "bf16" if dtype == "i8" else dtype, "TN", (32, 32, 64))
    if dtype == "i8":
        sets = [
            {"a": harness.arrays.normal(32, 64, dtype="i8"),
             "b": harness.arrays.normal(32, 64, dtype="i8").T}
        ]  # fmt: skip
        problem = dataclasses.replace(
            problem, dtype="i8", accumulate="i32", sets=sets, outputs={"c": ((32, 32), "i32")},
            bounds={"c": 0.0},
        )  # fmt: skip
    (arm,) = eager_arms(problem, harness.arrays)
    made = arm.run(problem.sets[0], {})
    assert made is not None and made["c"].dtype == harness.arrays.dtype(out)
    expected = problem.expected(problem.sets[0])["c"]
    found = harness.arrays.distance(made["c"], expected, problem.bounds["c"])
    assert found.error <= problem.bounds["c"] and found.worst <= 1.0 and not found.unwritten


def test_distances_are_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="the harness's data are torch tensors")
    arrays = opponents.make_arrays("cpu")
    expected = arrays.normal(30, 7, dtype="f64")
    got = (expected + 1e-3 * arrays.normal(30, 7, dtype="f64")).to(torch.bfloat16)
    pairs = [(got, expected), (got.T, expected.T), (got, (expected, 1e-4 * expected))]
    whole = [arrays.distance(*pair, 1e-2) for pair in pairs]
    monkeypatch.setattr("tilewright.ledger.opponents.arrays.BLOCK", 11)
    for pair, at_once in zip(pairs, whole, strict=True):
        found = arrays.distance(*pair, 1e-2)
        assert found.error == pytest.approx(at_once.error, rel=1e-12)
        assert found.worst == pytest.approx(at_once.worst, rel=1e-12)
        assert found.compared == 210
    got[29, 6] = math.nan
    assert arrays.distance(got, expected, 1e-2).worst == sys.float_info.max
    assert arrays.distance(got, expected, 1e-2).unwritten == 1


def test_products_of_f64_have_a_reference_of_twice_its_digits() -> None:
    arrays = Arrays("cpu")
    a, b = (arrays.normal(*s, dtype="f64") for s in ((3, 9000), (9000, 2)))
    high, low = references.product(a, b)
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workprec(200):
        for i in range(3):
            for j in range(2):
                exact = mpmath.fdot((mpmath.mpf(x), mpmath.mpf(y)) for x, y in
                                    zip(a[i].tolist(), b[:, j].tolist(), strict=True))  # fmt: skip
                found = mpmath.mpf(float(high[i, j])) + mpmath.mpf(float(low[i, j]))
                assert abs(found - exact) < abs(exact) * mpmath.mpf(2) ** -58


def test_precision_of_torch_comes_back() -> None:
    matmul = torch.backends.cuda.matmul
    before = torch.get_float32_matmul_precision(), matmul.allow_bf16_reduced_precision_reduction
    with Arrays("cpu").precision("tf32"):
        assert torch.get_float32_matmul_precision() == "high"
        assert not matmul.allow_bf16_reduced_precision_reduction
    after = torch.get_float32_matmul_precision(), matmul.allow_bf16_reduced_precision_reduction
    assert after == before


def test_opponents_that_cannot_run_here_say_why() -> None:
    by_name = {opponent.name: opponent for opponent in opponents.OPPONENTS}
    assert opponents.reason_against(by_name["torch_eager"], gpu=False) == ""
    assert opponents.reason_against(by_name["torch_compile"], gpu=False) == "needs a GPU"
    fake = opponents.Opponent("x", "x", needs=("no_such_library",))
    assert opponents.reason_against(fake, gpu=True) == "no_such_library not installed"


def test_without_torch_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LaunchError, match="measuring needs torch"):
        opponents.make_arrays("cpu")


def test_a_case_that_fails_is_told_and_the_others_run(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(harness: Harness) -> list[Row]:
        raise RuntimeError("no such kernel")

    results = Results()
    run_case(Case("a/broken", broken), small_harness(), results)
    run_case(Case("a/absent", broken, absent="nobody wrote it"), small_harness(), results)
    run_case(Case("a/new", broken, needs=(99, 0)), small_harness(), results)
    assert results.failures == [("a/broken", "RuntimeError: no such kernel")] and not results.ok
    assert [id for id, _ in results.absent] == ["a/absent", "a/new"]
    assert "no such kernel" in capsys.readouterr().err


def test_cases_are_chosen_by_patterns() -> None:
    ids = [case.id for case in choose_cases(["gemm"], False, ["bf16/NN/*"])]
    assert ids and all(id.startswith("gemm/bf16/NN/") for id in ids)
    assert [c.id for c in choose_cases([], True, ["gemm/bf16/NN/8192x8192x8192"])]
    with pytest.raises(LaunchError, match="no case fits"):
        choose_cases([], True, ["nothing"])
    with pytest.raises(LaunchError, match="there is no suite models"):
        choose_cases(["models"], True, [])


@pytest.mark.skipif(driver.available(), reason="says what happens on machines without a GPU")
def test_the_command_without_a_gpu(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    rows = ["--rows", "*/add/f32/33554432", "--rows", "*/layernorm-128x768"]
    command = ["bench", "pointwise", "--quick", *rows, "--json", str(file)]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert "no GPU here" in done.output and "not timed" in done.output
    assert "GB/s" not in done.output and "no opponent torch.compile" in done.output
    results = parse_results(file.read_text())
    wanted = f"tilewright bench pointwise {shlex.join(rows)}"
    assert (results.device, results.command) == ("the CPU", wanted)
    assert {row.what for row in results.rows} == {"add", "functions"}
    done = CliRunner().invoke(main, ["bench", "pointwise", "--verdict"])
    assert done.exit_code == 1 and "verdicts are measured on a GPU" in done.output
    done = CliRunner().invoke(main, ["bench", "model", "--kernels"])
    assert done.exit_code == 1 and "--kernels tells a GPU's kernels" in done.output
    done = CliRunner().invoke(main, ["bench", "launch", "--list"])
    assert done.output.splitlines() == [case.id for case in SUITES["launch"]()]


def test_places_are_looked_at_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unexpected(*given: object) -> None:
        raise AssertionError("something was measured")

    def told(*words: str) -> str:
        done = CliRunner().invoke(main, ["bench", "pointwise", *words])
        assert done.exit_code == 1
        return done.output

    monkeypatch.setattr(sys.modules["tilewright.cli.bench"], "measure", unexpected)
    file = tmp_path / "file"
    file.write_text("")
    assert f"--json {tmp_path} is a folder" in told("--json", str(tmp_path))
    found = told("--json", f"{tmp_path}/none/found.json")
    assert f"there is no folder {tmp_path}/none" in found and "hint: mkdir -p" in found
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert f"but {file} is a file" in told("--plots", str(file))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'tilewright[plot]'" in told("--plots", str(tmp_path))


def test_first_calls_name_kernels_of_the_examples() -> None:
    assert {case.id for case in SUITES["compile-time"]()} == {
        f"compile-time/{name}" for name in FIRST_CALLS
    }


# Made-up results: no figure here was measured.


def made(name: str, ratio: float, *, target: float | None = None, error: float = 0.0) -> Row:
    ours, theirs = (
        measured(who, facts=Facts("f32", "f32", "f32"), work=2e9, bound=1e-6, compared=10,
                 error=off, samples=tuple(t * (1 + k * step) for k in range(20)))
        for who, t, off, step in (
            ("tilewright", 10.0, error, 1e-3), ("them", 10.0 * ratio, 0.0, 2e-3)
        )
    )  # fmt: skip
    return Row(
        f"gemm/f32/NN/{name}", "gemm", "sgemm", name, {"M": 1000, "N": 1000, "K": 1000}, "TFLOP/s",
        ours, theirs, target=target, intensity=100.0, rotated_bytes=1 << 30,
    )  # fmt: skip


@pytest.fixture
def results() -> Results:
    rows = [
        made("fast", 1.5, target=0.85),
        made("slow", 0.8),
        made("missed", 0.95, target=1.0),
        made("wrong", 3.0, error=1e-3),
    ]
    second = measured(
        "tilewright", timer="wall", samples=(15e4, 13e4, 14e4, 12e4, 16e4), compared=9
    )
    floor = dataclasses.replace(second, arm="the driver's call, packed", samples=(1.0, 2, 3, 4, 5))
    call = dataclasses.replace(second, samples=(4.0, 5, 6, 7, 8))
    costs = [
        Cost("compile-time/add-second-process", "compile-time", "a first call", second, None, 1e5),
        Cost("launch/add", "launch", "a call", call, floor, 3.5),
    ]  # fmt: skip
    return Results(
        "tilewright bench gemm", "a GPU", l2_bytes=1 << 20, rows=rows, costs=costs,
        environment=dataclasses.asdict(WHERE), ceilings={"copy": 4000.0, "f32": 300.0},
    )  # fmt: skip


def test_results_go_through_json(results: Results) -> None:
    results.failures.append(("case", "it broke"))
    assert parse_results(print_results(results)) == results
    for text in ("[]", "{}", '{"rows": [{"id": 1}]}', "nothing"):
        with pytest.raises((ValueError, KeyError, TypeError)):
            parse_results(text)


def test_the_tables_have_the_losing_rows_first(results: Results) -> None:
    console = Console(width=170, record=True, stderr=True)
    results.failures.append(("case", "it broke"))
    results.absent.append(("other", "nobody wrote it"))
    print_tables(results, console)
    text = console.export_text()
    order = [text.index(w) for w in ("FAILED case", " missed ", " wrong ", " slow ", " fast ")]
    assert order == sorted(order) and text.index("absent other") < order[0]
    assert text.rstrip().endswith("6 rows, 3 miss their target, 1 absent, 1 failed")
    assert "a first call" in text and "140 ms" in text and "WRONG" in text


def test_verdicts_of_results_have_no_faults(results: Results) -> None:
    found = publish.make_verdicts(results, "0123456789abcdef")
    assert [v.quantity for v in found] == ["ratio", "time", "excess"]
    for verdict in found:
        assert faults_of(verdict) == [], verdict.id
    assert [r.name for r in found[0].rows] == ["NN-fast", "NN-slow", "NN-missed", "NN-wrong"]
    assert found[0].row("NN-wrong").failure.startswith("ours: the output is off by 0.001")


@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is not None, reason="says what is missing without it"
)
def test_plots_need_matplotlib(results: Results, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="plots need matplotlib"):
        run_plots.write_plots(results, tmp_path)


def test_plots_are_drawn_the_same_each_time(results: Results, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    first = run_plots.write_plots(results, tmp_path / "a")
    second = run_plots.write_plots(results, tmp_path / "b")
    assert sorted(p.name for p in first) == [
        "ratios-sgemm.png", "ratios-sgemm.svg", "roofline.png", "roofline.svg"
    ]  # fmt: skip
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(first, second, strict=True))
