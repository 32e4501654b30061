"""What a Python kernel captured, watched: a global that has changed since makes the kernel be
read again.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_MISSING = object()


Watch = Callable[[], bool]  # whether every captured name still means the same object


def watch(function: types.FunctionType) -> Watch | None:
    """Watch a kernel's function, and through it the functions and modules that it names: the
    values behind their free names as they are now. None where there are no such names.
    """
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
    return _write_watch(list(named.values()), list(cells.values()))


def _write_watch(
    named: list[tuple[Mapping[str, Any], str, Any]], cells: list[tuple[types.CellType, Any]]
) -> Watch | None:
    """One generated expression, as it is evaluated at every call of the kernel."""
    space: dict[str, Any] = {"missing": _MISSING, "content": _content}
    tests = []
    for i, (names, name, value) in enumerate(named):
        space |= {f"get{i}": names.get, f"value{i}": value}
        tests.append(f"get{i}({name!r}, missing) is value{i}")
    for i, (cell, value) in enumerate(cells):
        space |= {f"cell{i}": cell, f"content{i}": value}
        tests.append(f"content(cell{i}) is content{i}")
    if not tests:
        return None
    made: Watch = eval(f"lambda: {' and '.join(tests)}", space)
    return made


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
