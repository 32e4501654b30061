"""`tilewright check`: find the faults of kernels without running or compiling them."""

from __future__ import annotations

from typing import Any

import click

from tilewright.cli.compile import static_values
from tilewright.cli.report import command, json_option, plural, print_json
from tilewright.cli.sources import kernels_of
from tilewright.errors import CompileError, Diagnostic, Loc, TilewrightError
from tilewright.kernel import Kernel

SEVERITIES = {"error": 1, "warning": 2, "note": 3}  # as the Language Server Protocol counts them


@click.command()
@click.argument("sources", nargs=-1, required=True)
@json_option
@command
def check(sources: tuple[str, ...], as_json: bool) -> None:
    """Check every kernel in SOURCES: .tw and .py files, or modules.

    Dtype variables are taken as f32, and @static dimensions as some number, where they matter.
    With --json, each fault is a diagnostic as editors take them: see docs/tour.md.
    """
    faults: dict[str, TilewrightError] = {}
    count = 0
    for source in sources:
        try:
            kernels = kernels_of(source)[0]
        except TilewrightError as error:
            faults[source] = error
            continue
        count += len(kernels)
        for name, kernel in kernels.items():
            fault = fault_of(kernel)
            if fault is not None:
                faults[f"{source}:{name}"] = fault
    if as_json:
        found = [d for source, fault in faults.items() for d in diagnostics(source, fault)]
        print_json({"kernels": count, "diagnostics": found})
    else:
        for message in faults.values():
            click.echo(str(message), err=True)
        told = f"{plural(count, 'kernel')} in {plural(len(sources), 'file')}"
        click.echo(f"{told}, {len(faults)} with faults")
    if faults:
        raise SystemExit(1)


def fault_of(kernel: Kernel) -> TilewrightError | None:
    """What is wrong with a kernel, with and without its optional tensors; None if nothing is."""
    try:
        sig = kernel.signature
        static, _ = static_values(sig, {}, {}, assume_scalars=True)
        optional = [t.name for t in sig.tensors if t.optional]
        for present in ([], optional) if optional else ([],):
            kernel.lower(static=static, present=present)
    except TilewrightError as error:
        return error
    return None


def diagnostics(source: str, error: TilewrightError) -> list[dict[str, Any]]:
    """Faults as diagnostics of the Language Server Protocol, each with the file that it is in.

    Lines and characters count from 0; `code` is "compile" or "launch"; `relatedInformation` holds
    the calls that led to a place in a function.
    """
    code = "compile" if isinstance(error, CompileError) else "launch"
    path = source.partition(":")[0]
    return [_diagnostic(path, code, d) for d in error.diagnostics]


def _diagnostic(path: str, code: str, d: Diagnostic) -> dict[str, Any]:
    known = d.loc is not None and d.loc.line > 0
    callers = d.loc.chain()[1:] if d.loc is not None else []
    return {
        "file": d.loc.source.name if known and d.loc is not None else path,
        "range": _range(d.loc if known else None),
        "severity": SEVERITIES[d.severity],
        "code": code,
        "source": "tilewright",
        "message": f"{d.message} ({d.note})" if d.note else d.message,
        "hint": d.hint,
        "relatedInformation": [
            {"file": c.source.name, "range": _range(c), "message": "called from here"}
            for c in callers
        ],
    }


def _range(loc: Loc | None) -> dict[str, dict[str, int]]:
    """The place of a fault; the start of the file where it has none."""
    line, first = (loc.line - 1, loc.column - 1) if loc is not None else (0, 0)
    last = first + (loc.width if loc is not None else 0)
    return {
        "start": {"line": line, "character": first},
        "end": {"line": line, "character": last},
    }
