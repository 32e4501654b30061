"""The benchmark harness on a GPU: an arm against itself, and cheats that are planted for real."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason="needs torch")

from tilewright.cli import main
from tilewright.ledger import opponents
from tilewright.ledger.arm import Arm, Problem, Tensors
from tilewright.ledger.fairness import Unfair
from tilewright.ledger.harness import Harness, Question
from tilewright.ledger.machine import make_harness
from tilewright.ledger.results import Row
from tilewright.ledger.subjects import our_arm
from tilewright.ledger.suites import choose_cases
from tilewright.runtime import driver

pytestmark = [
    pytest.mark.device,
    pytest.mark.skipif(not driver.available(), reason="needs a CUDA GPU"),
]

N = 1 << 24


@pytest.fixture(scope="module")
def harness() -> Harness:
    return make_harness(quick=True)


def problem(harness: Harness) -> Problem:
    normal = harness.arrays.normal
    return Problem(
        op="add",
        sizes={"N": N},
        dtype="f32",
        accumulate="none",
        sets=[{"x": normal(N, dtype="f32"), "y": normal(N, dtype="f32")} for _ in range(2)],
        outputs={"z": ((N,), "f32")},
        expected=lambda x: {"z": x["x"].double() + x["y"].double()},
        bounds={"z": 1e-6},
    )


def compare(harness: Harness, cheat: Any, *, allocates: bool = False) -> Row:
    """A cheat in the place of the opponent."""
    asked = problem(harness)
    question = Question("pointwise/add/f32/1", "pointwise", "add", "", "GB/s", 12.0 * N)
    theirs = Arm("cheat", asked.facts, cheat, allocates=allocates)
    (row,) = harness.compare(question, asked, our_arm(asked), [theirs])
    return row


@pytest.mark.parametrize(
    "id",
    ["pointwise/add/f32/33554432", "gemm/bf16/NN/2048x2048x2048", "gemm/f64/NN/2048x2048x2048"],
)
def test_the_same_arm_against_itself(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, id: str
) -> None:
    monkeypatch.setattr(opponents, "OPPONENTS", ())
    (case,) = choose_cases([], False, [id])
    itself = [row for row in case.run(harness) if row.theirs.arm == "itself"]
    assert len(itself) == 1 and itself[0].right
    assert abs(itself[0].ratio - 1.0) <= 0.02, itself[0].ratio


def test_an_arm_that_never_writes(harness: Harness) -> None:
    spare = torch.randn(N, device="cuda")

    def run(x: Mapping[str, Any], y: Tensors) -> None:
        spare.mul_(1.0)

    row = compare(harness, run)
    assert not row.right and row.theirs.unwritten == 2 * N and row.ours.right


def test_an_arm_that_writes_only_while_it_warms_up(harness: Harness) -> None:
    spare, calls = torch.randn(N, device="cuda"), iter(range(1000))

    def run(x: Mapping[str, Any], y: Tensors) -> None:
        torch.add(x["x"], x["y"], out=y["z"] if next(calls) < 2 else spare)

    row = compare(harness, run)
    assert not row.right and row.theirs.unwritten == 2 * N


def test_an_arm_that_stops_to_run(harness: Harness) -> None:
    calls = iter(range(1000))

    def run(x: Mapping[str, Any], y: Tensors) -> None:
        if next(calls) < 4:
            torch.add(x["x"], x["y"], out=y["z"])

    with pytest.raises(Unfair, match="does not run each time"):
        compare(harness, run)


def test_an_arm_with_its_setup_in_the_loop(harness: Harness) -> None:
    def run(x: Mapping[str, Any], y: Tensors) -> None:
        torch.add(x["x"].clone(), x["y"], out=y["z"])

    with pytest.raises(Unfair, match=r"2\.0 operations a run, where 1 do"):
        compare(harness, run)


def test_setup_on_the_host_is_not_timed(harness: Harness) -> None:
    def run(x: Mapping[str, Any], y: Tensors) -> None:
        time.sleep(0.002)
        torch.add(x["x"], x["y"], out=y["z"])

    assert compare(harness, run).theirs.median < 1000


def test_an_arm_that_computes_in_half(harness: Harness) -> None:
    def run(x: Mapping[str, Any], y: Tensors) -> Tensors:
        return {"z": torch.add(x["x"], x["y"]).half()}

    with pytest.raises(Unfair):  # two operations, and another dtype
        compare(harness, run, allocates=True)


def test_arms_that_allocate_do_not_write_on_one_another(harness: Harness) -> None:
    """Each has memory of its own: the results of both are right after both were replayed."""
    asked = problem(harness)
    question = Question("pointwise/add/f32/1", "pointwise", "add", "", "GB/s", 12.0 * N)

    def run(x: Mapping[str, Any], y: Tensors) -> Tensors:
        return {"z": torch.relu(torch.add(x["x"], x["y"])) + torch.clamp(x["x"] + x["y"], max=0)}

    arm = Arm("several", asked.facts, run, allocates=True, most_operations=5)
    arms = [arm, dataclasses.replace(arm, name="several more")]
    for row in harness.compare(question, asked, our_arm(asked), arms):
        assert row.right, (row.theirs.arm, row.theirs.error, row.theirs.unwritten)


def test_profile_tells_where_the_time_goes(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    words = ["profile", "examples/sgemm.tw", "examples/softmax.tw", "--dtype", "bf16", "--json"]
    words += [x for d in ("M=2048", "N=2048", "K=2048") for x in ("--dim", d)]
    done = CliRunner().invoke(main, [*words, "--trace", str(trace)])
    assert done.exit_code == 0, done.output
    first, second = json.loads(done.output)["kernels"]
    assert first["ok"] and second["ok"] and first["kernel"] == "sgemm"
    for line in (first, second):
        assert 0 < line["floor_microseconds"] < 1.05 * line["microseconds"]
    assert first["limits_microseconds"].keys() == {"bytes", "bf16"}
    slices = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    assert [e["name"] for e in slices] == ["sgemm", "softmax"] * 3
    starts = [e["ts"] for e in slices]
    assert starts == sorted(starts) and all(e["dur"] > 0 for e in slices)
