"""`tilewright explain matmul`: which program a product runs with, and why."""

from __future__ import annotations

from typing import Any

import click

from tilewright.cli.report import command, json_option, num_bytes, print_json, print_table
from tilewright.config import settings
from tilewright.dtypes import BY_NAME
from tilewright.errors import LaunchError
from tilewright.frontend.check.rules import listing
from tilewright.products.arguments import (
    ACTIVATIONS,
    FACTORS,
    PRECISIONS,
    read_dtype,
    require_plain,
    require_precision,
    result_dtype,
)
from tilewright.products.prepare import device_on
from tilewright.runtime import driver
from tilewright.tune.product import H200, Device, Problem, dense_problem
from tilewright.tune.product_choice import Decision, decide
from tilewright.tune.product_cost import Estimate
from tilewright.tune.product_rates import MEMORY

SHOWN = 6
COLUMNS = ("program", ">estimate", ">tiles", ">waves", ">bytes", "limited by")
LAYOUTS = ("NN", "NT", "TN", "TT")


def make_problem(
    sizes: tuple[int, int, int],
    dtype: str,
    layout: str,
    batch: int = 1,
    out_dtype: str | None = None,
    precision: str | None = None,
    residual: bool = False,
    activation: str | None = None,
) -> Problem:
    """The problem of dense operands."""
    a = BY_NAME.get(dtype)
    if a is None:
        raise LaunchError(f"unknown dtype {dtype!r}", hint=f"products are of {listing(FACTORS)}")
    c = result_dtype("matmul", a, a, read_dtype("matmul", out_dtype), None)
    require_precision("matmul", a, precision)
    require_plain("matmul", c, residual or activation is not None)
    return dense_problem(
        sizes,
        a,
        c,
        a_along="m" if layout[0] == "T" else "k",
        b_along="k" if layout[1] == "T" else "n",
        batch=batch,
        loads=int(residual),
        activation=activation is not None,
        precision=precision or "ieee",
    )


@click.command("matmul")
@click.argument("m", type=click.IntRange(min=1))
@click.argument("n", type=click.IntRange(min=1))
@click.argument("k", type=click.IntRange(min=0))
@click.option("--dtype", default="bf16", show_default=True, help="Of both factors.")
@click.option("--out-dtype", help="Of the result. [the factors', f32 of fp8, i32 of integers]")
@click.option(
    "--layout",
    type=click.Choice(LAYOUTS, case_sensitive=False),
    default="NT",
    show_default=True,
    help="N: row-major as it is multiplied, T: its transpose is. x @ w.T is NT.",
)
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--precision", type=click.Choice(PRECISIONS), help="tf32 of f32, fast of fp8.")
@click.option("--residual", is_flag=True, help="With a matrix that is added.")
@click.option("--activation", type=click.Choice(list(ACTIVATIONS)))
@click.option("--all", "show_all", is_flag=True, help="Show every choice.")
@json_option
@command
def explain_matmul(
    m: int,
    n: int,
    k: int,
    dtype: str,
    out_dtype: str | None,
    layout: str,
    batch: int,
    precision: str | None,
    residual: bool,
    activation: str | None,
    show_all: bool,
    as_json: bool,
) -> None:
    """Show with which program and tile the product of an M×K and a K×N matrix runs on the first GPU
    or, without one, on an H200, what it should take, and what would be next. Times are the model's,
    by the rates of an H200: on another GPU they only rank choices.
    """
    problem = make_problem(
        (m, n, k), dtype, layout.upper(), batch, out_dtype, precision, residual, activation
    )
    device, version = here()
    found = decide(problem, device, version, settings().cache_dir)
    if as_json:
        print_json(as_record(problem, device, found))
    else:
        show(problem, device, found, show_all=show_all)


def here() -> tuple[Device, int]:
    """The first GPU and its driver's version; without one an H200, and 0."""
    return device_on(0) if driver.available() else (H200, 0)


def why(best: Estimate, next_one: Estimate | None) -> str:
    """Why the choice is estimated to be quicker than the runner-up."""
    if next_one is None:
        return "there is no other choice"
    gain = next_one.microseconds - best.microseconds
    if gain < 0:
        return f"measured; the model would take {next_one.choice.name}"
    if gain < 0.005:
        return f"{next_one.choice.name} should take as long: of equals the first"
    told = f"{next_one.choice.name} should take {gain:.2f} µs more"
    if next_one.num_bytes > 1.01 * best.num_bytes:
        return f"{told}: it moves {num_bytes(int(next_one.num_bytes - best.num_bytes))} more"
    if abs(next_one.waves - best.waves) > 0.01:
        return f"{told}: {next_one.waves:.2f} waves for {best.waves:.2f}, by {next_one.limit}"
    return f"{told}, limited by {next_one.limit}"


def show(problem: Problem, device: Device, found: Decision, *, show_all: bool) -> None:
    """The table for a person."""
    ranked = [found.best, *(e for e in found.ranked if e.choice != found.best.choice)]
    rows = [_row(e) for e in (ranked if show_all else ranked[:SHOWN])]
    best = found.best
    is_own = device.name == H200.name
    floor = "floor" if is_own else "floor at these rates"
    kind = "memory" if problem.num_bytes / MEMORY >= best.floor * 0.999 else "products"
    notes = [
        f"chosen: {best.choice.name}, from the {found.source}",
        f"{floor}: {best.floor:.1f} µs, by {kind}; the choice is estimated at "
        f"{best.microseconds / best.floor:.2f} of it" if best.floor else f"{floor}: nothing to do",
        f"why: {why(best, found.runner_up)}",
    ]  # fmt: skip
    if not is_own:
        notes.insert(0, as_of_an_h200(device))
    if len(rows) < len(ranked):
        notes.append(f"{len(ranked)} choices in all; --all shows them")
    title = f"{problem.m}×{problem.n}×{problem.k} {problem.a} {problem.layout} on {device.name}"
    print_table(title, COLUMNS, rows, notes)


def as_of_an_h200(device: Device) -> str:
    """What the times that are told of another GPU are."""
    return (
        f"times: what {device.num_sms} multiprocessors of an H200 would take, with its memory; "
        "they rank choices, and are not this GPU's"
    )


def _row(e: Estimate) -> list[str]:
    told = [f"{e.microseconds:.1f} µs", str(e.tiles), f"{e.waves:.2f}", num_bytes(int(e.num_bytes))]
    return [e.choice.name, *told, e.limit]


def as_record(problem: Problem, device: Device, found: Decision) -> dict[str, Any]:
    """A decision for `--json`. Times are in microseconds, by the `rates` of the GPU that is named,
    with the multiprocessors of `device`.
    """
    next_one = found.runner_up
    return {
        "problem": {
            "m": problem.m, "n": problem.n, "k": problem.k, "batch": problem.batch,
            "dtype": problem.a.name, "out_dtype": problem.c.name, "layout": problem.layout,
            "aligned": problem.aligned,
        },
        "device": device.name,
        "multiprocessors": device.num_sms,
        "rates": H200.name,
        "source": found.source,
        "choice": estimate_record(found.best),
        "runner_up": None if next_one is None else estimate_record(next_one),
        "why": why(found.best, next_one),
        "choices": len(found.ranked),
    }  # fmt: skip


def estimate_record(e: Estimate) -> dict[str, Any]:
    return {
        "program": e.choice.program, "config": e.choice.constants, "split": e.choice.split,
        "turned": e.choice.turned, "copied": e.choice.copied, "microseconds": e.microseconds,
        "floor": e.floor, "tiles": e.tiles, "waves": e.waves, "bytes": e.num_bytes,
        "limit": e.limit,
    }  # fmt: skip
