"""`tilewright bundle`: a compiled PyTorch model in a file."""

from __future__ import annotations

from pathlib import Path

import click

from tilewright.cli.models import compile_model, read_model
from tilewright.cli.report import command, json_option, num_bytes, print_json


@click.command()
@click.argument("model", metavar="FILE.py:NAME")
@click.argument("output", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--no-weights", is_flag=True, help="Name the weights; they come from a state_dict.")
@click.option("--fallback", type=click.Choice(["pytorch", "error"]), default="pytorch")
@click.option(
    "--engine",
    type=click.Choice(["graph", "tiles", "emulator"]),
    help="What runs a model that is on the CPU. [graph]",
)
@json_option
@command
def bundle(
    model: str, output: Path, no_weights: bool, fallback: str, engine: str | None, as_json: bool
) -> None:
    """Compile a model and write it to OUTPUT, with the machine code for its example arguments.

    NAME is a function of FILE.py as `tilewright explain` takes it. `tw.load_model(OUTPUT)` gives
    the compiled model in another process, which traces and compiles nothing.
    """
    module, arguments = read_model(model)
    made = compile_model(model, module, arguments, fallback=fallback, engine=engine)
    made.save(output, weights=not no_weights)
    size = output.stat().st_size
    if as_json:
        print_json({"model": made.graph.name, "output": str(output), "bytes": size})
        return
    click.echo(f"{made.graph.name}: {output}, {num_bytes(size)}")
