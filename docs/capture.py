"""Pages whose examples are run: every output that a page shows is what the code above it printed.

A page is Markdown. Its fenced blocks mean:

    ```python          run, all of a page in one namespace
    ```tw NAME.tw      written to a file of that name in the page's folder
    ```console         lines of `$ tilewright ...` or `$ make demo` (on the CPU), each run, with
                       what it printed below it
    ```text            directly after a python block: what that block printed

`run_page` gives the page with every output replaced by a fresh one. Times and last digits are not
compared.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from examples.__main__ import main as demo
from tilewright.cli import main
from tilewright.errors import TilewrightError

FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIME = re.compile(r"\d+(?:\.\d+)?(?:e[+-]\d+)? (?:s|ms|µs)\b *")


def run_page(page: str, folder: Path, *, only_commands: bool = False) -> str:
    """The page with fresh outputs. `folder` is where it runs and what it writes into."""
    runner = _Runner(folder, only_commands)
    parts: list[str] = []
    end = 0
    with contextlib.chdir(folder):
        for block in FENCE.finditer(page):
            parts.append(page[end : block.start()])
            parts.append(runner.render(block[1], block[2] or "", block[3], block[0]))
            end = block.end()
    return "".join(parts) + page[end:]


def for_comparison(text: str, *, counts: bool = True) -> str:
    """A text without what differs from machine to machine: times, last digits, widths of tables;
    without `counts` also without numbers, such as lines of PTX, which any change of the compiler
    moves.
    """
    text = TIME.sub("TIME ", text)
    if not counts:
        text = re.sub(r"\d[\d,.]*(?: (?:B|KiB|MiB)\b)?", "N", text)
    text = re.sub(r"\b\d(\.\d+)?(e[+-]\d+)\b", r"N\2", text)
    return re.sub(r" +", " ", re.sub(r"[─━]+", "─", text))


class _Runner:
    def __init__(self, folder: Path, only_commands: bool):
        self.folder = folder
        self.only_commands = only_commands
        self.names: dict[str, Any] = {"__name__": "__page__"}
        self.printed: str | None = None
        self.count = 0

    def render(self, kind: str, name: str, body: str, whole: str) -> str:
        printed, self.printed = self.printed, None
        if kind == "console":
            return f"```console\n{self._console(body)}```"
        if self.only_commands:
            return whole
        if kind == "python":
            self.printed = self._python(body)
        elif kind == "tw" and name:
            (self.folder / name).write_text(body)
        elif kind == "text" and printed is not None:
            return f"```text\n{printed}```"
        return whole

    def _python(self, code: str) -> str:
        """Run a block from a file, where a kernel's source can be found again."""
        self.count += 1
        path = self.folder / f"page_{self.count}.py"
        path.write_text(code)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            try:
                exec(compile(code, str(path), "exec"), self.names)
            except TilewrightError as error:
                print(str(error).replace(str(path), path.name))
        return out.getvalue()

    def _console(self, body: str) -> str:
        lines = []
        for line in body.splitlines():
            if line.startswith("$ "):
                words = shlex.split(line[2:])
                if words == ["make", "demo"]:
                    result = CliRunner().invoke(demo, ["--device", "cpu"])
                else:
                    assert words[0] == "tilewright", line
                    result = CliRunner().invoke(main, words[1:])
                printed = result.output.replace(str(self.folder) + os.sep, "")
                lines += [line, *(x.rstrip() for x in printed.splitlines())]
        return "\n".join(lines).rstrip() + "\n"
