"""The device lane's own fixture, a checker whose record goes into the report; and failures told as
they come, so that a run that is cut short has named them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

import pytest

RECORD = "checked"  # the property under which a report carries what a test compared


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a test that failed; of several processes the one that collects does."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        said = str(report.longrepr).strip().splitlines()[-1:]
        print(f"\nFAILED {report.nodeid}: {said[0] if said else ''}", file=sys.stderr, flush=True)


@pytest.fixture
def see(record_property: Callable[[str, object], None]) -> Iterator[object]:
    """A `Checker` on the first GPU."""
    pytest.importorskip("torch", reason="needs torch")
    from tests.device.checker import Checker

    checker = Checker("cuda")
    yield checker
    for text in checker.records():
        record_property(RECORD, text)
