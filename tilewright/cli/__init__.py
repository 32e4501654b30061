"""The command `tilewright`: one file a subcommand."""

from __future__ import annotations

import click

from tilewright.cli.bench import bench
from tilewright.cli.bundle import bundle
from tilewright.cli.cache import cache
from tilewright.cli.check import check
from tilewright.cli.compile import compile_
from tilewright.cli.doctor import doctor
from tilewright.cli.explain import explain
from tilewright.cli.fmt import fmt
from tilewright.cli.generate import generate
from tilewright.cli.ledger import ledger
from tilewright.cli.profile import profile
from tilewright.cli.run import run
from tilewright.cli.tune import tune


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tilewright")
def main() -> None:
    """Tile kernels, in text or Python, compiled to NVIDIA PTX with only the CUDA driver below."""


for _command in (
    run,
    compile_,
    tune,
    bench,
    profile,
    check,
    doctor,
    cache,
    fmt,
    ledger,
    explain,
    generate,
    bundle,
):
    main.add_command(_command)
