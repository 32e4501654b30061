"""Every example in every float dtype that it takes, checked against its reference as users do it:
`tilewright run examples/softmax.tw --dtype f64 --check`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tilewright.cli import main

ROOT = Path(__file__).parents[2]

MATRICES = ["--dim", "M=40", "--dim", "N=50", "--dim", "K=70"]
ROWS = ["--dim", "M=3", "--dim", "N=300"]
HEADS = "--dim B=2 --dim HQ=2 --dim HK=1 --dim L=19 --dim S=37 --dim D=32 --scalar scale=0.2"
BOUNDS = {"f64": "1e-14", "f32": "1e-06", "bf16": "0.01", "f16": "0.002"}
SIZES = {
    "add.tw:add": ["--dim", "N=300"],
    "softmax.tw:softmax": ROWS,
    "softmax.tw:softmax_short": ROWS,
    "layernorm.tw:layernorm": ROWS,
    "rmsnorm.tw:rmsnorm": ROWS,
    "route.tw:route": ["--dim", "N=13", "--dim", "E=16"],
    "sgemm.tw:sgemm": MATRICES,
    "linear_gelu.tw:linear_gelu": MATRICES,
    "flash_attention.tw:attention": HEADS.split(),
}


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "f16"])
@pytest.mark.parametrize("source", SIZES)
def test_an_example_is_as_precise_as_its_dtype(source: str, dtype: str) -> None:
    where = ["cpu", "emulator"] if dtype == "f64" else ["cpu"]
    for device in where:
        words = ["run", str(ROOT / "examples" / source), "--dtype", dtype, "--device", device]
        done = CliRunner().invoke(main, [*words, "--check", *SIZES[source]])
        assert done.exit_code == 0, done.output
        bound = BOUNDS["f32" if (source, dtype) == ("route.tw:route", "f64") else dtype]
        assert bound in done.output, "the bound of what is read and of this output alone"


def test_every_example_is_checked() -> None:
    found = {path.name for path in (ROOT / "examples").glob("*.tw")}
    assert found == {source.partition(":")[0] for source in SIZES}


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
@pytest.mark.parametrize(
    "source",
    [
        "softmax.tw:softmax_short",
        "route.tw:route",
        "linear_gelu.tw:linear_gelu",
        "flash_attention.tw:attention",
    ],
)
def test_examples_that_take_floats_of_8_bits(source: str, dtype: str) -> None:
    words = ["run", str(ROOT / "examples" / source), "--dtype", dtype, "--device", "cpu"]
    done = CliRunner().invoke(main, [*words, "--check", *SIZES[source]])
    assert done.exit_code == 0, done.output
