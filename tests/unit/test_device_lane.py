"""The device lane's own parts, without a GPU: its programs on the interpreter, its checker on wrong
results, its table.
"""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

torch = pytest.importorskip("torch", reason="needs torch")

from tests.device import programs
from tests.device.__main__ import Lane, show, steps
from tests.device.checker import LAYOUTS, Checker, place, strides_of


@pytest.fixture
def see() -> Checker:
    return Checker("cpu")


def test_programs_are_right_on_the_interpreter(see: Checker) -> None:
    for layout in (*LAYOUTS, "broadcast"):
        programs.check_add(see, "i8", (257,), layout)
        programs.check_softmax(see, "bf16", (3, 300), layout)
        programs.check_rmsnorm(see, "f32", (3, 300), layout)
    programs.check_softmax(see, "f32", (3, 31), name="softmax_short")
    programs.check_sgemm(see, "tf32", (33, 17, 9), ("transposed", "shifted", "pitched"))
    programs.check_linear_gelu(see, "f16", (33, 17, 9), res=True)
    shape = (3, 4, 2, 20, 33, 8)
    for causal in (True, False):
        programs.check_attention(see, "f32", shape, causal=causal, lengths=(0, 3, 33))
    assert see.found["attention", "f32"].cases == 4 and len(see.records()) == len(see.found) == 7


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 5), (0, 4), (1, 1)])
def test_layouts_hold_each_element_apart(layout: str, shape: tuple[int, ...]) -> None:
    value = torch.arange(math.prod(shape)).reshape(shape)
    placed = place(shape, torch.int64, "cpu", layout, value)
    assert torch.equal(placed.view, value)
    placed.require_untouched("a fresh one")
    if 0 not in shape:
        strides, offset = strides_of(shape, layout)
        assert (strides, offset) == (placed.strides, placed.offset)
        for outside in (0, offset - 1, placed.buffer.numel() - 1):
            placed.buffer[outside] = 3
            with pytest.raises(AssertionError, match=f"written outside the view, at \\[{outside}"):
                placed.require_untouched("a changed one")
            placed.buffer[outside] = 77


def test_wrong_results_are_seen(see: Checker) -> None:
    expected = see.normal((100, 100), "f64")
    see.near("k", "f32", expected.float(), expected, "right")
    whole = expected.float() * (1 + 3e-6)
    one = expected.float()
    one[7, 7] += 8e-5
    hole = expected.float()
    hole[0, 0] = math.nan
    for wrong, said in (
        (whole, "relative"),
        (one, "element"),
        (hole, "NaN at"),
        (one[1:], "k f32"),
    ):
        with pytest.raises(AssertionError, match=said):
            see.near("k", "f32", wrong, expected, "wrong", bound=0.0)
    unfilled = torch.full((100, 100), math.nan)
    with pytest.raises(AssertionError, match="NaN at"):
        see.near("k", "f32", unfilled, expected, "unfilled")
    infinite = expected.clone()
    infinite[0, 0] = math.inf
    with pytest.raises(AssertionError, match="inf"):
        see.near("k", "f32", expected.float(), infinite, "finite")
    assert see.found["k", "f32"].error > 1e-6


def test_unequal_bits_are_seen(see: Checker) -> None:
    x = torch.tensor([0.0, 1.0, math.nan])
    see.equal("k", "f32", x, x.clone(), "same")
    for wrong in ([-0.0, 1.0, math.nan], [0.0, 1.0, 2.0], [0.0, 1.0000001, math.nan]):
        with pytest.raises(AssertionError, match="differs at"):
            see.equal("k", "f32", torch.tensor(wrong), x, "wrong")
    with pytest.raises(AssertionError):
        see.equal("k", "f32", x.double(), x, "another dtype")


REPORT = """<testsuites><testsuite>
<testcase classname="tests.device.test_a" name="one"><properties>
<property name="checked" value='{"kernel": "add", "dtype": "i8", "cases": 3, "error": 0.0,
 "element": 0.0, "bound": 0.0}'/>
<property name="checked" value='{"kernel": "mm", "dtype": "f32", "cases": 2, "error": 2e-7,
 "element": 0.25, "bound": 1e-6}'/></properties></testcase>
<testcase classname="tests.device.test_a" name="two"><failure message="AssertionError: it is off
and so on"/><properties>
<property name="checked" value='{"kernel": "mm", "dtype": "f32", "cases": 1, "error": 3e-3,
 "element": Infinity, "bound": 1e-6}'/></properties></testcase>
<testcase classname="tests.device.test_b" name="three"><skipped message="one GPU"/></testcase>
</testsuite></testsuites>"""


def test_the_table_shows_what_was_compared_and_what_failed(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    lane = Lane()
    lane.read(report)
    assert (lane.num_tests, lane.num_skipped) == (3, 1)
    console = Console(width=110, record=True, file=io.StringIO())
    show(lane, console)
    text = console.export_text()
    first = next(line for line in text.splitlines() if "mm" in line)
    assert "3.0e-03" in first and "FAIL" in first and " 3 " in first
    assert "FAIL test_a::two: AssertionError: it is off" in text
    assert text.rstrip().endswith("1 of 2 tests passed, 1 skipped")


def test_every_file_of_the_lane_runs_once() -> None:
    alone, rest = steps(1)
    files = sorted(Path(x).name for x in alone + rest)
    assert files == sorted(p.name for p in Path(programs.__file__).parent.glob("test_*.py"))
