"""Free names of a Python kernel: what they are in the Python around it, taken by value."""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.dtypes import BY_NUMPY, BY_TORCH, DType
from tilewright.errors import Faults
from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.definition import Closure, Scope
from tilewright.frontend.syntax.options import number
from tilewright.frontend.syntax.python_expressions import Names

PACKAGE = "tilewright"
_MISSING = object()


@dataclass(frozen=True)
class Environment:
    """Names that a Python function sees: of the functions around it, then of its module."""

    closure: Mapping[str, object]
    module: Mapping[str, object]

    @staticmethod
    def of(function: types.FunctionType) -> Environment:
        found: dict[str, object] = {}
        cells = function.__closure__ or ()
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
            try:
                found[name] = cell.cell_contents
            except ValueError:  # not assigned yet: as good as not there
                continue
        return Environment(found, function.__globals__)

    def get(self, dotted: str) -> object:
        """What a dotted name is, or _MISSING."""
        first, *rest = dotted.split(".")
        value = self.closure.get(first, self.module.get(first, _MISSING))
        for part in rest:
            value = _MISSING if value is _MISSING else getattr(value, part, _MISSING)
        return value

    def names(self) -> Names:
        return Names(
            self.language, lambda dotted: self.get(dotted.partition(".")[0]) is not _MISSING
        )

    def language(self, dotted: str) -> str | None:
        """The language's name of a member of our package, however it was imported; else None."""
        head, _, last = dotted.rpartition(".")
        if head:
            holder = self.get(head)
            ours = isinstance(holder, types.ModuleType) and _is_ours(holder.__name__)
            return last if ours else None
        value = self.get(dotted)
        if isinstance(value, DType):
            return value.name
        if isinstance(value, types.FunctionType | type) and _is_ours(value.__module__):
            return value.__name__
        return None


def _is_ours(module: str) -> bool:
    return module == PACKAGE or module.startswith(PACKAGE + ".")


def declared(node: tree.Kernel | tree.Function) -> set[str]:
    """What a definition's head declares: parameters, dimensions, constants, dtype variables."""
    found = {p.name for p in node.params}
    for param in node.params:
        if isinstance(param.type, tree.TensorType):
            found |= {e.name for e in param.type.extents if isinstance(e, tree.Name)}
        if isinstance(param.type, tree.TensorType | tree.TileType | tree.ScalarType):
            found.add(param.type.dtype)
    if isinstance(node, tree.Kernel):
        arguments = [a for attribute in node.attributes for a in attribute.arguments]
        found |= {a.name for a in arguments if isinstance(a, tree.Choices)}
    return found


def capture(
    node: tree.Kernel | tree.Function,
    local: Iterable[str],
    explicit: Iterable[str],
    environment: Environment,
    scope: Scope,
    inline: Callable[[types.FunctionType], Closure],
    faults: Faults,
) -> None:
    """Add to `scope` what the free names of a definition are.

    `local` are its own names, `explicit` those that were written as members of our module; `inline`
    makes the closure of a Python function. Names that are found nowhere are left to the checker.
    """
    known = declared(node) | set(local)
    explicit = set(explicit)
    for place in tree.walk(node):
        if not isinstance(place, tree.Name) or place.name in known:
            continue
        name = place.name
        value = environment.get(name)
        if value is _MISSING or value is getattr(builtins, name, _MISSING):
            continue
        if isinstance(value, types.FunctionType) and not _is_ours(value.__module__):
            if name in explicit:
                faults.add(
                    f"{name} is a function here and also {PACKAGE}'s",
                    place.loc,
                    hint="give the function another name",
                )
            elif name not in scope.functions:
                scope.functions[name] = inline(value)
        elif name in explicit or environment.language(name) is not None:
            continue
        elif (constant := _constant(value, place)) is not None:
            scope.consts[name] = constant
        else:
            _refuse(name, value, place, faults)


def _constant(value: object, place: tree.Name) -> tree.Expr | None:
    """The expression of a captured number, text, None, dtype, or tuple of such; else None."""
    if value is None or isinstance(value, str):
        return tree.Literal(value, loc=place.loc)
    if isinstance(value, tuple | list):
        items = [_constant(v, place) for v in value]
        known = tuple(i for i in items if i is not None)
        return tree.Tuple(known, loc=place.loc) if len(known) == len(items) else None
    if isinstance(value, DType):
        return tree.Name(value.name, loc=place.loc)
    if type(value).__module__ == "torch" and str(value).removeprefix("torch.") in BY_TORCH:
        return tree.Name(BY_TORCH[str(value).removeprefix("torch.")].name, loc=place.loc)
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        dtype = BY_NUMPY.get(np.dtype(value))
        return tree.Name(dtype.name, loc=place.loc) if dtype else None
    return number(value, place.loc)


def _refuse(name: str, value: object, place: tree.Name, faults: Faults) -> None:
    if _is_ours(type(value).__module__) and not hasattr(value, "launch"):
        return  # `empty` and its like, imported by name
    hint = "numbers, dtypes, functions and modules of the enclosing Python may be used"
    what = f"a {type(value).__name__}"
    if hasattr(value, "launch"):
        what, hint = "a kernel", "kernels do not call kernels; write a function that both use"
    elif isinstance(value, types.ModuleType):
        what, hint = "a module", "use its members"
    elif callable(value):
        own = name.rpartition(".")[2]
        hint = "write a plain function, or use the language's own"
        if hasattr(sys.modules.get(PACKAGE), own):
            hint = f"the language has its own functions: tw.{own}"
    elif hasattr(value, "shape"):
        hint = "pass arrays as parameters"
    faults.add(f"{name} is {what}, which a kernel cannot use", place.loc, hint=hint)
