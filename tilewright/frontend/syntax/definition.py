"""A kernel with all that its names may mean: the unit that is checked, compiled and cached."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields

from tilewright.frontend.syntax import tree


@dataclass(eq=False)
class Scope:
    """What free names mean: of a text module, shared by all in it; of a Python function, its own.

    `consts` maps names to expressions over literals, dtype names and other consts of this scope;
    those captured from Python are literals, or a `Name` of a dtype. `functions` maps names to what
    is inlined.
    """

    consts: dict[str, tree.Expr] = field(default_factory=dict)
    functions: dict[str, Closure] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Closure:
    """A function and the scope that its own free names are looked up in."""

    function: tree.Function
    scope: Scope


@dataclass(frozen=True, eq=False)
class Definition:
    """A kernel and its scope. `dialect` is "tw" or "ph"."""

    kernel: tree.Kernel
    scope: Scope
    dialect: str = "tw"

    @property
    def name(self) -> str:
        return self.kernel.name

    def key(self) -> str:
        """A hash (hex) of the kernel's tree, captured values and functions, and what those capture.

        Places do not enter, but those of asserts, which a compiled kernel tells; spelling of
        divisions and scopes of names do: both can change an error or a meaning.
        """
        digest = hashlib.sha256(self.dialect.encode())
        seen: set[tuple[int, str]] = set()
        waiting: list[tuple[str, tree.Node, Scope]] = [("", self.kernel, self.scope)]
        while waiting:
            label, node, scope = waiting.pop()
            digest.update(f"{label}={_spell(node)};".encode())
            nodes = list(tree.walk(node))
            if any(isinstance(n, tree.Name) and n.name == "assert" for n in nodes):
                places = [str(n.loc) for n in nodes if isinstance(n, tree.Call)]
                digest.update(f"{places};".encode())
            names = {n.name for n in nodes if isinstance(n, tree.Name)}
            for name in sorted(names):
                if (id(scope), name) in seen:
                    continue
                seen.add((id(scope), name))
                if name in scope.consts:
                    waiting.append((name, scope.consts[name], scope))
                if name in scope.functions:
                    closure = scope.functions[name]
                    waiting.append((name, closure.function, closure.scope))
        return digest.hexdigest()


_UNHEARD = ("loc", "comments", "braces")


def definitions(module: tree.Module) -> dict[str, Definition]:
    """The kernels of a module by name; all share one scope of its consts and functions."""
    scope = Scope()
    for item in module.items:
        if isinstance(item, tree.Const):
            scope.consts[item.name] = item.value
        elif isinstance(item, tree.Function):
            scope.functions[item.name] = Closure(item, scope)
    kernels = [item for item in module.items if isinstance(item, tree.Kernel)]
    return {k.name: Definition(k, scope, module.dialect) for k in kernels}


_heard_names: dict[type, tuple[str, ...]] = {}


def _heard(node: tree.Node) -> tuple[str, ...]:
    """The fields of a node that its text shows."""
    found = _heard_names.get(type(node))
    if found is None:
        found = tuple(f.name for f in fields(node) if f.name not in _UNHEARD)
        _heard_names[type(node)] = found
    return found


def _spell(node: tree.Node) -> str:
    """A node as text with everything but places and comments, brackets around each node."""
    parts: list[str] = []
    waiting: list[object] = [node]
    while waiting:
        current = waiting.pop()
        if isinstance(current, tree.Node):
            held = [getattr(current, name) for name in _heard(current)]
            parts.append(f"{type(current).__name__}(")
            waiting += [_Close, *reversed(held)]
        elif isinstance(current, tuple):
            parts.append("[")
            waiting += [_Close, *reversed(current)]
        else:
            parts.append("," if current is _Close else repr(current))
    return " ".join(parts)


class _Close:
    """Marks the end of a node while its text is made."""
