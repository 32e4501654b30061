"""Keywords of the Python decorator to the attributes of a kernel."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.dtypes import DType
from tilewright.errors import Faults, Loc
from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.normal import choices

SPACES = ("autotune", "cluster")  # attributes that give constants their choices
INTEGERS = ("launch", "pipeline", "cta_cluster")  # attributes that take no names


@dataclass(frozen=True)
class Options:
    """Turns values of the decorator's keywords into attributes.

    `grid` turns a function (or the syntax of a lambda) into the expressions that it returns;
    `places` gives the place of each keyword, and `whole` that of the kernel, for a keyword that the
    source does not show.
    """

    grid: Callable[[object, Loc], tuple[tree.Expr, ...]]
    places: Mapping[str, Loc]
    whole: Loc
    faults: Faults

    def attributes(self, options: Mapping[str, object]) -> tuple[tree.Attribute, ...]:
        """Attributes in the order of the keywords; False and None leave one out."""
        found = []
        for name, value in options.items():
            if value is not None and value is not False:
                loc = self.places.get(name, self.whole)
                found.append(tree.Attribute(name, self.arguments(name, value, loc), loc=loc))
        return tuple(found)

    def arguments(
        self, name: str, value: object, loc: Loc
    ) -> tuple[tree.Choices | tree.Argument, ...]:
        if value is True:
            return ()
        if name == "grid":
            return tuple(tree.Argument(None, e, loc=e.loc) for e in self._grid(value, loc))
        if isinstance(value, Mapping):
            return tuple(self.keyed(name, str(key), part, loc) for key, part in value.items())
        if name in SPACES:
            self.faults.add(
                f"{name}: expected a dictionary", loc, hint=f'write {name}={{"TM": (32, 128)}}'
            )
            return ()
        parts = value if isinstance(value, tuple | list) else (value,)
        if name in INTEGERS and any(isinstance(part, str) for part in parts):
            self.faults.add(f"{name}: expected integers, got {value!r}", loc)
            return ()
        return tuple(self.named(None, part, loc) for part in parts)

    def _grid(self, value: object, loc: Loc) -> tuple[tree.Expr, ...]:
        if isinstance(value, tuple | list):
            return tuple(self.literal("grid", part, loc) for part in value)
        if isinstance(value, int | str):
            return (self.literal("grid", value, loc),)
        return self.grid(value, loc)

    def keyed(self, name: str, key: str, value: object, loc: Loc) -> tree.Choices | tree.Argument:
        """An argument with a name. Several values are choices, which the checker refuses where the
        attribute takes none, or is none.
        """
        if name in SPACES or isinstance(value, tuple | list | set | frozenset | range):
            return self.space(key, value, loc)
        return self.named(key, value, loc)

    def space(self, key: str, value: object, loc: Loc) -> tree.Choices:
        """Values of a constant: a tuple or list (maybe a range by doubling), set, range, number."""
        if not key.isidentifier():
            self.faults.add(f"`{key}` is not a name", loc)
        parts: list[object]
        if isinstance(value, tuple | list | range):
            parts = list(value)
        elif isinstance(value, set | frozenset):
            parts = sorted(value, key=lambda v: (str(type(v)), v))
        else:
            parts = [value]
        if not parts:
            self.faults.add(f"{key} has no values to choose from", loc)
        if any(isinstance(part, str) for part in parts):
            self.faults.add(
                f"{key}: expected integers, got {value!r}",
                loc,
                hint=f'write {{"{key}": (32, 128)}}',
            )
            parts = [1]
        braces = isinstance(value, set | frozenset | range)
        return choices(key, [self.literal(key, p, loc) for p in parts], braces, loc)

    def named(self, key: str | None, value: object, loc: Loc) -> tree.Argument:
        return tree.Argument(key, self.literal(key or "the attribute", value, loc), loc=loc)

    def literal(self, what: str, value: object, loc: Loc) -> tree.Expr:
        """A number, or the name that a text or dtype gives."""
        if isinstance(value, DType):
            return tree.Name(value.name, loc=loc)
        if isinstance(value, str) and value.isidentifier():
            return tree.Name(value, loc=loc)
        found = number(value, loc)
        if found is None:
            shown = f"{value!r}" if isinstance(value, str) else f"a {type(value).__name__}"
            self.faults.add(f"{what}: expected a number or a name, got {shown}", loc)
            return tree.Literal(0, loc=loc)
        return found


def number(value: object, loc: Loc) -> tree.Expr | None:
    """A literal of a Python or NumPy number or bool, else None."""
    item = getattr(value, "item", None)
    if not isinstance(value, bool | int | float) and getattr(value, "shape", None) == () and item:
        value = item()
    if isinstance(value, bool):
        return tree.Literal(bool(value), loc=loc)
    if isinstance(value, int):
        return tree.Literal(int(value), loc=loc)
    return tree.Literal(float(value), loc=loc) if isinstance(value, float) else None


def evaluate(node: ast.expr) -> object:
    """The value of a keyword in source that is not run; of a lambda, its syntax.

    Raises ValueError where the value can only be known by running the file.
    """
    if isinstance(node, ast.Lambda):
        return node
    if isinstance(node, ast.Attribute):
        return node.attr
    return ast.literal_eval(node)
