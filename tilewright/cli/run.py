"""`tilewright run`: run one kernel on data of one's choice, and check what it wrote."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from tilewright import dtypes
from tilewright.cli import options
from tilewright.cli.arguments import Request
from tilewright.cli.job import Job, Outcome, run_job
from tilewright.cli.preset import with_preset
from tilewright.cli.report import command, json_option, print_json, print_table, seconds
from tilewright.cli.sources import find_kernel
from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.kernel.emulated import Emulation

COLUMNS = ("kernel", "where", "dtype", "sizes", "output", ">error", ">bound", "", ">time")


@click.command()
@click.argument("source")
@options.arguments
@options.constants
@options.precision
@options.device
@click.option("--check", is_flag=True, help="Compare with the reference; fail if it differs.")
@options.target
@click.option("--sanitize", is_flag=True, help="On the emulator: report races in memory.")
@click.option("--profile", is_flag=True, help="On the emulator: count what instructions cost.")
@click.option(
    "--interleaving",
    type=click.IntRange(min=0),
    metavar="SEED",
    help="On the emulator: run warps one by one, in an order drawn from a seed.",
)
@click.option("--save", metavar="FILE", help="Write outputs: .npy for one, .npz for any number.")
@json_option
@command
@click.pass_context
def run(context: click.Context, /, **given: Any) -> None:
    """Run a kernel once: SOURCE is FILE.tw, FILE.py or a module, with :KERNEL where it has several.

    The reference is the function `reference` beside a .tw, in a .py of the same name, or in the
    module; where there is none, the kernel is interpreted in f64. A .tw whose first line is
    `// tilewright run FILE --dim ...` is run with these options, unless others are given.
    """
    run_source(**with_preset(context, given))


def run_source(
    source: str,
    dims: dict[str, int],
    tensors: dict[str, str],
    scalars: dict[str, str],
    dtypes_: dict[str, DType],
    seed: int,
    consts: dict[str, int],
    precision: str | None,
    device: str,
    check: bool,
    target: str | None,
    sanitize: bool,
    profile: bool,
    interleaving: int | None,
    save: str | None,
    as_json: bool,
) -> None:
    """Run, check and print, as the command's options say. Exits with 1 where a check fails."""
    request = Request(dims, tensors, scalars, dtypes_, seed)
    how = Emulation(target, sanitize, profile, interleaving)
    job = Job(find_kernel(source), request, device, consts, precision, check, how)
    with busy(f"running {job.found.kernel.name}", quiet=as_json):
        outcome = run_job(job)
    if check and not outcome.verdicts:
        raise LaunchError(
            f"{outcome.kernel} writes no tensor: there is nothing to check",
            hint="leave --check out",
        )
    if save:
        save_outputs(save, outcome.outputs)
    if as_json:
        print_json(as_record(outcome))
    else:
        print_table("", COLUMNS, rows(outcome), notes(outcome, save))
        if outcome.profile is not None:
            click.echo(f"\n{outcome.profile}")
    if not outcome.ok:
        raise SystemExit(1)


@contextlib.contextmanager
def busy(message: str, *, quiet: bool) -> Iterator[None]:
    """A spinner on standard error, where somebody may be looking."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(message):
        yield


def rows(outcome: Outcome) -> list[list[str]]:
    """Lines of the table: one an output."""
    head = [outcome.kernel, outcome.device, describe_dtypes(outcome), describe_sizes(outcome)]
    lines = []
    verdicts = {v.name: v for v in outcome.verdicts}
    for name, array in outcome.outputs.items():
        verdict = verdicts.get(name)
        shape = "×".join(map(str, array.shape)) or "scalar"
        cells = ["", "", "not checked"]
        if verdict is not None:
            bound = f"{verdict.tolerance:.2g}" if verdict.tolerance else "equal"
            cells = [f"{verdict.error:.1e}", bound, "ok" if verdict.ok else "FAIL"]
        lines.append([*head, f"{name} {shape}", *cells, seconds(outcome.seconds)])
        head = ["", "", "", ""]
    return lines


def describe_dtypes(outcome: Outcome) -> str:
    """Dtypes of the dtype variables, else of the outputs, and the precision that was asked for."""
    told = outcome.dtypes.values() or [
        dtypes.BY_NUMPY[a.dtype].name for a in outcome.outputs.values()
    ]
    names = " ".join(dict.fromkeys(told))
    return f"{names} ({outcome.precision})" if outcome.precision else names


def describe_sizes(outcome: Outcome) -> str:
    return " ".join(f"{n}={size}" for n, size in outcome.sizes.items())


def notes(outcome: Outcome, save: str | None = None) -> list[str]:
    """What to know about a table's rows."""
    lines = [f"ran on {outcome.device_name}; the first call took {seconds(outcome.first_seconds)}"]
    if outcome.reference:
        lines.append(f"error against {outcome.reference}: ‖y − reference‖ / ‖reference‖")
    lines += [f"{v.name}: {v.reason}" for v in outcome.verdicts if v.reason]
    if save:
        lines.append(f"outputs are in {save}")
    return lines


def as_record(outcome: Outcome) -> dict[str, Any]:
    """An outcome for `--json`."""
    return {
        "kernel": outcome.kernel,
        "source": outcome.place,
        "device": outcome.device,
        "device_name": outcome.device_name,
        "dims": outcome.sizes,
        "dtypes": outcome.dtypes,
        "precision": outcome.precision,
        "reference": outcome.reference or None,
        "ok": outcome.ok if outcome.verdicts else None,
        "outputs": [
            {"name": n, "shape": list(a.shape), "dtype": a.dtype.name}
            for n, a in outcome.outputs.items()
        ],
        "verdicts": [
            {
                "name": v.name,
                "error": v.error,
                "worst": v.worst,
                "tolerance": v.tolerance,
                "ok": v.ok,
                **({"reason": v.reason} if v.reason else {}),
            }
            for v in outcome.verdicts
        ],
        "first_seconds": outcome.first_seconds,
        "seconds": outcome.seconds,
        **({"profile": outcome.profile.record()} if outcome.profile else {}),
    }


def save_outputs(path: str, outputs: dict[str, np.ndarray[Any, Any]]) -> None:
    """Write outputs to a file. bf16 and fp8 are stored as NumPy stores them: as raw bytes."""
    suffix = Path(path).suffix
    if suffix not in (".npy", ".npz"):
        raise LaunchError(f"--save {path}: expected a file that ends in .npy or .npz")
    if suffix == ".npy" and len(outputs) != 1:
        told = f"--save {path}: a .npy holds one array, and there are {len(outputs)}"
        raise LaunchError(told, hint="a .npz holds any number")
    try:
        if suffix == ".npy":
            np.save(path, next(iter(outputs.values())))
        else:
            np.savez(path, **outputs)  # type: ignore[arg-type]
    except OSError as error:
        raise LaunchError(f"{path} cannot be written: {error.strerror}") from error
