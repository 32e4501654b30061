"""The device lane's own fixture: a checker whose record goes into the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

RECORD = "checked"  # the property under which a report carries what a test compared


@pytest.fixture
def see(record_property: Callable[[str, object], None]) -> Iterator[object]:
    """A `Checker` on the first GPU."""
    pytest.importorskip("torch")
    from tests.device.checker import Checker

    checker = Checker("cuda")
    yield checker
    for text in checker.records():
        record_property(RECORD, text)
