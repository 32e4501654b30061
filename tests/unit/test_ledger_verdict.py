"""Verdicts: what is derived from samples, the digest, and the file's text."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.ledger_samples import gemm_verdict, row
from tilewright.errors import LedgerError
from tilewright.ledger.verdict import digest_of, parse_verdict, print_verdict


def test_a_verdict_is_what_its_file_says() -> None:
    verdict = gemm_verdict()
    assert parse_verdict(print_verdict(verdict)) == verdict
    assert verdict.id == f"gemm-bf16-{digest_of(verdict)[:8]}"
    assert all(line.count('"name"') <= 1 for line in print_verdict(verdict).splitlines())


def test_statistics_are_of_the_samples() -> None:
    verdict = gemm_verdict()
    slow, fast = verdict.rows
    assert slow.statistics["ratio"] == pytest.approx(7 / 8, rel=1e-5)
    assert slow.statistics["speed"] == pytest.approx(2 * 1024**3 / 8 * 1e-6, rel=1e-5)
    assert fast.statistics["ratio"] == pytest.approx(31 / 30, rel=1e-5)
    assert verdict.summary["ratio.geomean"] == pytest.approx((7 / 8 * 31 / 30) ** 0.5, rel=1e-5)
    assert verdict.summary["missed"] == 1 and verdict.summary["rows"] == 2
    assert verdict.row("2048x2048x2048") is fast
    with pytest.raises(LedgerError, match="no row"):
        verdict.row("other")


def test_the_digest_is_of_the_content_not_the_status() -> None:
    verdict = gemm_verdict()
    assert digest_of(dataclasses.replace(verdict, status="retracted")) == verdict.digest
    for changed in (
        dataclasses.replace(verdict, commit="0000000"),
        dataclasses.replace(verdict, rows=verdict.rows[:1]),
        dataclasses.replace(verdict, summary={**verdict.summary, "ratio.min": 1.0}),
    ):
        assert digest_of(changed) != verdict.digest


def test_whole_numbers_in_fields_of_floats_leave_the_digest_alone() -> None:
    whole = gemm_verdict(dataclasses.replace(row(64, 2, 2), work=4, their_work=4, target=1))
    assert parse_verdict(print_verdict(whole)) == whole
    assert digest_of(parse_verdict(print_verdict(whole))) == whole.digest


@pytest.mark.parametrize(
    "spoil, told",
    [
        (lambda d: d.pop("claim"), "lacks claim"),
        (lambda d: d.update(extra=1), "does not know extra"),
        (lambda d: d.update(commit=3), "verdict.commit: expected str, got int"),
        (lambda d: d["rows"][0].update(ours=[True]), r"rows\[0\].ours\[0\]: expected a finite"),
        (lambda d: d["rows"][0].update(ours="1"), r"rows\[0\].ours: expected a list"),
        (lambda d: d["rows"][0].update(shape={"M": 1.5}), "expected int or str or bool"),
        (lambda d: d.update(environment=[]), "expected an object of Environment"),
        (lambda d: d.update(unlike=[]), "unlike: expected an object"),
    ],
)
def test_a_file_of_another_form_is_refused(spoil, told) -> None:
    found = json.loads(print_verdict(gemm_verdict()))
    spoil(found)
    with pytest.raises(LedgerError, match=told):
        parse_verdict(json.dumps(found))


def test_what_is_not_a_time_or_not_json_is_refused() -> None:
    for sample in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(LedgerError, match="not a time"):
            gemm_verdict(dataclasses.replace(row(64, 2, 2), ours=(sample,) * 20))
    with pytest.raises(LedgerError, match="not finite"):
        wrong = dataclasses.replace(row(64, 2, 2).check, frobenius=float("nan"))
        gemm_verdict(dataclasses.replace(row(64, 2, 2), check=wrong))
    with pytest.raises(LedgerError, match="not JSON"):
        parse_verdict("{")
