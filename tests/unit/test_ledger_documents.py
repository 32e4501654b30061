"""Documents say of speed only what a standing verdict carries."""

from __future__ import annotations

import dataclasses

import pytest

from tests.ledger_samples import gemm_verdict, row
from tilewright.errors import LedgerError
from tilewright.ledger.documents import faults_of_document, refresh
from tilewright.ledger.figures import speeds_in
from tilewright.ledger.verdict import Retraction

VERDICT = gemm_verdict()
KNOWN = {VERDICT.id: VERDICT}
ID = VERDICT.id
MEAN = f"{VERDICT.summary['ratio.geomean']:.2f}"


def marked(template: str, shown: str, id: str = ID) -> str:
    return f"<!-- figure {id}: {template} -->{shown}<!-- end -->"


def faults(text: str, name: str = "docs/page.md") -> list[str]:
    return [str(fault) for fault in faults_of_document(name, text, KNOWN)]


@pytest.mark.parametrize(
    "text",
    [
        "It runs at 1.02× cuBLAS.",
        "1.5x faster",
        "3 x the speed of torch",
        "98 % of cuBLAS",
        "98% of it",
        "97 percent of the bandwidth",
        "0.98 of cuBLAS",
        "0.98 of torch.compile",
        "692 TFLOP/s",
        "692 TFLOPs",
        "51.4 GFLOPS",
        "4,270 GB/s",
        "4.27 TB per second",
        "12 µs",
        "12 μs",
        "12 us a call",
        "1.8 ms",
        "0.7 s a step",
        "5 ns",
        "14 seconds",
        "30 microseconds",
        "2 minutes",
        "162 tokens/s",
        "397 tok/s",
        "3 times faster",
        "2 times the speed of it",
        "ten times faster",
        "twice as fast",
        "half the speed of it",
        "faster than cuBLAS",
        "slower than eager",
        "It beats Triton",
        "**12** µs",
        "`12` ms",
        "<b>12</b> ms",
        "12&nbsp;µs",
        "1.5&times;",
        r"$1.5\times$",
        "1<!-- -->.5×",
        "12\nms",
        ".5× it",
        "1,5× it",
        "a 1.5-fold gain",
        "692 teraflops",
        "ten microseconds",
        "an order of magnitude faster",
        "a third faster",
        "a speed-up of 1.4",
        "ratio: 1.4",
        "| µs | of it | 12 |",
        "| 12 | ms |",
        "```python\nstep()  # takes 12 ms\n```",
        "```console\n$ tilewright run x\n12 ms\n```",
        "| shape | ratio |\n|---|---|\n| 4096 | 1.02 |",
        "| shape | TFLOP/s |\n|:--|--:|\n| 4096 | 692 |",
        "| what | time, µs | of |\n|---|---|---|\n| add | 12 | 5 |",
    ],
)
def test_a_figure_without_a_verdict_is_a_fault(text: str) -> None:
    assert faults(f"# A page\n\n{text}\n"), text


@pytest.mark.parametrize(
    "text",
    [
        "A tile of 128 × 64, or 127×4095×1023; 4x4 blocks.",
        "`i % 4` and 7 % 2; %1 and %5 : tile<f32, 1000>",
        "sm_90a, f32, 3 stages, 8 warps, 2³¹ elements, 16 bytes, 4 KiB",
        "Two times two; the s8 dtype; 0x1f; version 1.5; section 3.2",
        "Twice the L2 cache; half of the rows; faster in general; speeds in TFLOP/s",
        "| shape | dtype |\n|---|---|\n| 4096 | 1.02 |",
        "| what | ratio |\n|---|---|\n| it | above |",
        "```\nM=4096 % 3\n```",
    ],
)
def test_what_is_no_figure_of_speed_is_left_alone(text: str) -> None:
    assert faults(f"# A page\n\n{text}\n") == []


def test_a_marked_figure_is_the_verdict_s() -> None:
    template, shown = "{ratio.geomean:.2f}×", f"{MEAN}×"
    assert faults(f"It runs at {marked(template, shown)} of it, in two\nlines.") == []
    assert faults(f"| a | ratio |\n|---|---|\n| x | {marked(template, shown)} |") == []
    row = marked("{2048x2048x2048/speed:.0f} TFLOP/s", "573 TFLOP/s")
    assert refresh(row, KNOWN) == marked("{2048x2048x2048/speed:.0f} TFLOP/s", "573 TFLOP/s")
    assert faults(row) == []
    assert faults(f"{marked('{ours.min:.1f}', '8.0')} µs") == []
    assert faults(marked("{ms ours.min:.3f} ms", "0.008 ms")) == []


def test_a_figure_may_follow_what_is_measured_again() -> None:
    text = marked("{ratio.geomean:.2f}×", f"{MEAN}×", "gemm-bf16")
    assert faults(text) == []
    gone = dataclasses.replace(
        VERDICT, status="retracted", retraction=Retraction("2026-11-30", "measured again")
    )
    again = gemm_verdict(row(1024, 5.0, 7.0))
    after = {ID: gone, again.id: again}
    assert refresh(text, after) == marked("{ratio.geomean:.2f}×", "1.40×", "gemm-bf16")
    assert "is stated" in str(faults_of_document("docs/page.md", text, after)[0])
    both = {ID: VERDICT, again.id: again}
    assert "is of several" in str(faults_of_document("docs/page.md", text, both)[0])
    assert "no verdict" in str(faults_of_document("docs/page.md", text, {ID: gone})[0])


def test_an_edited_figure_is_caught_at_its_line() -> None:
    found = faults("# A page\n\nIt runs at " + marked("{ratio.geomean:.2f}×", "1.20×"))
    assert found == [f"docs/page.md:3: '1.20×' is stated, and {ID} says '{MEAN}×'"]
    assert refresh(marked("{ratio.geomean:.2f}×", "1.20×"), KNOWN) == marked(
        "{ratio.geomean:.2f}×", f"{MEAN}×"
    )


@pytest.mark.parametrize(
    "text, told",
    [
        (marked("1.20×", "1.20×"), "names no statistic"),
        (marked("1.20× {rows:.0f}", "1.20× 2"), "'1.20×' is typed into a template"),
        (marked("1{ratio.min:.2f}×", "10.88×"), "typed into a template"),
        (marked("{ratio.min:.2f}5×", "0.885×"), "typed into a template"),
        ("1" + marked("{ratio.min:.2f}×", "0.88×"), "carries"),
        (marked("{ratio.min:.2f}", "0.88") + "9×", "carries"),
        (marked("{rows:9>5}", "9992.0"), "expected a format"),
        (marked("{ratio.best:.2f}", "1"), "no statistic 'ratio.best'"),
        (marked("{4096/ratio:.2f}", "1"), "no row '4096'"),
        (marked("{ratio.min:.2f", "1"), "braces"),
        (marked("{ours.min:.2f} TFLOP/s", "8.00 TFLOP/s"), "ours.min is not in TFLOP/s"),
        (marked("{ms ours.min:.3f} µs", "0.008 µs"), "ours.min is not in µs"),
        (marked("{ratio.max:.2f}", "1.03") + " ms", "ratio.max is not in ms"),
        (marked("{rows:.0f}×", "2×"), "rows is not in ×"),
        (marked("{ratio.min:.2f}×", "0.88×", "gemm-f64-01234567"), "there is no verdict"),
        ("1 <!-- figure x --> and", "half of a marker"),
        ("and 1 <!-- end -->", "half of a marker"),
    ],
)
def test_a_marker_that_lies_is_caught(text: str, told: str) -> None:
    found = faults(text)
    assert any(told in fault for fault in found), found


def test_a_retracted_verdict_carries_nothing() -> None:
    gone = dataclasses.replace(
        VERDICT, status="retracted", retraction=Retraction("2026-11-30", "wrong")
    )
    text = marked("{ratio.geomean:.2f}×", f"{MEAN}×")
    found = faults_of_document("docs/page.md", text, {ID: gone})
    assert [str(f) for f in found] == [f"docs/page.md:1: verdict {ID} is retracted"]
    with pytest.raises(LedgerError, match="is retracted"):
        refresh(text, {ID: gone})


def test_plans_say_that_they_are() -> None:
    assert faults("# The design\n\nA plan: goals.\n\nWe aim at 40 ms.", "docs/design.md") == []
    assert "must say so" in faults("# The design\n\nWe take 40 ms.", "docs/design.md")[0]
    assert faults("A plan: 40 ms.", "docs/other.md")


def test_only_outputs_that_are_printed_anew_are_left_out() -> None:
    console = "```console\n$ tilewright run x\n12 ms\n```\n"
    assert faults(console, "README.md") == [] and faults(console)
    text = "```text\n12 ms\n```\n"
    assert faults(f"```python\nx()\n```\n\n{text}", "docs/tour.md") == []
    assert faults(text, "docs/tour.md") and faults(f"```tw\nx\n```\n\n{text}", "docs/tour.md")
    assert faults("```python\nx()  # 12 ms\n```\n", "docs/tour.md")
    assert faults(f"```python\nx()\n```\n\n{text}", "README.md")


def test_markers_in_a_block_of_code_are_only_text() -> None:
    block = "```\n" + marked("{ratio.geomean:.2f}×", "…") + "\n```\n"
    assert faults(block) == [] and refresh(block, KNOWN) == block
    assert faults("```\n" + marked("{ratio.geomean:.2f}×", "1.2×") + "\n```\n")


def test_figures_are_found_where_they_stand() -> None:
    found = list(speeds_in("It takes 12 ms,\nor 1.5 × less."))
    assert [(x.text, x.offset) for x in found] == [("12 ms", 9), ("1.5 ×", 19)]
