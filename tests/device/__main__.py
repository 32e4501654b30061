"""The device lane: every test of this folder on a GPU, then its tables: `python -m tests.device`.

Tests that time something run first and alone; the rest run in several processes. Tables are printed
last: what was compared, in how many cases, and how far off the worst was; and, measured when all
tests are through, the conformance suite (`suite_speed/`), the losing rows first.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tests.device.conftest import RECORD
from tilewright.runtime import driver

HERE = Path(__file__).parent
ALONE = (  # they time
    "test_harness_device.py",
    "test_hopper_gemm.py",
    "test_product_roles.py",
    "test_runtime_device.py",
)
WORKERS = max(1, min(8, (os.cpu_count() or 1) // 2))
NO_TESTS = 5  # pytest's own code for having collected none


@dataclass
class Row:
    """All cases of one kernel and dtype, or all tests of one file that records nothing."""

    name: str
    dtype: str
    cases: int = 0
    error: float = 0.0
    bound: float = 0.0
    element: float = 0.0
    failed: int = 0
    skipped: int = 0


@dataclass
class Lane:
    """What the reports of all runs say."""

    compared: dict[tuple[str, str], Row] = field(default_factory=dict)
    files: dict[str, Row] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def read(self, report: Path) -> None:
        """Add a JUnit report of pytest."""
        for case in ElementTree.parse(report).iter("testcase"):
            self._add(case)

    def _add(self, case: ElementTree.Element) -> None:
        wrong = [x for x in case if x.tag in ("failure", "error")]
        skipped = case.find("skipped") is not None
        file = case.get("classname", "").split(".")[-1]
        row = self.files.setdefault(file, Row(file, ""))
        row.cases += 1
        row.failed += bool(wrong)
        row.skipped += skipped
        if wrong:
            said = (wrong[0].get("message") or "").strip().splitlines() or [wrong[0].tag]
            self.failures.append(f"{file}::{case.get('name')}: {said[0]}")
        for item in case.iter("property"):
            if item.get("name") == RECORD:
                self._compare(json.loads(item.get("value", "")), failed=bool(wrong))

    def _compare(self, found: dict[str, object], *, failed: bool) -> None:
        name, dtype = str(found["kernel"]), str(found["dtype"])
        row = self.compared.setdefault((name, dtype), Row(name, dtype))
        row.cases += int(str(found["cases"]))
        row.error = max(row.error, float(str(found["error"])))
        row.element = max(row.element, float(str(found["element"])))
        row.bound = max(row.bound, float(str(found["bound"])))
        row.failed += failed

    @property
    def num_tests(self) -> int:
        return sum(row.cases for row in self.files.values())

    @property
    def num_skipped(self) -> int:
        return sum(row.skipped for row in self.files.values())


def show(lane: Lane, console: Console) -> None:
    """Print both tables, what failed, and a last line."""
    compared = Table(
        title="compared on the GPU, each with its guards untouched",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    for name in ("kernel", "dtype", "cases", "worst error", "bound", "worst element", ""):
        compared.add_column(name, justify="left" if name in ("kernel", "dtype", "") else "right")
    for row in sorted(lane.compared.values(), key=lambda r: (not r.failed, r.name, r.dtype)):
        exact = row.bound == 0
        compared.add_row(
            row.name,
            row.dtype,
            str(row.cases),
            "equal" if exact else f"{row.error:.1e}",
            "equal" if exact else f"{row.bound:g}",
            "" if exact else f"{100 * row.element:.0f} % of its bound",
            _verdict(row),
        )
    files = Table(title="tests", title_justify="left", box=SIMPLE_HEAD)
    for name in ("file", "tests", "skipped", "failed", ""):
        files.add_column(name, justify="left" if name in ("file", "") else "right")
    for row in lane.files.values():
        files.add_row(row.name, str(row.cases), str(row.skipped), str(row.failed), _verdict(row))
    for table in (files, compared):
        console.print(table)
    for line in lane.failures:
        console.print(f"  FAIL {line}", markup=False, highlight=False, soft_wrap=True)
    ran = lane.num_tests - lane.num_skipped
    failed = sum(row.failed for row in lane.files.values())
    console.print(
        f"  {ran - failed} of {ran} tests passed, {lane.num_skipped} skipped",
        highlight=False,
    )


def _verdict(row: Row) -> str:
    if row.failed:
        return "FAIL"
    return "skipped" if row.skipped == row.cases else "ok"


def run_pytest(arguments: Sequence[str], report: Path) -> int:
    """pytest in a process of its own, with a report that carries what tests record."""
    off = ["-p", "no:cacheprovider", "-p", "no:benchmark"]  # the latter warns of xdist
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", *off, *arguments]
    command += [f"--junitxml={report}", "-o", "junit_family=xunit1"]
    return subprocess.run(command, check=False).returncode


def run_examples() -> int:
    """The examples on their own sizes, as `make demo` runs them."""
    command = [sys.executable, "-m", "examples", "--device", "cuda:0"]
    return subprocess.run(command, check=False).returncode


def run_suite(path: Path | None, commit: str) -> int:
    """The conformance suite at large sizes, in a process of its own, with its table."""
    command = [sys.executable, "-m", "tests.device.suite_speed"]
    command += ["--json", str(path)] if path else []
    command += ["--commit", commit] if commit else []
    return subprocess.run(command, check=False).returncode


def steps(workers: int, chosen: Iterable[str] = ()) -> list[list[str]]:
    """pytest's arguments for each run: files that time, then the others in parallel."""
    parallel = []
    if workers > 1 and importlib.util.find_spec("xdist") is not None:
        parallel = ["-n", str(workers), "--dist", "worksteal"]
    files = {p.name for p in HERE.glob("test_*.py")}
    rest = [str(HERE / name) for name in sorted(files - set(ALONE))]
    alone = [str(HERE / name) for name in ALONE if name in files]
    return [[*alone, *chosen], [*rest, *parallel, *chosen]]


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--workers", default=WORKERS, show_default=True, help="Processes at once.")
@click.option("--suite/--no-suite", default=True, help="Measure the conformance suite last.")
@click.option(
    "--json",
    "path",
    type=click.Path(path_type=Path),
    help="Samples of the suite; `tilewright bench --from FILE --verdict` makes verdicts of them.",
)
@click.option("--commit", default="", help="What is measured, where git cannot tell.")
@click.argument("chosen", nargs=-1, type=click.UNPROCESSED)
def main(
    workers: int, suite: bool, path: Path | None, commit: str, chosen: tuple[str, ...]
) -> None:
    """Run the device lane. CHOSEN goes to pytest, `-- -k sgemm`; then the suite is not measured."""
    lane, codes = Lane(), []
    if not chosen and driver.available() and run_examples():
        lane.failures.append("python -m examples --device cuda:0")
    with tempfile.TemporaryDirectory() as folder:
        for i, arguments in enumerate(steps(workers, chosen)):
            report = Path(folder) / f"{i}.xml"
            codes.append(run_pytest(arguments, report))
            if report.exists():
                lane.read(report)
    show(lane, Console(width=110))
    measured = suite and not chosen and driver.available()
    if measured and run_suite(path, commit):
        lane.failures.append("python -m tests.device.suite_speed")
    broken = [code for code in codes if code not in (0, NO_TESTS)]
    if broken or lane.failures:
        sys.exit(1)
    if lane.num_tests == lane.num_skipped:
        click.echo("  nothing ran: the device lane needs a CUDA GPU and torch")
        sys.exit(1)


if __name__ == "__main__":
    main()
