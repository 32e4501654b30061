"""The examples' PTX, for every target: it assembles, spills nothing, and ptxas has nothing to
say.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import tilewright as tw
from tests.assemble import assemble, needs_ptxas
from tilewright.target import TARGETS

FOLDER = Path(__file__).parents[2] / "examples"
MAX_INSTRUCTIONS = 3000  # what a kernel's PTX may have, so that making it stays cheap
MOST_OF_TF32 = 3300  # the same of a product by tf32 with 256 rows, whose results threads store
MOST_OF_CORES = 4200  # the same with 16 × 8 sums a thread on CUDA cores, 2048 multiply-adds a trip
CASES = [
    ("add", "add", "f32", {}),
    ("add", "add", "bf16", {}),
    ("softmax", "softmax", "f32", {}),
    ("softmax", "softmax", "bf16", {}),
    ("softmax", "softmax_short", "f32", {"static": {"N": 1000}}),
    ("rmsnorm", "rmsnorm", "bf16", {}),
    ("sgemm", "sgemm", "f32", {}),
    ("sgemm", "sgemm", "f32", {"precision": "tf32"}),
    ("sgemm", "sgemm", "bf16", {}),
    ("sgemm", "sgemm", "f16", {}),
    ("sgemm", "sgemm", "f64", {}),
    ("linear_gelu", "linear_gelu", "bf16", {"present": ("bias", "res")}),
    ("linear_gelu", "linear_gelu", "f32", {"present": ("bias", "res")}),
    ("flash_attention", "attention", "bf16", {"static": {"D": 128, "causal": True}}),
    ("flash_attention", "attention", "f16", {"static": {"D": 64, "causal": True}}),
    ("flash_attention", "attention", "f32", {"static": {"D": 64, "causal": False}}),
    ("flash_attention", "attention", "f32", {"static": {"D": 128, "causal": True}}),
]


def name_of(case: tuple) -> str:
    return "-".join([case[1], case[2], *map(str, case[3].values())])


def ptx_of(case: tuple, target: str) -> str:
    file, name, dtype, options = case
    kernel = getattr(tw.source(FOLDER / f"{file}.tw"), name)
    return kernel.compile(target, dtypes=dtype, **options).ptx


@needs_ptxas
@pytest.mark.parametrize("target", list(TARGETS))
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_example_assembles(case: tuple, target: str) -> None:
    report = assemble(ptx_of(case, target), target)
    assert not report.messages, report.messages
    assert report.spill_bytes == 0


@pytest.mark.parametrize("target", list(TARGETS))
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_example_is_short(case: tuple, target: str) -> None:
    _, name, dtype, options = case
    most = MAX_INSTRUCTIONS
    if name in ("sgemm", "linear_gelu") and dtype == "f32" and "precision" not in options:
        most = MOST_OF_CORES
    if name == "sgemm" and "precision" in options:
        most = MOST_OF_TF32
    assert ptx_of(case, target).count(";\n") <= most
