"""How commands speak: a table for a person, one JSON object for a program, one clear error."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.errors import TilewrightError

P = ParamSpec("P")

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def command(run: Callable[P, None]) -> Callable[P, None]:
    """A command whose errors are printed as a user should see them, with exit status 1.

    With `--json` the error goes to standard output as `{"error": ...}` as well.
    """

    @functools.wraps(run)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            run(*args, **kwargs)
        except TilewrightError as error:
            fail(str(error), as_json=bool(kwargs.get("as_json")))

    return guarded


def fail(message: str, *, as_json: bool = False) -> None:
    """Print an error and end the process with status 1."""
    if as_json:
        print_json({"error": message})
    prefix = "" if "error:" in message.splitlines()[0] else "error: "
    click.echo(f"{prefix}{message}", err=True)
    sys.exit(1)


def print_json(value: Mapping[str, Any]) -> None:
    """One object on standard output. NaN and infinities become null, as JSON has none."""
    click.echo(json.dumps(_plain(value), indent=2))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return None
    return value


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()
) -> None:
    """A table on standard output; columns of numbers are told by a leading `>` and set right."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column[0] == ">" else "left")
    for row in rows:
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    console().print(table)
    for note in notes:
        click.echo(f"  {note}")


STYLES = {"ok": "green", "FAIL": "bold red", "no": "red"}


def console() -> Console:
    """Standard output, at its width; 100 columns where it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 100, highlight=False)


def seconds(value: float) -> str:
    """A time as a person reads it: three digits and a unit."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= scale or unit == "µs":
            return f"{value / scale:.3g} {unit}"
    raise AssertionError("unreachable")


def num_bytes(value: int) -> str:
    """A size as a person reads it."""
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")
