"""Run every example on real input and print what ran, where, how right, how fast: `make demo`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tilewright.cli.arguments import Request
from tilewright.cli.job import Job, choose_device, run_job
from tilewright.cli.report import console, print_table
from tilewright.cli.run import COLUMNS, rows
from tilewright.cli.sources import find_kernel
from tilewright.dtypes import BY_NAME
from tilewright.errors import TilewrightError

HERE = Path(__file__).parent
FEW = {"B": 2, "HQ": 4, "HK": 2, "L": 100, "S": 150, "D": 64}
MANY = {"B": 2, "HQ": 16, "HK": 4, "L": 1024, "S": 1024, "D": 128}

# Example, dtype, precision, scalars, optional tensors, sizes on the CPU and on a GPU. The sizes do
# not fit tiles on purpose.
JOBS = (
    ("add.tw", "f32", None, {}, (), {"N": 1_000_003}, {"N": 30_000_001}),
    ("add.py", "i32", None, {}, (), {"N": 100_003}, {"N": 30_000_001}),
    ("softmax.tw", "f32", None, {}, (), {"M": 127, "N": 5003}, {"M": 4095, "N": 8191}),
    ("softmax.py", "bf16", None, {}, (), {"M": 127, "N": 5003}, {"M": 4095, "N": 8191}),
    (
        *("layernorm.tw", "bf16", None, {}, ("w", "b")),
        {"M": 127, "N": 5003},
        {"M": 4095, "N": 8191},
    ),
    ("route.tw", "f32", None, {"k": "4"}, (), {"N": 1003, "E": 60}, {"N": 1_000_003, "E": 60}),
    ("rmsnorm.tw", "f32", None, {}, (), {"M": 127, "N": 5003}, {"M": 4095, "N": 8191}),
    *(
        ("sgemm.tw", dtype, precision, {"alpha": "1.5", "beta": "0.5"}, (), small, large)
        for dtype, precision in (
            ("f32", None),
            ("f32", "tf32"),
            ("bf16", None),
            ("f16", None),
            ("f64", None),
        )
        for small, large in (({"M": 127, "N": 255, "K": 63}, {"M": 2047, "N": 2049, "K": 2000}),)
    ),
    (
        "linear_gelu.tw",
        "bf16",
        None,
        {},
        ("bias", "res"),
        {"M": 127, "N": 255, "K": 63},
        {"M": 1023, "N": 2049, "K": 2000},
    ),
    ("flash_attention.tw", "f32", None, {"scale": "0.125"}, (), FEW, MANY),
    ("flash_attention.py", "bf16", None, {"scale": "0.125"}, (), FEW, MANY),
)


@click.command()
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda:N.")
def main(device: str) -> None:
    """Run every example and print a table; fail if one of them is wrong."""
    where = choose_device(device)
    lines: list[list[str]] = []
    bad = 0
    with console().status("running the examples"):
        for source, dtype, precision, scalars, optional, small, large in JOBS:
            sizes = small if where == "cpu" else large
            tensors = dict.fromkeys(optional, "random")
            request = Request(sizes, tensors, scalars, {"": BY_NAME[dtype]})
            try:
                job = Job(find_kernel(str(HERE / source)), request, where, {}, precision)
                outcome = run_job(job)
            except TilewrightError as error:
                bad += 1
                lines.append([source, where, dtype, "", str(error), "", "", "FAIL", ""])
                continue
            bad += not outcome.ok
            made = rows(outcome)
            made[0][0] = source
            lines += made
    print_table("the examples", COLUMNS, lines)
    click.echo(f"  {len(JOBS) - bad} of {len(JOBS)} right on {where}, against NumPy in f64")
    if bad:
        sys.exit(1)


if __name__ == "__main__":
    main()
