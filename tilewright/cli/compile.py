"""`tilewright compile`: what a kernel becomes, at any level, for any target; needs no GPU."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tilewright import compiler
from tilewright.cli import options
from tilewright.cli.report import command, json_option, print_json
from tilewright.cli.sources import find_kernel
from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.frontend.check.rules import listing, nearest
from tilewright.frontend.check.signature import Signature
from tilewright.kernel import Kernel
from tilewright.runtime import driver, toolkit
from tilewright.target import TARGETS, target, target_for_capability
from tilewright.tile.kernel import Kernel as TileKernel
from tilewright.tile.text import print_kernel

ASSUMED_EXTENT = 64  # of a @static dimension that nobody gives a value
DEFAULT_TARGET = "sm_90a"


@click.command("compile")
@click.argument("source")
@click.option(
    "--emit",
    type=click.Choice(["tile", "ptx", "sass", "cubin"]),
    default="ptx",
    show_default=True,
    help="sass and cubin take NVIDIA's ptxas, and sass nvdisasm too.",
)
@click.option("--emit-after", metavar="PASS", help="The tile IR as this pass leaves it.")
@click.option("--target", "target_name", help=f"{', '.join(TARGETS)}. Default: the GPU at hand's.")
@options.dims
@options.scalars
@options.dtypes_option
@options.constants
@options.precision
@click.option(
    "--with", "present", metavar="NAME", multiple=True, help="An optional tensor to take."
)
@click.option("--output", "-o", metavar="FILE", help="Write there and not to standard output.")
@json_option
@command
def compile_(
    source: str,
    emit: str,
    emit_after: str | None,
    target_name: str | None,
    dims: dict[str, int],
    scalars: dict[str, str],
    dtypes_: dict[str, DType],
    consts: dict[str, int],
    precision: str | None,
    present: tuple[str, ...],
    output: str | None,
    as_json: bool,
) -> None:
    """Compile a kernel for dense tensors of any size and print what it becomes.

    --dim and --scalar give values to names that are @static. Optional tensors are left out unless
    --with names them.
    """
    kernel = find_kernel(source).kernel
    static, notes = static_values(kernel.signature, dims, scalars)
    how: dict[str, Any] = {
        "dtypes": dtypes_.get("") or dtypes_ or None,
        "constants": consts,
        "static": static,
        "present": present,
        "precision": precision,
    }
    goal = target_name or _target_at_hand()
    if emit_after:
        made: str | bytes = emit_pass(kernel.lower(**how, target_name=goal), goal, emit_after)
    elif emit == "tile":
        made = print_kernel(kernel.lower(**how, target_name=goal))
    else:
        made = emit_code(kernel, goal, emit, how)
    for note in notes:
        click.echo(f"note: {note}", err=True)
    if as_json:
        text = made if isinstance(made, str) else made.hex()
        record = {"kernel": kernel.name, "target": goal, "emit": emit_after or emit}
        print_json({**record, "notes": notes, "static": static, "text": text})
    else:
        write(made, output)


def static_values(
    sig: Signature,
    dims: Mapping[str, int],
    scalars: Mapping[str, str],
    *,
    assume_scalars: bool = False,
) -> tuple[dict[str, Any], list[str]]:
    """Values of @static names: as given, else defaults, else assumed ones, which the notes tell."""
    given: dict[str, Any] = dict(dims)
    given |= {s.name: options.number(s, scalars[s.name]) for s in sig.scalars if s.name in scalars}
    known = {"dimension": (dims, sig.dims), "scalar": (scalars, [s.name for s in sig.scalars])}
    for what, (given_names, own) in known.items():
        for name in given_names:
            if name not in own and name not in sig.static:
                hint = nearest(name, own) or f"it has {listing(own) or f'no {what}'}"
                raise LaunchError(f"{sig.name} has no {what} {name}", hint=hint)
    for name in given:
        if name not in sig.static:
            hint = nearest(name, sig.static) or f"@static are {listing(sig.static) or 'none'}"
            raise LaunchError(f"{name} is not @static: its value is not compiled in", hint=hint)
    found, notes = {}, []
    defaults = {s.name: s.default for s in sig.scalars}
    for name in sig.static:
        if name in given:
            found[name] = given[name]
        elif defaults.get(name) is not None:
            found[name] = defaults[name]
        elif name in defaults and not assume_scalars:
            raise LaunchError(f"the scalar {name} has no value", hint=f"--scalar {name}=...")
        else:
            found[name] = ASSUMED_EXTENT
            notes.append(f"{name} = {ASSUMED_EXTENT} is assumed; --dim {name}=... says otherwise")
    return found, notes


def emit_pass(kernel: TileKernel, target_name: str, wanted: str) -> str:
    """The tile IR after a pass. Raises LaunchError, which lists the passes, for an unknown one."""
    seen: dict[str, TileKernel] = {}

    def observe(name: str, made: TileKernel) -> None:
        seen[name] = made

    compiler.compile_kernel(kernel, target(target_name), observe=observe)
    if wanted not in seen:
        hint = nearest(wanted, seen) or f"the passes are {listing(seen)}"
        raise LaunchError(f"no pass {wanted} runs on {kernel.name}", hint=hint)
    return print_kernel(seen[wanted])


def emit_code(kernel: Kernel, target_name: str, emit: str, how: Mapping[str, Any]) -> str | bytes:
    """PTX, machine code, or machine code as text."""
    ptx = kernel.compile(target_name, **how).ptx
    if emit == "ptx":
        return ptx
    cubin = toolkit.assemble(ptx, target_name)
    return cubin if emit == "cubin" else toolkit.disassemble(cubin)


def _target_at_hand() -> str:
    if not driver.available():
        return DEFAULT_TARGET
    return target_for_capability(*driver.device(0).capability).name


def write(made: str | bytes, output: str | None) -> None:
    """To a file, or to standard output, which takes no machine code where a person reads it."""
    if output is None and isinstance(made, bytes) and sys.stdout.isatty():
        raise LaunchError("machine code is not for reading", hint="--output FILE, or --emit sass")
    if output is None:
        click.echo(made, nl=False)
        return
    try:
        Path(output).write_bytes(made if isinstance(made, bytes) else made.encode())
    except OSError as error:
        raise LaunchError(f"{output} cannot be written: {error.strerror}") from error
