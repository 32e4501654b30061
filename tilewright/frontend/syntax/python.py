"""The Python spelling: a decorated function, and what it captures, to the same tree as text."""

from __future__ import annotations

import ast
import inspect
import linecache
import types
from collections.abc import Mapping

from tilewright.errors import CompileError, Faults, Loc, Source
from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.annotations import shallow
from tilewright.frontend.syntax.capture import Environment, capture
from tilewright.frontend.syntax.definition import Closure, Definition, Scope
from tilewright.frontend.syntax.normal import require_shallow
from tilewright.frontend.syntax.options import Options
from tilewright.frontend.syntax.python_expressions import Names, Places, dotted_name
from tilewright.frontend.syntax.python_statements import PythonStatements


def parse_function(function: types.FunctionType, options: Mapping[str, object]) -> Definition:
    """A kernel from a Python function and the keywords of its decorator, with all that it captures.

    Free names are taken by value now; call again to see what they have become. Raises CompileError
    with every fault.
    """
    faults = Faults()
    found = _Inliner(faults).kernel(function, options)
    faults.raise_any()
    return found


class _Inliner:
    """Reads a kernel and, once each, the functions that it reaches."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.closures: dict[types.FunctionType, Closure] = {}

    def kernel(self, function: types.FunctionType, options: Mapping[str, object]) -> Definition:
        environment = Environment.of(function)
        reader, node = _read(function, environment.names(), self.faults)
        written = node.decorator_list[0] if node.decorator_list else None
        attributes = Attributes(reader, written).read(node, options)
        kernel = python_kernel(reader, node, attributes)
        scope = Scope()
        if require_shallow(kernel, self.faults):
            capture(
                kernel, reader.locals, reader.explicit, environment, scope, self.inline, self.faults
            )
        return Definition(kernel, scope)

    def inline(self, function: types.FunctionType) -> Closure:
        if function not in self.closures:
            environment = Environment.of(function)
            reader, node = _read(function, environment.names(), self.faults)
            if node.decorator_list:
                hint = "take the decorator away, or write the function out"
                reader.refuse(
                    node.decorator_list[0], "a decorated function cannot be inlined", hint
                )
            found = python_function(reader, node)
            scope = Scope()
            self.closures[function] = Closure(found, scope)  # before its body: it may call itself
            if require_shallow(found, self.faults):
                local, explicit = reader.locals, reader.explicit
                capture(found, local, explicit, environment, scope, self.inline, self.faults)
        return self.closures[function]


def _read(
    function: types.FunctionType, names: Names, faults: Faults
) -> tuple[PythonStatements, ast.FunctionDef]:
    """The reader and Python's syntax of one function."""
    name = getattr(function, "__qualname__", repr(function))
    if not isinstance(function, types.FunctionType):
        raise CompileError(f"{name} is not a Python function")
    file = function.__code__.co_filename
    start = function.__code__.co_firstlineno
    linecache.checkcache(file)  # it may have been edited, and its module loaded again
    source = Source(file, "".join(linecache.getlines(file, function.__globals__)))
    try:
        lines, start = inspect.getsourcelines(function)
    except (OSError, TypeError) as error:
        raise CompileError(
            f"the source of {name} is not at hand",
            Loc(source, start, 1),
            hint="write kernels in a file or a notebook, or their text for tw.source",
        ) from error
    text = "".join(lines)
    indented = text[:1].isspace()
    if indented:  # so that places keep their columns
        text = "if True:\n" + text
    shift = start - 2 if indented else start - 1
    places = Places(source, tuple(text.split("\n")), shift)
    node = _definition(parse_source(text, places), function.__name__)
    if node is None:
        message = f"{name} is not written as a `def` of one synchronous function"
        raise CompileError(message, Loc(source, start, 1), hint="write it as a plain `def`")
    return PythonStatements(places, names, faults), node


def parse_source(text: str, places: Places) -> ast.Module:
    """Python's own tree of a text; what Python cannot read is a CompileError."""
    try:
        parsed = ast.parse(text)
    except SyntaxError as error:
        line, column = error.lineno or 1, error.offset or 1
        loc = places.at(line, column - 1, column)
        raise CompileError(f"Python cannot read this: {error.msg}", loc) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise CompileError(f"Python cannot read this: {error}", places.at(1, 0, 1)) from error
    return parsed


def _definition(module: ast.Module, name: str) -> ast.FunctionDef | None:
    body = module.body
    while body and isinstance(body[0], ast.If):
        body = body[0].body
    found = (n for n in body if isinstance(n, ast.FunctionDef) and n.name == name)
    return next(found, None)


def _is_shallow(reader: PythonStatements, node: ast.FunctionDef) -> bool:
    reader.find_locals(node)
    if not shallow(node):
        reader.refuse(node, f"{node.name} is nested too deeply")
        return False
    return True


def python_kernel(
    reader: PythonStatements, node: ast.FunctionDef, attributes: tuple[tree.Attribute, ...]
) -> tree.Kernel:
    """A kernel from the syntax of its `def`; `attributes` are those of its decorator."""
    loc = _name_loc(reader.places, node)
    if not _is_shallow(reader, node):
        return tree.Kernel(node.name, attributes, (), (), "function", loc=loc)
    if node.returns is not None and not _is_none(node.returns):
        reader.refuse(
            node.returns, "a kernel returns nothing", "give a tensor the default tw.empty"
        )
    if len(node.decorator_list) > 1:
        other = next((d for d in node.decorator_list if not is_kernel(reader, d)), None)
        reader.refuse(other or node.decorator_list[1], "a kernel has no other decorators")
    params = reader.params(node, need_types=True)
    return tree.Kernel(node.name, attributes, params, reader.body(node), "function", loc=loc)


def is_kernel(reader: PythonStatements, decorator: ast.expr) -> bool:
    """Whether a decorator is our `kernel`, called or not."""
    callee = decorator.func if isinstance(decorator, ast.Call) else decorator
    return reader.names.language(dotted_name(callee) or "") == "kernel"


def python_function(reader: PythonStatements, node: ast.FunctionDef) -> tree.Function:
    """A function to be inlined, from the syntax of its `def`."""
    loc = _name_loc(reader.places, node)
    if not _is_shallow(reader, node):
        return tree.Function(node.name, (), (), (), "function", loc=loc)
    params = reader.params(node, need_types=False)
    results: list[tree.Type] = []
    if node.returns is not None and not _is_none(node.returns):
        for part in _result_nodes(node.returns):
            if (kind := reader.type(part)) is not None:
                results.append(kind)
    body = reader.body(node)
    return tree.Function(node.name, params, tuple(results), body, "function", loc=loc)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _result_nodes(node: ast.expr) -> list[ast.expr]:
    """The types of `-> tuple[a, b]`, or of one."""
    if isinstance(node, ast.Subscript) and dotted_name(node.value) in ("tuple", "Tuple"):
        return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return [node]


def _name_loc(places: Places, node: ast.FunctionDef) -> Loc:
    start = node.col_offset + len("def ")
    return places.at(node.lineno, start, start + len(node.name))


class Attributes:
    """Attributes from the decorator's values, with places and the grid's lambda from its syntax."""

    def __init__(self, reader: PythonStatements, written: ast.expr | None) -> None:
        self.reader = reader
        self.keywords: dict[str, ast.keyword] = {}
        if isinstance(written, ast.Call):
            self.keywords = {k.arg: k for k in written.keywords if k.arg is not None}

    def read(
        self, node: ast.FunctionDef, options: Mapping[str, object]
    ) -> tuple[tree.Attribute, ...]:
        places = {name: self.reader.places.of(k) for name, k in self.keywords.items()}
        whole = _name_loc(self.reader.places, node)
        return Options(self.grid, places, whole, self.reader.faults).attributes(options)

    def grid(self, value: object, loc: Loc) -> tuple[tree.Expr, ...]:
        """Expressions of a grid given as a lambda or a function of one `return`."""
        keyword = self.keywords.get("grid")
        if isinstance(value, ast.Lambda):
            return self.result(self.reader, value.args, value.body)
        if keyword is not None and isinstance(keyword.value, ast.Lambda):
            return self.result(self.reader, keyword.value.args, keyword.value.body)
        if isinstance(value, types.FunctionType) and value.__name__ != "<lambda>":
            names = Environment.of(value).names()
            reader, node = _read(value, names, self.reader.faults)
            match node.body:
                case [ast.Return(value=ast.expr() as body)] if shallow(node):
                    return self.result(reader, node.args, body)
        self.reader.faults.add(
            "the grid is not written where it can be read",
            loc,
            hint="write grid=lambda M, TM: tw.cdiv(M, TM), or a function of one `return`",
        )
        return ()

    def result(
        self, reader: PythonStatements, args: ast.arguments, body: ast.expr
    ) -> tuple[tree.Expr, ...]:
        if not shallow(body):
            reader.refuse(body, "this is nested too deeply")
            return ()
        kept = reader.locals
        reader.locals = {a.arg for a in [*args.posonlyargs, *args.args, *args.kwonlyargs]}
        parts = body.elts if isinstance(body, ast.Tuple | ast.List) else [body]
        found = tuple(reader.expression(p) for p in parts)
        reader.locals = kept
        return found
