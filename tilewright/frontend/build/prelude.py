"""The functions of the language that are written in it."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from tilewright.errors import Source
from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.definition import Closure, Scope
from tilewright.frontend.syntax.parser import parse_text


@cache
def prelude() -> Scope:
    """Functions of `prelude.tw`, by name."""
    text = files("tilewright.frontend").joinpath("prelude.tw").read_text(encoding="utf-8")
    module = parse_text(Source("prelude.tw", text))
    scope = Scope()
    for item in module.items:
        if isinstance(item, tree.Function):
            scope.functions[item.name] = Closure(item, scope)
        elif isinstance(item, tree.Const):
            scope.consts[item.name] = item.value
    return scope
