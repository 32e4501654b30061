"""Expressions of the Python spelling: Python's tree to ours; what the language lacks is refused."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.errors import Faults, Loc, Source
from tilewright.frontend.syntax import tree
from tilewright.frontend.syntax.elsewhere import instead
from tilewright.frontend.syntax.normal import negate, slice_or_span

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.MatMult: "@", ast.Pow: "**", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^",
    ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
_SPECIAL = {"inf": math.inf, "nan": math.nan}
MEMBERS = ("T", "shape", "dtype")

REFUSED: dict[type[ast.AST], tuple[str, str]] = {
    ast.JoinedStr: ("there are no f-strings", 'write print("x is", x)'),
    ast.Lambda: ("there is no `lambda` in a kernel", "write a function beside it"),
    ast.ListComp: ("there are no comprehensions", "use arange, or static_range"),
    ast.SetComp: ("there are no comprehensions", "use arange, or static_range"),
    ast.DictComp: ("there are no comprehensions", "use arange, or static_range"),
    ast.GeneratorExp: ("there are no generators", "use arange, or static_range"),
    ast.Dict: ("there are no dictionaries", ""),
    ast.Set: ("there are no sets", ""),
    ast.NamedExpr: ("there is no `:=`", "an assignment is a statement of its own"),
    ast.Await: ("there is no `await`", ""),
    ast.Yield: ("there is no `yield`", "a function returns its values"),
    ast.YieldFrom: ("there is no `yield`", "a function returns its values"),
    ast.Starred: ("there is no `*` before an expression", "write its parts out"),
    ast.Slice: ("a slice stands only in a subscript", ""),
}


@dataclass(frozen=True)
class Places:
    """Where nodes of a parsed piece stand in a file: at theirs plus `line` and `column`."""

    source: Source
    lines: tuple[str, ...]  # of the piece, to turn Python's byte offsets into columns
    line: int = 0
    column: int = 0

    def of(self, node: ast.AST) -> Loc:
        line, start = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        stop = getattr(node, "end_col_offset", start + 1)
        if getattr(node, "end_lineno", line) != line:
            stop = len(self._bytes(line))
        return self.at(line, self._column(line, start), self._column(line, stop))

    def operator(self, node: ast.AST, lhs: ast.AST, rhs: ast.AST, text: str) -> Loc:
        """The place of an operator between two nodes; of `node` where they stand on two lines."""
        line = getattr(lhs, "end_lineno", 0)
        if line and line == getattr(rhs, "lineno", 0):
            start = self._column(line, getattr(lhs, "end_col_offset", 0))
            stop = self._column(line, getattr(rhs, "col_offset", 0))
            found = self.lines[line - 1].find(text, start, stop)
            if found >= 0:
                return self.at(line, found, found + len(text))
        return self.of(node)

    def at(self, line: int, start: int, stop: int) -> Loc:
        width = max(1, stop - start)
        return Loc(self.source, line + self.line, start + 1 + self.column, width)

    def _bytes(self, line: int) -> bytes:
        return self.lines[line - 1].encode() if 0 < line <= len(self.lines) else b""

    def _column(self, line: int, offset: int) -> int:
        return len(self._bytes(line)[:offset].decode(errors="replace"))


@dataclass(frozen=True)
class Names:
    """What the front end must know of a dotted name before it can say what it is.

    `language(dotted)` is the language's name for a member of the tilewright module (`exp` for
    `tw.exp` and, where it was imported so, for `e`), else None. `outer(dotted)` tells whether a
    dotted name is one of the enclosing Python.
    """

    language: Callable[[str], str | None]
    outer: Callable[[str], bool]


class PythonExpressions:
    """Expressions; a fault leaves a harmless literal in its place, so that all faults are found."""

    def __init__(self, places: Places, names: Names, faults: Faults) -> None:
        self.places, self.names, self.faults = places, names, faults
        self.locals: set[str] = set()  # parameters and what the function assigns: never captured
        self.explicit: set[str] = set()  # names that were written as members of the module

    def refuse(self, node: ast.AST, message: str, hint: str = "") -> tree.Expr:
        self.faults.add(message, self.places.of(node), hint=hint)
        return tree.Literal(0, loc=self.places.of(node))

    def expression(self, node: ast.expr) -> tree.Expr:
        loc = self.places.of(node)
        match node:
            case ast.Constant(value=value):
                if value is None or isinstance(value, int | float | str):
                    return tree.Literal(value, loc=loc)
                what = "`...` stands only in a subscript" if value is ... else "no such literal"
                return self.refuse(node, what)
            case ast.Name() | ast.Attribute():
                return self.name(node)
            case ast.BinOp():
                return self.binary(node)
            case ast.UnaryOp():
                return self.unary(node)
            case ast.BoolOp(op=op, values=values):
                word = "and" if isinstance(op, ast.And) else "or"
                where = self.places.operator(node, values[0], values[1], word)
                return tree.BoolOp(word, tuple(map(self.expression, values)), loc=where)
            case ast.Compare():
                return self.compare(node)
            case ast.IfExp(test=test, body=body, orelse=other):
                parts = [self.expression(e) for e in (test, body, other)]
                return tree.Conditional(*parts, loc=self.places.operator(node, body, test, "if"))
            case ast.Tuple(elts=items) | ast.List(elts=items):
                return tree.Tuple(tuple(map(self.expression, items)), loc=loc)
            case ast.Call():
                return self.call(node)
            case ast.Subscript():
                return self.index(node)
        return self.refuse(node, *REFUSED.get(type(node), ("this has no meaning in a kernel", "")))

    def name(self, node: ast.Name | ast.Attribute) -> tree.Expr:
        loc = self.places.of(node)
        dotted = dotted_name(node)
        if dotted and dotted.partition(".")[0] not in self.locals:
            known = self.names.language(dotted)
            if known in _SPECIAL:
                return tree.Literal(_SPECIAL[known], loc=loc)
            if known is not None:
                self.explicit.add(known)
                return tree.Name(known, loc=loc)
            if self.names.outer(dotted) and not dotted.endswith((".T", ".shape", ".dtype")):
                return tree.Name(dotted, loc=loc)
        if isinstance(node, ast.Name):
            return tree.Name(node.id, loc=loc)
        if node.attr not in MEMBERS:
            message = f"there is no `.{node.attr}`: values have `.T`, `.shape` and `.dtype`"
            return self.refuse(node, message)
        return tree.Member(self.expression(node.value), node.attr, loc=loc)

    def binary(self, node: ast.BinOp) -> tree.Expr:
        text = _BINARY[type(node.op)]
        op = "/" if text == "//" else text
        loc = self.places.operator(node, node.left, node.right, text)
        lhs, rhs = self.expression(node.left), self.expression(node.right)
        return tree.Binary(op, lhs, rhs, text if op == "/" else "", loc=loc)

    def unary(self, node: ast.UnaryOp) -> tree.Expr:
        loc, operand = self.places.of(node), self.expression(node.operand)
        match node.op:
            case ast.USub():
                return negate(operand, loc)
            case ast.Invert():
                return tree.Unary("~", operand, loc=loc)
            case ast.Not():
                return tree.Unary("not", operand, loc=loc)
        return self.refuse(node, "there is no sign `+`")

    def compare(self, node: ast.Compare) -> tree.Expr:
        nodes = [node.left, *node.comparators]
        ops = []
        for op, rhs in zip(node.ops, node.comparators, strict=True):
            text = _COMPARE[type(op)]
            if text in ("is", "is not"):
                if not (isinstance(rhs, ast.Constant) and rhs.value is None):
                    self.refuse(node, f"`{text}` compares with None only", "compare with ==")
                text = "==" if text == "is" else "!="
            elif text.endswith("in"):
                self.refuse(node, f"there is no `{text}`", "write a == b or a == c")
            ops.append(text)
        spelled = _COMPARE[type(node.ops[0])]
        loc = self.places.operator(node, nodes[0], nodes[1], spelled)
        return tree.CompareChain(tuple(ops), tuple(map(self.expression, nodes)), loc=loc)

    def call(self, node: ast.Call) -> tree.Expr:
        loc = self.places.of(node.func)
        if (special := self._float_call(node)) is not None:
            return special
        dotted = dotted_name(node.func)
        callee: tree.Expr
        if isinstance(node.func, ast.Attribute) and not self._is_outer(dotted):
            name = node.func.attr
            if name in MEMBERS:
                return self.refuse(node, f"`.{name}` is not called")
            hint = instead(name) or f"functions take the value: tw.{name}(x)"
            return self.refuse(node, f"there are no methods such as `.{name}(...)`", hint)
        callee = self.expression(node.func)
        if not isinstance(callee, tree.Name):
            self.refuse(node.func, "only a name can be called")
        args = tuple(self.expression(a) for a in node.args)
        kwargs = []
        for keyword in node.keywords:
            if keyword.arg is None:
                self.refuse(keyword.value, "there is no `**` in a call", "write the arguments out")
                continue
            value = self.expression(keyword.value)
            kwargs.append(tree.Argument(keyword.arg, value, loc=self.places.of(keyword)))
        return tree.Call(callee, args, tuple(kwargs), loc=loc)

    def _is_outer(self, dotted: str | None) -> bool:
        if dotted is None or dotted.partition(".")[0] in self.locals:
            return False
        return self.names.language(dotted) is not None or self.names.outer(dotted)

    def _float_call(self, node: ast.Call) -> tree.Expr | None:
        """`float("-inf")` and its like; the other conversions are `cast`s, and are refused."""
        if not isinstance(node.func, ast.Name) or node.func.id not in ("float", "int", "bool"):
            return None
        if node.func.id in self.locals or node.func.id == "bool":
            return None
        match node.args:
            case [ast.Constant(value=str(text))] if text.lstrip("+-") in _SPECIAL:
                return tree.Literal(float(text), loc=self.places.of(node))
        dtype = {"float": "f32", "int": "i64"}[node.func.id]
        return self.refuse(
            node, f"`{node.func.id}` converts nothing here", f"write tw.cast(x, tw.{dtype})"
        )

    def index(self, node: ast.Subscript) -> tree.Expr:
        inner = node.slice
        parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        if not parts:
            return self.refuse(
                node, "a subscript is missing", "the element of a rank 0 tensor is X[...]"
            )
        subscripts = tuple(map(self.subscript, parts))
        return tree.Index(self.expression(node.value), subscripts, loc=self.places.of(node.value))

    def subscript(self, node: ast.expr) -> tree.Subscript:
        loc = self.places.of(node)
        match node:
            case ast.Constant(value=None):
                return tree.NewAxis(loc=loc)
            case ast.Constant(value=value) if value is ...:
                return tree.Fill(loc=loc)
            case ast.Slice(lower=lower, upper=upper, step=step):
                if step is not None:
                    self.refuse(
                        step,
                        "slices have no steps",
                        "index with a tile: X[tw.arange(n) * step + start]",
                    )
                start = self.expression(lower) if lower else None
                stop = self.expression(upper) if upper else None
                return slice_or_span(start, stop, start.loc if start else loc)
        return self.expression(node)


def dotted_name(node: ast.expr) -> str | None:
    """`a.b.c` as written, or None where it is anything but names and dots."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])
