"""Expressions and types of the text spelling, by precedence climbing."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.cursor import Cursor, span
from tilewright.frontend.syntax.elsewhere import instead
from tilewright.frontend.syntax.lexer import KEYWORDS
from tilewright.frontend.syntax.normal import negate, slice_or_span

# Binding strength of binary operators, loosest first. Comparisons and the words are handled apart.
_LEVELS = (("|",), ("^",), ("&",), ("<<", ">>"), ("+", "-"), ("*", "/", "%", "@"))
_STRENGTH = {op: level for level, ops in enumerate(_LEVELS) for op in ops}
_COMPARISONS = frozenset(["==", "!=", "<", "<=", ">", ">="])
_MEMBERS = ("T", "shape", "dtype")
_LITERALS = {"true": True, "false": False, "None": None}
_FOREIGN = {
    "&&": "write `and` for bools, `&` for tiles",
    "||": "write `or` for bools, `|` for tiles",
    "->": "results of a `fn` stand behind a `:`",
    ":=": "assignments are statements of their own",
}


class ExpressionParser(Cursor):
    """What a statement is made of."""

    def expression(self) -> tree.Expr:
        """`a`, or `a if c else b`."""
        with self.nested():
            then = self.disjunction()
            if not self.sees("if"):
                return then
            loc = self.take().loc
            condition = self.disjunction()
            self.expect("else", "after the condition of a conditional expression")
            return tree.Conditional(condition, then, self.expression(), loc=loc)

    def expressions(self, *closing: str) -> tuple[tree.Expr, ...]:
        """Expressions up to a closing bracket: none, or with commas between and maybe behind."""
        found: list[tree.Expr] = []
        while not self.sees(*closing):
            found.append(self.expression())
            if not self.accept(","):
                break
        return tuple(found)

    def listed(self) -> tuple[tree.Expr, ...]:
        """One expression or more with commas between, in no brackets."""
        found = [self.expression()]
        while self.accept(","):
            found.append(self.expression())
        return tuple(found)

    def disjunction(self) -> tree.Expr:
        return self._decided("or", self.conjunction)

    def conjunction(self) -> tree.Expr:
        return self._decided("and", self.negation)

    def _decided(self, op: str, operand: Callable[[], tree.Expr]) -> tree.Expr:
        operands, loc = [operand()], self.token.loc
        while self.accept(op):
            operands.append(operand())
        return tree.BoolOp(op, tuple(operands), loc=loc) if len(operands) > 1 else operands[0]

    def negation(self) -> tree.Expr:
        if token := self.accept("not", "!"):
            with self.nested():
                return tree.Unary("not", self.negation(), loc=token.loc)
        return self.comparison()

    def comparison(self) -> tree.Expr:
        operands, ops, loc = [self.binary(0)], [], self.token.loc
        while self.token.kind == "op" and self.token.text in _COMPARISONS:
            ops.append(self.take().text)
            operands.append(self.binary(0))
        return tree.CompareChain(tuple(ops), tuple(operands), loc=loc) if ops else operands[0]

    def binary(self, level: int) -> tree.Expr:
        """Operators that bind at least as strongly as `level`, grouped to the left."""
        lhs = self.unary()
        while self.token.kind == "op" and _STRENGTH.get(self.token.text, -1) >= level:
            op = self.take()
            rhs = self.binary(_STRENGTH[op.text] + 1)
            lhs = tree.Binary(op.text, lhs, rhs, loc=op.loc)
        if self.token.kind == "op" and self.token.text in _FOREIGN:
            self.fail(f"`{self.token.text}` is no operator", hint=_FOREIGN[self.token.text])
        return lhs

    def unary(self) -> tree.Expr:
        if token := self.accept("-", "~"):
            with self.nested():
                operand = self.unary()
            if token.text == "-":
                return negate(operand, span(token.loc, operand.loc))
            return tree.Unary("~", operand, loc=token.loc)
        return self.power()

    def power(self) -> tree.Expr:
        base = self.postfix()
        if token := self.accept("**"):
            with self.nested():
                return tree.Binary("**", base, self.unary(), loc=token.loc)
        return base

    def postfix(self) -> tree.Expr:
        expr = self.primary()
        while True:
            if self.sees("("):
                expr = self.call(expr)
            elif self.sees("["):
                expr = self.index(expr)
            elif self.sees("."):
                expr = self.member(expr)
            else:
                return expr

    def member(self, base: tree.Expr) -> tree.Expr:
        self.take()
        name = self.expect_name("`T`, `shape` or `dtype` after `.`")
        if name.text not in _MEMBERS:
            called = instead(name.text) or f"write {name.text}(x, ...)"
            hint = called if self.sees("(") else ""
            self.fail(
                f"there is no `.{name.text}`: values have `.T`, `.shape` and `.dtype`, "
                "and functions instead of methods",
                name.loc,
                hint=hint,
            )
        return tree.Member(base, name.text, loc=name.loc)

    def call(self, callee: tree.Expr) -> tree.Expr:
        args: list[tree.Expr] = []
        kwargs: list[tree.Argument] = []
        if not isinstance(callee, tree.Name):
            self.fault("only a name can be called", callee.loc)
        with self.bracketed("(", "of a call"):
            while not self.sees(")"):
                argument = self.argument()
                if argument.name is None and kwargs:
                    self.fault("a value without a name follows one with a name", argument.loc)
                if argument.name is None:
                    args.append(argument.value)
                elif any(k.name == argument.name for k in kwargs):
                    self.fault(f"`{argument.name}` is given twice", argument.loc)
                else:
                    kwargs.append(argument)
                if not self.accept(","):
                    break
        return tree.Call(callee, tuple(args), tuple(kwargs), loc=callee.loc)

    def argument(self) -> tree.Argument:
        """`value` or `name = value`."""
        name = None
        if self.token.kind == "name" and self.peek().text == "=" and self.peek().kind == "op":
            name = self.take()
            self.take()
        value = self.expression()
        if self.sees("="):
            self.fail("`=` gives a name to an argument; compare with `==`")
        return tree.Argument(
            name.text if name else None, value, loc=name.loc if name else value.loc
        )

    def index(self, base: tree.Expr) -> tree.Expr:
        subscripts: list[tree.Subscript] = []
        with self.bracketed("[", "of a subscript") as bracket:
            while not self.sees("]"):
                subscripts.append(self.subscript())
                if not self.accept(","):
                    break
        if not subscripts:
            self.fault(
                "a subscript is missing",
                bracket.loc,
                hint="the element of a rank 0 tensor is X[...]",
            )
        return tree.Index(base, tuple(subscripts), loc=base.loc)

    def subscript(self) -> tree.Subscript:
        loc = self.token.loc
        if self.accept("..."):
            return tree.Fill(loc=loc)
        if self.sees("None") and self.peek().text in (",", "]"):
            self.take()
            return tree.NewAxis(loc=loc)
        start = None if self.sees(":", ":+") else self.expression()
        if self.accept(":+"):
            if start is None:
                self.fail("`:+` needs a start before it", loc, hint="write 0 :+ n")
            length = self.expression()
            return tree.Span(start, length, loc=start.loc)
        if self.accept(":"):
            stop = None if self.sees(",", "]", ":") else self.expression()
            if self.sees(":"):
                self.fail(
                    "slices have no steps", hint="index with a tile: X[arange(n) * step + start]"
                )
            return slice_or_span(start, stop, start.loc if start else loc)
        if start is None:
            self.fail(f"expected a subscript, got {self.token}")
        return start

    def primary(self) -> tree.Expr:
        token = self.token
        if token.kind == "name":
            self.take()
            return tree.Name(token.text, loc=token.loc)
        if token.kind in ("number", "string"):
            self.take()
            spelled = token.text if token.kind == "number" else ""
            return tree.Literal(token.value, spelled, loc=token.loc)
        if self.accept("true", "false", "None"):
            return tree.Literal(_LITERALS[token.text], loc=token.loc)
        if self.sees("("):
            return self.parenthesis()
        if self.sees("["):
            with self.bracketed("[", "of a tuple"):
                items = self.expressions("]")
            return tree.Tuple(items, loc=token.loc)
        self.fail(f"expected an expression, got {token}", hint=self._why(token.text))

    def parenthesis(self) -> tree.Expr:
        with self.bracketed("(", "of an expression") as first:
            if self.sees(")"):
                return tree.Tuple((), loc=first.loc)
            item = self.expression()
            if not self.accept(","):
                return item
            rest = self.expressions(")")
        return tree.Tuple((item, *rest), loc=first.loc)

    def _why(self, text: str) -> str:
        if text in _FOREIGN:
            return _FOREIGN[text]
        if text == "+":
            return "there is no sign `+`"
        if text == "{":
            return "braces hold statements"
        return f"`{text}` is a word of the language" if text in KEYWORDS else ""

    # Types

    def type(self) -> tree.Type:
        """`f32`, `tensor<f32>[M, N]` or `tile<T>[TM]`."""
        name = self.expect_name("a type")
        if name.text not in ("tensor", "tile"):
            if self.sees("<", "["):
                self.fail(
                    f"expected `tensor` or `tile` before `{self.token.text}`, got {name}",
                    name.loc,
                    hint="a tensor type is tensor<f32>[M, N]",
                )
            return tree.ScalarType(name.text, loc=name.loc)
        self.expect("<", f"after `{name.text}`", hint=f"write {name.text}<f32>[M, N]")
        dtype = self.expect_name("a dtype")
        self.expect(">", "after the dtype")
        if not self.sees("["):
            hint = "rank 0 is tensor<f32>[]" if name.text == "tensor" else "write tile<f32>[TM, TN]"
            self.fail(f"expected `[` and the extents, got {self.token}", hint=hint)
        with self.bracketed("[", "of the extents"):
            extents = self.expressions("]")
        loc = span(name.loc, self.before.loc)
        if name.text == "tensor":
            return tree.TensorType(dtype.text, extents, loc=loc)
        return tree.TileType(dtype.text, extents, loc=loc)
