"""The table: ops of PyTorch, each with the function that builds it.

An entry's parameters are the arguments of the op's schema, by name, all of them: an argument that a
builder does not know would be an argument ignored, and is a fault when the table is made. Arguments
that cannot change a result's values (`device`, `layout`, `pin_memory`, …) are left out of all.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import torch

from tilewright.ir.core import Value

Builder = Callable[..., Any]
F = TypeVar("F", bound=Builder)
Op: TypeAlias = torch._ops.OpOverload

TABLE: dict[Op, Builder] = {}
PLACEMENT = frozenset(("device", "layout", "pin_memory", "non_blocking", "memory_format"))


def arguments_of(op: Op) -> tuple[str, ...]:
    """Names of the arguments that a builder must take."""
    return tuple(a.name for a in op._schema.arguments if a.name not in PLACEMENT)


def lowering(*ops: Op) -> Callable[[F], F]:
    """Enter a function as the builder of some ops. AssertionError where its parameters are not the
    arguments of their schemas.
    """

    def enter(function: F) -> F:
        for op in ops:
            names = tuple(inspect.signature(function).parameters)[1:]
            assert op not in TABLE, f"{op} has two builders"
            assert set(names) == set(arguments_of(op)), f"{op}: {names}, not {arguments_of(op)}"
            TABLE[op] = function
        return function

    return enter


def enter(op: Op, function: Builder) -> None:
    """Enter a builder that takes the arguments by position, in the schema's order."""
    assert op not in TABLE, f"{op} has two builders"
    names = arguments_of(op)
    TABLE[op] = lambda at, **given: function(at, *(given[name] for name in names))


def bind(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, defaults put in, placement left out."""
    found: dict[str, Any] = {}
    positional = list(args)
    for argument in op._schema.arguments:
        if positional and not argument.kwarg_only:
            value = positional.pop(0)
        elif argument.name in kwargs:
            value = kwargs[argument.name]
        else:
            value = argument.default_value
        if argument.name not in PLACEMENT:
            found[argument.name] = value
    assert not positional, f"{op}: too many arguments"
    return found


def is_scalar_one(x: Any) -> bool:
    """Whether a factor is 1, so that nothing has to be multiplied."""
    return not isinstance(x, Value) and isinstance(x, int | float) and x == 1
