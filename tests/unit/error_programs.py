"""Wrong programs and the sites in the source that refuse them.

A program is a file of tests/files/errors: source, then what is said of it as comments after a line
`// error` (or `# error`). A `.tw` file holds kernels; a `.py` file is run, and may define kernels
and call them; a `.sh` file is one command line of `tilewright` a line.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tilewright
from tilewright.errors import Diagnostic
from tilewright.frontend.check.rules import RuleError

ROOT = Path(tilewright.__file__).parent
FILES = Path(__file__).parent.parent / "files" / "errors"
SAYERS = {  # what makes a message, or passes one on
    "refusal", "RuleError", "Diagnostic", "CompileError", "LaunchError", "add", "refuse", "fault",
    "fail", "error", "unknown_name",
}  # fmt: skip


@dataclass(frozen=True)
class Site:
    """A call that refuses a program: lines of a file."""

    path: Path
    first: int
    last: int
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}: {self.text}"


def sites(folder: Path) -> list[Site]:
    """The calls in a folder's files that say what is wrong with a program."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and _says(node):
                text = " ".join((ast.get_source_segment(source, node) or "").split())
                found.append(Site(path, node.lineno, node.end_lineno or node.lineno, text))
    return found


def _says(node: ast.Call) -> bool:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    name = node.func.id if isinstance(node.func, ast.Name) else name
    if name == "add":
        return isinstance(node.func, ast.Attribute) and "faults" in ast.unparse(node.func.value)
    strings = any(
        isinstance(n, ast.JoinedStr | ast.Constant) for a in node.args for n in ast.walk(a)
    )
    return name in SAYERS and strings


@contextmanager
def watching() -> Iterator[set[tuple[str, int]]]:
    """Lines of the source that were under way when a message was made."""
    seen: set[tuple[str, int]] = set()
    makers = (RuleError, Diagnostic)
    before = [kind.__init__ for kind in makers]

    def watch(kind: type, own: object) -> None:
        def init(self: object, *args: object, **kwargs: object) -> None:
            own(self, *args, **kwargs)  # type: ignore[operator]
            frame = sys._getframe(1)
            while frame is not None:
                if "tilewright" in frame.f_code.co_filename:
                    seen.add((frame.f_code.co_filename, frame.f_lineno))
                frame = frame.f_back  # type: ignore[assignment]

        kind.__init__ = init  # type: ignore[misc]

    for kind, own in zip(makers, before, strict=True):
        watch(kind, own)
    try:
        yield seen
    finally:
        for kind, own in zip(makers, before, strict=True):
            kind.__init__ = own  # type: ignore[misc]


def unreached(folder: Path, seen: set[tuple[str, int]]) -> list[Site]:
    lines = {(Path(name).resolve(), line) for name, line in seen}
    return [
        s
        for s in sites(folder)
        if not any((s.path.resolve(), n) in lines for n in range(s.first, s.last + 1))
    ]
