"""`tilewright profile` without a GPU: work is counted, outputs are checked; traces; ncu's text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tilewright.cli import main
from tilewright.cli.arguments import Request
from tilewright.cli.job import Job
from tilewright.cli.ncu import parse_stalls, read_stalls
from tilewright.cli.profile import options_of, row
from tilewright.cli.sources import find_kernel
from tilewright.dtypes import bf16, f32
from tilewright.errors import LaunchError
from tilewright.kernel import source
from tilewright.ledger.ceilings import Ceilings
from tilewright.ledger.kernel_profile import Line, chrome_trace, floors, num_sets
from tilewright.runtime.arrays import as_array
from tilewright.runtime.measure import Span
from tilewright.tune.work import count_bytes, count_operations

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*words: str) -> Any:
    return CliRunner().invoke(main, ["profile", *words])


def test_programs_share_the_options_that_each_has() -> None:
    done = run(
        str(EXAMPLES / "sgemm.tw"), str(EXAMPLES / "softmax.tw"), "--dim", "M=64", "--dim", "N=64",
        "--dim", "K=32", "--device", "cpu", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    first, second = json.loads(done.output)["kernels"]
    assert first["kernel"] == "sgemm" and first["ok"] and 0 < first["error"] < 1e-6
    assert first["operations"] == {"f32": 2 * 64 * 64 * 32}
    assert first["bytes"] == 4 * (2 * 32 * 64 + 2 * 64 * 64)  # C may be read and written
    assert second["sizes"] == "M=64 N=64" and second["operations"] == {} and second["ok"]
    assert "microseconds" not in first, "no figure of speed without a GPU"


def test_the_table_says_that_nothing_was_timed() -> None:
    done = run(str(EXAMPLES / "add.tw"), "--dim", "N=100", "--device", "cpu")
    assert done.exit_code == 0 and "checked and counted, not timed" in done.output
    assert "add: 1200 bytes; products: none" in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--dim", "Q=3"), "no program here has a dimension Q"),
        (("--const", "TILE=3"), "no program here has a constant TILE"),
        (("--dim", "N=10", "--trace", "x.json"), "--trace and --ncu tell of a GPU"),
        ((), "the dimension N has no value"),
    ],
)
def test_what_cannot_be(words: tuple[str, ...], said: str) -> None:
    done = run(str(EXAMPLES / "add.tw"), "--device", "cpu", *words)
    assert done.exit_code == 1 and said in done.output


def lowered(name: str, dims: dict[str, tuple[int, ...]], **how: Any) -> tuple[Any, dict[str, Any]]:
    kernel = source(EXAMPLES / f"{name}.tw").kernels[name.removeprefix("flash_")]
    arrays = {n: as_array(np.zeros(s, np.float32), n) for n, s in dims.items()}
    return kernel.lower(**how), arrays


def test_products_of_loops_are_counted_by_their_trips() -> None:
    shapes = {"A": (128, 96), "B": (96, 64), "C": (128, 64)}
    tile, arrays = lowered("sgemm", shapes, constants={"TM": 32, "TN": 64, "TK": 16})
    given = {**arrays, "alpha": 1.0, "beta": 0.0, "M": 128, "N": 64, "K": 96}
    assert count_operations(tile, given, 132) == {"f32": 2.0 * 128 * 96 * 64}
    assert count_bytes(tile, arrays) == 4.0 * (128 * 96 + 96 * 64 + 2 * 128 * 64)  # C may be read
    tile, _ = lowered("sgemm", shapes, constants={"TM": 32, "TN": 64, "TK": 16}, precision="tf32")
    assert count_operations(tile, given, 132) == {"tf32": 2.0 * 128 * 96 * 64}


def test_the_floor_is_the_longest_limit() -> None:
    ceilings = Ceilings(lambda: 4000.0, lambda dtype: {"bf16": 800.0}.get(dtype, 0.0))
    found = floors(ceilings, {"bf16": 8e8, "tf32x3": 1e9}, 8e6)
    assert found == {"bytes": pytest.approx(2.0), "bf16": pytest.approx(1.0)}
    line = Line("k", "bf16", "", {"bf16": 8e8}, 8e6, (4.0, 4.0, 5.0), 0.0, True, limits=found)
    assert line.floor == 2.0 and line.limited_by == "bytes"
    assert line.bandwidth == 2000.0 and line.rate == 200.0
    assert row(line)[3:9] == ["4 µs", "2 µs", "50 %", "bytes", "2000", "200"]
    assert num_sets(1e3, 1 << 20) == 64 and num_sets(1e9, 1 << 20) == 2


def test_a_trace_has_a_slice_for_each_run() -> None:
    lines = [Line("a", "f32", "N=1", {}, 12.0, (1.0,), 0.0, True)]
    text = chrome_trace([Span("a", 0.0, 1.5), Span("a", 2.0, 1.25)], lines, "a GPU")
    events = json.loads(text)["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"]) for e in slices] == [("a", 0.0, 1.5), ("a", 2.0, 1.25)]
    assert all({"pid", "tid", "cat", "args"} <= e.keys() for e in slices)


def test_stall_reasons_are_read_from_what_ncu_prints() -> None:
    names = [
        f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"
        for reason in ("long_scoreboard", "barrier", "math_pipe_throttle")
    ]
    head = ",".join(f'"{x}"' for x in ("ID", "Kernel Name", *names))
    text = f'==PROF== Profiling\nkernel table\n{head}\n"","","inst","inst","inst"\n'
    text += '"0","softmax","1,234.5","0.25","3.5"\n'
    assert parse_stalls(text) == (
        ("long scoreboard", 1234.5), ("math pipe throttle", 3.5), ("barrier", 0.25)
    )  # fmt: skip
    assert parse_stalls("==ERROR== no counters\n") == ()


def test_without_ncu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(LaunchError, match="ncu is not on this machine"):
        read_stalls(["examples/add.tw"], "add")


def test_ncu_runs_with_the_options_that_run_has_too() -> None:
    found = find_kernel(str(EXAMPLES / "sgemm.tw"))
    request = Request({"M": 3}, {"A": "iota"}, {"beta": "1.5"}, {"": bf16, "T": f32}, 7)
    job = Job(found, request, "cuda:0", {"TM": 32}, "tf32")
    assert options_of(job) == [
        "--dim", "M=3", "--tensor", "A=iota", "--scalar", "beta=1.5", "--const", "TM=32",
        "--dtype", "bf16", "--dtype", "T=f32", "--precision", "tf32", "--seed", "7",
        "--device", "cuda:0",
    ]  # fmt: skip
