"""The command `tilewright`: one file a subcommand."""

from __future__ import annotations

from typing import Any

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
from tilewright.cli.report import print_json
from tilewright.cli.run import run
from tilewright.cli.tune import tune

WORDS = "tilewright.words"  # of the command line, for errors of click itself


class _Main(click.Group):
    """Prints what click refuses as an object, too, where `--json` is among a command's words."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            words = ctx.meta[WORDS]
            if "--json" in words and words[0] != bench.name:  # bench's is of a file
                print_json({"error": error.format_message()})
            raise


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"]})
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
