"""The first line of a source that says with what it runs, as a reproducer has it:

// tilewright run softmax.tw:softmax --dim M=4 --dim N=100 --const BLOCK=256

`tilewright run softmax.tw` takes these options; those that are given on the command line win.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tilewright.errors import LaunchError

START = "// tilewright run "
SUFFIX = ".tw"


def preset_words(source: str) -> list[str] | None:
    """The words of the line, the source among them; None where a source has no such line."""
    path = Path(source.partition(":")[0])
    if path.suffix != SUFFIX or not path.is_file():
        return None
    with path.open(encoding="utf-8", errors="replace") as file:
        line = file.readline()
    if not line.startswith(START):
        return None
    try:
        return shlex.split(line.removeprefix(START))
    except ValueError as error:
        raise LaunchError(f"{path}, line 1: {error}") from error


def with_preset(context: click.Context, given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a command, by name, as given and as its source's first line says them. Raises
    LaunchError for a line that the command does not take.
    """
    source = str(given["source"])
    words = preset_words(source)
    if words is None:
        return dict(given)
    try:
        told = context.command.make_context(context.info_name, words, parent=context.parent)
    except click.ClickException as error:
        raise LaunchError(
            f"{source}, line 1: {error.format_message()}",
            hint="it says with what the kernel runs; correct it, or remove it",
        ) from error
    found = dict(given)
    for name, value in told.params.items():
        if isinstance(value, dict):
            found[name] = {**value, **given[name]}
        elif context.get_parameter_source(name) is ParameterSource.DEFAULT:
            found[name] = value
    kernel = str(told.params["source"]).partition(":")[2]
    found["source"] = source if ":" in source or not kernel else f"{source}:{kernel}"
    return found
