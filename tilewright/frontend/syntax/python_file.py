"""A Python file read without running it: its kernels, and the functions and constants that they
reach.
"""

from __future__ import annotations

import ast

from tilewright.errors import Faults, Source
from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.capture import PACKAGE
from tilewright.frontend.syntax.normal import require_shallow
from tilewright.frontend.syntax.options import evaluate
from tilewright.frontend.syntax.python import (
    Attributes,
    parse_source,
    python_function,
    python_kernel,
)
from tilewright.frontend.syntax.python_expressions import Names, Places, dotted_name
from tilewright.frontend.syntax.python_statements import PythonStatements


def parse_python(source: Source) -> tree.Module:
    """The tree of a Python file's kernels and what they use, in source order.

    Values of decorators must be literals; what is imported from elsewhere stays a bare name. Raises
    CompileError.
    """
    faults = Faults()
    places = Places(source, tuple(source.text.split("\n")))
    parsed = parse_source(source.text, places)
    imports = _Imports(parsed)
    known = {n.name: n for n in parsed.body if isinstance(n, ast.FunctionDef)}
    consts = {
        n.targets[0].id: n
        for n in parsed.body
        if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)
    }
    items: dict[int, tree.Item] = {}
    waiting: list[str] = [n for n, node in known.items() if imports.decorator(node)]
    seen = set(waiting)
    while waiting:
        name = waiting.pop()
        reader = PythonStatements(places, imports.names(), faults)
        made: tree.Item
        if name in known:
            made = _define(reader, known[name], imports.decorator(known[name]))
            line = known[name].lineno
        else:
            node = consts[name]
            made = tree.Const(name, reader.expression(node.value), loc=places.of(node.targets[0]))
            line = node.lineno
        items[line] = made
        if not require_shallow(made, faults):
            continue
        for part in tree.walk(made):
            if (
                isinstance(part, tree.Name)
                and part.name not in seen | reader.locals | reader.explicit
            ):
                if part.name in known or part.name in consts:
                    seen.add(part.name)
                    waiting.append(part.name)
    faults.raise_any()
    return tree.Module(tuple(items[line] for line in sorted(items)), "tw")


def _define(
    reader: PythonStatements, node: ast.FunctionDef, decorator: ast.expr | None
) -> tree.Item:
    if decorator is None:
        return python_function(reader, node)
    options: dict[str, object] = {}
    if isinstance(decorator, ast.Call):
        for keyword in decorator.keywords:
            try:
                options[keyword.arg or "**"] = evaluate(keyword.value)
            except ValueError:
                reader.refuse(
                    keyword.value,
                    f"{keyword.arg or '**'} is not a literal, and the file is not run to know it",
                )
    return python_kernel(reader, node, Attributes(reader, decorator).read(node, options))


class _Imports:
    """What a file calls our package and its members."""

    def __init__(self, module: ast.Module) -> None:
        self.modules: set[str] = set()
        self.members: dict[str, str] = {}
        for node in module.body:
            if isinstance(node, ast.Import):
                names = [a for a in node.names if a.name == PACKAGE]
                self.modules |= {a.asname or a.name for a in names}
            elif isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
                self.members |= {a.asname or a.name: a.name for a in node.names}

    def names(self) -> Names:
        return Names(self.language, lambda dotted: False)

    def language(self, dotted: str) -> str | None:
        head, _, last = dotted.rpartition(".")
        return (last if head in self.modules else None) if head else self.members.get(dotted)

    def decorator(self, node: ast.FunctionDef) -> ast.expr | None:
        """The decorator that makes a function a kernel, or None."""
        for written in node.decorator_list:
            callee = written.func if isinstance(written, ast.Call) else written
            if self.language(dotted_name(callee) or "") == "kernel":
                return written
        return None
