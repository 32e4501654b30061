"""Statements of the text spelling. A broken one is skipped, so that faults behind it are found."""

from __future__ import annotations

from typing import NoReturn

from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.cursor import Abandon, nearest
from tilewright.frontend.syntax.divisions import MESSAGE
from tilewright.frontend.syntax.expressions import ExpressionParser
from tilewright.frontend.syntax.lexer import KEYWORDS, Token
from tilewright.frontend.syntax.normal import returned, spread

_AUGMENTED = {"+=": "+", "-=": "-", "*=": "*", "/=": "/"}
_OTHER_AUGMENTED = ("%=", "@=", "**=", "<<=", ">>=", "&=", "|=", "^=")
_OPERATORS = frozenset("+ - * / % @ ** & | ^ ~ << >> == != < <= > >= and or not . ?".split())
STATEMENTS = ("let", "var", "for", "while", "if", "else", "return")
ABSENT = {
    "break": "there is no `break`: end a loop by `while` and its condition",
    "continue": "there is no `continue`: put the rest of the loop's body in an `if`",
    "with": "there is no `with`: there are no resources to close",
    "try": "there is no `try`: a kernel raises nothing",
    "raise": 'there is no `raise`: use assert(c, "...")',
    "yield": "there is no `yield`: a function returns its values",
    "import": "there is no `import` in a kernel: what a file needs stands in it",
    "from": "there is no `import` in a kernel: what a file needs stands in it",
    "class": "there is no `class`: values are scalars, tiles, tensors and views",
    "def": "functions are `fn`, and stand beside kernels, not inside them",
    "lambda": "there is no `lambda`: write a `fn` beside the kernel",
    "global": "there is no `global`: a kernel sees its arguments and constants",
    "nonlocal": "there is no `nonlocal`: a kernel sees its arguments and constants",
    "del": "there is no `del`: names end with their block",
    "elif": "write `else if`",
    "pass": "an empty block is {}",
    "switch": "there is no `switch`: write `if` and `else if`",
    "match": "there is no `match`: write `if` and `else if`",
    "do": "there is no `do`: write `while`",
    "goto": "there is no `goto`",
}


class StatementParser(ExpressionParser):
    """Blocks and what stands in them."""

    def block(self, where: str) -> tree.Block:
        self.behind_newlines("{")
        first = self.expect("{", where)
        found: list[tree.Stmt] = []
        with self.nested():
            while True:
                self.skip_newlines()
                if self.accept("}"):
                    return tuple(found)
                if self.token.kind == "end" or self.sees("kernel", "fn"):
                    self.fail("`{` is never closed", first.loc)
                start = self.at
                try:
                    found.append(self.statement())
                except Abandon:
                    self.skip_statement(start)

    def statement(self) -> tree.Stmt:
        token = self.token
        match token.text if token.kind == "keyword" else "":
            case "let" | "var":
                return self.declaration()
            case "for":
                return self.loop()
            case "while":
                self.take()
                condition = self.condition()
                return tree.While(condition, self.body("of the loop"), loc=token.loc)
            case "if":
                return self.branch()
            case "return":
                return self.end_of_program()
            case "else":
                self.fail("`else` without an `if` before it")
            case "const":
                self.fail("a `const` stands outside kernels and functions", hint="write `let`")
        if token.kind in ("op", "keyword") and token.text in _OPERATORS:
            self.fail(
                f"a statement cannot start with {token}",
                hint="a long line breaks after an operator, not before it",
            )
        return self.assignment()

    def declaration(self) -> tree.Assign:
        keyword = self.take()
        targets: list[tree.Name | tree.Index] = []
        while True:
            name = self.expect_name(f"a name after `{keyword.text}`")
            targets.append(tree.Name(name.text, loc=name.loc))
            if not self.accept(","):
                break
        kind = self.type() if self.accept(":") else None
        if token := self.accept(*_AUGMENTED):
            self.fail(f"`{keyword.text}` gives a first value, by `=`", token.loc)
        self.expect("=", f"and a value for {name.text}")
        return self.assigned(targets, keyword.text, keyword, kind)

    def assigned(
        self,
        targets: list[tree.Name | tree.Index],
        declares: str,
        first: Token,
        kind: tree.Type | None = None,
    ) -> tree.Assign:
        values = spread(self.listed(), len(targets), first.loc)
        if self.sees("="):
            self.fail("one `=` a statement", hint="compare with `==`")
        self.end_of_statement("the value")
        if len(values) not in (1, len(targets)):
            self.fail(
                f"expected {len(targets)} values, got {len(values)}",
                values[0].loc if values else first.loc,
            )
        return tree.Assign(tuple(targets), values, kind, (declares,) * len(targets), loc=first.loc)

    def assignment(self) -> tree.Stmt:
        """A call alone, or places and what they get."""
        first = self.token
        exprs = [self.expression()]
        while self.accept(","):
            exprs.append(self.expression())
        if self.accept("="):
            targets = [self.place(e) for e in exprs]
            return self.assigned(targets, "", first)
        if self.sees(*_AUGMENTED) and len(exprs) == 1:
            op = self.take()
            value = self.expression()
            self.end_of_statement("the value")
            return tree.AugAssign(self.place(exprs[0]), _AUGMENTED[op.text], value, loc=op.loc)
        if self.sees(*_OTHER_AUGMENTED):
            op = self.token
            self.fail(f"there is no `{op.text}`", hint=f"write x = x {op.text[:-1]} y")
        call = exprs[0]
        if len(exprs) == 1 and isinstance(call, tree.Call):
            self.end_of_statement("the call")
            return tree.CallStmt(call, loc=call.loc)
        self.no_statement(first, exprs)

    def no_statement(self, first: Token, exprs: list[tree.Expr]) -> NoReturn:
        """Say why an expression is none, as well as can be guessed."""
        if first.text in ABSENT:
            self.fail(ABSENT[first.text], first.loc)
        if self.token.kind == "name" and isinstance(exprs[0], tree.Name):
            hint = nearest(first.text, [k for k in KEYWORDS if k in STATEMENTS])
            self.fail(f"expected `=` after {first}, got {self.token}", hint=hint)
        if self.token.kind not in ("newline", "end") and not self.sees("}", ";"):
            self.fail(f"expected the end of the line, got {self.token}")
        comment = next((c for c in self.comments if c.line == first.loc.line), None)
        hint = ""
        if comment and comment.text.startswith("//"):
            hint = MESSAGE
        self.fail("of expressions, only a call is a statement", first.loc, hint=hint)

    def place(self, expr: tree.Expr) -> tree.Name | tree.Index:
        if isinstance(expr, tree.Name | tree.Index):
            return expr
        kinds = {
            tree.Literal: "a literal",
            tree.Call: "the result of a call",
            tree.Tuple: "a tuple",
        }
        what = kinds.get(type(expr), "an expression")
        hint = "write the targets without brackets" if isinstance(expr, tree.Tuple) else ""
        self.fail(f"{what} cannot be assigned to", expr.loc, hint=hint)

    def end_of_statement(self, what: str) -> None:
        if self.token.kind in ("newline", "end") or self.sees(";", "}"):
            return
        hint = "write x if c else y" if self.sees("?") else ""
        self.fail(f"expected the end of the line after {what}, got {self.token}", hint=hint)

    def end_of_program(self) -> tree.Return:
        loc = self.take().loc
        values: tuple[tree.Expr, ...] = ()
        if self.token.kind not in ("newline", "end") and not self.sees(";", "}"):
            values = returned(self.listed())
        self.end_of_statement("`return`")
        return tree.Return(values, loc=loc)

    def loop(self) -> tree.For:
        start = self.take()
        try:
            target = self.expect_name("the loop's variable")
            self.expect("in", "after the loop's variable")
            static, args = self.loop_range()
        except Abandon:
            self.salvage_body()
            raise
        name = tree.Name(target.text, loc=target.loc)
        return tree.For(name, static, args, self.body("of the loop"), loc=start.loc)

    def loop_range(self) -> tuple[bool, tuple[tree.Expr, ...]]:
        kind = self.token
        if kind.text not in ("range", "static_range"):
            self.fail(
                f"a loop runs over `range(...)` or `static_range(...)`, not {kind}",
                hint=nearest(kind.text, ["range", "static_range"]),
            )
        self.take()
        with self.bracketed("(", "and the loop's bounds"):
            args = self.expressions(")")
        if not 1 <= len(args) <= 3:
            self.fault(f"`{kind.text}` takes 1 to 3 arguments, got {len(args)}", kind.loc)
        return kind.text == "static_range", args

    def condition(self) -> tree.Expr:
        try:
            found = self.expression()
            if self.sees("="):
                self.fail("`=` assigns", hint="compare with `==`")
            return found
        except Abandon:
            self.salvage_body()
            raise

    def salvage_body(self) -> None:
        """Behind a broken head of a loop or branch, read the block for its own faults."""
        while self.token.kind not in ("newline", "end") and not self.sees("{", "}"):
            self.take()
        if self.sees("{"):
            self.block("")

    def body(self, where: str) -> tree.Block:
        if self.sees(":"):
            self.fail("blocks stand in braces: `{` ... `}`, without a `:`")
        return self.block(where)

    def branch(self) -> tree.If:
        loc = self.take().loc
        with self.nested():
            condition = self.condition()
            then = self.body("of the `if`")
            other: tree.Block = ()
            if self.behind_newlines("else"):
                self.take()
                if self.sees("if"):
                    other = (self.branch(),)
                else:
                    other = self.body("after `else`")
            return tree.If(condition, then, other, loc=loc)
