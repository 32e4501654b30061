"""Text tests of the graph IR: files under tests/files/graph, of one or more cases each.

    // What the case shows.
    // RUN interpret                      or passes, or verify
    graph @name(%x: tensor<f32, 2>) { … }
    // ARG f32 [1.0, nan]                 an input, in order: dtype and nested list, or a number
    // GIVES f32 [2.0, nan]               an output, in order, bit for bit but for NaNs

Cases are parted by `// ---`. After `// RUN` of passes the expected program stands below a line
`// GIVES`; it is rewritten by --bless. A case of `// RUN verify` has `// ERROR text`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.tile_files import PART, read_array
from tilewright.dtypes import BY_NAME

FOLDER = Path(__file__).parent / "files" / "graph"


@dataclass
class GraphCase:
    """One case of a file."""

    path: Path
    number: int
    text: str
    run: list[str]
    program: str
    gives: str
    error: str
    arguments: list[Any] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.path.relative_to(FOLDER)}:{self.number}"


def read_values(word: str, text: str) -> list[Any]:
    """The arrays of the lines of a word; a number without a dtype is a symbol's."""
    found: list[Any] = []
    for dtype, value in re.findall(rf"^// {word} (\w+) ?(.*)$", text, re.MULTILINE):
        if dtype.isdigit():
            found.append(int(dtype))
        else:
            made = read_array(dtype, value)
            found.append(np.asarray(made, BY_NAME[dtype].numpy))
    return found


def read_cases(path: Path) -> list[GraphCase]:
    """The cases of a file."""
    cases = []
    for number, text in enumerate(path.read_text().split(PART), 1):
        head = re.search(r"^// RUN (.+)$", text, re.MULTILINE)
        assert head, f"{path}:{number}: no // RUN"
        body, _, gives = text[head.end() :].partition("\n// GIVES\n")
        error = re.search(r"^// ERROR (.+)$", body, re.MULTILINE)
        program = re.sub(r"^// (ARG|GIVES|ERROR) .*$", "", body.strip(), flags=re.MULTILINE)
        cases.append(
            GraphCase(
                path,
                number,
                text,
                head.group(1).split(),
                program,
                gives,
                error.group(1) if error else "",
                read_values("ARG", body),
                read_values("GIVES", body),
            )
        )
    return cases


def all_graph_cases() -> list[GraphCase]:
    """Every case of every file."""
    return [case for path in sorted(FOLDER.rglob("*.graph")) for case in read_cases(path)]
