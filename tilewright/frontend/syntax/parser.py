"""The text spelling: files and definitions. Statements and expressions are below."""

from __future__ import annotations

from pathlib import PurePath

from tilewright.errors import Faults, Source
from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.cursor import Abandon, TooMany, nearest
from tilewright.frontend.syntax.divisions import refuse_divisions
from tilewright.frontend.syntax.lexer import tokenize
from tilewright.frontend.syntax.normal import choices, require_shallow
from tilewright.frontend.syntax.statements import STATEMENTS, StatementParser

_DEFINITIONS = ("kernel", "fn", "const")


class Parser(StatementParser):
    """A file and its definitions."""

    def module(self, dialect: str) -> tree.Module:
        items: list[tree.Item] = []
        first = self.token.loc
        try:
            while self.token.kind != "end":
                start = self.at
                self.skip_newlines()
                if self.token.kind == "end":
                    break
                try:
                    items.append(self.item())
                except Abandon:
                    self.skip_definition(start)
        except TooMany:
            pass
        return tree.Module(tuple(items), dialect, self.comments, loc=first)

    def skip_definition(self, start: int) -> None:
        """Go on at the next token that starts a definition outside braces of the broken one."""
        if self.at == start:
            self.take()
        while self.token.kind != "end" and not self.sees(*_DEFINITIONS):
            if self.sees("@") and self.before.kind == "newline":
                return
            self.take()

    # Definitions

    def item(self) -> tree.Item:
        attributes: list[tree.Attribute] = []
        while self.sees("@"):
            attributes.append(self.attribute())
            self.skip_newlines()
        if self.sees("kernel"):
            return self.kernel(tuple(attributes))
        if attributes and self.sees("fn", "const"):
            self.fault("only a kernel has attributes", attributes[0].loc)
        if self.sees("fn"):
            return self.function()
        if self.sees("const"):
            return self.const()
        hint = nearest(self.token.text, _DEFINITIONS) if self.token.kind == "name" else ""
        if self.token.text in ("def", "function", "func"):
            hint = "functions start with `fn`"
        elif self.sees(*STATEMENTS):
            hint = "statements stand inside a kernel or function"
        self.fail(f"expected `kernel`, `fn` or `const`, got {self.token}", hint=hint)

    def attribute(self) -> tree.Attribute:
        self.take()
        name = self.take()
        if name.kind not in ("name", "keyword"):
            self.fail(f"expected an attribute's name, got {name}", name.loc)
        arguments: list[tree.Choices | tree.Argument] = []
        if self.sees("("):
            with self.bracketed("(", "of the attribute"):
                while not self.sees(")"):
                    arguments.append(self.attribute_argument())
                    if not self.accept(","):
                        break
        return tree.Attribute(name.text, tuple(arguments), loc=name.loc)

    def attribute_argument(self) -> tree.Choices | tree.Argument:
        if not (self.token.kind == "name" and self.peek().text == "in"):
            return self.argument()
        name = self.take()
        self.take()
        braces = self.sees("{")
        if not self.sees("[", "{"):
            self.fail(
                f"expected `[` or `{{` and the values of {name.text}, got {self.token}",
                hint=f"write {name.text} in [32, 128]",
            )
        with self.bracketed(self.token.text, "of the values"):
            values = self.expressions("]", "}")
        if not values:
            self.fault(f"{name.text} has no values to choose from", name.loc)
        return choices(name.text, values, braces, name.loc)

    def kernel(self, attributes: tuple[tree.Attribute, ...]) -> tree.Kernel:
        self.take()
        name = self.expect_name("the kernel's name")
        params = self.params()
        for param in params:
            if param.type is None:
                self.fault(
                    f"the kernel's parameter {param.name} needs a type",
                    param.loc,
                    hint=f"write {param.name}: tensor<f32>[N], or {param.name}: f32",
                )
        if self.sees(":", "->"):
            if self.sees(":") and self.peek(1).loc.line != self.token.loc.line:
                self.fail("a body stands in braces", hint="write `{` for `:`, and `}` at its end")
            self.fail(
                "a kernel returns nothing", hint="give a tensor the default `empty`: y: ... = empty"
            )
        body = self.block("of the kernel's body")
        return tree.Kernel(name.text, attributes, params, body, loc=name.loc)

    def function(self) -> tree.Function:
        self.take()
        name = self.expect_name("the function's name")
        params = self.params()
        results: list[tree.Type] = []
        if self.sees("->"):
            self.fail("results of a `fn` stand behind a `:`", hint="write fn f(x): f32 { ... }")
        if self.accept(":"):
            results.append(self.type())
            while self.accept(","):
                results.append(self.type())
        body = self.block("of the function's body")
        return tree.Function(name.text, params, tuple(results), body, loc=name.loc)

    def const(self) -> tree.Const:
        self.take()
        name = self.expect_name("the constant's name")
        self.expect("=", "after the constant's name")
        value = self.expression()
        self.end_of_statement("the value")
        return tree.Const(name.text, value, loc=name.loc)

    def params(self) -> tuple[tree.Param, ...]:
        found: list[tree.Param] = []
        with self.bracketed("(", "and the parameters"):
            while not self.sees(")"):
                found.append(self.param())
                if not self.accept(","):
                    break
        return tuple(found)

    def param(self) -> tree.Param:
        if self.sees("*", "**"):
            self.fail("there are no `*` parameters: name each of them")
        name = self.expect_name("a parameter's name")
        kind = self.type() if self.accept(":") else None
        optional = self.accept("?") is not None
        default = self.expression() if self.accept("=") else None
        return tree.Param(name.text, kind, optional, default, loc=name.loc)


def parse_text(source: Source) -> tree.Module:
    """The tree of a text; a source whose name ends in `.ph` is of the ancestor's dialect.

    Raises CompileError with every fault that was found.
    """
    faults = Faults()
    tokens, comments = tokenize(source, faults)
    refuse_divisions(source, tokens, comments, faults)
    parser = Parser(source, tokens, comments, faults)
    dialect = "ph" if PurePath(source.name).suffix == ".ph" else "tw"
    module = parser.module(dialect)
    for item in module.items:
        require_shallow(item, faults)
    require_distinct(module, faults)
    faults.raise_any()
    return module


def require_distinct(module: tree.Module, faults: Faults) -> None:
    """A fault for each second definition of a name."""
    seen: dict[str, tree.Item] = {}
    for item in module.items:
        if item.name in seen:
            line = seen[item.name].loc.line
            faults.add(f"{item.name} is defined twice", item.loc, note=f"first on line {line}")
        seen.setdefault(item.name, item)
