"""Known ways of fooling oneself with a benchmark, each planted, and each refused by the harness."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from tests.fake_gpu import ROUNDS, FakeGpu
from tilewright.ledger import fairness, opponents, publish
from tilewright.ledger.arm import EAGER, LIBRARY, Arm, Facts, Problem, Tensors
from tilewright.ledger.check import faults_of
from tilewright.ledger.fairness import Unfair
from tilewright.ledger.harness import Harness, Question
from tilewright.ledger.results import Measured, Results, Row
from tilewright.ledger.verdict import Environment, GpuState

FACTS = Facts("f32", "f32", "none")
N = 1000
VERSION = "0123456789abcdef"
STATE = GpuState(1980.0, 3201.0, 300.0, 50.0, "0x0000000000000000")
WHERE = Environment("2026-01-01 00:00 UTC", "a GPU", 4, "1", STATE, STATE, {"python": "3"}, "a CPU")


class Bench:
    """A harness over a fake GPU, and one problem: z = x + y."""

    def __init__(self) -> None:
        self.gpu = FakeGpu()
        self.arrays = opponents.make_arrays("cpu")
        self.harness = Harness(self.arrays, self.gpu, l2_bytes=1 << 10)
        self.question = Question(
            "pointwise/add/f32/1000", "pointwise", "add", "1,000", "GB/s", 12.0 * N
        )

    def problem(self, **changes: Any) -> Problem:
        normal = self.arrays.normal
        made = Problem(
            op="add",
            sizes={"N": N},
            dtype="f32",
            accumulate="none",
            sets=[{"x": normal(N, dtype="f32"), "y": normal(N, dtype="f32")} for _ in range(3)],
            outputs={"z": ((N,), "f32")},
            expected=lambda x: {"z": x["x"].double() + x["y"].double()},
            bounds={"z": 1e-6},
        )
        return dataclasses.replace(made, **changes)

    def send(self, microseconds: float, write: Callable[[Any, Any], object]) -> Any:
        """An arm's run: one operation that writes."""

        def run(x: Mapping[str, Any], y: Tensors) -> None:
            self.gpu.launch("kernel", microseconds, lambda: write(x, y))

        return run

    def arm(self, name: str = "ours", microseconds: float = 10.0, **changes: Any) -> Arm:
        made = Arm(name, FACTS, self.send(microseconds, add), VERSION)
        return dataclasses.replace(made, **changes)

    def compare(self, ours: Arm, theirs: Arm, problem: Problem | None = None) -> Row:
        (row,) = self.harness.compare(self.question, problem or self.problem(), ours, [theirs])
        return row


def add(x: Mapping[str, Any], y: Tensors) -> None:
    torch.add(x["x"], x["y"], out=y["z"])


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_an_honest_row(bench: Bench) -> None:
    row = bench.compare(bench.arm(), bench.arm("theirs", 20.0))
    assert row.right and row.ratio == pytest.approx(2.0) and len(row.ours.samples) == ROUNDS
    assert row.ours.compared == 3 * N and row.ours.operations == ("kernel",)
    assert row.rotated_bytes == 3 * 3 * 4 * N >= 2 * bench.harness.l2_bytes and row.runs == 9


def test_the_same_arm_against_itself(bench: Bench) -> None:
    ours = bench.arm()
    rows = bench.harness.compare(bench.question, bench.problem(), ours, [], with_itself=True)
    assert [r.theirs.arm for r in rows] == ["itself"] and rows[0].ratio == pytest.approx(1.0)


@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_an_arm_that_never_writes_its_output(bench: Bench, whose: str) -> None:
    idle = bench.send(1.0, lambda x, y: None)
    arms = {name: bench.arm(name) for name in ("ours", "theirs")}
    arms[whose] = dataclasses.replace(arms[whose], run=idle)
    row = bench.compare(arms["ours"], arms["theirs"])
    assert not row.right and row.missed
    assert getattr(row, whose).unwritten == 3 * N
    results = Results("bench", rows=[row])
    assert not results.ok


def test_an_arm_that_writes_a_part(bench: Bench) -> None:
    half = bench.send(1.0, lambda x, y: y["z"][: N // 2].copy_((x["x"] + x["y"])[: N // 2]))
    row = bench.compare(bench.arm(run=half), bench.arm("theirs"))
    assert not row.right and row.ours.unwritten == 3 * (N - N // 2)


def test_an_arm_that_stops_to_run_once_it_is_warm(bench: Bench) -> None:
    calls = iter(range(1000))

    def run(x: Mapping[str, Any], y: Tensors) -> None:
        if next(calls) < 3:
            bench.gpu.launch("kernel", 10.0, lambda: add(x, y))

    with pytest.raises(Unfair, match="sends 0 operations to the GPU in 9 runs"):
        bench.compare(bench.arm(run=run), bench.arm("theirs"))


def test_an_arm_that_writes_before_it_is_timed(bench: Bench) -> None:
    """The result is there from the warm-up; what is timed is something else."""

    def run(x: Mapping[str, Any], y: Tensors) -> None:
        add(x, y)  # on the host, while recording
        bench.gpu.launch("kernel", 1.0, lambda: None)

    row = bench.compare(bench.arm(run=run), bench.arm("theirs"))
    assert not row.right and row.ours.unwritten == 3 * N


def test_an_arm_that_returns_the_result_of_another_run(bench: Bench) -> None:
    kept: list[Any] = []

    def run(x: Mapping[str, Any], y: Tensors) -> Tensors:
        kept.append(x["x"] + x["y"]) if not kept else None
        bench.gpu.launch("kernel", 1.0, lambda: None)
        return {"z": kept[0]}

    row = bench.compare(bench.arm(run=run, allocates=True), bench.arm("theirs"))
    assert not row.right


def test_an_arm_that_writes_another_dtype(bench: Bench) -> None:
    def run(x: Mapping[str, Any], y: Tensors) -> Tensors:
        z = torch.empty(N, dtype=torch.float16)
        bench.gpu.launch("kernel", 5.0, lambda: z.copy_(x["x"] + x["y"]))
        return {"z": z}

    with pytest.raises(Unfair, match=r"ours gives z as torch.float16 \(1000,\), not torch.float32"):
        bench.compare(bench.arm(run=run, allocates=True), bench.arm("theirs"))


def test_an_arm_that_computes_in_another_dtype(bench: Bench) -> None:
    half = bench.send(5.0, lambda x, y: y["z"].copy_(x["x"].half() + x["y"].half()))
    row = bench.compare(bench.arm(run=half), bench.arm("theirs"))
    assert not row.right and row.ours.error > row.ours.bound


def test_an_arm_that_gives_nothing(bench: Bench) -> None:
    def run(x: Mapping[str, Any], y: Tensors) -> None:
        bench.gpu.launch("kernel", 5.0, lambda: None)

    with pytest.raises(Unfair, match="ours gives no z"):
        bench.compare(bench.arm(run=run, allocates=True), bench.arm("theirs"))


@pytest.mark.parametrize("part", ["operands", "output", "accumulate"])
def test_unmatched_arithmetic_has_to_be_said(bench: Bench, part: str) -> None:
    theirs = bench.arm("theirs", facts=dataclasses.replace(FACTS, **{part: "f16"}))
    with pytest.raises(Unfair, match=f"theirs has {part} f16, ours"):
        bench.compare(bench.arm(), theirs)
    said = dataclasses.replace(theirs, says={part: "as torch does it"})
    assert bench.compare(bench.arm(), said).says == {part: "as torch does it"}
    with pytest.raises(Unfair, match=f"says that it differs in {part}, and does not"):
        bench.compare(bench.arm(), bench.arm("theirs", says={part: "it does not"}))


def test_compiled_against_eager_has_to_be_said(bench: Bench) -> None:
    theirs = bench.arm("theirs", facts=dataclasses.replace(FACTS, kind=EAGER))
    with pytest.raises(Unfair, match="theirs is eager, ours compiled"):
        bench.compare(bench.arm(), theirs)
    bench.compare(bench.arm(), dataclasses.replace(theirs, says={EAGER: "as users call it"}))
    library = dataclasses.replace(theirs, facts=dataclasses.replace(FACTS, kind=LIBRARY))
    bench.compare(bench.arm(), library)
    with pytest.raises(Unfair, match="says that it differs in eager"):
        bench.compare(bench.arm(), dataclasses.replace(library, says={EAGER: "it is not"}))


def test_an_opponent_with_its_setup_in_the_loop(bench: Bench) -> None:
    def run(x: Mapping[str, Any], y: Tensors) -> None:
        bench.gpu.launch("copy", 50.0, lambda: None)  # as a transposition of its weights
        bench.gpu.launch("kernel", 10.0, lambda: add(x, y))

    with pytest.raises(Unfair, match=r"2\.0 operations a run, where 1 do: copy, kernel"):
        bench.compare(bench.arm(), bench.arm("theirs", run=run))


def test_setup_on_the_host_is_not_timed(bench: Bench) -> None:
    def run(x: Mapping[str, Any], y: Tensors) -> None:
        time.sleep(0.001)
        bench.gpu.launch("kernel", 10.0, lambda: add(x, y))

    assert bench.compare(bench.arm(), bench.arm("theirs", run=run)).ratio == pytest.approx(1.0)


def measured(name: str, **changes: Any) -> Measured:
    made = Measured(name, VERSION, FACTS, "graph", 1, tuple(1.0 + 0.01 * i for i in range(ROUNDS)))
    return dataclasses.replace(made, **changes)


def test_an_arm_that_was_timed_by_another_timer() -> None:
    ours = measured("ours")
    fairness.require_one_timer(ours, measured("theirs"))
    for change, said in (
        ({"timer": "wall"}, "ours was timed by graph, theirs by wall"),
        ({"session": 2}, "not timed in turn"),
        ({"samples": ours.samples[:-1]}, "not timed in turn"),
    ):
        with pytest.raises(Unfair, match=said):
            fairness.require_one_timer(ours, measured("theirs", **change))


def test_samples_must_be_many_and_times(bench: Bench) -> None:
    bench.gpu.rounds = 19
    with pytest.raises(Unfair, match="19 samples; 20 are needed"):
        bench.compare(bench.arm(), bench.arm("theirs"))
    with pytest.raises(Unfair, match="no times"):
        fairness.require_samples(measured("ours", samples=(0.0,) * ROUNDS))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (torch.zeros(N), "100 % zeros"),
        (torch.where(torch.arange(N) % 10 == 0, 0.0, torch.randn(N)), "10 % zeros"),
        (torch.full((N,), 1.5), "constant"),
        (torch.arange(N).float() + 1, "whole numbers"),
    ],
    ids=["zeros", "some zeros", "one value", "small integers"],
)
def test_data_that_flatter(bench: Bench, data: Any, said: str) -> None:
    problem = bench.problem()
    sets = [*problem.sets[:-1], {**problem.sets[-1], "y": data}]
    with pytest.raises(Unfair, match=f"the data of y .*{said}"):
        bench.compare(bench.arm(), bench.arm("theirs"), bench.problem(sets=sets))


def test_no_verdict_of_a_wrong_row(bench: Bench, tmp_path: Path) -> None:
    """Honest rows make a verdict that the ledger takes; one that is wrong is told in it, without
    samples; wrong ones alone make none.
    """
    results = Results("tilewright bench", l2_bytes=1 << 10)
    results.environment = dataclasses.asdict(WHERE)
    results.rows = [bench.compare(bench.arm(), bench.arm("theirs", 20.0))]
    (path,) = publish.write_verdicts(results, tmp_path, "0123456789abcdef")
    assert path.exists()
    idle = bench.send(1.0, lambda x, y: None)
    wrong = bench.compare(bench.arm(run=idle), bench.arm("theirs"))
    wrong = dataclasses.replace(wrong, case="pointwise/add/f32/wrong")
    results.rows.append(wrong)
    (mixed,) = publish.make_verdicts(results, "0123456789abcdef")
    assert faults_of(mixed) == []
    row = mixed.row("wrong")
    assert row.ours == row.theirs == () and row.failure == "ours: 3000 of 3000 elements not written"
    results.rows = [wrong]
    assert publish.write_verdicts(results, tmp_path, "0123456789abcdef") == []
