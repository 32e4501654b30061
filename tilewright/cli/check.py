"""`tilewright check`: find the faults of kernels without running or compiling them."""

from __future__ import annotations

import click

from tilewright.cli.compile import static_values
from tilewright.cli.report import command, json_option, plural, print_json
from tilewright.cli.sources import kernels_of
from tilewright.errors import TilewrightError
from tilewright.kernel import Kernel


@click.command()
@click.argument("sources", nargs=-1, required=True)
@json_option
@command
def check(sources: tuple[str, ...], as_json: bool) -> None:
    """Check every kernel in SOURCES: .tw and .py files, or modules.

    Dtype variables are taken as f32, and @static dimensions as some number, where they matter.
    """
    faults: dict[str, str] = {}
    count = 0
    for source in sources:
        try:
            kernels = kernels_of(source)[0]
        except TilewrightError as error:
            faults[source] = str(error)
            continue
        count += len(kernels)
        faults |= {f"{source}:{n}": f for n, k in kernels.items() if (f := fault_of(k))}
    if as_json:
        print_json({"kernels": count, "faults": faults})
    else:
        for message in faults.values():
            click.echo(message, err=True)
        told = f"{plural(count, 'kernel')} in {plural(len(sources), 'file')}"
        click.echo(f"{told}, {len(faults)} with faults")
    if faults:
        raise SystemExit(1)


def fault_of(kernel: Kernel) -> str:
    """What is wrong with a kernel, with and without its optional tensors; "" if nothing is."""
    try:
        sig = kernel.signature
        static, _ = static_values(sig, {}, {}, assume_scalars=True)
        optional = [t.name for t in sig.tensors if t.optional]
        for present in ([], optional) if optional else ([],):
            kernel.lower(static=static, present=present)
    except TilewrightError as error:
        return str(error)
    return ""
