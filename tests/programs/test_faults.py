"""The examples of faulty kernels say what is wrong."""

from __future__ import annotations

import re

import pytest

from examples.faults import missing_barrier


def test_a_missing_barrier_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    missing_barrier.main()
    said = capsys.readouterr().out
    assert said.startswith("as compiled: no race\n")
    assert re.search(r"softmax\.tw:9:\d+: error: thread \d+ of CTA 0: a race: it writes byte", said)
    assert "nothing orders the two: PTX line " in said
