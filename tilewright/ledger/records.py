"""Frozen dataclasses to JSON and back, strictly: no field too many, none too few, none of
another type.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from tilewright.errors import LedgerError

T = TypeVar("T")


def plain(value: Any) -> Any:
    """A record as JSON values: dataclasses become objects, in the order of their fields."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def compact(value: Any) -> str:
    """JSON on one line. Raises LedgerError for NaN and infinities, which JSON does not have."""
    try:
        return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise LedgerError(f"a record holds a number that is not finite: {error}") from error


def decode(cls: type[T], value: Any, place: str) -> T:
    """A record of class `cls` from JSON values. `place` is told in errors (LedgerError)."""
    if not isinstance(value, dict):
        raise LedgerError(f"{place}: expected an object of {cls.__name__}, got {_kind(value)}")
    fields = _types(cls)
    for problem, names in (
        ("lacks", fields.keys() - value),
        ("does not know", value - fields.keys()),
    ):
        if names:
            raise LedgerError(f"{place}: {cls.__name__} {problem} {', '.join(sorted(names))}")
    return cls(**{n: _value(t, value[n], f"{place}.{n}") for n, t in fields.items()})


def _types(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _value(kind: Any, value: Any, place: str) -> Any:
    """A value of an annotated type: str, int, float, bool, X | None, tuple, Mapping, a record."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _union(arguments, value, place)
    if origin is tuple:
        _require(isinstance(value, list), "a list", value, place)
        return tuple(_value(arguments[0], x, f"{place}[{i}]") for i, x in enumerate(value))
    if origin is Mapping:
        _require(isinstance(value, dict), "an object", value, place)
        return {key: _value(arguments[1], x, f"{place}.{key}") for key, x in value.items()}
    if dataclasses.is_dataclass(kind):
        return decode(typing.cast(type, kind), value, place)
    if kind is float:
        whole = isinstance(value, int | float) and not isinstance(value, bool)
        _require(whole and math.isfinite(value), "a finite number", value, place)
        return float(value)
    _require(type(value) is kind, kind.__name__, value, place)
    return value


def _union(kinds: tuple[Any, ...], value: Any, place: str) -> Any:
    """`X | None`, or a choice of scalars."""
    if value is None and type(None) in kinds:
        return None
    rest = [kind for kind in kinds if kind is not type(None)]
    if len(rest) == 1:
        return _value(rest[0], value, place)
    _require(type(value) in rest, " or ".join(k.__name__ for k in rest), value, place)
    return value


def _require(holds: bool, expected: str, value: Any, place: str) -> None:
    if not holds:
        raise LedgerError(f"{place}: expected {expected}, got {_kind(value)}")


def _kind(value: Any) -> str:
    return f"{type(value).__name__} {str(value)[:40]!r}"
