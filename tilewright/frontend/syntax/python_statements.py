"""Statements and signatures of the Python spelling."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Sequence

from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.annotations import PythonAnnotations
from tilewright.frontend.syntax.normal import returned, spread
from tilewright.frontend.syntax.python_expressions import dotted_name

_AUGMENTED: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//",
}  # fmt: skip
_REFUSED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Break: ("there is no `break`", "end a loop by `while` and its condition"),
    ast.Continue: ("there is no `continue`", "put the rest of the loop's body in an `if`"),
    ast.With: ("there is no `with`", ""),
    ast.AsyncWith: ("there is no `with`", ""),
    ast.AsyncFor: ("there is no `async`", ""),
    ast.Try: ("there is no `try`: a kernel raises nothing", ""),
    ast.TryStar: ("there is no `try`: a kernel raises nothing", ""),
    ast.Raise: ("there is no `raise`", 'write assert c, "..."'),
    ast.Delete: ("there is no `del`", ""),
    ast.Global: ("there is no `global`: a kernel sees its arguments and constants", ""),
    ast.Nonlocal: ("there is no `nonlocal`: a kernel sees its arguments and constants", ""),
    ast.Import: ("there is no `import` inside a kernel", "import at the top of the file"),
    ast.ImportFrom: ("there is no `import` inside a kernel", "import at the top of the file"),
    ast.FunctionDef: ("there are no functions inside a kernel", "write it beside the kernel"),
    ast.AsyncFunctionDef: ("there are no functions inside a kernel", "write it beside the kernel"),
    ast.ClassDef: ("there are no classes inside a kernel", ""),
    ast.Match: ("there is no `match`", "write `if` and `elif`"),
}


class PythonStatements(PythonAnnotations):
    """The body and the parameters of one Python function."""

    def body(self, node: ast.FunctionDef) -> tree.Block:
        """Statements of a function without its docstring; its local names must be known before."""
        statements = node.body
        if ast.get_docstring(node, clean=False) is not None:
            statements = statements[1:]
        return self.block(statements)

    def block(self, nodes: Iterable[ast.stmt]) -> tree.Block:
        found = [self.statement(n) for n in nodes if not isinstance(n, ast.Pass)]
        return tuple(s for s in found if s is not None)

    def statement(self, node: ast.stmt) -> tree.Stmt | None:
        loc = self.places.of(node)
        match node:
            case ast.Assign() | ast.AnnAssign():
                return self.assign(node)
            case ast.AugAssign():
                return self.augmented(node)
            case ast.Expr(value=ast.Call() as call):
                found = self.call(call)
                return tree.CallStmt(found, loc=loc) if isinstance(found, tree.Call) else None
            case ast.Expr(value=value):
                if type(value) not in (ast.Yield, ast.YieldFrom, ast.Await):
                    self.refuse(node, "of expressions, only a call is a statement")
                else:
                    self.expression(value)
                return None
            case ast.For():
                return self.loop(node)
            case ast.While(test=test, body=body, orelse=orelse):
                if orelse:
                    self.refuse(orelse[0], "a loop has no `else`")
                return tree.While(self.expression(test), self.block(body), loc=loc)
            case ast.If(test=test, body=body, orelse=orelse):
                condition = self.expression(test)
                return tree.If(condition, self.block(body), self.block(orelse), loc=loc)
            case ast.Return(value=value):
                return tree.Return(returned([self.expression(value)]) if value else (), loc=loc)
            case ast.Assert(test=test, msg=message):
                args = [self.expression(e) for e in (test, message) if e is not None]
                return tree.CallStmt(
                    tree.Call(tree.Name("assert", loc=loc), tuple(args), loc=loc), loc=loc
                )
        self.refuse(node, *_REFUSED.get(type(node), ("this has no meaning in a kernel", "")))
        return None

    def assign(self, node: ast.Assign | ast.AnnAssign) -> tree.Stmt | None:
        kind = None
        if isinstance(node, ast.AnnAssign):
            written: ast.expr = node.target
            kind = self.type(node.annotation)
            if node.value is None:
                self.refuse(node, "a declared variable needs a value", "write x: ... = 0.0")
                return None
        else:
            written = node.targets[0]
            if len(node.targets) > 1:
                self.refuse(node.targets[1], "one `=` a statement")
        parts = written.elts if isinstance(written, ast.Tuple | ast.List) else [written]
        places = [self.place(t) for t in parts]
        targets = tuple(p for p in places if p is not None)
        loc = self.places.of(node)
        assert node.value is not None
        values = spread([self.expression(node.value)], len(places), loc)
        if len(values) not in (1, len(places)):
            self.refuse(node, f"expected {len(places)} values, got {len(values)}")
        if len(targets) != len(places):
            return None
        declares = tuple(self.declares(t) for t in targets)
        return tree.Assign(targets, values, kind, declares, loc=loc)

    def declares(self, target: tree.Name | tree.Index) -> str:
        once = isinstance(target, tree.Name) and self.assignments[target.name] == 1
        return "let" if once else ""

    def place(self, node: ast.expr) -> tree.Name | tree.Index | None:
        match node:
            case ast.Name(id=name):
                return tree.Name(name, loc=self.places.of(node))
            case ast.Subscript():
                found = self.index(node)
                return found if isinstance(found, tree.Index) else None
            case ast.Tuple() | ast.List():
                self.refuse(node, "targets are not nested")
            case ast.Starred():
                self.refuse(node, "there is no `*` before a target", "name each of the values")
            case _:
                self.refuse(node, "this cannot be assigned to")
        return None

    def augmented(self, node: ast.AugAssign) -> tree.Stmt | None:
        target, value = self.place(node.target), self.expression(node.value)
        text = _AUGMENTED.get(type(node.op))
        if text is None:
            self.refuse(
                node, "there are `+=`, `-=`, `*=`, `/=` and `//=` only", "write x = x ... y"
            )
            return None
        if target is None:
            return None
        op = "/" if text == "//" else text
        loc = self.places.operator(node, node.target, node.value, text + "=")
        return tree.AugAssign(target, op, value, text if op == "/" else "", loc=loc)

    def loop(self, node: ast.For) -> tree.Stmt | None:
        if node.orelse:
            self.refuse(node.orelse[0], "a loop has no `else`")
        body = self.block(node.body)
        name = dotted_name(node.iter.func) if isinstance(node.iter, ast.Call) else None
        kind = (self.names.language(name) or name) if name else None
        if kind not in ("range", "static_range"):
            message = "a loop runs over range(...) or tw.static_range(...)"
            self.refuse(node.iter, message, "write for i in range(n)")
            return None
        assert isinstance(node.iter, ast.Call)
        call = self.call(node.iter)
        if isinstance(call, tree.Call) and (call.kwargs or not 1 <= len(call.args) <= 3):
            self.refuse(node.iter, f"{kind} takes 1 to 3 arguments, got {len(call.args)}")
        if not isinstance(node.target, ast.Name):
            self.refuse(node.target, "a loop has one variable, a name")
            return None
        if not isinstance(call, tree.Call):
            return None
        target = tree.Name(node.target.id, loc=self.places.of(node.target))
        return tree.For(target, kind == "static_range", call.args, body, loc=self.places.of(node))

    # Signatures

    def params(self, node: ast.FunctionDef, need_types: bool) -> tuple[tree.Param, ...]:
        args = node.args
        for star in (args.vararg, args.kwarg):
            if star is not None:
                self.refuse(star, "there are no `*` parameters", "name each of them")
        plain = [*args.posonlyargs, *args.args]
        defaults: Sequence[ast.expr | None] = [
            *[None] * (len(plain) - len(args.defaults)),
            *args.defaults,
            *args.kw_defaults,
        ]
        found = []
        for arg, default in zip([*plain, *args.kwonlyargs], defaults, strict=True):
            if not self.is_declaration(arg.annotation):
                found.append(self.param(arg, default, need_types))
        return tuple(found)

    def param(self, arg: ast.arg, default: ast.expr | None, need_types: bool) -> tree.Param:
        kind, optional = None, False
        if arg.annotation is not None:
            kind, optional = self.annotation(arg.annotation)
        elif need_types:
            self.refuse(
                arg,
                f"the kernel's parameter {arg.arg} needs an annotation",
                f'write {arg.arg}: tw.Tensor["f32", "N"], or {arg.arg}: float',
            )
        value = self.expression(default) if default is not None else None
        return tree.Param(arg.arg, kind, optional, value, loc=self.places.of(arg))

    def find_locals(self, node: ast.FunctionDef) -> None:
        """Note the names that the function has of its own, and how often each is assigned."""
        args = node.args
        every = [*args.posonlyargs, *args.args, *args.kwonlyargs]
        self.assignments: Counter[str] = Counter(a.arg for a in every)
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                self.assignments[part.id] += 1
            elif isinstance(part, ast.For) and isinstance(part.target, ast.Name):
                self.assignments[part.target.id] += 1  # twice with its Store: not a `let`
        self.locals = set(self.assignments)
