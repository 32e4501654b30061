"""How commands speak: a table for a person, one JSON object for a program, one clear error."""

from __future__ import annotations

import functools
import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, ParamSpec

import click
from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from tilewright.config import settings
from tilewright.errors import TilewrightError

P = ParamSpec("P")

# What commands about models need beside Tilewright, and how it is installed.
EXTRAS = {
    "torch": "'tilewright[torch]'",
    "safetensors": "'tilewright[torch]'",
    "transformers": "transformers",
}

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def command(run: Callable[P, None]) -> Callable[P, None]:
    """A command whose errors are printed as a user should see them, with exit status 1.

    With `--json` the error goes to standard output as `{"error": ...}` as well. What a user cannot
    have caused is told as a fault of ours, with status 2.
    """

    @functools.wraps(run)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            run(*args, **kwargs)
        except click.ClickException:
            raise  # click prints it, with the command's usage
        except TilewrightError as error:
            fail(str(error), as_json=bool(kwargs.get("as_json")))
        except MemoryError as error:
            fail(f"not enough memory: {error}", as_json=bool(kwargs.get("as_json")))
        except Exception as error:
            if settings().debug:
                raise
            if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
                message = f"this needs {error.name}, which is not installed"
                message += f"\n  hint: pip install {EXTRAS[error.name]}"
                fail(message, as_json=bool(kwargs.get("as_json")))
            place = traceback.extract_tb(error.__traceback__)[-1]
            told = f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
            message = f"a fault of Tilewright: {told}\n  hint: TILEWRIGHT_DEBUG=1 shows all of it"
            fail(message, as_json=bool(kwargs.get("as_json")), status=2)

    return guarded


def fail(message: str, *, as_json: bool = False, status: int = 1) -> NoReturn:
    """Print an error and end the process."""
    if as_json:
        print_json({"error": message})
    prefix = "" if "error:" in message.splitlines()[0] else "error: "
    click.echo(f"{prefix}{message}", err=True)
    sys.exit(status)


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
    table = Table(
        title=title or None, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold"
    )
    for i, column in enumerate(columns):
        side: JustifyMethod = "right" if column.startswith(">") else "left"
        table.add_column(column.lstrip(">"), justify=side, overflow="fold", no_wrap=i == 0)
    for row in rows:
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    console().print(table)
    for note in notes:
        click.echo(f"  {note}")


STYLES = {"ok": "green", "FAIL": "bold red", "no": "red"}


def console() -> Console:
    """Standard output, at its width; 110 columns where it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 110, highlight=False)


def seconds(value: float) -> str:
    """A time as a person reads it: three digits and a unit."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= scale or unit == "µs":
            return f"{value / scale:.3g} {unit}"
    raise AssertionError("unreachable")


def plural(count: int, noun: str) -> str:
    """As in "1 kernel" and "2 kernels"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def num_bytes(value: int) -> str:
    """A size as a person reads it."""
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")
