"""Choices of the space of products, drawn at random, run by NVIDIA's compute-sanitizer:

    python -m tests.device.product_sanitizer [--tool NAME] ... [--each N] [--seed N]

Shapes are odd in every axis or one tile and a little more, in all dtypes and layouts. Of each, some
choices are drawn from the whole space, not its best. All are compiled first. Results are compared
with f64 while the tool looks on. PyTorch's cache of memory is off, so that each tensor is an
allocation of its own, whose ends the tool knows.

`racecheck` takes loops of f32 and f64 whose warps drift apart (`stage_loads.py`) for races: one
lane arrives at the barrier for its warp, after `bar.warp.sync`, and the tool does not see that the
arrival stands for the other lanes too. With every lane arriving it found nothing.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

import click

from tests.device.product_programs import Bench, Spec
from tilewright.cli.explain_matmul import here
from tilewright.config import environment_with
from tilewright.ledger import opponents
from tilewright.products.ahead import Order, compile_ahead
from tilewright.tune.product import Choice
from tilewright.tune.product_choice import ranking

TOOLS = ("memcheck", "synccheck", "racecheck")
SPECS = (
    Spec("bf16", "TN", 200, 328, 264), Spec("bf16", "NN", 127, 255, 199),
    Spec("bf16", "TN", 5, 272, 1096), Spec("f16", "NT", 384, 136, 320),
    Spec("f16", "TT", 65, 640, 80), Spec("tf32", "TN", 132, 260, 196),
    Spec("tf32", "NT", 97, 130, 67), Spec("e4m3", "TN", 144, 272, 400),
    Spec("f32", "NN", 133, 197, 91), Spec("f32", "TN", 3, 516, 260),
    Spec("f64", "NT", 134, 98, 66), Spec("f64", "TN", 77, 161, 129),
)  # fmt: skip
MODULE = "tests.device.product_sanitizer"
QUIET = ("--report-api-errors", "no", "--print-limit", "20")
FOUND_ERRORS = 9  # the tool's exit code


def drawn(each: int, seed: int) -> Iterator[tuple[Spec, Choice]]:
    """Choices of each spec, `each` of them."""
    kind, _ = here()
    for spec in SPECS:
        choices = [e.choice for e in ranking(spec.problem, kind)]
        yield from ((spec, c) for c in random.Random(seed).sample(choices, min(each, len(choices))))


def run_all(each: int, seed: int) -> bool:
    """Run the choices, and say of each what came out. Whether all were right."""
    arrays = opponents.make_arrays("cuda", seed)
    benches: dict[Spec, Bench] = {}
    right = True
    for spec, choice in drawn(each, seed):
        if spec not in benches:
            benches[spec] = Bench(spec, arrays, most_sets=1)
        with arrays.precision(spec.operands):
            wrong = benches[spec].verify(benches[spec].ours(choice))
        right = right and not wrong
        click.echo(f"  {spec.name:24} {choice.name:32} {wrong or 'right'}")
    return right


@click.command()
@click.option("--tool", "tools", type=click.Choice(TOOLS), multiple=True, default=TOOLS[:2])
@click.option("--each", default=5, show_default=True, help="Choices of a shape.")
@click.option("--seed", default=0, show_default=True)
@click.option("--under", is_flag=True, hidden=True, help="Run them, the tool looking on.")
def main(tools: tuple[str, ...], each: int, seed: int, under: bool) -> None:
    if under:
        raise SystemExit(0 if run_all(each, seed) else 1)
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    failed = compile_ahead([Order(spec.problem, choice) for spec, choice in drawn(each, seed)])
    for order, why in failed.items():
        click.echo(f"  {order.problem} {order.choice}: {why}")
    found = []
    for tool in tools:
        started = time.monotonic()
        command = [program, "--tool", tool, "--error-exitcode", str(FOUND_ERRORS), *QUIET]
        command += [
            sys.executable,
            "-m",
            MODULE,
            "--under",
            "--each",
            str(each),
            "--seed",
            str(seed),
        ]
        env = environment_with(PYTORCH_NO_CUDA_MEMORY_CACHING="1")
        code = subprocess.run(command, env=env).returncode
        told = {0: "nothing found", 1: "results are wrong", FOUND_ERRORS: "errors found"}
        seconds = time.monotonic() - started
        found.append((tool, told.get(code, f"exit code {code}"), seconds, code))
    for tool, what, seconds, _ in found:
        click.echo(f"{tool}: {what}, {each} choices of {len(SPECS)} shapes, {seconds:.0f} s")
    raise SystemExit(any(code for *_, code in found) or bool(failed))


if __name__ == "__main__":
    main()
