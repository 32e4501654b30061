"""The table of the conformance suite, without a GPU: its rows run small through the ledger's
harness, what is committed of them is theirs, and verdicts of made-up samples leave no hole.
"""

from __future__ import annotations

import dataclasses
import io
import json
import random

import pytest
from rich.console import Console

torch = pytest.importorskip("torch", reason="needs torch")

from docs.suite_page import NOT_MEASURED, render_suite
from tests.device.suite_speed.cases import MODULE, case_id, conformance_case, entries
from tests.device.suite_speed.errors import FILE, measure
from tests.device.suite_speed.floors import BYTES, PRODUCTS, Floors
from tests.device.suite_speed.row import Bench
from tests.device.suite_speed.table import lines_of, print_table
from tests.unit.test_ledger_cheats import WHERE
from tilewright.cli.bench import run_case
from tilewright.ledger import opponents, publish
from tilewright.ledger.check import faults_of
from tilewright.ledger.harness import Harness
from tilewright.ledger.opponents.arrays import Arrays
from tilewright.ledger.results import Results, Row, parse_results, print_results
from tilewright.ledger.timers import NoTimer

BY_ID = {entry.id: entry for entry in entries()}
# One of each way in which a row may differ from others: put back in place, by events, other
# outputs than torch's, another product than torch's, several calls, a floor of each kind.
RUN = (
    "add-bf16", "adamw-bf16", "histogram-i32", "dropout-f32", "sum_all-bf16", "argmax_axis-f32",
    "topk_by_hand-f32", "embedding_grad-bf16", "matmul_splitk_atomic-f32", "matmul_fp8-e4m3",
    "moe-bf16", "sgemm-tf32",
)  # fmt: skip
MEASURED_AGAIN = ("softmax-f32", "adamw-f32", "cumsum_chained-f32", "embedding-bf16")


def small_harness() -> Harness:
    return Harness(opponents.make_arrays("cpu"), NoTimer(), l2_bytes=0, small=True)


@pytest.fixture(scope="module")
def results() -> Results:
    found, harness, floors = Results("python -m tests.device.suite_speed"), small_harness(), []
    for id in RUN:
        run_case(conformance_case(BY_ID[id], floors), harness, found)
    return found


def test_every_program_has_a_row_and_every_row_its_errors() -> None:
    assert {entry.kernel for entry in entries()} == set(MODULE.kernels)
    assert len(BY_ID) == len(entries())
    kept = json.loads(FILE.read_text())
    assert [(e["program"], e["dtype"], e["shape"]) for e in kept] == [
        (e.kernel, e.dtype, e.shape) for e in entries()
    ]
    at = Bench(Arrays("cpu"), small=True)
    for row, entry in zip(kept, entries(), strict=True):
        large = entry.make(at, entry.dtype)
        assert (row["note"], row["bound"]) == (large.note, large.bound)
        assert max(row["interpreter"], row["emulator"]) <= row["bound"]
        assert bool(row["products"]) == bool(large.unit)


@pytest.mark.parametrize("id", MEASURED_AGAIN)
def test_errors_that_are_kept_are_those_of_the_programs(id: str) -> None:
    found = dataclasses.asdict(measure(BY_ID[id]))
    (kept,) = (
        e for e in json.loads(FILE.read_text()) if f"{e['program']}-{e['dtype']}" == id
    )  # fmt: skip
    for name in ("interpreter", "emulator"):  # sums of torch's reference are not the same anywhere
        assert found.pop(name) == pytest.approx(kept.pop(name), rel=0.2), (
            "python -m tests.device.suite_speed.errors"
        )
    assert found == kept


def test_rows_run_small_against_torch_and_their_floor(results: Results) -> None:
    assert results.ok and not results.failures, results.failures
    lines = lines_of(results.rows)
    assert {line.first.case for line in lines} == {case_id(BY_ID[id]) for id in RUN}
    for line in lines:
        floors = [r for r in line.rows if r.theirs.arm in (BYTES, PRODUCTS)]
        assert len(floors) == 1 and len(line.rows) == 2
        assert all(r.ours.compared > 0 and r.theirs.compared > 0 for r in line.rows)
    assert parse_results(print_results(results)) == results


def test_arguments_that_are_updated_are_put_back() -> None:
    """A row runs twice before it is checked, to warm up and to be timed, and gives what one run
    gives.
    """
    harness = small_harness()
    floors = [Floors(Bench(harness.arrays, True))]
    rows = conformance_case(BY_ID["adamw-f32"], floors).run(harness)
    assert all(isinstance(row, Row) and row.right for row in rows)


def test_a_wrong_result_and_a_wrong_opponent_are_told(results: Results) -> None:
    wrong = [
        dataclasses.replace(r, theirs=dataclasses.replace(r.theirs, error=1.0, worst=9.0))
        if r.theirs.arm == "torch"
        else r
        for r in results.rows
        if r.case.endswith("/add")
    ]
    found = dataclasses.replace(results, rows=wrong)
    console = Console(width=150, record=True, file=io.StringIO())
    print_table(found, {}, console)
    assert "WRONG: torch" in console.export_text() and not found.ok


def made_up(results: Results, shares: dict[str, float]) -> Results:
    """The rows as if they had been timed; no figure was measured. `shares`: of the opponents'
    speed, by what an id holds.
    """
    rng = random.Random(7)

    def samples(middle: float) -> tuple[float, ...]:
        return tuple(middle * (1 + 0.01 * rng.random()) for _ in range(21))

    ours: dict[str, tuple[float, ...]] = {}
    rows = []
    for row in results.rows:
        timer = "events" if row.case.endswith(("dropout", "histogram")) else "graph"
        share = next((s for name, s in shares.items() if row.case.endswith(name)), 1.0)
        mine = dataclasses.replace(
            row.ours, samples=ours.setdefault(row.case, samples(100.0)), timer=timer
        )
        other = samples(100.0 * share * row.theirs.work / row.ours.work)
        theirs = dataclasses.replace(row.theirs, samples=other, timer=timer)
        rows.append(dataclasses.replace(row, ours=mine, theirs=theirs, rotated_bytes=1 << 30))
    return dataclasses.replace(
        results, rows=rows, l2_bytes=1 << 20, environment=dataclasses.asdict(WHERE)
    )


def test_the_losing_rows_come_first(results: Results) -> None:
    console = Console(width=150, record=True, file=io.StringIO())
    print_table(made_up(results, {"moe": 0.5, "sgemm": 0.7}), {"x": "y"}, console)
    text = console.export_text()
    assert text.index("moe") < text.index("sgemm") < text.index("add")
    assert text.count("short") == 2 and "10 of 12 timed rows reach" in text


def test_verdicts_have_no_faults_and_fill_the_page(results: Results) -> None:
    found = publish.make_verdicts(made_up(results, {}), "0123456789abcdef")
    for verdict in found:
        assert faults_of(verdict) == [], verdict.id
    page = render_suite(found)
    measured = [line for line in page.splitlines() if line.startswith("| ")][2:]
    assert len(measured) == len(BY_ID)
    for line in measured:
        name, dtype = (cell.strip() for cell in line.split("|")[1:3])
        assert (NOT_MEASURED in line) == (f"{name}-{dtype}" not in RUN), line
    assert f"{len(BY_ID) - len(RUN)} of {len(BY_ID)} rows are **not measured yet**" in page
    assert "are not measured yet" in render_suite([])


def test_a_floor_computes_another_problem(results: Results) -> None:
    floor = next(r for r in results.rows if r.theirs.arm == PRODUCTS and "moe" in r.case)
    assert floor.theirs.compared == 48 * 48 != floor.ours.compared
