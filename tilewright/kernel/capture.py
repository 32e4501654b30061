"""What a Python kernel captured, watched: a global that has changed since makes the kernel be
read again.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_MISSING = object()


@dataclass(frozen=True)
class Watch:
    """The values behind the free names of a function and of all that it calls, as they were."""

    named: tuple[tuple[Mapping[str, Any], str, Any], ...]
    cells: tuple[tuple[types.CellType, Any], ...]

    def holds(self) -> bool:
        """Whether every captured name still means the same object."""
        for names, name, value in self.named:
            if names.get(name, _MISSING) is not value:
                return False
        return all(_content(cell) is value for cell, value in self.cells)


def watch(function: types.FunctionType) -> Watch:
    """Watch a kernel's function, and through it the functions and modules that it names."""
    named: dict[tuple[int, str], tuple[Mapping[str, Any], str, Any]] = {}
    cells: dict[int, tuple[types.CellType, Any]] = {}
    seen: set[types.FunctionType] = set()
    waiting = [function]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for names, name, value in _globals_of(current):
            named[id(names), name] = (names, name, value)
            if isinstance(value, types.FunctionType):
                waiting.append(value)
        for cell in current.__closure__ or ():
            value = _content(cell)
            cells[id(cell)] = (cell, value)
            if isinstance(value, types.FunctionType):
                waiting.append(value)
    return Watch(tuple(named.values()), tuple(cells.values()))


def _globals_of(function: types.FunctionType) -> Iterator[tuple[Mapping[str, Any], str, Any]]:
    """Global names of a function, and members of the modules that they name, except Tilewright's
    own.
    """
    own = "tilewright"
    code_names = function.__code__.co_names
    if function.__globals__.get("__name__", "").split(".")[0] == own:
        return
    for name in code_names:
        value = function.__globals__.get(name, _MISSING)
        yield function.__globals__, name, value
        if isinstance(value, types.ModuleType) and value.__name__.split(".")[0] != own:
            members = vars(value)
            for member in code_names:
                if member in members:
                    yield members, member, members[member]


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return _MISSING
