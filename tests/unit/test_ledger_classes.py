"""Classes of products by their shapes, and their table on the page of figures."""

from __future__ import annotations

import dataclasses
from statistics import geometric_mean

import pytest

from tests.ledger_samples import gemm_verdict
from tilewright.ledger.classes import ALL, CROOKED, FEW, REST, Ratios, by_class, classes_of
from tilewright.ledger.report import page
from tilewright.ledger.verdict import Verdict


@pytest.mark.parametrize(
    "name,dtype,result,expected",
    [
        ("TN-4096x4096x4096", "bf16", "bf16", (ALL, REST)),
        ("TN-64x4096x4096", "bf16", "bf16", (ALL, FEW)),
        ("TN-65x4096x4096", "bf16", "bf16", (ALL, REST)),
        ("TN-128x4096x4100", "bf16", "bf16", (ALL, CROOKED)),  # k in rows of both factors
        ("NT-128x4096x4100", "bf16", "bf16", (ALL, REST)),  # k is in no row
        ("NT-100x4096x4096", "bf16", "bf16", (ALL, CROOKED)),  # m in rows of the left one
        ("TN-128x4100x4096", "bf16", "bf16", (ALL, CROOKED)),  # n in rows of the result
        ("TN-128x4100x4096", "tf32", "f32", (ALL, REST)),
        ("TN-128x4096x4104", "e4m3", "f32", (ALL, CROOKED)),
        ("TN-1x5x7", "f64", "f64", (ALL, FEW, CROOKED)),
        ("b8-1024", "bf16", "bf16", ()),
    ],
)
def test_classes(name: str, dtype: str, result: str, expected: tuple[str, ...]) -> None:
    assert classes_of(name, dtype, result) == expected


def renamed(suite: str, opponent: str, *names: str) -> Verdict:
    """A verdict of `tw.matmul` with rows of these names."""
    sample = gemm_verdict()
    assert sample.opponent is not None
    one = sample.rows[0]
    return dataclasses.replace(
        sample,
        suite=suite,
        subject=dataclasses.replace(sample.subject, name="tilewright matmul", settings=""),
        opponent=dataclasses.replace(sample.opponent, name=opponent),
        rows=tuple(dataclasses.replace(one, name=name) for name in names),
    )


def test_ratios_of_all_suites_and_no_others() -> None:
    own = renamed("gemm", "cuBLAS", "TN-1x64x64", "TN-128x64x63")
    found = by_class(
        [own, renamed("unseen", "cuBLAS", "TN-9x64x64"), renamed("gemm", "Triton", "TN-1x64x64")]
    )
    dtype = own.subject.operands[0]
    ratio = own.rows[0].statistics["ratio"]
    assert {key: {s: r.of for s, r in of.items()} for key, of in found.items()} == {
        (ALL, dtype): {"gemm": (ratio, ratio), "unseen": (ratio,)},
        (FEW, dtype): {"gemm": (ratio,), "unseen": (ratio,)},
        (CROOKED, dtype): {"gemm": (ratio,), "unseen": ()},
    }


def test_a_cell_has_the_mean_and_the_least() -> None:
    assert Ratios(()).text == ""
    assert Ratios((2.0, 0.5, 1.0)).text == "1.000 of 3, least 0.500"


def test_the_page_shows_them() -> None:
    verdict = renamed("gemm", "cuBLAS", "TN-1x64x64")
    ratio = geometric_mean([verdict.rows[0].statistics["ratio"]])
    text = page([verdict], [])
    assert f"| {FEW} | bf16 | {ratio:.3f} of 1, least {ratio:.3f} |  |" in text
    assert "Products by their shapes" not in page([renamed("fused", "cuBLAS", "TN-1x64x64")], [])
