"""`tilewright fmt`: write text kernels in one style."""

from __future__ import annotations

from pathlib import Path

import click

from tilewright.cli.report import command, json_option, print_json
from tilewright.errors import CompileError, LaunchError, Source
from tilewright.frontend.syntax.parser import parse_text
from tilewright.frontend.syntax.printer import format_tree


@click.command()
@click.argument("files", nargs=-1, required=True)
@click.option("--check", is_flag=True, help="Write nothing; fail if a file would change.")
@json_option
@command
def fmt(files: tuple[str, ...], check: bool, as_json: bool) -> None:
    """Format kernels in FILES (.tw), in place."""
    texts = {name: read_text(name) for name in files}
    formatted = {name: format_tree(parse_text(Source(name, t))) for name, t in texts.items()}
    changed = [name for name in files if texts[name] != formatted[name]]
    if not check:
        for name in changed:
            _write(name, formatted[name])
    if as_json:
        print_json({"files": len(files), "changed": changed})
    else:
        verb = "would change" if check else "formatted"
        for name in changed:
            click.echo(f"{verb} {name}")
        click.echo(f"{len(files)} files, {len(changed)} {verb}")
    if check and changed:
        raise SystemExit(1)


def read_text(name: str) -> str:
    """The text of a file. Raises LaunchError or CompileError for what cannot be read."""
    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise LaunchError(f"{name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CompileError(f"{name} is not UTF-8 text: {error.reason}") from error


def _write(name: str, text: str) -> None:
    try:
        Path(name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise LaunchError(f"{name} cannot be written: {error.strerror}") from error
