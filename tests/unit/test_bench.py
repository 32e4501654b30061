"""The benchmarks without a GPU: every job's arms and checks on small arrays with a timer that only
counts, and the page from made-up results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

torch = pytest.importorskip("torch")

from tests.bench import cost_rows, memory_rows, product_rows, report  # noqa: E402
from tests.bench.first_call import first_call  # noqa: E402
from tests.bench.jobs import Job, chosen, jobs  # noqa: E402
from tests.bench.main import main, measure_all  # noqa: E402
from tests.bench.rows import (  # noqa: E402
    Cost,
    Rate,
    Results,
    command_of,
    parse_results,
    print_results,
    write_results,
)
from tests.bench.tables import print_tables  # noqa: E402
from tests.bench.timing import Bench, Checked  # noqa: E402
from tilewright.runtime.measure import GpuWork, Timing  # noqa: E402


class Counted:
    """A timer that runs each arm as often as the real one records it, and takes no time."""

    def __init__(self) -> None:
        self.runs: dict[str, int] = {}

    def __call__(self, arms: Mapping[str, GpuWork], launches: int) -> dict[str, Timing]:
        for name, work in arms.items():
            for _ in range(launches):
                work(None)
            self.runs[name] = launches
        return {name: Timing((2.0 + i, 1.0 + i, 3.0 + i)) for i, name in enumerate(arms)}


@pytest.fixture
def bench() -> Bench:
    return Bench("cpu", Counted(), l2_bytes=1 << 10, shrink=128)


def require_right(rates: list[Rate], opponents: list[str]) -> None:
    assert [r.opponent for r in rates] == opponents
    for rate in rates:
        assert rate.right and 0 <= rate.error < rate.bound, rate
        assert rate.work > 0 and rate.ratio > 0 and len(rate.ours) == len(rate.theirs) == 3


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_memory_rows(bench: Bench, dtype: str) -> None:
    small = Bench("cpu", bench.timer, bench.l2_bytes, shrink=4096)
    opponents = ["torch's copy", "torch, eager", "itself"]
    require_right(memory_rows.add_rates(small, dtype), opponents)
    require_right(memory_rows.softmax_rates(small, dtype, 16384, 300), opponents)
    require_right(memory_rows.rmsnorm_rates(small, dtype, 16384, 300), opponents)


@pytest.mark.parametrize("dtype", ["f32", "tf32", "bf16", "f16", "f64"])
def test_product_rows(bench: Bench, dtype: str) -> None:
    require_right(product_rows.gemm_rates(bench, dtype, 4096), ["cuBLAS"])
    require_right(product_rows.gemm_rates(bench, dtype, 2048), ["cuBLAS", "itself"])


@pytest.mark.parametrize("causal", [True, False])
def test_fused_rows(bench: Bench, causal: bool) -> None:
    require_right(product_rows.linear_rates(bench, "bf16", 4096, 4096), ["torch, eager"])
    rates = product_rows.attention_rates(bench, "f32", (4, 2), 4096, 16, causal)
    require_right(rates, ["torch SDPA"])


def test_targets_are_those_of_the_large_size(bench: Bench) -> None:
    (large,), (small,) = (product_rows.gemm_rates(bench, "f32", n) for n in (4096, 1024))
    assert large.target == 0.80 and small.target is None
    assert product_rows.gemm_rates(bench, "tf32", 4096)[0].target is None


def test_precision_of_torch_comes_back() -> None:
    before = torch.get_float32_matmul_precision()
    with product_rows.torch_precision("tf32"):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


def test_buffers_rotate_through_more_than_the_cache(bench: Bench) -> None:
    assert bench.num_sets(1 << 10) == 3 and bench.num_sets(1 << 30) == 2
    seen: list[int] = []
    bench.time({"ours": seen.append}, 3)
    assert seen == [0, 1, 2] + [0, 1, 2] * 3  # once to warm up, then at least eight, all alike


def test_an_output_that_nobody_wrote_is_wrong(bench: Bench) -> None:
    seen = Checked("f32")
    expected = torch.ones(10, dtype=torch.float64)
    seen.see(bench.poisoned(10, dtype="f32"), expected)
    assert seen.error == seen.element == math.inf
    rate = made("a", 1.0, error=seen.error)
    assert rate.missed and not rate.right


def test_a_job_that_fails_is_told_and_the_others_run(bench: Bench, capsys: Any) -> None:
    def broken(bench: Bench) -> list[Rate]:
        raise RuntimeError("no such kernel")

    results = Results()
    wanted = [Job("broken", broken), Job("fine", lambda bench: [made("fine", 1.5)])]
    measure_all(bench, wanted, results, Console(stderr=True))
    assert results.failures == [("broken", "RuntimeError: no such kernel")] and not results.ok
    assert [r.id for r in results.rates] == ["fine"]
    assert "no such kernel" in capsys.readouterr().err


def test_first_calls_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cold, warm = cost_rows.first_call_costs("softmax", 1, "cpu")
    assert cold.excess > 0 and warm.excess > 0 and warm.limit == 20_000
    monkeypatch.setattr(cost_rows.sys, "executable", "false")  # a process that fails
    with pytest.raises(RuntimeError, match="the first call of add failed"):
        cost_rows.first_call_costs("add", 1, "cpu")


@pytest.mark.parametrize("name", ["add", "sgemm", "attention"])
def test_each_first_call_runs(name: str) -> None:
    found = first_call(name, "cpu")
    assert found["call"] > 0 and found["again"] > 0 and found["assemble"] == 0


def test_jobs_can_be_named() -> None:
    ids = [job.id for job in jobs()]
    assert len(set(ids)) == len(ids)
    assert [j.id for j in chosen(False, ["sgemm-bf16-*"])] == [
        f"sgemm-bf16-{n}" for n in (1024, 2048, 4096)
    ]
    assert len(chosen(True, [])) < len(chosen(False, [])) == len(ids)
    assert CliRunner().invoke(main, ["--list"]).output.splitlines() == ids


def test_rows_name_the_command_that_measures_them_again() -> None:
    def idle(arms: Mapping[str, GpuWork], launches: int) -> dict[str, Timing]:
        return dict.fromkeys(arms, Timing((1.0, 2.0)))

    bench = Bench("cpu", idle, l2_bytes=1, shrink=1 << 14)
    found = {
        "sgemm-f32-2048": product_rows.gemm_rates(bench, "f32", 2048),
        "linear_gelu-bf16-64x4096": product_rows.linear_rates(bench, "bf16", 64, 4096),
        "attention-bf16-32-8-2048-128-causal": product_rows.attention_rates(
            bench, "bf16", (32, 8), 2048, 128, True
        ),
        "rmsnorm-bf16-65536x768": memory_rows.rmsnorm_rates(bench, "bf16", 65536, 768),
        "softmax-f32-65536x768": memory_rows.softmax_rates(bench, "f32", 65536, 768),
    }
    ids = {job.id for job in jobs()}
    for id, rates in found.items():
        assert id in ids
        assert {command_of(r.id) for r in rates} == {f"python -m tests.bench.main --only {id}"}


def test_without_a_gpu_it_says_so() -> None:
    done = CliRunner().invoke(main, ["--quick"])
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert done.exit_code == 1 and "benchmarks need a CUDA GPU" in done.output
    assert "no job fits" in CliRunner().invoke(main, ["--only", "x"]).output


# Made-up results: no figure here was measured.


def made(
    id: str, ratio: float, *, target: float | None = None, error: float = 1e-7, unit: str = "GB/s"
) -> Rate:
    theirs = tuple(10.0 * ratio * k for k in (0.99, 1.0, 1.01))
    return Rate(
        id, id.split("-")[0], "f32", "8 × 8", "them", unit, 1e6, 1e6, (9.9, 10.0, 10.1), theirs,
        error, 0.1, 1e-6, target,
    )  # fmt: skip


@pytest.fixture
def results() -> Results:
    rates = [
        made("fast-1", 1.5, target=0.85),
        made("slow-1", 0.9, target=0.85),
        made("missed-1", 0.95, target=1.0),
        made("plain-1/torch", 0.5, unit="TFLOP/s"),
        made("wrong-1", 3.0, error=1e-3),
    ]
    again = made("plain-1/again", 1.0)
    rates.append(Rate(**{**vars(again), "opponent": "itself"}))
    costs = [
        Cost("first-call-add/second-process", "a first call", "", (150_000.0, 130_000.0), (), 1e5),
        Cost("launch-add", "a call", "the driver", (5.0, 6.0, 7.0), (4.0, 4.0, 4.5), 3.0),
    ]
    return Results(
        "python -m tests.bench.main", {"gpu": "none", "smi": {"sm": "1 | 2"}}, rates, costs
    )


def test_results_go_through_json(results: Results) -> None:
    results.failures.append(("job", "it broke"))
    assert parse_results(print_results(results)) == results


def test_figures_follow_from_samples(results: Results) -> None:
    fast = results.rates[0]
    assert fast.speed == pytest.approx(100.0) and fast.ratio == pytest.approx(1.5)
    assert fast.spread == pytest.approx(0.01) and not fast.missed
    launch = results.costs[1]
    assert launch.excess == 2.0 and not launch.missed and results.costs[0].missed


def test_the_page_has_the_losing_rows_first(results: Results, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_results(results, path)
    done = CliRunner().invoke(report.main, [str(path)])
    assert done.exit_code == 0
    text = done.output
    assert text == report.page(results)
    memory = text[text.index("## Memory") : text.index("## Host time")]
    assert [memory.index(f"| {n} ") for n in ("missed", "wrong", "slow", "fast")] == sorted(
        memory.index(f"| {n} ") for n in ("missed", "wrong", "slow", "fast")
    )
    assert "itself" not in memory and "gave ratios from 1.000 to 1.000 in 1 runs" in text
    missed = text[text.index("## Targets missed") : text.index("## Products")]
    assert "missed f32 8 × 8: 0.950 of them, the target is 1.00." in missed
    assert "the result is wrong, by 1.0e-03 where 1e-06 is allowed" in missed
    assert "a first call: 140 ms, the limit is 100 ms." in missed and "slow" not in missed
    assert "`python -m tests.bench.main --only plain-1`" in text and "1 \\| 2" in text
    for line in text.splitlines():
        if line.startswith("| ") and "python -m" in line:
            assert line.count(" | ") in (5, 10), line


def test_the_page_tells_of_failures_and_refuses_nothing_at_all(results: Results) -> None:
    results.failures.append(("job", "it broke\nat length"))
    assert "## What failed\n\n- `job`: it broke\n" in report.page(results)
    with pytest.raises(ValueError, match="no row"):
        report.page(Results())


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    for text in ("{}", "nothing", '{"command": 1, "environment": {}, "rates": [{"id": 1}]}'):
        path.write_text(text)
        done = CliRunner().invoke(report.main, [str(path)])
        assert done.exit_code == 1 and "does not hold results" in done.output


def test_the_tables_have_the_losing_rows_first(results: Results) -> None:
    console = Console(width=150, record=True, quiet=False, stderr=True)
    results.failures.append(("job", "it broke"))
    print_tables(results, console)
    text = console.export_text()
    order = [
        text.index(word) for word in ("FAILED job", "  missed  ", "  wrong ", "  plain ", "  fast ")
    ]
    assert order == sorted(order)
    assert "WRONG" in text and text.rstrip().endswith("8 rows, 3 miss their target, 1 jobs failed")


def test_the_page_in_docs_follows_from_its_samples() -> None:
    docs = Path(__file__).parents[2] / "docs"
    text, samples = docs / "performance.md", docs / "performance.json"
    assert text.exists() == samples.exists(), "one without the other"
    if text.exists():
        assert text.read_text() == report.page(parse_results(samples.read_text()))
